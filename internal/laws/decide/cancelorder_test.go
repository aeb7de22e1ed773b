package decide_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// queues are algorithms with low limits, so that several reservations stand in one slot or window,
// and others in later ones. Some are Alls with parts of several kinds.
var queues = map[string]ratelimit.Algorithm{
	"window over days":     ratelimit.FixedWindow{Limit: 2, Window: time.Minute},
	"sliding, in one slot": ratelimit.SlidingWindow{Limit: 7, Window: time.Minute},
	"sliding, far ahead":   ratelimit.SlidingWindow{Limit: 2, Window: time.Second, Segments: 2},
	"rolling, far ahead":   ratelimit.RollingWindow{Quota: 3, Window: 3 * time.Second, Period: time.Second, PeriodLimit: 2},
	"log":                  ratelimit.SlidingLog{Limit: 3, Window: time.Second},
	"locks":                ratelimit.Lockout{Limit: 3, Window: 2 * time.Second, First: time.Second, Longest: 5 * time.Second},
	"log that counts":      ratelimit.SlidingLog{Limit: 3, Window: time.Second, CountDenied: true},
	"all kinds": ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4},
		ratelimit.FixedWindow{Limit: 5, Window: 1700 * time.Millisecond},
		ratelimit.SlidingWindow{Limit: 4, Window: time.Second, Segments: 2},
		ratelimit.SlidingLog{Limit: 4, Window: 1300 * time.Millisecond},
		ratelimit.RollingWindow{Quota: 6, Window: 2 * time.Second, Period: 500 * time.Millisecond},
	},
	"windows": ratelimit.All{
		ratelimit.FixedWindow{Limit: 3, Window: 1700 * time.Millisecond, Start: ratelimit.StartOnFirstEvent},
		ratelimit.SlidingWindow{Limit: 4, Window: time.Second},
		ratelimit.SlidingLog{Limit: 4, Window: 1300 * time.Millisecond, CountDenied: true},
	},
	"a queue among windows": ratelimit.All{
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(2), Capacity: 3},
		ratelimit.SlidingWindow{Limit: 2, Window: time.Second},
	},
}

// TestCancelOrders lets five reservations stand in line, and cancels each set of them in every
// order. Time passes between cancellations, or not. After each cancellation, the library must agree
// with the model.
func TestCancelOrders(t *testing.T) {
	t.Parallel()
	const many = 5
	every := 100 / int(budget.Histories(10, 100)) // of the orders of three or more cancellations, the test tries one in every
	for name, alg := range withQueues() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setupOf(alg, fakes.Midnight, "memory")
			seen := 0
			orders(many, func(order []int) {
				if seen++; len(order) > 2 && seen%every != 0 {
					return
				}
				passes := (order[0]+len(order))%2 == 0
				ops := cancelling(alg, many, order, passes)
				i := -1
				played := history.Run(t, s, func(p history.Player) (o history.Op, ok bool) {
					if i++; i == len(ops) {
						return o, false
					}
					if o = ops[i]; o.Verb == history.Pass {
						o.For = p.Key("").Last.RetryAfter / 3
					}
					return o, true
				})
				if _, floats := alg.(ratelimit.WarmingUp); !floats {
					require.Equal(t, len(ops), played)
				}
			})
		})
	}
}

// withQueues returns queues and the algorithms of storetest.
func withQueues() map[string]ratelimit.Algorithm {
	algorithms := storetest.Algorithms()
	for name, alg := range queues {
		algorithms["queues/"+name] = alg
	}
	return algorithms
}

// cancelling returns a history in which many reservations stand in line, and some are cancelled in
// an order. If time passes after the second cancellation, the test says how much.
func cancelling(alg ratelimit.Algorithm, many int, order []int, passes bool) (ops []history.Op) {
	limit := most(alg)
	used := limit // so that all reservations are for later
	if _, queue := alg.(ratelimit.LeakyBucket); queue {
		used = (limit + 1) / 2
	}
	ops = append(ops, history.Op{Verb: history.Take, N: used})
	name := func(i int) string { return fmt.Sprint("h", i+1) }
	for i := range many {
		n := []int{1, limit, max(1, limit/3), 1, max(1, limit/2)}[i]
		ops = append(ops, history.Op{Verb: history.Reserve, N: n, Name: name(i)})
	}
	for i, j := range order {
		ops = append(ops, history.Op{Verb: history.Cancel, Name: name(j)})
		if passes && i == 1 {
			ops = append(ops, history.Op{Verb: history.Pass})
		}
	}
	return ops
}

// orders calls f with each order of each subset of 0…n−1 that is not empty.
func orders(n int, f func(order []int)) {
	var extend func(order []int)
	extend = func(order []int) {
		if len(order) > 0 {
			f(slices.Clone(order))
		}
		for i := range n {
			if !slices.Contains(order, i) {
				extend(append(order, i))
			}
		}
	}
	extend(nil)
}

