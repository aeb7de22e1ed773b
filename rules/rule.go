package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A Rule limits a call.
type Rule struct {
	// ID identifies the rule, and its subjects' events are counted under it. Do not
	// reuse the ID of one rule for another.
	ID string

	// Call is what the rule applies to:
	//
	//	/user/#/photos/#      a path; # is a segment that is a number
	//	/user/42/photos/#     that of user 42 alone
	//	GET /user/{id}        a method and a path; {id} is any segment
	//	GET,POST /user/{id}   several methods, which share the limit; * is every method
	//	/files/**             the path and everything below it, like /files/ and /files/{path...}
	//	/caf%C3%A9            words may be escaped as in URLs
	//
	// A ** must come last. A call of / matches the root alone, and /** matches every path. A number
	// consists of the digits 0 to 9, or of nothing; if a handler accepts other numbers, such as +5
	// or ٥, use {id}, which matches them too. A call that can never match is invalid, such as one
	// with an unknown HTTP method or a query.
	//
	// Two rules must not have the same path and method, apart from case and the names of
	// segments, while neither is disabled or has expired. If they do, the one that is already in
	// force for them stays in force, or else the one whose ID sorts first; the other is invalid.
	//
	// If several rules match a path, the most specific one applies. Handlers interpret
	// some paths differently: those with escapes (%2F, %2e%2e), with double slashes or
	// dots, or in another case than the rule's. Such a call counts against the rule for
	// each interpretation, and is refused if one of these rules refuses it. A trailing slash
	// makes no difference. So no spelling of a path avoids the rule of a handler that unescapes
	// it at most once, whole or by segments, cleans it like [path.Clean] or not, or only removes
	// its dots or the slashes at its ends, and compares it in any case; nor of one mounted on a
	// prefix that does so with the rest. Handlers may take \ for /. A handler that does more, such
	// as one that unescapes twice or drops parameters after a semicolon, needs a rule for all paths
	// that reach it, such as /files/**.
	Call string

	// Limit is the number of events that are allowed in Window. Both are ignored if the
	// Algorithm is "unlimited" or "blocked".
	Limit  int
	Window time.Duration

	// Algorithm is the name of an algorithm, one of [Algorithms]. The default, "", is
	// "sliding-log", or "calendar-window" if the rule has an Every.
	Algorithm string

	// Every, Zone, Start and Hour are those of a "calendar-window", such as 10,000 a month in
	// London: see [ratelimit.CalendarWindow]. Limit is the number of events that are allowed in
	// each day, week, month, quarter or year. Then Window must be 0. For other algorithms, these
	// fields must be empty.
	Every ratelimit.CalendarUnit
	Zone  string
	Start int
	Hour  int

	// FirstLockout and LongestLockout say for how long a "lockout" locks a subject that has used
	// Limit events within Window: for FirstLockout, and then each time for twice as long, up to
	// LongestLockout. If LongestLockout is 0, all lockouts last as long as the first. They are
	// First and Longest of [ratelimit.Lockout]. For other algorithms, they must be 0.
	FirstLockout   time.Duration
	LongestLockout time.Duration

	// Burst is the number of events that may come at once, for a "token-bucket" or a
	// "leaky-bucket"; 0 means Limit. It must be 0 for other algorithms.
	Burst int

	// Expires is the time at which the rule ends. The zero time means never.
	Expires time.Time

	// Shadow lets every call pass, and reports those that would have been refused: see
	// [WithOnShadow].
	Shadow bool

	// Disabled turns the rule off.
	Disabled bool
}

// Algorithms returns the names of the algorithms that a rule may have:
//
//	sliding-log      [ratelimit.SlidingLog]: at most Limit events in any span of Window;
//	                 takes 8 bytes for each event of each subject
//	sliding-window   [ratelimit.SlidingWindow]: an estimate of the same, in little memory
//	fixed-window     [ratelimit.FixedWindow]: at most Limit in each aligned window
//	calendar-window  [ratelimit.CalendarWindow]: at most Limit in each day, week, month, quarter
//	                 or year of a time zone; has an Every, and no Window
//	lockout          [ratelimit.Lockout]: Limit events within Window lock the subject, for
//	                 FirstLockout, and then for longer; see [Set.Hold]
//	token-bucket     [ratelimit.TokenBucket]: Burst at once, refilled evenly at Limit per Window
//	leaky-bucket     [ratelimit.LeakyBucket]: the same rate, as a queue of length Burst
//	in-flight        [ratelimit.InFlight]: at most Limit at once; Window is the Timeout, after
//	                 which a call that was not released no longer counts; see [Set.Hold]
//	unlimited        [ratelimit.Unlimited]: every call, such as one that another rule would limit
//	blocked          [ratelimit.Blocked]: no call
func Algorithms() []string {
	return []string{
		slidingLog,
		"sliding-window",
		"fixed-window",
		calendarWindow,
		lockout,
		"token-bucket",
		"leaky-bucket",
		"in-flight",
		"unlimited",
		"blocked",
	}
}

