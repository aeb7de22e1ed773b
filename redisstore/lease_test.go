package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A key in demand is leased, and then takes few calls.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100_000)})
		s, l := f.store(t, WithLease(1000, 100*time.Millisecond))
		for range 1000 {
			for range 20 {
				d, err := l.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				require.Zero(t, d.RetryAfter)
				require.Positive(t, d.Remaining)
			}
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, f.Calls(), 200)
		assert.Greater(t, s.Stats().Leased, uint64(19_000))
		require.ErrorIs(t, s.Close(nil), ratelimit.ErrInvalid) //nolint:staticcheck // it is refused
		require.NoError(t, s.Close(t.Context()))
	})
}

// At a steady demand, the next lease arrives before the key's lease has run out, so that no caller
// waits for a reply. Each decision tells what remains.
func TestNoCallerWaitsForALease(t *testing.T) {
	const limit, age, trip = 100_000_000, 100 * time.Millisecond, time.Millisecond
	for name, tt := range map[string]struct {
		events    int           // of a lease at most
		n         int           // events of a request
		pause     time.Duration // between requests
		otherKeys bool          // whether other keys come and go meanwhile
	}{
		"all of a lease in a few trips":    {100, 1, 50 * time.Microsecond, false},
		"all of a lease in half its time":  {100, 1, 500 * time.Microsecond, false},
		"all of a lease in its time":       {100, 1, time.Millisecond, false},
		"less than a lease":                {1000, 1, time.Millisecond, false},
		"little":                           {1000, 1, 5 * time.Millisecond, false},
		"several events in a request":      {100, 3, 500 * time.Microsecond, false},
		"some of them with other keys":     {100, 1, 500 * time.Microsecond, true},
		"a lease that is no multiple of n": {97, 7, time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: limit, Window: 1000 * time.Hour})
				f.Delay = trip
				s, l := f.store(t, WithLease(tt.events, age))
				used, granted := 0, uint64(0)
				take := func() {
					d, err := l.Take(t.Context(), "k", tt.n)
					require.NoError(t, err)
					require.True(t, d.Allowed)
					used, granted = used+tt.n, granted+uint64(tt.n)
					time.Sleep(tt.pause)
				}
				for i := range int(5 * age / tt.pause) {
					take()
					if tt.otherKeys {
						go l.Allow(fmt.Sprint(i))
					}
				}
				before := s.Stats()
				granted = 0
				for i := range int(20 * age / tt.pause) {
					take()
					if tt.otherKeys {
						go l.Allow(fmt.Sprint(i))
					}
				}
				assert.Equal(t, granted, s.Stats().Leased-before.Leased, "all are from leases")
				conserved(t, f, s, limit, used)
				assert.Zero(t, s.Stats().Lost)
			})
		})
	}
}

// Callers who wait while a lease is asked for are granted from the lease, in the same round trip.
func TestWaitingCallersAreGrantedFromTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t, WithLease(100, time.Hour))
		used := useLease(t, f, s, l, asksForNext)
		_, k := leasesOf(t, s)
		calls, leased := s.Stats().Calls, s.Stats().Leased
		left, next := k.left(s.elapsed()), k.asked.n
		var wg sync.WaitGroup
		for range left + next {
			wg.Go(func() { assert.True(t, l.Allow("k")) })
			used++
		}
		wg.Wait()
		synctest.Wait()
		assert.Equal(t, leased+uint64(left+next), s.Stats().Leased)
		assert.Equal(t, calls, s.Stats().Calls)
		conserved(t, f, s, daily.Limit, used)
		assert.Zero(t, s.Stats().Lost)
	})
}

// leasesOf returns the name and the leases of the only key of s that has some.
func leasesOf(t *testing.T, s *Store) (name, *keyLeases) {
	t.Helper()
	for i := range s.leases {
		for text, k := range s.leases[i].keys {
			return nameOf(text), k
		}
	}
	t.Fatal("no key is leased")
	return name{}, nil
}

