package limit

import (
	"fmt"
	"math"
	"strings"
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
)

// A Spec is an algorithm as numbers.
type Spec struct {
	Kind    Kind
	Numbers [4]uint64 // the parameters, in the order of kinds; of a float64, its bits
	Parts   []Spec    // of an All, none of which is one
}

// A parameter is one of a kind of algorithm, with the kind of number that it is.
type parameter struct {
	name string
	is   numberKind
}

type numberKind byte

const (
	anInt numberKind = iota
	aDuration
	aFloat
	aBool
)

// kinds has the name and the parameters of each kind. Their order never changes: a new one comes last.
var kinds = [...]struct {
	name string
	has  []parameter
}{
	TokenBucket:   {"TokenBucket", []parameter{{"Rate.Events", anInt}, {"Rate.Per", aDuration}, {"Burst", anInt}, {"Refill", anInt}}},
	LeakyBucket:   {"LeakyBucket", []parameter{{"Rate.Events", anInt}, {"Rate.Per", aDuration}, {"Capacity", anInt}}},
	FixedWindow:   {"FixedWindow", []parameter{{"Limit", anInt}, {"Window", aDuration}, {"Start", anInt}}},
	SlidingWindow: {"SlidingWindow", []parameter{{"Limit", anInt}, {"Window", aDuration}, {"Segments", anInt}}},
	SlidingLog:    {"SlidingLog", []parameter{{"Limit", anInt}, {"Window", aDuration}, {"CountDenied", aBool}}},
	RollingWindow: {"RollingWindow", []parameter{{"Quota", anInt}, {"Window", aDuration}, {"Period", aDuration}, {"PeriodLimit", anInt}}},
	WarmingUp:     {"WarmingUp", []parameter{{"Rate.Events", anInt}, {"Rate.Per", aDuration}, {"Warmup", aDuration}, {"ColdFactor", aFloat}}},
	All:           {name: "All"},
	Unlimited:     {name: "Unlimited"},
	Blocked:       {name: "Blocked"},
	InFlight:      {"InFlight", []parameter{{"Limit", anInt}, {"Timeout", aDuration}}},
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

// String returns s as fmt's %+v writes a struct.
func (s Spec) String() string {
	if s.Kind == All {
		return fmt.Sprintf("All%v", s.Parts)
	}
	var fields []string
	for i, p := range kinds[s.Kind].has {
		var v any
		switch p.is {
		case anInt:
			v = s.Int(i)
		case aDuration:
			v = s.Duration(i)
		case aFloat:
			v = s.Float(i)
		case aBool:
			v = s.Numbers[i] == 1
		}
		fields = append(fields, fmt.Sprintf("%s:%v", p.name, v))
	}
	return kinds[s.Kind].name + "{" + strings.Join(fields, " ") + "}"
}

// A Rate is a number of events per span of time.
type Rate struct {
	Events int
	Per    time.Duration
}

// rateUnits are the units of a Rate as text.
var rateUnits = []struct {
	name string
	span time.Duration
}{
	{"d", 24 * time.Hour},
	{"h", time.Hour},
	{"m", time.Minute},
	{"s", time.Second},
	{"ms", time.Millisecond},
	{"us", time.Microsecond},
	{"ns", time.Nanosecond},
}

// String returns r as "10/s" or "5/250ms".
func (r Rate) String() string {
	for _, u := range rateUnits {
		if r.Per == u.span {
			return fmt.Sprintf("%d/%s", r.Events, u.name)
		}
	}
	return fmt.Sprintf("%d/%v", r.Events, r.Per)
}

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
