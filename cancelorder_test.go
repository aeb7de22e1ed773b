package ratelimit_test

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
	"github.com/ratelimit-go/ratelimit/internal/model"
	"github.com/ratelimit-go/ratelimit/internal/race"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// queues are algorithms in whose lines several reservations stand in one slot or
// window and in several, with those that have parts of every kind.
var queues = map[string]ratelimit.Algorithm{
	"window over days":     ratelimit.FixedWindow{Limit: 2, Window: time.Minute},
	"sliding, in one slot": ratelimit.SlidingWindow{Limit: 7, Window: time.Minute},
	"sliding, far ahead":   ratelimit.SlidingWindow{Limit: 2, Window: time.Second, Segments: 2},
	"rolling, far ahead":   ratelimit.RollingWindow{Quota: 3, Window: 3 * time.Second, Period: time.Second, PeriodLimit: 2},
	"log":                  ratelimit.SlidingLog{Limit: 3, Window: time.Second},
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

// TestCancelOrders lets five reservations stand in line, and cancels each set of them
// in every order, with time passing in between or not. The library must agree with
// the model after each, and when all that can be is cancelled, with a key on which
// they were never made.
func TestCancelOrders(t *testing.T) {
	t.Parallel()
	algorithms := storetest.Algorithms()
	for name, alg := range queues {
		algorithms["queues/"+name] = alg
	}
	const many = 5
	every := 100 / int(race.Few(100)) // of three or more cancellations, one order in so many
	for name, alg := range algorithms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, floats := alg.(ratelimit.WarmingUp)
			seen := 0
			orders(many, func(order []int) {
				if seen++; len(order) > 2 && seen%every != 0 {
					return
				}
				l, clk := at(t, alg)
				ref := model.New(alg, 1)
				now := func() int64 { return clk.Now().UnixNano() }
				check := func(what string) {
					want := ref.Peek(now())
					got := peek(t, l)
					if floats && (got.ResetAfter-want.ResetAfter).Abs() <= 2 {
						got.ResetAfter = want.ResetAfter
					}
					got.Part = want.Part
					require.Equal(t, want, got, "%v of %v", what, order)
				}
				limit := ref.Limit()
				ref.Take(now(), (limit+1)/2)
				require.True(t, l.AllowN("key", (limit+1)/2))
				never := ref.Clone()
				rng := rand.New(rand.NewPCG(uint64(len(order)), uint64(order[0])))
				var line []*ratelimit.Reservation
				var refs []*model.Reservation
				for i := range many {
					n := []int{1, limit, max(1, limit/3), 1, max(1, limit/2)}[i]
					due, ref, wantErr := ref.Reserve(now(), n, ratelimit.Never)
					r, err := l.Reserve(ctx, "key", n)
					require.ErrorIs(t, err, wantErr)
					line, refs = append(line, r), append(refs, ref)
					if err == nil {
						require.EqualValues(t, due, now()+int64(r.Delay()))
					}
				}
				passes := rng.IntN(2) == 0
				for i, j := range order {
					if line[j] != nil {
						line[j].Cancel()
						ref.Cancel(now(), refs[j])
					}
					check(fmt.Sprint("step ", i))
					if passes && i == 1 && line[0] != nil {
						clk.Advance(line[0].Delay() / 3)
					}
				}
				if len(order) == many && !slices.Contains(line, nil) && !passes {
					require.Equal(t, never.Peek(now()), ref.Peek(now()), "all cancelled in order %v", order)
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

// TestConcurrentCancel cancels most of a long line from many goroutines at once. No
// event is granted before the reservations that are kept. Once these are cancelled, too,
// the key is as if none had been made.
func TestConcurrentCancel(t *testing.T) {
	t.Parallel()
	algorithms := storetest.Algorithms()
	for name, alg := range queues {
		algorithms["queues/"+name] = alg
	}
	for name, alg := range algorithms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _ := at(t, alg)
			require.True(t, l.AllowN("key", 1))
			before := peek(t, l)
			var mu sync.Mutex // protects stay
			var stay []*ratelimit.Reservation
			reserveAndCancel := func(many int) {
				var line []*ratelimit.Reservation
				for range many {
					if r, err := l.Reserve(ctx, "key", 1); err == nil {
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
			d := peek(t, l)
			if !strings.Contains(name, "queue") && !strings.Contains(name, "strict") && latest > 0 { // a LeakyBucket grants events with a later turn
				require.False(t, d.Allowed)
				require.GreaterOrEqual(t, d.RetryAfter, latest)
			}
			for _, r := range stay {
				r.Cancel()
			}
			require.Equal(t, before, peek(t, l))
		})
	}
}

// TestConcurrentReserveAndCancel makes and cancels reservations from many goroutines:
// the events taken before stay used, and all reserved ones are given back.
func TestConcurrentReserveAndCancel(t *testing.T) {
	t.Parallel()
	for name, alg := range queues {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _ := at(t, alg)
			require.True(t, l.AllowN("key", 1))
			before := peek(t, l)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 50 {
						r, err := l.Reserve(ctx, "key", 1)
						if err != nil {
							continue
						}
						runtime.Gosched()
						r.Cancel()
					}
				})
			}
			wg.Wait()
			after := peek(t, l)
			require.LessOrEqual(t, after.Remaining, before.Remaining)
			if sliding := strings.HasPrefix(name, "sliding") || strings.HasPrefix(name, "all"); sliding && !after.Allowed {
				// If a reservation and a cancellation were made at the same time, the
				// frontier may stay until the end of the present segment.
				require.LessOrEqual(t, after.RetryAfter, time.Minute)
				return
			}
			require.Equal(t, before, after)
		})
	}
}

