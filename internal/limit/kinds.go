package limit

import "github.com/ratelimit-go/ratelimit/internal/kernel"

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

// A row is all that the packages above need to know of a kind of algorithm, besides its type in
// package ratelimit: CONTRIBUTING.md says what else an algorithm has. A row has all fields.
type row struct {
	name   string
	letter byte // of no other kind, see Spec.Letter; never changes
	leases bool // see Spec.Leases
	// The order of parameters never changes: a new one comes last.
	has     []parameter
	inWords func(*Spec) string
	// Checks the parameters that [parameter].least says nothing of.
	kernel func(*Spec, kernel.Encoding) (kernel.Kernel, error)
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

// kinds has a row for each kind.
var kinds = [...]row{
	TokenBucket: {
		"TokenBucket", 't', true,
		[]parameter{
			{"Rate.Events", anInt, "1"},
			{"Rate.Per", aDuration, "1ns"},
			{"Burst", anInt, "1, or 0 for Rate.Events"},
			{"Refill", anInt, ""},
		},
		tokenBucketInWords, (*Spec).tokenBucket,
	},
	// Each event has a Delay of its own, which a lease does not know.
	LeakyBucket: {
		"LeakyBucket", 'l', false,
		[]parameter{
			{"Rate.Events", anInt, "1"},
			{"Rate.Per", aDuration, "1ns"},
			{"Capacity", anInt, "1, or 0 for 1"},
		},
		leakyBucketInWords, (*Spec).leakyBucket,
	},
	FixedWindow: {
		"FixedWindow", 'f', true,
		[]parameter{{"Limit", anInt, "1"}, {"Window", aDuration, "1ns"}, {"Start", anInt, ""}},
		fixedWindowInWords, (*Spec).fixedWindow,
	},
	SlidingWindow: {
		"SlidingWindow", 's', true,
		[]parameter{
			{"Limit", anInt, "1"},
			{"Window", aDuration, "1ns"},
			{"Segments", anInt, "1, or 0 for 1"},
		},
		slidingWindowInWords, (*Spec).slidingWindow,
	},
	SlidingLog: {
		"SlidingLog", 'g', true,
		[]parameter{
			{"Limit", anInt, "1"},
			{"Window", aDuration, "1ns"},
			{"CountDenied", aBool, ""},
		},
		slidingLogInWords, (*Spec).slidingLog,
	},
	RollingWindow: {
		"RollingWindow", 'r', true,
		[]parameter{
			{"Quota", anInt, "1"},
			{"Window", aDuration, "1ns"},
			{"Period", aDuration, ""},
			{"PeriodLimit", anInt, ""},
		},
		rollingWindowInWords, (*Spec).rollingWindow,
	},
	// Its state does not count events that could be given back.
	WarmingUp: {
		"WarmingUp", 'w', false,
		[]parameter{
			{"Rate.Events", anInt, "1"},
			{"Rate.Per", aDuration, "1ns"},
			{"Warmup", aDuration, "1ns"},
			{"ColdFactor", aFloat, ""},
		},
		warmingUpInWords, (*Spec).warmingUp,
	},
	All:       {name: "All"}, // which its parts decide, see Spec.Parts
	Unlimited: {"Unlimited", 'u', false, nil, unlimitedInWords, (*Spec).unlimited},
	Blocked:   {"Blocked", 'b', false, nil, blockedInWords, (*Spec).blocked},
	InFlight: {
		"InFlight", 'c', false,
		[]parameter{
			{"Limit", anInt, "1"},
			{"Timeout", aDuration, "1ns, and longer than a request takes"},
		},
		inFlightInWords, (*Spec).inFlight,
	},
	CalendarWindow: {
		"CalendarWindow", 'd', true,
		[]parameter{
			{"Limit", anInt, "1"},
			{"Every", anInt, ""},
			{"Start", anInt, ""},
			{"Hour", anInt, ""},
			{"Zone", aText, ""},
		},
		calendarWindowInWords, (*Spec).calendarWindow,
	},
	// Events that are taken in advance would lock the key.
	Lockout: {
		"Lockout", 'k', false,
		[]parameter{
			{"Limit", anInt, "1"},
			{"Window", aDuration, "1ns"},
			{"First", aDuration, "1ns"},
			{"Longest", aDuration, ""},
		},
		lockoutInWords, (*Spec).lockout,
	},
}
