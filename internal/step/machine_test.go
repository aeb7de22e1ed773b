package step

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/calendar"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// Random histories of these tests, in CI and at night (RATELIMIT_NIGHTLY=1): of holds, 8 or 12 of
// each kernel, and 20 or 40; of limits that take turns, 75 and 300, and of 20 s and 60 s; of
// words, 75 or 200, and 300 or 1000; of pairs and rings, 4000 or 5000, and 20,000.

// each has a kernel of each kind that grants ten events at once.
func each(t *testing.T) map[string]*Machine {
	t.Helper()
	bucket := func(k kernel.Kernel, err error) kernel.Kernel {
		require.NoError(t, err)
		return k
	}
	kernels := map[string]kernel.Kernel{
		"token":    bucket(kernel.NewTokenBucket(10, time.Second, time.Second, 10, kernel.InMemory, "")),
		"sevenths": bucket(kernel.NewTokenBucket(7, time.Second, time.Second, 10, kernel.InMemory, "")),
		"interval": kernel.NewIntervalBucket(10, 10, second),
		"leaky":    bucket(kernel.NewLeakyBucket(10, time.Second, time.Second, 10, kernel.InMemory, "")),
		"fixed":    kernel.NewFixedWindow(10, second, true, kernel.InMemory),
		"first":    kernel.NewFixedWindow(10, second, false, kernel.InMemory),
		"calendar": kernel.NewCalendarWindow(10, daily, kernel.InMemory),
		"sliding":  kernel.NewSlidingWindow(10, 2, second/2, kernel.InMemory),
		"rolling":  kernel.NewRollingWindow(10, 0, 2, second/2),
		"log":      kernel.NewSlidingLog(10, second, false),
		"counted":  kernel.NewSlidingLog(10, second, true),
		"lockout":  kernel.NewLockout(10, second, second/2, 4*second),
		"warming":  kernel.NewWarmingUp(10, time.Second, time.Second, 3, kernel.InMemory),
	}
	kernels["all"] = NewAll([]kernel.Kernel{kernels["token"], kernels["log"], kernels["fixed"]}, kernel.InMemory)
	compiled := make(map[string]*Machine)
	for name, k := range kernels {
		compiled[name] = NewMachine(k, kernel.InMemory)
	}
	return compiled
}

// daily is the calendar of days of UTC.
var daily = calendar.New(calendar.Rule{Every: calendar.Day}, time.UTC)

// do applies a request at an instant.
func do(c *Machine, st []uint64, now kernel.Instant, req Request) ([]uint64, bool, Answer) {
	var a Answer
	req.Fixed, req.MaxWait = &Reading{Now: now, Own: true}, kernel.Never-1
	st, changed := c.Step(st, &req, &a)
	return st, changed, a
}

// TestAdoptedByItself: a state that another kernel with the same parameters left is
// unchanged; one of another kind is replaced by a fresh state.
func TestAdoptedByItself(t *testing.T) {
	again, others := each(t), each(t)
	for name, c := range each(t) {
		assert.NotEmpty(t, c.Kind(), name)
		st, _, _ := do(c, c.NewState(), begun, Request{Op: OpTake, N: 1})
		k, kept, pin := again[name].Reconcile(c, PlainState(slices.Clone(st)), begun)
		assert.Same(t, again[name], k)
		assert.False(t, pin, name)
		assert.Equal(t, PlainState(st), kept, name)
		assert.True(t, c.Valid(st) || name == "fixed" && c.Width() == 1, name)
		for other, k := range others {
			if k.Kind() != c.Kind() {
				for _, now := range []kernel.Instant{begun, kernel.MaxInstant} { // in use, and idle
					_, fresh, pin := k.Reconcile(c, PlainState(slices.Clone(st)), now)
					assert.False(t, pin)
					assert.True(t, k.ValidIn(fresh), "%s after %s", other, name)
					assert.Equal(t, make([]uint64, len(fresh.Words)), fresh.Words, "%s after %s", other, name)
				}
			}
		}
	}
}

