package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The encoding of a cancellation does not depend on how many waiters stay, and equal waiters
// share an entry.
func TestAppendCancellationIsShort(t *testing.T) {
	second := uint64(time.Second / time.Microsecond)
	enc := Encoding{Tick: 1000, Portable: true, Varies: true}
	for name, tt := range map[string]struct {
		k        Kernel
		one, all int // the most bytes to cancel one waiter, and for each of all
	}{
		"fixed":   {NewFixedWindow(100, second, true, enc), 100, 2},
		"sliding": {NewSlidingWindow(10, 6, 10*second, InMemory), 300, 70},
		"rolling": {NewRollingWindow(1000, 0, 60, second), 300, 1},
		"log":     {NewSlidingLog(100, second, false), 100, 30},
		"lumps":   {NewIntervalBucket(10, 10, second), 100, 56},
	} {
		const many = 5000
		c := Compile(tt.k, enc)
		st, now := c.NewState(), 1000*second
		var line Line
		var waiters []*Waiter
		for range many {
			req := Request{Op: OpReserve, N: 1, MaxWait: Never, Fixed: &Reading{Now: now * 1000}}
			var a Answer
			st, _ = c.Step(st, &req, &a)
			w := NewWaiter(a.Grant.(*Grant), a.Grant.(*Grant).due, false)
			line.Insert(w, now)
			waiters = append(waiters, w)
		}
		last := waiters[many-1:]
		middle := waiters[many/2 : many/2+1]
		for _, asked := range [][]*Waiter{last, middle} {
			if cancellation := line.Cancel(asked, now); cancellation != nil {
				assert.Equal(t, 1, Asked(cancellation), name)
				assert.Less(t, len(c.AppendCancellation(nil, cancellation)), tt.one, name)
				line.Settle(cancellation, &Undone{})
				line.Release()
			}
		}
		all := line.Cancel(waiters, now)
		assert.LessOrEqual(t, len(c.AppendCancellation(nil, all)), 100+tt.all*many, name)
		other := Compile(NewFixedWindow(7, second, true, enc), enc)
		assert.Len(t, other.AppendCancellation(nil, all), 8, "no grant of this kernel")
	}
}

// Nor does it depend on how many waiters have left before one that stays.
func TestAppendCancellationStaysShort(t *testing.T) {
	second := uint64(time.Second / time.Microsecond)
	enc := Encoding{Tick: 1000, Portable: true, Varies: true}
	kernels := map[string]Kernel{
		"fixed":   NewFixedWindow(1, second, true, enc),
		"sliding": NewSlidingWindow(10, 6, 10*second, enc),
		"weighed": NewSlidingWindow(10000, 1, 1000*second, enc),
		"rolling": NewRollingWindow(10, 0, 6, second),
		"log":     NewSlidingLog(10, second, false),
	}
	kernels["all"] = NewAll([]Kernel{NewIntervalBucket(10, 1, second), kernels["fixed"], kernels["sliding"]}, enc)
	for name, k := range kernels {
		const many = 1000
		c := Compile(k, enc)
		st, now := c.NewState(), 1000*second
		step := func(req Request) (a Answer) {
			req.Fixed = &Reading{Now: now * 1000}
			st, _ = c.Step(st, &req, &a)
			return a
		}
		step(Request{Op: OpTake, N: c.Limit()})
		var line Line
		var waiters []*Waiter
		for range many {
			g := step(Request{Op: OpReserve, N: 1, MaxWait: Never}).Grant.(*Grant)
			waiters = append(waiters, NewWaiter(g, g.due, false))
			line.Insert(waiters[len(waiters)-1], now)
		}
		longest := 0
		for _, w := range waiters[:many-1] {
			cancellation := line.Cancel([]*Waiter{w}, now)
			longest = max(longest, len(c.AppendCancellation(nil, cancellation)))
			line.Settle(cancellation, step(Request{Op: OpCancel, Grant: cancellation}).Grant.(*Undone))
			line.Release()
		}
		assert.Less(t, longest, 1000, name)
	}
}

// TestAppendCancellationAtTheFirstInstant: zero is an instant as any other.
func TestAppendCancellationAtTheFirstInstant(t *testing.T) {
	c := Compile(NewFixedWindow(1, 100, true, InMemory.Varying()), InMemory.Varying())
	w := NewWaiter(&Grant{by: c, n: 1, traces: make([]trace, 1)}, 0, false)
	assert.Equal(t, -1.0, w.leaves(), "it stays")
	var line Line
	line.Insert(w, 0)
	assert.Greater(t, len(c.AppendCancellation(nil, line.Cancel([]*Waiter{w}, 0))), 8)
}