// leasesAre reports whether is returns true for the leases of a key of s.
func leasesAre(s *Store, is func(*keyLeases) bool) bool {
	for i := range s.leases {
		shard := &s.leases[i]
		shard.mu.Lock()
		defer shard.mu.Unlock()
		for _, k := range shard.keys {
			if is(k) {
				return true
			}
		}
	}
	return false
}

// isLeased reports whether s has leases, asked for or held.
func isLeased(s *Store) bool { return leasesAre(s, func(*keyLeases) bool { return true }) }

// useLease takes single events of a key until its leases are as is says, and returns how many. Before
// each one, it waits for the lease that is asked for, if any.
func useLease(t *testing.T, f *fakeServer, s *Store, l ratelimit.Limiter, is func(*keyLeases) bool) (used int) {
	t.Helper()
	for {
		synctest.Wait()
		if s.Stats().Leased > 0 && leasesAre(s, is) {
			return used
		}
		if leasesAre(s, func(k *keyLeases) bool { return k.asked != nil }) {
			time.Sleep(f.Delay)
			continue
		}
		require.True(t, l.Allow("k"))
		used++
	}
}

// These are what the leases of a key may be like.
func asksForNext(k *keyLeases) bool { return k.asked != nil && len(k.held) > 0 && k.latest().left > 0 }
func holdsNext(k *keyLeases) bool   { return len(k.held) == 2 && k.held[0].left > 0 }
func isHalfUsed(k *keyLeases) bool {
	return k.asked == nil && len(k.held) > 0 && k.latest().left == k.latest().n/2
}

// A next lease is taken while some of the one before is left. Together they hold no more than
// WithLease's number, by which processes may exceed the limit.
func TestNextLeaseTakesWhatIsLeftIntoAccount(t *testing.T) {
	const events, age = 100, time.Hour
	for name, pause := range map[string]time.Duration{
		"few events are left": 0,
		"little time is left": age * 5 / 6,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, daily)
				f.Delay = time.Millisecond
				s, l := f.store(t, WithLease(events, age))
				inDemand := func(k *keyLeases) bool { return isHalfUsed(k) && s.counts.leased.Load() >= events }
				used := useLease(t, f, s, l, inDemand)
				time.Sleep(pause)
				used += useLease(t, f, s, l, holdsNext)
				_, other := f.store(t)
				d, err := other.Peek(t.Context(), "k")
				require.NoError(t, err)
				assert.Equal(t, events, daily.Limit-d.Remaining-used, "held, at a demand of as many")
				conserved(t, f, s, daily.Limit, used)
			})
		})
	}
}

// A key that goes quiet is not leased again.
func TestQuietKeyIsNotLeasedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		from  func(*keyLeases) bool // when it goes quiet
		calls int                   // from then on
	}{
		"with half of a lease":                    {isHalfUsed, 1}, // that settles it
		"when the next one was just asked for":    {asksForNext, 2},
		"when the next one has arrived meanwhile": {holdsNext, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, daily)
				f.Delay = time.Millisecond
				s, l := f.store(t, WithLease(100, 100*time.Millisecond))
				used := useLease(t, f, s, l, tt.from)
				calls := s.Stats().Calls
				settle()
				assert.Equal(t, calls+uint64(tt.calls), s.Stats().Calls)
				assert.False(t, isLeased(s))
				conserved(t, f, s, daily.Limit, used)
				assert.Zero(t, s.Stats().Lost)
			})
		})
	}
}

// openLeases returns the leases that are held or asked for.
func openLeases(s *Store) (open []*lease) {
	for i := range s.leases {
		shard := &s.leases[i]
		shard.mu.Lock()
		for _, k := range shard.keys {
			open = append(open, k.held...)
			if k.asked != nil {
				open = append(open, k.asked)
			}
		}
		shard.mu.Unlock()
	}
	return open
}

