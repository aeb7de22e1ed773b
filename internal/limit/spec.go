package limit

import (
	"math"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Spec is an algorithm as numbers.
type Spec struct {
	Kind    Kind
	Numbers [4]uint64 // the parameters, in the order of kinds; of a float64, its bits
	Text    string    // the last parameter, of a kind that has one of text
	Parts   []Spec    // of an All, none of which is one
}

// Letter is what names this kind of limit in the names of keys, so that limits of two kinds share
// no key. An interval bucket has states of another kind than other token buckets.
func (s *Spec) Letter() byte {
	if s.Kind == TokenBucket && s.Int(3) == RefillInterval {
		return 'i'
	}
	return kinds[s.Kind].letter
}

// Leases reports whether a process may take events in advance, grant them later, and give back what
// is left, if they are neither released nor denied and counted.
func (s *Spec) Leases() bool { return kinds[s.Kind].leases }

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