// TestCancelAfterTurns cancels reservations in any order while the turns of others pass. Events
// that were cancelled in time never count in the end, even if a reservation far ahead had
// replaced their window, and one between the two has happened.
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
		for kind, open := range stores {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				for seed := range race.Few(60) {
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
	ref := model.New(alg, 1)
	now := func() int64 { return clk.Now().UnixNano() }
	limit := ref.Limit()
	ref.Take(now(), limit)
	require.True(t, l.AllowN("key", limit))
	var line []*ratelimit.Reservation
	var refs []*model.Reservation
	for range 2 + rng.IntN(4) {
		n := 1 + rng.IntN(limit)
		_, rr, wantErr := ref.Reserve(now(), n, ratelimit.Never)
		r, err := l.Reserve(ctx, "key", n)
		require.ErrorIs(t, err, wantErr)
		if err == nil {
			line, refs = append(line, r), append(refs, rr)
		}
	}
	for range 3 * len(line) {
		i := rng.IntN(len(line))
		if rng.IntN(2) == 0 {
			line[i].Cancel()
			ref.Cancel(now(), refs[i])
		} else if d := line[i].Delay(); d > 0 && rng.IntN(2) == 0 {
			clk.Advance(d + time.Duration(rng.IntN(2)))
		}
		want := ref.Peek(now())
		got := peek(t, l)
		got.Part = want.Part
		require.Equal(t, want, got, "seed %d", seed)
	}
}

// TestTakeBackAfterForeignReset cancels and settles a reservation in a window that another
// process has deleted. The store does not tell, but the window that is there now began at
// another instant, so its events are others'.
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
			db := newMapDB()
			var both [2]ratelimit.Limiter
			for i := range both {
				var err error
				both[i], err = ratelimit.New(ratelimit.FixedWindow{Limit: 2, Window: time.Minute, Start: ratelimit.StartOnFirstEvent},
					ratelimit.WithStore(db.store()), ratelimit.WithName("test"), ratelimit.WithClock(clk))
				require.NoError(t, err)
			}
			for range 2 {
				require.True(t, both[0].Allow("k"))
			}
			clk.Advance(20 * time.Second)
			r, err := both[0].Reserve(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, 40*time.Second, r.Delay())
			require.NoError(t, both[1].Reset(t.Context(), "k"))
			for range 2 {
				require.True(t, both[1].Allow("k"))
			}
			back(r, clk) // its instant is in the window that began at 20 s
			require.False(t, both[0].Allow("k"))
		})
	}
}