// Whatever ends the lease of a key ends the next one as well, whether it is held or still asked for.
// The command of a charge may take another lease after it.
func TestNextLeaseEnds(t *testing.T) {
	const age = time.Hour
	other, err := fakes.NewLimit(ratelimit.FixedWindow{Limit: 9_000, Window: 24 * time.Hour})
	require.NoError(t, err)
	for end, tt := range map[string]struct {
		do    func(t *testing.T, f *fakeServer, s *Store, l ratelimit.Limiter)
		spent int  // by it
		reset bool // whether nothing is spent any more
	}{
		"its time": {do: func(*testing.T, *fakeServer, *Store, ratelimit.Limiter) { time.Sleep(age + time.Second) }},
		"close": {do: func(t *testing.T, _ *fakeServer, s *Store, _ ratelimit.Limiter) {
			require.NoError(t, s.Close(t.Context()))
		}},
		"a charge": {spent: 5, do: func(t *testing.T, _ *fakeServer, _ *Store, l ratelimit.Limiter) {
			_, err := l.Charge(t.Context(), "k", 5)
			require.NoError(t, err)
		}},
		"a hold": {spent: 5, do: func(t *testing.T, _ *fakeServer, _ *Store, l ratelimit.Limiter) {
			_, d, err := l.Hold(t.Context(), "k", 5)
			require.NoError(t, err)
			require.True(t, d.Allowed)
		}},
		"another limit": {do: func(t *testing.T, _ *fakeServer, s *Store, _ ratelimit.Limiter) {
			prog, err := newProgram(other)
			require.NoError(t, err)
			name, _ := leasesOf(t, s)
			_, ok := s.fromLease(name, prog, step.Request{Op: step.OpTake, N: 1})
			require.False(t, ok)
		}},
		"a reset": {reset: true, do: func(t *testing.T, _ *fakeServer, _ *Store, l ratelimit.Limiter) {
			require.NoError(t, l.Reset(t.Context(), "k"))
		}},
		"a reset that may have failed": {do: func(t *testing.T, f *fakeServer, s *Store, l ratelimit.Limiter) {
			name, _ := leasesOf(t, s)
			s.resetLease(name, io.EOF)
		}},
	} {
		for name, is := range map[string]func(*keyLeases) bool{"asked for": asksForNext, "held": holdsNext} {
			t.Run(end+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeServer(t, daily)
					f.Delay = 10 * time.Millisecond
					s, l := f.store(t, WithLease(100, age))
					used := useLease(t, f, s, l, is)
					before := openLeases(s)
					tt.do(t, f, s, l)
					if tt.reset {
						used = 0
					}
					time.Sleep(time.Second)
					leased := 0 // after that
					for _, l := range openLeases(s) {
						assert.False(t, slices.Contains(before, l))
						leased += l.n
					}
					_, other := f.store(t)
					d, err := other.Peek(t.Context(), "k")
					require.NoError(t, err)
					assert.Equal(t, daily.Limit-used-tt.spent-leased, d.Remaining)
					assert.Zero(t, s.Stats().Lost)
				})
			})
		}
	}
}

// Each decision says what remains, whatever leases it is granted from. What other processes have
// spent is known from the latest command on the key.
func TestRemainingOfLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 10_000, Per: 10_000 * time.Hour}})
		f.Delay = time.Millisecond
		s, l := f.store(t, WithLease(100, time.Hour))
		remain := 10_000
		take := func(l ratelimit.Limiter, n int) ratelimit.Decision {
			d, err := l.Take(t.Context(), "k", n)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			remain -= n
			return d
		}
		for range 2000 {
			leased := s.Stats().Leased
			d := take(l, 1)
			if s.Stats().Leased > leased {
				require.Equal(t, remain, d.Remaining)
			}
			time.Sleep(100 * time.Microsecond)
		}
		require.Greater(t, s.Stats().Leased, uint64(1900))

		_, other := f.store(t)
		take(other, 1000)
		leased := s.Stats().Leased
		for s.Stats().Leased < leased+100 { // until a lease was taken since
			take(l, 1)
			time.Sleep(100 * time.Microsecond)
		}
		assert.Equal(t, remain, take(l, 1).Remaining)
	})
}