// TestConcurrentCancel cancels most of a long line from many goroutines at once. No event is
// granted before the turns of the reservations that are kept. Once these are cancelled as well, the
// key is as if no reservation had been made.
func TestConcurrentCancel(t *testing.T) {
	t.Parallel()
	for name, alg := range withQueues() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _ := fakes.At(t, alg)
			useUp(t, l, alg)
			before := fakes.Peek(t, l)
			var mu sync.Mutex // protects stay
			var stay []*ratelimit.Reservation
			reserveAndCancel := func(many int) {
				var line []*ratelimit.Reservation
				for range many {
					if r, _, err := l.Reserve(ctx, "key", 1); err == nil && r != nil {
						line = append(line, r)
					}
				}
				rand.Shuffle(len(line), func(i, j int) { line[i], line[j] = line[j], line[i] })
				var wg sync.WaitGroup
				for i, r := range line {
					wg.Go(func() {
						if i%10 != 0 {
							r.Cancel()
							return
						}
						mu.Lock()
						defer mu.Unlock()
						stay = append(stay, r)
					})
				}
				wg.Wait()
			}
			reserveAndCancel(200)
			reserveAndCancel(200)
			latest := time.Duration(0)
			for _, r := range stay {
				latest = max(latest, r.Delay())
			}
			d := fakes.Peek(t, l)
			if !strings.Contains(name, "queue") && !strings.Contains(name, "strict") && latest > 0 { // a LeakyBucket grants events with a later turn
				require.False(t, d.Allowed)
				require.GreaterOrEqual(t, d.RetryAfter, latest)
			}
			for _, r := range stay {
				r.Cancel()
			}
			require.Equal(t, before, fakes.Peek(t, l))
		})
	}
}

// useUp takes events of "key", so that the next reservation is for later.
func useUp(t *testing.T, l ratelimit.Limiter, alg ratelimit.Algorithm) {
	t.Helper()
	n := fakes.Peek(t, l).Limit
	if _, queue := alg.(ratelimit.LeakyBucket); queue {
		n = 1 // so that there is room in it
	}
	require.True(t, l.AllowN("key", n))
}

// TestConcurrentReserveAndCancel makes and cancels reservations from many goroutines. All reserved
// events are given back, and the events that were taken before stay used.
func TestConcurrentReserveAndCancel(t *testing.T) {
	t.Parallel()
	for name, alg := range queues {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _ := fakes.At(t, alg)
			useUp(t, l, alg)
			before := fakes.Peek(t, l)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 50 {
						r, _, err := l.Reserve(ctx, "key", 1)
						if err != nil || r == nil {
							continue
						}
						runtime.Gosched()
						r.Cancel()
					}
				})
			}
			wg.Wait()
			require.Equal(t, before, fakes.Peek(t, l))
		})
	}
}

// TestCancelAfterTurns cancels reservations in any order while the turns of other reservations
// pass. Events that were cancelled in time do not count in the end. This is so even if a later
// reservation had replaced their window, and a reservation between the two has happened.
func TestCancelAfterTurns(t *testing.T) {
	t.Parallel()
	for name, alg := range withQueues() {
		if _, floats := alg.(ratelimit.WarmingUp); floats {
			continue
		}
		for _, kept := range []string{"memory", "bytes", "limits"} {
			t.Run(name+"/"+kept, func(t *testing.T) {
				t.Parallel()
				s := setupOf(alg, fakes.Midnight, kept)
				for seed := range budget.Seeds(t, budget.Histories(12, 60)) {
					history.Run(t, s, turnsPass(history.NewRandom(seed, 5), most(alg)))
				}
			})
		}
	}
}

// turnsPass chooses operations: reservations, and then some cancellations, while turns pass.
func turnsPass(c history.Choices, limit int) history.Step {
	reserves := 2 + c.Below(4)
	steps := -1
	return func(p history.Player) (o history.Op, ok bool) {
		k := p.Key("")
		switch steps++; {
		case steps == 0:
			return history.Op{Verb: history.Take, N: limit}, true
		case steps <= reserves:
			return history.Op{Verb: history.Reserve, N: 1 + c.Below(limit), Name: fmt.Sprint("h", steps)}, true
		case len(k.Made) == 0 || steps > 4*reserves:
			return o, false
		}
		i := c.Below(len(k.Made))
		ahead := time.Duration(k.Turns[i] - p.Now())
		switch {
		case c.Below(2) == 0:
			return history.Op{Verb: history.Cancel, Name: k.Made[i]}, true
		case ahead > 0 && c.Below(2) == 0:
			return history.Op{Verb: history.Pass, For: ahead + time.Duration(c.Below(2))}, true
		}
		return history.Op{Verb: history.Peek}, true
	}
}

// TestTakeBackAfterForeignReset cancels and settles a reservation in a window that another process
// has deleted. The present window began at another instant, so its events are those of other
// callers, and are not given back.
func TestTakeBackAfterForeignReset(t *testing.T) {
	for name, back := range map[string]func(*ratelimit.Reservation, *stepclock.Clock){
		"Cancel": func(r *ratelimit.Reservation, _ *stepclock.Clock) { r.Cancel() },
		"Settle after its turn": func(r *ratelimit.Reservation, clk *stepclock.Clock) {
			clk.Advance(r.Delay() + time.Second)
			_, err := r.Settle(t.Context(), 0)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			clk := stepclock.New()
			db := fakes.NewMapDB()
			var both [2]ratelimit.Limiter
			for i := range both {
				var err error
				both[i], err = ratelimit.New(ratelimit.FixedWindow{Limit: 2, Window: time.Minute, Start: ratelimit.StartOnFirstEvent},
					ratelimit.WithStore(db.Store()), ratelimit.WithName("test"), ratelimit.WithClock(clk))
				require.NoError(t, err)
			}
			for range 2 {
				require.True(t, both[0].Allow("k"))
			}
			clk.Advance(20 * time.Second)
			r, _, err := both[0].Reserve(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, 40*time.Second, r.Delay())
			require.NoError(t, both[1].Reset(t.Context(), "k"))
			for range 2 {
				require.True(t, both[1].Allow("k"))
			}
			back(r, clk) // the turn of r is in the window that began at 20 s
			require.False(t, both[0].Allow("k"))
		})
	}
}
