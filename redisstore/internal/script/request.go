package script

import (
	"encoding/binary"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file has the encoding in which the scripts are told of requests.

// A Request is one as the scripts are told of it.
type Request struct {
	By *Program // that of the limit which is asked
	*step.Request
}

// The operations, by their numbers in the script.
const (
	OpPeek = iota
	OpTake
	OpReserve
	OpHold
	OpCharge
	OpSettle
	OpExtend
	OpNothing // a peek, except that holds which have ended leave the state, and turns come
	OpUpTo    // a take of as many events as remain, or else of one
)

// Operation returns the operation that the script executes. A request that can never be granted
// only peeks, and so does one that changes nothing.
func (r Request) Operation() byte {
	if op := r.operation(); op != OpPeek || r.Op == step.OpPeek {
		return op
	}
	return OpNothing
}

func (r Request) operation() byte {
	n := r.N
	switch r.Op {
	case step.OpSettle:
		return OpSettle
	case step.OpExtend:
		return OpExtend
	case step.OpCharge:
		if n > 0 {
			return OpCharge
		}
		return OpPeek
	}
	switch {
	case r.UpTo:
		return OpUpTo
	case n == 0 || n > r.By.Most || r.Op == step.OpPeek:
		return OpPeek
	case r.Op == step.OpReserve:
		return OpReserve
	case r.Op == step.OpHold:
		return OpHold
	}
	return OpTake
}

// TakesOne reports whether r is the most usual call.
func (r Request) TakesOne() bool { return r.N == 1 && r.Operation() == OpTake }

// Spends reports whether r spends events if it is granted.
func (r Request) Spends() bool {
	switch r.Operation() {
	case OpTake, OpReserve, OpHold, OpUpTo:
		return true
	}
	return false
}

// upToUnit divides what an OpUpTo has granted; account.lua adds the remainder likewise.
const upToUnit = 32

// Counted returns by how much the script has increased the number of requests granted for r, which
// it has granted: so many events of an OpUpTo. For as many events as remain, that depends on their
// number, so that the store notices if the script and the kernels grant different numbers.
func (r Request) Counted(granted int) float64 {
	if r.Operation() == OpUpTo {
		return float64(1 + granted%upToUnit)
	}
	return 1
}

// mostEvents is the most events that a script is told: more than any state can count.
const mostEvents = 1 << 52

// events returns the numbers of events of r for the script: n, and those whose cost in a
// bucket it needs.
func (r Request) events() (n, cost int) {
	switch r.Operation() {
	case OpCharge:
		n = r.N
		return int(min(int64(n), mostEvents)), n
	case OpSettle:
		n = r.N - r.Of
		return int(min(int64(n), mostEvents)), max(0, n)
	}
	n = max(1, min(r.N, r.By.Most))
	return n, n
}

// AppendRun appends a run of equal requests, times of r's, in the encoding of a variant of the
// script.
func (r Request) AppendRun(b []byte, times int, v Variant) []byte {
	n, costed := r.events()
	op := r.Operation()
	if op == OpNothing && v&Holding == 0 {
		op = OpPeek
	}
	b = append(b, op)
	b = binary.LittleEndian.AppendUint32(b, uint32(times))
	b = AppendDouble(b, float64(n))
	b = AppendDouble(b, r.wait())
	b = r.By.AppendCosts(b, costed)
	switch op {
	case OpSettle:
		b = append(AppendDouble(AppendDouble(b, float64(r.Hold.ID)), float64(r.Of)), 0)
	case OpExtend, OpHold, OpReserve:
		b = AppendDouble(AppendDouble(b, float64(r.Hold.ID)), r.Lasts())
		b = append(b, r.Flags())
	}
	return b
}

// Lasts returns how long a hold lasts, in ticks.
func (r Request) Lasts() float64 {
	d := max(0, r.Hold.For)
	lasts := d / Tick
	if d%Tick > 0 {
		lasts++
	}
	return float64(lasts)
}

// Flags returns what else the script needs to know about a hold: 1 says that its events are given
// back when it ends by itself, and 2 that its reservation is denied if it has to wait while others
// are open.
func (r Request) Flags() (flags byte) {
	if r.Hold.Back {
		flags = 1
	}
	if r.Yields {
		flags |= 2
	}
	return flags
}

// Holds reports whether r can only be carried out by the script that knows holds and reservations,
// which also knows the cost of a single event.
func (r Request) Holds() bool {
	switch r.Operation() {
	case OpSettle, OpExtend, OpHold, OpReserve, OpUpTo:
		return true
	}
	return false
}

// wait returns the longest wait for a reservation, in ticks.
func (r Request) wait() float64 {
	wait := r.MaxWait / Tick
	if r.MaxWait%Tick < 0 {
		wait-- // a deadline that has just passed
	}
	return float64(wait)
}

// Equals reports whether the scripts are told the same of r and d, so that a run may have both.
func (r Request) Equals(d Request) bool {
	n, costed := r.events()
	m, other := d.events()
	switch r.Operation() {
	case OpSettle, OpReserve, OpUpTo:
		return false
	}
	return r.Operation() == d.Operation() &&
		r.Hold == d.Hold && r.Of == d.Of && r.Flags() == d.Flags() &&
		n == m && costed == other && r.wait() == d.wait()
}