// A next lease that cannot be taken is asked for once, and then by the caller who finds that the one
// before has run out.
func TestNextLeaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		s, l := f.store(t, WithLease(100, time.Hour))
		used := useLease(t, f, s, l, func(k *keyLeases) bool {
			return len(k.held) > 0 && k.latest().left == k.latest().n/lowMark+1
		})
		f.Set(func() { f.Fail = errors.New("EOF") })
		calls, leased := s.Stats().Calls, s.Stats().Leased
		_, k := leasesOf(t, s)
		for k.left(s.elapsed()) > 0 {
			require.True(t, l.Allow("k"))
			used++
			synctest.Wait()
		}
		assert.Greater(t, s.Stats().Leased, leased+1)
		assert.Equal(t, calls+1, s.Stats().Calls)
		f.Set(func() { f.Fail = nil })
		leased = s.Stats().Leased
		require.True(t, l.Allow("k"), "with the next lease")
		require.True(t, l.Allow("k"))
		assert.Equal(t, leased+1, s.Stats().Leased)
	})
}

// A key in little demand is not leased, nor is one near its limit, nor an algorithm that
// cannot be leased.
func TestNoLease(t *testing.T) {
	for name, tt := range map[string]struct {
		alg   ratelimit.Algorithm
		pause time.Duration
	}{
		"rare":          {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100_000)}, time.Second},
		"near":          {ratelimit.TokenBucket{Rate: ratelimit.PerHour(15)}, 0},
		"a queue":       {ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1e9), Capacity: 1e6}, 0},
		"warming up":    {ratelimit.WarmingUp{Rate: ratelimit.PerHour(1e9), Warmup: time.Hour}, 0},
		"locks":         {ratelimit.Lockout{Limit: 1e6, Window: time.Hour, First: time.Hour}, 0},
		"counts denied": {ratelimit.SlidingLog{Limit: 1e6, Window: time.Hour, CountDenied: true}, 0},
		"all": {ratelimit.All{
			ratelimit.FixedWindow{Limit: 1e9, Window: time.Hour},
			ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1e9), Capacity: 1e6},
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, tt.alg)
				s, l := f.store(t, WithLease(1000, 100*time.Millisecond))
				for range 15 {
					l.Allow("k")
					time.Sleep(tt.pause)
				}
				assert.Zero(t, s.Stats().Leased)
			})
		})
	}
}

// Unused events are given back when a lease ends and when the store is closed, with every
// algorithm that can be leased.
func TestGivingBack(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket":   ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1000, Per: 1000 * time.Hour}},
		"sevenths": ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 7, Per: 1000 * time.Hour}, Burst: 1000},
		"interval": ratelimit.TokenBucket{Rate: ratelimit.PerDay(1000), Refill: ratelimit.RefillInterval},
		"fixed":    ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour},
		"sliding":  ratelimit.SlidingWindow{Limit: 1000, Window: 1000 * time.Hour, Segments: 4},
		"log":      ratelimit.SlidingLog{Limit: 1000, Window: time.Hour},
		"rolling":  ratelimit.RollingWindow{Quota: 1000, Window: 1000 * time.Hour, Period: 100 * time.Hour},
		"all":      ratelimit.All{ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour}, ratelimit.SlidingLog{Limit: 1001, Window: time.Hour}},
	} {
		for how, end := range map[string]func(s *Store){
			"expiry": func(*Store) { time.Sleep(110 * time.Millisecond) },
			"close":  func(s *Store) { require.NoError(t, s.Close(context.Background())) },
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeServer(t, alg)
					f.Delay = time.Millisecond
					s, l := f.store(t, WithLease(100, 100*time.Millisecond))
					_, other := f.store(t)
					used := 0
					for s.Stats().Leased < 30 {
						require.True(t, l.Allow("k"))
						used++
					}
					d, err := other.Peek(t.Context(), "k")
					require.NoError(t, err)
					require.Less(t, d.Remaining, 1000-used, "some is leased")
					end(s)
					synctest.Wait()
					d, err = other.Peek(t.Context(), "k")
					require.NoError(t, err)
					assert.Equal(t, 1000-used, d.Remaining)
				})
			})
		}
	}
}

