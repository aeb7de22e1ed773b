// Package history has histories of keys: what happens to them, one operation after the other. A
// history is text, which a reader understands and a test can play again:
//
//	pass 1.5s
//	take 3
//	hold 2 for 1m back as h1
//	settle h1 for 1 by 1
//	peek of "another key"
//
// That is: 1.5 seconds pass; three events are taken; two are held for a minute, and come back if
// the hold ends by itself; the hold is settled for one by another limiter of the same keys, as of
// process; another key is looked at.
//
// On [Twins], a take of several keys is a TakeAll, and a hold of several a HoldAll, which may be
// settled for a number of each key. The limit of keys may change, and a fault befall the stores. An
// operation may be made together with the next one: both are under way at the same time, and may
// share a command. That goes for operations of one process, each on one key.
//
//	hold 3 as h1 of "a" with 1 of "b"
//	settle h1 for 2 of "a" with 0 of "b"
//	limit 1
//	fault damaged of "b"
//	charge 2 of "a" and
//	take 1 of "a"
//
// A history is played on a [Setup], whose limiters must answer as internal/model does, or on
// [Twins], whose limiters on several stores must give the same answers. Both compare with what
// earlier answers have promised. [Run] plays operations that a test chooses. If an answer is wrong,
// Run looks for the shortest history with a wrong answer, and fails with that.
package history

import "time"

// A Verb says what an operation does.
type Verb string

const (
	Pass     Verb = "pass"    // time passes
	Take     Verb = "take"    // Limiter.Take
	Allow    Verb = "allow"   // Limiter.AllowN, which has no other answer than yes or no
	TakeUpTo Verb = "upto"    // Limiter.TakeUpTo
	Peek     Verb = "peek"    // Limiter.Peek
	Charge   Verb = "charge"  // Limiter.Charge
	Wait     Verb = "wait"    // Limiter.WaitN if it returns at once, and else nothing
	Reserve  Verb = "reserve" // Limiter.Reserve
	Hold     Verb = "hold"    // Limiter.Hold
	WaitHold Verb = "await"   // Limiter.Hold with Waiting if it returns at once, and else nothing
	Settle   Verb = "settle"  // Reservation.Settle
	Cancel   Verb = "cancel"  // Reservation.Cancel
	Extend   Verb = "extend"  // Reservation.Extend
	Reset    Verb = "reset"   // Limiter.Reset
	Crowd    Verb = "crowd"   // so many other keys are exhausted that a full store forgets some
	Limit    Verb = "limit"   // a key, or each, has another limit of those of Twins from now on
	Fault    Verb = "fault"   // what OpenTwins.Fault lets happen to the stores
)

// An Op is an operation on a key.
type Op struct {
	Verb Verb
	Key  string
	N    int // how many events; of a Limit, which one; of a Fault, what the test makes of it

	// For how long: a Pass lasts, events are held (0 is for the usual time), or an Extend lets them
	// be held.
	For time.Duration
	// Of a Reserve and a Wait, if LimitsWait: the longest wait.
	Within     time.Duration
	LimitsWait bool
	Back       bool // whether events that are held come back when their hold ends by itself

	By int // which of several limiters does it, as of several processes

	// The name of the reservation, which may be a hold, that the operation makes or is about; or of
	// the Fault.
	Name string

	// Events of other keys, of a Take or a Hold, or of a Settle that has a number for each key.
	With Shares
	And  bool // whether the next operation is made together with this one
}

// A Share is what a Take or Hold of several keys asks of one of them. It is zero if there are not
// so many.
type Share struct {
	Key string
	N   int
}

// Shares are what is asked of other keys.
type Shares [3]Share

// OfSeveral reports whether the operation is on several keys, or settles a number for each.
func (o *Op) OfSeveral() bool { return o.With != Shares{} }

// shares returns what is asked of other keys.
func (o *Op) shares() (shares []Share) {
	for _, s := range o.With {
		if s != (Share{}) {
			shares = append(shares, s)
		}
	}
	return shares
}

// makes reports whether the operation makes a reservation.
func (o *Op) makes() bool { return o.Verb == Reserve || o.Verb == Hold || o.Verb == WaitHold }

// isOfName reports whether the operation is about a reservation.
func (o *Op) isOfName() bool { return o.Verb == Settle || o.Verb == Cancel || o.Verb == Extend }

// isCall reports whether the operation calls a limiter.
func (o *Op) isCall() bool {
	return o.Verb != Pass && o.Verb != Limit && o.Verb != Fault && o.Verb != Crowd
}