// TestStateOfLimitThatGrantsMore: a limit reads a state of one that differs only in how much it
// grants as it is, so adopting it changes nothing, whenever that is. A store may leave it out.
func TestStateOfLimitThatGrantsMore(t *testing.T) {
	varying := kernel.InMemory.Varying()
	warming := kernel.NewWarmingUp(7, time.Second, 10*time.Second, 3, varying)
	shared := 0
	for name, limit := range map[string]func(n int) kernel.Kernel{
		"token": func(n int) kernel.Kernel {
			k, err := kernel.NewTokenBucket(10, time.Second, time.Second, n, varying, "")
			require.NoError(t, err)
			return k
		},
		"leaky": func(n int) kernel.Kernel {
			k, err := kernel.NewLeakyBucket(10, time.Second, time.Second, n, varying, "")
			require.NoError(t, err)
			return k
		},
		"interval": func(n int) kernel.Kernel { return kernel.NewIntervalBucket(n, 10, second) },
		"fixed": func(n int) kernel.Kernel {
			return kernel.NewFixedWindow(n, second, true, varying)
		},
		"first": func(n int) kernel.Kernel {
			return kernel.NewFixedWindow(n, second, false, varying)
		},
		"calendar": func(n int) kernel.Kernel { return kernel.NewCalendarWindow(n, daily, varying) },
		"sliding": func(n int) kernel.Kernel {
			return kernel.NewSlidingWindow(n, 2, second/2, varying)
		},
		"segment": func(n int) kernel.Kernel {
			return kernel.NewSlidingWindow(n, 1, second, varying)
		},
		"rolling": func(n int) kernel.Kernel { return kernel.NewRollingWindow(n, 0, 2, second/2) },
		"log":     func(n int) kernel.Kernel { return kernel.NewSlidingLog(n, second, false) },
		"counted": func(n int) kernel.Kernel { return kernel.NewSlidingLog(n, second, true) },
		"flight":  func(n int) kernel.Kernel { return kernel.NewInFlight(n, second) },
		"warming": func(n int) kernel.Kernel {
			parts := []kernel.Kernel{warming, kernel.NewSlidingLog(n, second, false)}
			return NewAll(parts, varying)
		},
	} {
		more, less := NewMachine(limit(10), varying), NewMachine(limit(5), varying)
		st := more.NewState()
		for i := range uint64(3) {
			st = more.Spend(st, begun+i*second/7, 2)
		}
		if !less.ReadsStatesOf(more) {
			continue
		}
		shared++
		for _, later := range []uint64{2 * second / 7, second / 2, second - 1} {
			_, kept, mustStore := less.Reconcile(more, PlainState(slices.Clone(st)), begun+later)
			assert.Equal(t, PlainState(st), kept, name)
			assert.False(t, mustStore, name)
		}
	}
	assert.Equal(t, 13, shared, "kernels that have limits which differ only in how much they grant")
}