// While a hold is open, the process takes the unused events of a lease back from a value that it reads: as of
// then, even if other processes have used the key between the two commands.
func TestGivingBackBesideOthers(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket":  ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1000, Per: 1000 * time.Hour}},
		"sliding": ratelimit.SlidingWindow{Limit: 1000, Window: 1000 * time.Hour, Segments: 4},
		"log":     ratelimit.SlidingLog{Limit: 1000, Window: time.Hour},
		"all":     ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000), Burst: 1000}, ratelimit.SlidingLog{Limit: 1001, Window: time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, alg)
				f.Delay = time.Millisecond
				s, l := f.store(t, WithLease(100, 100*time.Millisecond))
				_, other := f.store(t)
				used := 0
				for s.Stats().Leased < 30 {
					require.True(t, l.Allow("k"))
					used++
				}
				r, _, err := other.Hold(t.Context(), "k", 5)
				require.NoError(t, err)
				for range 200 { // until the lease has ended
					require.True(t, other.Allow("k"))
					used++
				}
				synctest.Wait()
				d, err := r.Settle(t.Context(), 5)
				require.NoError(t, err)
				assert.Equal(t, 1000-used-5, d.Remaining)
				assert.Zero(t, s.Stats().Lost)
			})
		})
	}
}

// After Close there are no leases, and the store still works.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100_000)})
		s, l := f.store(t, WithLease(1000, 100*time.Millisecond))
		require.NoError(t, s.Close(t.Context()))
		for range 100 {
			require.True(t, l.Allow("k"))
		}
		assert.Equal(t, 100, f.Calls())
		require.NoError(t, s.Close(t.Context()))

		// Close returns when its context ends, even if the server is gone.
		s, l = f.store(t, WithLease(1000, time.Hour))
		for range 100 {
			require.True(t, l.Allow("k"))
		}
		f.Hangs = true
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		assert.ErrorIs(t, s.Close(ctx), context.DeadlineExceeded)
		assert.Equal(t, 10*time.Millisecond, time.Since(begin))
		time.Sleep(time.Second) // until the commands in progress time out
	})
}

// A key that is reset gets its whole limit back, and its lease is dropped.
func TestLeaseReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour})
		s, l := f.store(t, WithLease(100, 100*time.Millisecond))
		for s.Stats().Leased == 0 {
			require.True(t, l.Allow("k"))
		}
		require.NoError(t, l.Reset(t.Context(), "k"))
		granted := 0
		for range 3000 {
			if l.Allow("k") {
				granted++
			}
		}
		assert.Equal(t, 1000, granted)
	})
}

