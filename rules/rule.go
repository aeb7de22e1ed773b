package rules

import (
	"fmt"
	"strings"
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
	//	GET,POST /user/{id}   several methods, which share the limit; * is every method
	//	/files/**             the path and all below it; also /files/ and /files/{path...}
	//	/caf%C3%A9            words may be escaped as in URLs
	//
	// A ** must come last. So that both kinds of rules can be written for it, / is the
	// root alone, and /** is everything. A number is of the digits 0 to 9; where a
	// handler takes others for one too, +5 or ٥, {id} leaves no way around the rule.
	// A call that can never match is refused: a method that HTTP does not have, a query.
	//
	// Of several rules that match a path, the most specific one counts. Handlers do
	// not agree on how to read some paths: with escapes (%2F, %2e%2e), with double
	// slashes or dots, or in another case than the rule's. Such a call counts against
	// the rule of each way to read it, and is refused if one of them refuses. So no
	// spelling of a path leads around the rule of the handler that serves it. A slash
	// at the end makes no difference.
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

// A BadRule is a rule that cannot be used. Its last good version stays in force. If its
// ID is not known, it may be any that is missing: then these stay in force as well.
type BadRule struct {
	ID  string // empty if it is not known
	Err error  // in most cases a [FieldError]
}

// BadRules is the error of a load in which some rules cannot be used. A [Source] that
// finds such rules returns it together with the others.
type BadRules []BadRule

// Error describes the first few.
func (b BadRules) Error() string {
	const few = 5
	var text strings.Builder
	for i, bad := range b {
		if i == few {
			fmt.Fprintf(&text, "; and %d more", len(b)-few)
			break
		}
		if i > 0 {
			text.WriteString("; ")
		}
		text.WriteString(bad.Err.Error())
	}
	return text.String()
}

// Unwrap returns the errors of all of them.
func (b BadRules) Unwrap() []error {
	errs := make([]error, len(b))
	for i, bad := range b {
		errs[i] = bad.Err
	}
	return errs
}

// orNil returns b as an error, which is nil if there are none.
func (b BadRules) orNil() error {
	if len(b) == 0 {
		return nil
	}
	return b
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
		return wrong("Burst", r.Burst, "0, except for a token-bucket or a leaky-bucket")
	}
	if _, err := ratelimit.NewTransition(alg); err != nil {
		return nil, fmt.Errorf("rules: rule %q: %w", r.ID, err)
	}
	return alg, nil
}
