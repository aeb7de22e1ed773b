package decide_test

import (
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
	"github.com/ratelimit-go/ratelimit/internal/model"
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

// A line has the reservations on one key, in a limiter and in the model. With an InFlight, they are
// holds.
type line struct {
	real  ratelimit.Limiter
	model *model.Key
	flies bool
	of    []*turn
}

// A turn is a reservation in a line.
type turn struct {
	*ratelimit.Reservation // nil if it was denied
	model                  *model.Reservation
	held                   *model.Held
	cancelled              bool
}

func newLine(l ratelimit.Limiter, alg ratelimit.Algorithm) *line {
	ln := &line{real: l, model: model.New(alg, 1)}
	if _, ok := alg.(ratelimit.InFlight); ok {
		ln.flies = true
	}
	if all, ok := alg.(ratelimit.All); ok {
		_, ln.flies = all[0].(ratelimit.InFlight)
	}
	return ln
}

// reserve puts n events into the line.
func (ln *line) reserve(t *testing.T, now int64, n int) {
	t.Helper()
	var w turn
	var due uint64
	var wantErr, err error
	if ln.flies {
		due, w.held, wantErr = ln.model.HoldWithin(now, n, model.Terms{}, ratelimit.Never)
	} else {
		due, w.model, wantErr = ln.model.Reserve(now, n, ratelimit.Never)
	}
	w.Reservation, _, err = ln.real.Reserve(ctx, "key", n)
	require.NoError(t, err)
	require.Equal(t, wantErr == nil, w.Reservation != nil)
	if wantErr == nil {
		require.EqualValues(t, due, now+int64(w.Delay()))
	}
	ln.of = append(ln.of, &w)
}

// cancel cancels a turn.
func (ln *line) cancel(now int64, i int) {
	w := ln.of[i]
	if w.Reservation == nil {
		return
	}
	w.Cancel()
	if !w.cancelled && ln.flies {
		ln.model.Settle(now, w.held, 0)
	} else {
		ln.model.Cancel(now, w.model)
	}
	w.cancelled = true
}

// check compares a Peek of the limiter with a Peek of the model. It ignores Part, which is not
// defined while all parts wait for a reservation.
func (ln *line) check(t *testing.T, now int64, tolerance time.Duration, what ...any) {
	t.Helper()
	want, got := ln.model.Peek(now), fakes.Peek(t, ln.real)
	if (got.ResetAfter - want.ResetAfter).Abs() <= tolerance {
		got.ResetAfter = want.ResetAfter
	}
	got.Part = want.Part
	require.Equal(t, want, got, what...)
}

// TestCancelOrders lets five reservations stand in line, and cancels each set of them in every
// order. Time passes between cancellations, or not. After each cancellation, the library must agree
// with the model. Once all reservations that can be cancelled are cancelled, the library must also
// agree with a key on which they were never made.
func TestCancelOrders(t *testing.T) {
	t.Parallel()
	algorithms := storetest.Algorithms()
	for name, alg := range queues {
		algorithms["queues/"+name] = alg
	}
	const many = 5
	every := 100 / int(budget.Histories(10, 100)) // of the orders of three or more cancellations, the test tries one in every
	for name, alg := range algorithms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tolerance time.Duration
			if _, floats := alg.(ratelimit.WarmingUp); floats {
				tolerance = 2
			}
			seen := 0
			orders(many, func(order []int) {
				if seen++; len(order) > 2 && seen%every != 0 {
					return
				}
				l, clk := fakes.At(t, alg)
				ln := newLine(l, alg)
				now := func() int64 { return clk.Now().UnixNano() }
				limit := ln.model.Limit()
				used := limit // so that all reservations are for later
				if _, queue := alg.(ratelimit.LeakyBucket); queue {
					used = (limit + 1) / 2
				}
				ln.model.Take(now(), used)
				require.True(t, l.AllowN("key", used))
				never := ln.model.Clone()
				rng := rand.New(rand.NewPCG(uint64(len(order)), uint64(order[0])))
				for i := range many {
					ln.reserve(t, now(), []int{1, limit, max(1, limit/3), 1, max(1, limit/2)}[i])
				}
				passes := rng.IntN(2) == 0
				for i, j := range order {
					ln.cancel(now(), j)
					ln.check(t, now(), tolerance, "step %d of %v", i, order)
					if first := ln.of[0]; passes && i == 1 && first.Reservation != nil {
						clk.Advance(first.Delay() / 3)
					}
				}
				denied := func(w *turn) bool { return w.Reservation == nil }
				if len(order) == many && !slices.ContainsFunc(ln.of, denied) && !passes {
					require.Equal(t, never.Peek(now()), ln.model.Peek(now()), "all cancelled in order %v", order)
				}
			})
		})
	}
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
	algorithms := storetest.Algorithms()
	for name, alg := range queues {
		algorithms["queues/"+name] = alg
	}
	for name, alg := range algorithms {
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
	algorithms := storetest.Algorithms()
	for name, alg := range queues {
		algorithms["queues/"+name] = alg
	}
	for name, alg := range algorithms {
		if _, floats := alg.(ratelimit.WarmingUp); floats {
			continue
		}
		for kind, open := range fakes.Stores {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				for seed := range budget.Seeds(t, budget.Histories(12, 60)) {
					cancelAfterTurns(t, alg, open(), seed)
				}
			})
		}
	}
}

func cancelAfterTurns(t *testing.T, alg ratelimit.Algorithm, store ratelimit.Store, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 5))
	clk := stepclock.New()
	l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk), ratelimit.WithStoreTimeout(time.Hour)))
	ln := newLine(l, alg)
	now := func() int64 { return clk.Now().UnixNano() }
	limit := ln.model.Limit()
	ln.model.Take(now(), limit)
	require.True(t, l.AllowN("key", limit))
	for range 2 + rng.IntN(4) {
		ln.reserve(t, now(), 1+rng.IntN(limit))
	}
	for range 3 * len(ln.of) {
		i := rng.IntN(len(ln.of))
		if rng.IntN(2) == 0 {
			ln.cancel(now(), i)
		} else if d := ln.of[i].Delay(); d > 0 && rng.IntN(2) == 0 {
			clk.Advance(d + time.Duration(rng.IntN(2)))
		}
		ln.check(t, now(), 0, "seed %d", seed)
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