// With N processes, a span of time has at most what the limit grants in it, plus the lesser
// of N leases and what the limit grants in the duration of one. In the long run the limit
// is exact.
func TestLeaseBound(t *testing.T) {
	const (
		processes = 5
		events    = 40
		age       = 100 * time.Millisecond
		rate      = 1000 // a second
		burst     = 1500
		seconds   = 6
	)
	bound := func(d time.Duration) float64 { return burst + rate*d.Seconds() }
	extra := min(processes*events, bound(age))
	for seed := range budget.Seeds(t, 3) {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(rate), Burst: burst})
			f.Delay = 2 * time.Millisecond
			var mu sync.Mutex
			var granted []time.Duration // the instants at which one was
			begin := time.Now()
			leased := uint64(0)
			var wg sync.WaitGroup
			for p := range uint64(processes) {
				rng := rand.New(rand.NewPCG(seed, p))
				s, l := f.store(t, WithLease(events, age))
				wg.Go(func() {
					for time.Since(begin) < seconds*time.Second {
						// Rushes and pauses.
						for range rng.IntN(400) {
							if d, err := l.Take(t.Context(), "k", 1); err == nil && d.Allowed {
								mu.Lock()
								granted = append(granted, time.Since(begin))
								mu.Unlock()
							}
							time.Sleep(time.Duration(rng.IntN(600)) * time.Microsecond)
						}
						time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
					}
					assert.NoError(t, s.Close(t.Context()))
					mu.Lock()
					leased += s.Stats().Leased
					mu.Unlock()
				})
			}
			wg.Wait()
			require.Greater(t, leased, uint64(len(granted)/10), "too little was leased")
			most := 0.0
			for i := range granted {
				for _, span := range []time.Duration{0, age / 2, age, 10 * age, seconds * time.Second} {
					j := i
					for j < len(granted) && granted[j]-granted[i] <= span {
						j++
					}
					over := float64(j-i) - bound(span)
					most = max(most, over)
				}
			}
			t.Logf("seed %d: %d granted, %d from leases, at most %.0f more than the limit in a span; %v is the bound", seed, len(granted), leased, most, extra)
			assert.LessOrEqual(t, most, extra)
			assert.LessOrEqual(t, float64(len(granted)), bound(granted[len(granted)-1])+extra)
		})
	}
}

// Leased events can happen after others have spent the capacity that replaced them. So more happen
// at one instant than the limit allows, by no more than was leased.
func TestLeaseWorstCase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes, events, age = 5, 40, 100 * time.Millisecond
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000), Burst: 1500})
		var fleet []ratelimit.Limiter
		var stores []*Store
		for range processes {
			s, l := f.store(t, WithLease(events, age))
			for s.Stats().Leased == 0 {
				require.True(t, l.Allow("k"))
			}
			stores, fleet = append(stores, s), append(fleet, l)
		}
		time.Sleep(age - time.Millisecond)
		granted := 0
		_, other := f.store(t)
		for other.Allow("k") {
			granted++
		}
		for i, l := range fleet {
			stores[i].denialAge = 0
			for l.Allow("k") {
				granted++
			}
		}
		over := granted - 1500
		t.Logf("%d more than the limit at one instant", over)
		assert.Positive(t, over)
		assert.LessOrEqual(t, over, processes*events)
	})
}

// conserved checks that after all leases have ended, each event was granted, remains, or is
// counted as lost.
func conserved(t *testing.T, f *fakeServer, s *Store, limit, used int) {
	t.Helper()
	conservedWithin(t, f, s, limit, used, used)
}

// conservedWithin is conserved if it is not known whether some requests were spent.
func conservedWithin(t *testing.T, f *fakeServer, s *Store, limit, least, most int) {
	t.Helper()
	require.NoError(t, s.Close(t.Context()))
	settle()
	_, other := f.store(t)
	d, err := other.Peek(t.Context(), "k")
	require.NoError(t, err)
	lost := int(s.Stats().Lost)
	used := limit - d.Remaining - lost
	assert.True(t, least <= used && used <= most,
		"%d to %d of %d used, %d remain, %d lost", least, most, limit, d.Remaining, lost)
}