// wantAlgorithm describes the names of algorithms, if the given one is none of them.
func wantAlgorithm(name string) (want string) {
	if slices.Contains(Algorithms(), name) {
		return ""
	}
	return fmt.Sprintf("one of %q", Algorithms())
}

// The algorithms whose names are needed in several places: those that a rule may have which names
// no algorithm, and those with fields of their own.
const (
	slidingLog     = "sliding-log"
	calendarWindow = "calendar-window"
	lockout        = "lockout"
)

// algorithmName returns the name of the algorithm, also if the rule does not name it.
func (r *Rule) algorithmName() string {
	switch {
	case r.Algorithm != "":
		return r.Algorithm
	case r.Every != 0:
		return calendarWindow
	}
	return slidingLog
}

// span returns how long Limit events are allowed in: Window, or about the length of what Every
// names.
func (r *Rule) span() time.Duration {
	const day = 24 * time.Hour
	switch r.Every {
	case ratelimit.Day:
		return day
	case ratelimit.Week:
		return 7 * day
	case ratelimit.Month:
		return 30 * day
	case ratelimit.Quarter:
		return 91 * day
	case ratelimit.Year:
		return 365 * day
	}
	return r.Window
}

// planOf returns the algorithm with the given name if it has no parameters, or else nil.
func planOf(algorithm string) ratelimit.Algorithm {
	switch algorithm {
	case "unlimited":
		return ratelimit.Unlimited{}
	case "blocked":
		return ratelimit.Blocked{}
	}
	return nil
}

// A FieldError is an invalid field of a rule or, from [SQLLimits], of a limit.
type FieldError struct {
	ID    string // of the rule; empty for a limit of SQLLimits
	Field string // the name of the field or column
	Value any
	Want  string // describes valid values
}

func (e *FieldError) Error() string {
	rule := ""
	if e.ID != "" {
		rule = fmt.Sprintf("rule %q: ", e.ID)
	}
	return fmt.Sprintf("rules: %s%s is %#v: it must be %s", rule, e.Field, e.Value, e.Want)
}

// A BadRule is an invalid rule. The last valid version of the rule stays in force, unless there is
// none, as at the start, or another rule has got its call meanwhile. If its ID is not known, all
// rules that are missing from the load stay in force, because it may be any of them. Of several
// rules with one ID, the last valid version stays in force, and at the start the strictest of them
// is.
//
// The strictest rule is the one with the lowest Limit per Window, and of these the one that
// allows the fewest events at once, and of these the one with the longest lockouts. Blocked calls
// come first, and shadows last.
type BadRule struct {
	ID  string // empty if it is not known
	Err error  // in most cases a [FieldError]
}

// BadRules is the error of a load in which some rules are invalid. A [Source] may
// return it together with the valid rules.
type BadRules []BadRule

// Error describes the first five rules.
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

// Unwrap returns the errors of all rules.
func (b BadRules) Unwrap() []error {
	errs := make([]error, len(b))
	for i, bad := range b {
		errs[i] = bad.Err
	}
	return errs
}

// orNil returns b as an error, or nil if b is empty.
func (b BadRules) orNil() error {
	if len(b) == 0 {
		return nil
	}
	return b
}

