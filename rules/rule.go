package rules

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A Rule limits a call.
type Rule struct {
	// ID names the rule. What a subject has used is kept under it, so it should not
	// be given to another rule.
	ID string

	// Call is what the rule applies to:
	//
	//	/user/#/photos/#      a path; # is a segment that is a number
	//	GET /user/{id}        a method and a path; {id} is any segment
	//	/files/**             the path and all below it; also /files/ and /files/{path...}
	//
	// Paths are compared after cleaning and in lower case, as
	// [httplimit.Normalize] does. A ** must come last. So that both kinds of rules
	// can be written for it, / is the root alone, and /** is everything. A number
	// is of the digits 0 to 9; where a handler takes others for one too, +5 or ٥,
	// {id} leaves no way around the rule.
	Call string

	// Limit is how many events are allowed in Window.
	Limit  int
	Window time.Duration

	// Algorithm is how they are counted: see [Algorithms]. The default, "", is
	// "sliding-log".
	Algorithm string

	// Burst is how many of them may come at once, for a "token-bucket" or a
	// "leaky-bucket"; 0 means Limit.
	Burst int

	// Expires is when the rule ends; the zero time means never.
	Expires time.Time

	// Shadow lets everything through, and reports what would have been refused.
	Shadow bool

	// Disabled is a rule that does not count.
	Disabled bool
}

// Algorithms returns the names of the algorithms that a rule may have:
//
//	sliding-log      [ratelimit.SlidingLog]: no span of Window sees more than Limit;
//	                 for each subject, it takes 8 bytes for each of its events
//	sliding-window   [ratelimit.SlidingWindow]: nearly so, and takes little memory
//	fixed-window     [ratelimit.FixedWindow]
//	token-bucket     [ratelimit.TokenBucket]: Burst at once, then Limit in Window, evenly
//	leaky-bucket     [ratelimit.LeakyBucket]: likewise, as a queue of length Burst
func Algorithms() []string {
	return []string{"sliding-log", "sliding-window", "fixed-window", "token-bucket", "leaky-bucket"}
}

// A FieldError says which rule, and what in it, cannot be used.
type FieldError struct {
	ID    string // of the rule
	Field string // or the column
	Value any
	Want  string // what is right
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("rules: rule %q: %s is %#v: it must be %s", e.ID, e.Field, e.Value, e.Want)
}

// algorithm returns the limit of r.
func (r *Rule) algorithm() (alg ratelimit.Algorithm, err error) {
	wrong := func(field string, value any, want string) (ratelimit.Algorithm, error) {
		return nil, &FieldError{r.ID, field, value, want}
	}
	switch {
	case r.ID == "":
		return wrong("ID", r.ID, "a name of its own")
	case r.Limit < 1:
		return wrong("Limit", r.Limit, "at least 1")
	case r.Window <= 0:
		return wrong("Window", r.Window.String(), "longer than 0")
	case r.Burst < 0:
		return wrong("Burst", r.Burst, "at least 1, or 0 for the limit")
	}
	burst := r.Burst
	if burst == 0 {
		burst = r.Limit
	}
	rate := ratelimit.Rate{Events: r.Limit, Per: r.Window}
	switch r.Algorithm {
	case "", "sliding-log":
		alg = ratelimit.SlidingLog{Limit: r.Limit, Window: r.Window}
	case "sliding-window":
		alg = ratelimit.SlidingWindow{Limit: r.Limit, Window: r.Window}
	case "fixed-window":
		alg = ratelimit.FixedWindow{Limit: r.Limit, Window: r.Window}
	case "token-bucket":
		alg = ratelimit.TokenBucket{Rate: rate, Burst: burst}
	case "leaky-bucket":
		alg = ratelimit.LeakyBucket{Rate: rate, Capacity: burst}
	default:
		return wrong("Algorithm", r.Algorithm, fmt.Sprintf("one of %q", Algorithms()))
	}
	if r.Burst > 0 && r.Algorithm != "token-bucket" && r.Algorithm != "leaky-bucket" {
		return wrong("Burst", r.Burst, "0, but for a token-bucket or a leaky-bucket")
	}
	if _, err := ratelimit.NewTransition(alg); err != nil {
		return nil, fmt.Errorf("rules: rule %q: %w", r.ID, err)
	}
	return alg, nil
}

// seconds returns so many seconds, if that is a duration.
func seconds(n int64) (time.Duration, bool) {
	if n < 1 || n > math.MaxInt64/int64(time.Second) {
		return 0, false
	}
	return time.Duration(n) * time.Second, true
}