// A lease is kept no matter what is cancelled on other keys meanwhile.
func TestLeaseBesideCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, others = 100_000, 200
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: limit, Window: 1000 * time.Hour})
		s, l := f.store(t, WithLease(100, 100*time.Millisecond))
		for i := range others {
			require.True(t, l.AllowN(fmt.Sprint(i), limit)) // so that reservations are pending
		}
		f.Delay = 4 * time.Millisecond
		end := time.Now().Add(time.Second)
		var wg sync.WaitGroup
		for i := range others {
			wg.Go(func() {
				for time.Now().Before(end) {
					r, _, err := l.Reserve(t.Context(), fmt.Sprint(i), 1)
					require.NoError(t, err)
					require.Positive(t, r.Delay())
					r.Cancel()
				}
			})
		}
		used := 0
		for time.Now().Before(end) {
			require.True(t, l.Allow("k"))
			used++
			time.Sleep(50 * time.Microsecond)
		}
		wg.Wait()
		conserved(t, f, s, limit, used)
		assert.Zero(t, s.Stats().Lost)
		assert.Greater(t, s.Stats().Leased, uint64(used/2))
	})
}

// A strangeConn is a connection that delays or loses the replies to commands that take a
// lease. The server executes them.
type strangeConn struct {
	*fakeServer
	reply func() error // called before such a reply is returned
}

func (c *strangeConn) Do(ctx context.Context, commands []Command) []Reply {
	before := c.spent()
	replies := c.fakeServer.Do(context.WithoutCancel(ctx), commands)
	if replies[0].Err == nil && c.spent()-before >= minLease {
		replies[0].Err = c.reply()
	}
	return replies
}

// spent returns the number of events that the server's window counts.
func (c *strangeConn) spent() (events int) {
	c.Set(func() {
		for _, state := range c.Values { // of one key
			events = int(binary.LittleEndian.Uint64([]byte(state[len(state)-8:])))
		}
	})
	return events
}

// If the reply to a command that takes a lease is late or lost, no event is missing.
func TestLeaseReplies(t *testing.T) {
	const limit = 10_000
	for name, reply := range map[string]func() error{
		"after the timeout": func() error { time.Sleep(70 * time.Millisecond); return nil },
		"after the lease":   func() error { time.Sleep(time.Second); return nil },
		"never":             func() error { return errors.New("EOF") },
		"at once":           func() error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: limit, Window: 1000 * time.Hour})
				f.Delay = time.Millisecond
				c := &strangeConn{f, reply}
				s, l := f.storeThrough(t, c, WithLease(100, 100*time.Millisecond), WithBreaker(0, 0))
				used, unsure := 0, 0
				for range 300 {
					d, err := l.Take(t.Context(), "k", 1)
					switch {
					case errors.Is(err, ErrTimeout):
						unsure++ // it may have waited behind a lease, and was not sent
					case err != nil || d.Allowed: // what fails has been executed
						used++
					}
				}
				assert.LessOrEqual(t, unsure, 10)
				conservedWithin(t, f, s, limit, used, used+unsure)
				assert.Zero(t, s.Stats().Lost, "what was not answered is given back")
			})
		})
	}
}

// askForLease makes requests until a lease is asked for, and returns how many were granted
// and a function that waits until the last of them is answered. The server must have a
// delay.
func askForLease(t *testing.T, s *Store, l ratelimit.Limiter) (used int, wait func()) {
	for range minLease - 1 {
		require.True(t, l.Allow("k"))
	}
	var wg sync.WaitGroup
	wg.Go(func() { assert.True(t, l.Allow("k")) })
	synctest.Wait()
	asked := 0
	for i := range s.leases {
		for _, k := range s.leases[i].keys {
			if k.asked != nil {
				asked++
			}
		}
	}
	require.Equal(t, 1, asked)
	return minLease, wg.Wait
}

// Close waits for a lease that is being taken, and gives it back.
func TestCloseDuringLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10_000
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: limit, Window: 1000 * time.Hour})
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t, WithLease(100, 100*time.Millisecond))
		used, wait := askForLease(t, s, l)
		require.NoError(t, s.Close(t.Context()))
		_, other := f.store(t)
		d, err := other.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, limit, used+d.Remaining, "before the first Close has returned")
		wait()
		conserved(t, f, s, limit, used)
	})
}

