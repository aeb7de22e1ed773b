package limit

import (
	"math"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Kind is a kind of algorithm, as stored states name it. The numbers never change.
type Kind uint64

const (
	two Kind = iota // not an algorithm: the two limits of a key whose limit has changed

	TokenBucket
	LeakyBucket
	FixedWindow
	SlidingWindow
	SlidingLog
	RollingWindow
	WarmingUp
	All
	Unlimited
	Blocked
	InFlight
	CalendarWindow
	Lockout
)

// A Spec is an algorithm as numbers.
type Spec struct {
	Kind    Kind
	Numbers [4]uint64 // the parameters, in the order of kinds; of a float64, its bits
	Text    string    // the last parameter, of a kind that has one of text
	Parts   []Spec    // of an All, none of which is one
}

// A parameter is one of a kind of algorithm.
type parameter struct {
	name string
	is   numberKind
	// What an error says that it must be at least: 1, in its unit; empty if it need not be.
	least string
}

// A numberKind is the kind of number that a parameter is.
type numberKind byte

const (
	anInt numberKind = iota
	aDuration
	aFloat
	aBool
	aText // which comes last, and is in Spec.Text
)

// kinds has the name of each kind, its parameters, and the function that says a limit in words
// (words.go). The order of kinds and of parameters never changes: a new one comes last.
var kinds = [...]struct {
	name    string
	has     []parameter
	inWords func(*Spec) string // of an All, Spec.String asks those of its parts
}{
	TokenBucket: {
		"TokenBucket",
		[]parameter{
			{"Rate.Events", anInt, "1"},
			{"Rate.Per", aDuration, "1ns"},
			{"Burst", anInt, "1, or 0 for Rate.Events"},
			{"Refill", anInt, ""},
		},
		tokenBucketInWords,
	},
	LeakyBucket: {
		"LeakyBucket",
		[]parameter{
			{"Rate.Events", anInt, "1"},
			{"Rate.Per", aDuration, "1ns"},
			{"Capacity", anInt, "1, or 0 for 1"},
		},
		leakyBucketInWords,
	},
	FixedWindow: {
		"FixedWindow",
		[]parameter{{"Limit", anInt, "1"}, {"Window", aDuration, "1ns"}, {"Start", anInt, ""}},
		fixedWindowInWords,
	},
	SlidingWindow: {
		"SlidingWindow",
		[]parameter{
			{"Limit", anInt, "1"},
			{"Window", aDuration, "1ns"},
			{"Segments", anInt, "1, or 0 for 1"},
		},
		slidingWindowInWords,
	},
	SlidingLog: {
		"SlidingLog",
		[]parameter{
			{"Limit", anInt, "1"},
			{"Window", aDuration, "1ns"},
			{"CountDenied", aBool, ""},
		},
		slidingLogInWords,
	},
	RollingWindow: {
		"RollingWindow",
		[]parameter{
			{"Quota", anInt, "1"},
			{"Window", aDuration, "1ns"},
			{"Period", aDuration, ""},
			{"PeriodLimit", anInt, ""},
		},
		rollingWindowInWords,
	},
	WarmingUp: {
		"WarmingUp",
		[]parameter{
			{"Rate.Events", anInt, "1"},
			{"Rate.Per", aDuration, "1ns"},
			{"Warmup", aDuration, "1ns"},
			{"ColdFactor", aFloat, ""},
		},
		warmingUpInWords,
	},
	All:       {name: "All"},
	Unlimited: {name: "Unlimited", inWords: unlimitedInWords},
	Blocked:   {name: "Blocked", inWords: blockedInWords},
	InFlight: {
		"InFlight",
		[]parameter{
			{"Limit", anInt, "1"},
			{"Timeout", aDuration, "1ns, and longer than a request takes"},
		},
		inFlightInWords,
	},
	CalendarWindow: {
		"CalendarWindow",
		[]parameter{
			{"Limit", anInt, "1"},
			{"Every", anInt, ""},
			{"Start", anInt, ""},
			{"Hour", anInt, ""},
			{"Zone", aText, ""},
		},
		calendarWindowInWords,
	},
	Lockout: {
		"Lockout",
		[]parameter{
			{"Limit", anInt, "1"},
			{"Window", aDuration, "1ns"},
			{"First", aDuration, "1ns"},
			{"Longest", aDuration, ""},
		},
		lockoutInWords,
	},
}

// Int returns the i-th parameter, an int.
func (s *Spec) Int(i int) int { return int(s.Numbers[i]) }

// Duration returns the i-th parameter, a time.Duration.
func (s *Spec) Duration(i int) time.Duration { return time.Duration(s.Numbers[i]) }

// Float returns the i-th parameter, a float64.
func (s *Spec) Float(i int) float64 { return math.Float64frombits(s.Numbers[i]) }

// Rate returns the first two parameters, of a kind that begins with a rate.
func (s *Spec) Rate() Rate { return Rate{s.Int(0), s.Duration(1)} }

// set sets the i-th parameter to a number that was read, and reports whether that is valid for it.
func (s *Spec) set(i int, n uint64) bool {
	s.Numbers[i] = n
	switch kinds[s.Kind].has[i].is {
	case anInt:
		return n <= math.MaxInt
	case aDuration:
		return n <= math.MaxInt64
	case aBool:
		return n == 1
	}
	return true
}

// value returns the i-th parameter, as users know it, and field its name.
func (s *Spec) value(i int) any {
	switch kinds[s.Kind].has[i].is {
	case anInt:
		return s.Int(i)
	case aDuration:
		return s.Duration(i)
	case aFloat:
		return s.Float(i)
	}
	return s.Numbers[i] == 1
}

func (s *Spec) field(i int) string { return kinds[s.Kind].name + "." + kinds[s.Kind].has[i].name }

// A Rate is a number of events per span of time.
type Rate struct {
	Events int
	Per    time.Duration
}

// String returns r as "10/s" or "5/250ms".
func (r Rate) String() string { return strconv.Itoa(r.Events) + "/" + abbreviated(r.Per) }

// Check returns an error that names field if r is not positive.
func (r Rate) Check(field string) error {
	if r.Events < 1 {
		return param.Invalid(field+".Events", r.Events, "must be at least 1")
	}
	if r.Per < 1 {
		return param.Invalid(field+".Per", r.Per, "must be at least 1ns")
	}
	return nil
}
