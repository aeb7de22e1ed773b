package wait_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// A tardyClock is one whose timers fire late, as those of a process whose processors are busy.
type tardyClock struct {
	clock.Clock
	late atomic.Int64
}

func (c *tardyClock) Timer(d time.Duration) *clock.Timer {
	return c.Clock.Timer(d + time.Duration(c.late.Load()))
}

// A line keeps its rate while timers fire late: turns that have come meanwhile are served together,
// once the timers have fired. When timers fire in time again, the line forgets the lateness within
// a second. After that, turns that a pause has missed are not made up for.
func TestWait_KeepsItsRateWhileTimersAreLate(t *testing.T) {
	const perSecond = 100
	for name, alg := range map[string]ratelimit.Algorithm{
		"LeakyBucket": ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(perSecond), Capacity: 100},
		"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(perSecond), Burst: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inEach(t, func(t *testing.T, in place) {
				clk := &tardyClock{Clock: clock.New()}
				l := in.limiter(alg, ratelimit.WithClock(clk))
				ctx, stop := context.WithCancel(t.Context())
				var total atomic.Int64
				for range 64 {
					go func() {
						for l.Wait(ctx, "key") == nil {
							total.Add(1)
						}
					}()
				}
				served := func(d time.Duration) int64 {
					before := total.Load()
					time.Sleep(d)
					synctest.Wait()
					return total.Load() - before
				}
				served(time.Second)
				clk.late.Store(int64(35 * time.Millisecond))
				served(time.Second) // in which this is learned
				// How many turns have come when the second ends, and are not taken yet, depends on
				// when the timers fire.
				assert.InDelta(t, 2*perSecond, served(2*time.Second), 4)
				clk.late.Store(0)
				served(2 * time.Second)
				if in.name == "memory" {
					clk.late.Store(int64(time.Second)) // once, for whoever sleeps next
					served(100 * time.Millisecond)
					clk.late.Store(0)
					var most int64
					for range 200 {
						most = max(most, served(10*time.Millisecond))
					}
					assert.LessOrEqual(t, most, int64(2), "the one that was late, and the next one")
				}
				stop()
				synctest.Wait()
			})
		})
	}
}

// A line of holds in memory also keeps its rate, if all of their events happen, even while another
// hold is open.
func TestHold_WaitingKeepsItsRateWhileTimersAreLate(t *testing.T) {
	const perSecond = 100
	for name, alg := range map[string]ratelimit.Algorithm{
		"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(perSecond), Burst: 1},
		"SlidingLog":  ratelimit.SlidingLog{Limit: 1, Window: time.Second / perSecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clk := &tardyClock{Clock: clock.New()}
				l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
				_, _, err := l.Hold(t.Context(), "key", 1) // which is settled never
				require.NoError(t, err)
				ctx, stop := context.WithCancel(t.Context())
				var total atomic.Int64
				for range 64 {
					go func() {
						for {
							r, _, err := l.Hold(ctx, "key", 1, ratelimit.Waiting())
							if err != nil {
								return
							}
							_, err = r.Settle(ctx, 1)
							assert.NoError(t, err)
							total.Add(1)
						}
					}()
				}
				clk.late.Store(int64(35 * time.Millisecond))
				time.Sleep(time.Second) // in which this is learned
				synctest.Wait()
				before := total.Load()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				// How many turns have come when the time ends, and are not taken yet, depends on
				// when the timers fire.
				assert.InDelta(t, 2*perSecond, total.Load()-before, 4)
				stop()
				synctest.Wait()
			})
		})
	}
}

// A caller that arrives asks for the hold of a waiter whose turn has come and that is late.
func TestHold_WaitingIsServedByWhoComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := &tardyClock{Clock: clock.New()}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1}, ratelimit.WithClock(clk)))
		require.True(t, l.Allow("key"))
		clk.late.Store(int64(time.Hour))
		first := fakes.WaitFor(t, l, "key", 1)
		synctest.Wait()
		time.Sleep(101 * time.Millisecond)
		_ = fakes.WaitFor(t, l, "key", 1)
		synctest.Wait()
		assert.True(t, first.Done.Load())
	})
}