// A Reset ends a lease that is being taken, because the server may have taken it first. If it has not, its
// events are given back. It does not end one of another key.
func TestResetDuringLease(t *testing.T) {
	for _, key := range []string{"k", "other"} {
		synctest.Test(t, func(t *testing.T) {
			const limit = 10_000
			f := newFakeServer(t, ratelimit.FixedWindow{Limit: limit, Window: 1000 * time.Hour})
			f.Delay = 10 * time.Millisecond
			s, l := f.store(t, WithLease(100, 100*time.Millisecond))
			_, wait := askForLease(t, s, l)
			f.Set(func() { f.Delay = 0 })
			require.NoError(t, l.Reset(t.Context(), key))
			wait()
			synctest.Wait()
			_, other := f.store(t)
			d, err := other.Peek(t.Context(), "k")
			require.NoError(t, err)
			if key == "k" {
				assert.Equal(t, limit-1, d.Remaining)
			}
			before := s.Stats().Leased
			require.True(t, l.Allow("k"))
			assert.Equal(t, key != "k", s.Stats().Leased > before)
			assert.Zero(t, s.Stats().Lost)
			require.NoError(t, s.Close(t.Context()))
		})
	}
}

// A slowReset is a connection that delays the replies to Reset.
type slowReset struct{ *fakeServer }

func (c slowReset) Do(ctx context.Context, commands []Command) []Reply {
	replies := c.fakeServer.Do(ctx, commands)
	if commands[0].Words[0] == "DEL" {
		time.Sleep(20 * time.Millisecond)
	}
	return replies
}

// A lease that was taken after the key was reset, but before Reset has returned, is given back.
func TestLeaseTakenBeforeResetReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		f.Delay = 10 * time.Millisecond
		s, l := f.storeThrough(t, slowReset{f}, WithLease(100, time.Hour))
		useLease(t, f, s, l, isHalfUsed)
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, l.Reset(t.Context(), "k")) })
		time.Sleep(5 * time.Millisecond)
		useLease(t, f, s, l, holdsNext)
		wg.Wait()
		settle()
		conserved(t, f, s, daily.Limit, 0)
		assert.Zero(t, s.Stats().Lost)
	})
}

// A Reset that fails may have been executed: the lease ends, and gives back what it can. One that was
// not sent does nothing.
func TestFailedReset(t *testing.T) {
	for name, err := range map[string]error{
		"lost":     errors.New("EOF"),
		"not sent": &openError{&Outage{Cause: io.EOF}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 10_000
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: limit, Window: 1000 * time.Hour})
				s, l := f.store(t, WithLease(100, 100*time.Millisecond))
				used := 0
				for s.Stats().Leased == 0 {
					require.True(t, l.Allow("k"))
					used++
				}
				f.Set(func() { f.Fail, f.Failures = err, 1 })
				require.Error(t, l.Reset(t.Context(), "k"))
				leased := s.Stats().Leased
				require.True(t, l.Allow("k"))
				assert.Equal(t, name == "not sent", s.Stats().Leased > leased)
				conserved(t, f, s, limit, used+1)
				assert.Zero(t, s.Stats().Lost)
			})
		})
	}
}

// A lease that cannot be given back is counted, and Close reports it.
func TestLeaseNotGivenBack(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *Store){
		"expiry": func(t *testing.T, s *Store) {
			settle()
			assert.NoError(t, s.Close(t.Context()), "that is past")
		},
		"close": func(t *testing.T, s *Store) { assert.ErrorContains(t, s.Close(t.Context()), "no more") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 10_000
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: limit, Window: 1000 * time.Hour})
				s, l := f.store(t, WithLease(100, 100*time.Millisecond))
				used := 0
				for s.Stats().Leased == 0 {
					require.True(t, l.Allow("k"))
					used++
				}
				f.Set(func() { f.Fail = errors.New("ERR no more") })
				end(t, s)
				f.Set(func() { f.Fail = nil })
				conserved(t, f, s, limit, used)
				assert.Positive(t, s.Stats().Lost)
			})
		})
	}
}