// TestTake: take is Ready and Spend, also after reservations and returns.
func TestTake(t *testing.T) {
	kernels := each(t)
	kernels["pair"] = NewMachine(kernel.NewSlidingWindow(10, 1, second, kernel.InMemory), kernel.InMemory)
	kernels["rings"] = NewMachine(NewAll([]kernel.Kernel{
		kernels["sliding"].Kernel,
		kernels["rolling"].Kernel,
		kernels["pair"].Kernel,
		kernels["leaky"].Kernel,
	}, kernel.InMemory), kernel.InMemory)
	rings := make([]kernel.Kernel, 10)
	for i := range rings {
		rings[i] = kernels["sliding"].Kernel
	}
	kernels["many"] = NewMachine(NewAll(rings, kernel.InMemory), kernel.InMemory)
	varying, err := kernel.NewLeakyBucket(10, time.Second, time.Second, 10, kernel.InMemory.Varying(), "")
	require.NoError(t, err)
	kernels["varying"] = NewMachine(varying, kernel.InMemory.Varying())
	for name, c := range kernels {
		random := budget.Rand(t)
		for range budget.Histories(75, 300) {
			st, now := c.NewState(), begun
			for range 100 {
				now += random.Uint64N(second/5) * random.Uint64N(2) * (1 + random.Uint64N(2)*random.Uint64N(10))
				n := 1 + random.IntN(min(4, c.Limit()))
				if name != "pair" {
					if random.IntN(8) == 0 {
						st, _, _ = do(c, st, now, Request{Op: OpReserve, N: n})
						continue
					}
				}
				want := slices.Clone(st)
				granted := c.Ready(want, now, n) == now
				if granted {
					want = c.Spend(want, now, n)
				}
				var took bool
				st, took = c.Take(st, now, n)
				require.Equal(t, granted, took, name)
				require.Equal(t, want, st, name)
			}
		}
	}
}

// TestRingFlag: the flag that earlier versions have stored in the first word makes no difference.
func TestRingFlag(t *testing.T) {
	c := NewMachine(kernel.NewSlidingWindow(10, 3, second, kernel.InMemory), kernel.InMemory)
	st := c.Spend(c.NewState(), begun, 4)
	flagged := append([]uint64{st[0] | 1<<63}, st[1:]...)
	assert.True(t, c.Valid(flagged))
	var want, got Answer
	req := Request{Op: OpTake, N: 2, Fixed: &Reading{Now: begun + 1}}
	st, _ = c.Step(st, &req, &want)
	flagged, _ = c.Step(flagged, &req, &got)
	assert.Equal(t, want, got)
	assert.Equal(t, st, flagged)
}

// TestFirstEventFits: a new state has room for one event, and no more.
func TestFirstEventFits(t *testing.T) {
	k := NewMachine(kernel.NewSlidingLog(10, uint64(time.Second), false), kernel.InMemory)
	st := k.NewState()
	assert.Empty(t, st)
	room := cap(st)
	assert.Len(t, k.Spend(st, 1, 1), room)
}

// TestWarmingUp_HoldAtTheEndOfTime: a state with a hold of the last instant can be read.
func TestWarmingUp_HoldAtTheEndOfTime(t *testing.T) {
	for _, enc := range []kernel.Encoding{kernel.InMemory.Varying(), {Tick: 1000, Portable: true, Varies: true}} {
		c := NewMachine(kernel.NewWarmingUp(10, time.Second, time.Second, 3, enc), enc)
		for _, now := range []kernel.Instant{kernel.MaxInstant, kernel.MaxInstant - 1} {
			s := keyOf(c)
			a, _ := s.send(c, now, Request{Op: OpHold, N: 3, Hold: Handle{ID: 1, For: time.Hour}})
			require.True(t, a.Held)
			require.True(t, s.from.ValidIn(s.st), "%v", s.st)
		}
	}
}

// Two kernels of one calendar are of the same limit, whichever windows they have been asked for: also
// as parts of an All.
func TestSameCalendars(t *testing.T) {
	alone := func() *Machine {
		return NewMachine(kernel.NewCalendarWindow(10, daily, kernel.InMemory), kernel.InMemory)
	}
	part := func() *Machine {
		k := kernel.NewCalendarWindow(10, daily, kernel.InMemory)
		return NewMachine(NewAll([]kernel.Kernel{k, kernel.NewFixedWindow(10, second, true, kernel.InMemory)}, kernel.InMemory), kernel.InMemory)
	}
	for _, limit := range []func() *Machine{alone, part} {
		asked, other := limit(), limit()
		asked.Spend(asked.NewState(), begun, 1)
		assert.True(t, asked.equal(other))
	}
	more := NewMachine(kernel.NewCalendarWindow(20, daily, kernel.InMemory), kernel.InMemory)
	assert.False(t, alone().equal(more))
}