// A hold whose turn is taken late counts from its turn, and lasts from the instant at which it was
// taken. Events that a hold gives back do not make the turn of a late waiter earlier.
func TestHold_TakenLate(t *testing.T) {
	alg := ratelimit.SlidingLog{Limit: 1, Window: 100 * time.Millisecond}
	for name, tt := range map[string]struct {
		settled int           // events of the hold that is open when the line begins, of one
		counts  time.Duration // from when on the turn counts
	}{
		"all happened": {1, 100 * time.Millisecond},
		"given back":   {0, 125 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clk := &tardyClock{Clock: clock.New()}
				l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
				clk.late.Store(int64(35 * time.Millisecond))
				require.True(t, l.Allow("key"))
				require.NoError(t, l.Wait(t.Context(), "key")) // its lateness is learned
				time.Sleep(2 * alg.Window)                     // nothing counts any more
				begin := time.Now()
				at := func(d time.Duration) {
					time.Sleep(d - time.Since(begin))
					synctest.Wait()
				}
				first, _, err := l.Hold(t.Context(), "key", 1)
				require.NoError(t, err)
				var second *ratelimit.Reservation
				go func() {
					second, _, err = l.Hold(t.Context(), "key", 1, ratelimit.Waiting(), ratelimit.HoldFor(20*time.Millisecond))
				}()
				at(125 * time.Millisecond) // its turn has come, and its timer has not fired
				require.Nil(t, second)
				_, settling := first.Settle(t.Context(), tt.settled)
				require.NoError(t, settling)
				synctest.Wait()
				require.NoError(t, err)
				require.NotNil(t, second)
				at(144 * time.Millisecond)
				require.NoError(t, second.Extend(t.Context(), time.Minute), "it has not ended")
				at(tt.counts + alg.Window - 1)
				assert.False(t, l.Allow("key"))
				at(tt.counts + alg.Window)
				assert.True(t, l.Allow("key"))
			})
		})
	}
}

// While timers are late, other callers ask for the turn of a late waiter. They look up the limit
// before. So no caller waits for the lookup of another one, even if that lookup panics.
func TestWait_WaitsForNoLookupOfAnother(t *testing.T) {
	strict := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1}
	for name, tt := range map[string]struct {
		lookup func(ctx context.Context) // of who comes later
		leaves bool                      // whether the first one does
	}{
		"panics":        {func(context.Context) { panic("a bug in a lookup") }, false},
		"panics, left":  {func(context.Context) { panic("a bug in a lookup") }, true},
		"answers never": {func(ctx context.Context) { <-ctx.Done() }, false},
		"never, left":   {func(ctx context.Context) { <-ctx.Done() }, true},
	} {
		for nth := range 2 { // of its lookups
			t.Run(fmt.Sprint(name, " ", nth), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					clk := &tardyClock{Clock: clock.New()}
					lookups := 0
					type later struct{}
					l := ratelimit.Must(ratelimit.New(strict, ratelimit.WithClock(clk),
						ratelimit.WithLimits(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
							if ctx.Value(later{}) != nil {
								if lookups++; lookups == nth+1 {
									tt.lookup(ctx)
								}
							}
							return strict, ctx.Err()
						})))
					require.True(t, l.Allow("key"))
					clk.late.Store(int64(time.Second))
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					done, err := false, error(nil)
					go func() {
						err = l.Wait(ctx, "key")
						done = true
					}()
					synctest.Wait()
					clk.late.Store(0)
					time.Sleep(200 * time.Millisecond) // its turn has come, and its timer has not fired
					other, end := context.WithCancel(context.WithValue(t.Context(), later{}, true))
					defer end()
					go func() {
						defer func() { _ = recover() }()
						_ = l.Wait(other, "key")
					}()
					synctest.Wait()
					if tt.leaves {
						leave()
					} else {
						time.Sleep(time.Second)
					}
					synctest.Wait()
					assert.True(t, done)
					if !tt.leaves {
						assert.NoError(t, err)
					}
				})
			})
		}
	}
}

// An absent context is one that has ended, and whose waiter has no processor to notice it.
type absent struct {
	context.Context
	back chan struct{} // closed when it has one
}

func (c absent) Err() error {
	err := c.Context.Err()
	if err != nil {
		<-c.back
	}
	return err
}

// A waiter whose context has ended may not have had a processor yet. A caller that is denied
// because of the line passes over such a waiter. If the waiter behind it waits for something else,
// it learns that it is the first one now.
func TestWait_BehindWhoHasLeftWithoutAProcessor(t *testing.T) {
	inEach(t, func(t *testing.T, in place) {
		l := in.limiter(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1})
		require.True(t, l.Allow("key"))
		ctx, leave := context.WithCancel(t.Context())
		first := absent{ctx, make(chan struct{})}
		go func() { _ = l.Wait(first, "key") }()
		synctest.Wait()
		second := fakes.WaitFor(t, l, "key", 1)
		synctest.Wait()
		leave()
		assert.False(t, l.Allow("key"))
		close(first.back)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.True(t, second.Done.Load())
	})
}

// TestWait_AtItsDeadline: a Wait whose turn comes no later than its deadline is granted, also if
// the two are the same instant, and its goroutine learns of the deadline first.
func TestWait_AtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clock.NewMock()
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithClock(clk)))
		require.True(t, l.Allow("key"))
		for _, late := range []time.Duration{0, time.Millisecond} {
			until, cancel := clk.WithTimeout(t.Context(), time.Second)
			defer cancel()
			answer := make(chan error)
			go func() { answer <- l.Wait(until, "key") }()
			synctest.Wait()
			clk.Set(clk.Now().Add(time.Second + late)) // the deadline was set first
			require.NoError(t, <-answer)
		}
	})
}