// algorithm validates r except its ID and its Call, and returns its limit.
func (r *Rule) algorithm() (alg ratelimit.Algorithm, err error) {
	wrong := func(field string, value any, want string) (ratelimit.Algorithm, error) {
		return nil, &FieldError{r.ID, field, value, want}
	}
	name, plan := r.algorithmName(), planOf(r.Algorithm)
	// First, so that the error for a misspelled name is not that the algorithm's fields must be
	// left out.
	if want := wantAlgorithm(name); want != "" {
		return wrong("Algorithm", r.Algorithm, want)
	}
	if err := cmp.Or(r.checkCalendar(), r.checkLockouts()); err != nil {
		return nil, err
	}
	switch {
	case plan != nil && r.Burst != 0:
		return wrong("Burst", r.Burst, "0, except for a token-bucket or a leaky-bucket")
	case plan != nil:
		return plan, nil
	case r.Limit < 1:
		return wrong("Limit", r.Limit, "at least 1, unless the Algorithm is unlimited or blocked")
	case r.Window <= 0 && name != calendarWindow:
		return wrong("Window", r.Window.String(), "longer than 0")
	case r.Burst < 0:
		return wrong("Burst", r.Burst, "at least 1, or 0 for the limit")
	}
	burst := r.Burst
	if burst == 0 {
		burst = r.Limit
	}
	rate := ratelimit.Rate{Events: r.Limit, Per: r.Window}
	switch name {
	case slidingLog:
		alg = ratelimit.SlidingLog{Limit: r.Limit, Window: r.Window}
	case "sliding-window":
		alg = ratelimit.SlidingWindow{Limit: r.Limit, Window: r.Window}
	case "fixed-window":
		alg = ratelimit.FixedWindow{Limit: r.Limit, Window: r.Window}
	case calendarWindow:
		alg = ratelimit.CalendarWindow{
			Limit: r.Limit,
			Every: r.Every,
			Zone:  r.Zone,
			Start: r.Start,
			Hour:  r.Hour,
		}
	case lockout:
		alg = ratelimit.Lockout{
			Limit:   r.Limit,
			Window:  r.Window,
			First:   r.FirstLockout,
			Longest: r.LongestLockout,
		}
	case "token-bucket":
		alg = ratelimit.TokenBucket{Rate: rate, Burst: burst}
	case "leaky-bucket":
		alg = ratelimit.LeakyBucket{Rate: rate, Capacity: burst}
	case "in-flight":
		alg = ratelimit.InFlight{Limit: r.Limit, Timeout: r.Window}
	}
	if r.Burst > 0 && name != "token-bucket" && name != "leaky-bucket" {
		return wrong("Burst", r.Burst, "0, except for a token-bucket or a leaky-bucket")
	}
	if _, err := ratelimit.New(alg); err != nil {
		return nil, fmt.Errorf("rules: rule %q: %w", r.ID, err)
	}
	return alg, nil
}

// noWindow is what the Window of a rule with a calendar must be.
const noWindow = "left out, for a calendar-window"

// checkCalendar checks that r has either a calendar or a Window, as its algorithm needs.
// [ratelimit.New] checks the calendar.
func (r *Rule) checkCalendar() error {
	wrong := func(field string, value any, want string) error {
		return &FieldError{r.ID, field, value, want}
	}
	name, every := r.algorithmName(), any(int(r.Every))
	isUnit := slices.Contains(units, r.Every)
	if isUnit {
		every = r.Every.String()
	}
	const none = "left out, except for a calendar-window"
	switch {
	case name == calendarWindow && !isUnit:
		return wrong("Every", every, unitNames+", for a calendar-window")
	case name == calendarWindow && r.Window != 0:
		return wrong("Window", r.Window.String(), noWindow)
	case name == calendarWindow:
		return nil
	case r.Every != 0:
		return wrong("Every", every, none)
	case r.Zone != "":
		return wrong("Zone", r.Zone, none)
	case r.Start != 0:
		return wrong("Start", r.Start, none)
	case r.Hour != 0:
		return wrong("Hour", r.Hour, none)
	}
	return nil
}

// checkLockouts checks that r says how long lockouts last if, and only if, its algorithm has them.
func (r *Rule) checkLockouts() error {
	wrong := func(field string, value time.Duration, want string) error {
		return &FieldError{r.ID, field, value.String(), want}
	}
	const none = "left out, unless the algorithm is lockout"
	first, longest := r.FirstLockout, r.LongestLockout
	switch isLockout := r.Algorithm == lockout; {
	case isLockout && first <= 0:
		return wrong("FirstLockout", first, "longer than 0, for a lockout")
	case isLockout && longest != 0 && longest < first:
		want := fmt.Sprintf("at least as long as the first lockout, %v, or left out", first)
		return wrong("LongestLockout", longest, want)
	case !isLockout && first != 0:
		return wrong("FirstLockout", first, none)
	case !isLockout && longest != 0:
		return wrong("LongestLockout", longest, none)
	}
	return nil
}
