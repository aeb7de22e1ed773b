package redisstore

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// Callers of several processes that always want more use what the limit grants, with leases
// and without. Only if a limit never has two events at once, a caller that retries after
// RetryAfter loses the time of a round trip for each event: the limit grants nothing while
// no request has arrived. The clock is the bubble's, so that timers are not late.
func TestSaturation(t *testing.T) {
	const quarter = time.Second / 4
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		rate int // a second
		one  bool
	}{
		"bucket":   {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2000), Burst: 500}, 2000, false},
		"interval": {ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 500, Per: quarter}, Refill: ratelimit.RefillInterval}, 2000, false},
		"fixed":    {ratelimit.FixedWindow{Limit: 500, Window: quarter}, 2000, false},
		"sliding":  {ratelimit.SlidingWindow{Limit: 2000, Window: time.Second, Segments: 10}, 2000, false},
		"log":      {ratelimit.SlidingLog{Limit: 500, Window: quarter}, 2000, false},
		"burst 2":  {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Burst: 2}, 100, false},
		"burst 1":  {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Burst: 1}, 100, true},
		"warming":  {ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: quarter}, 100, true},
	} {
		for _, how := range []string{"take", "lease", "wait"} {
			for _, trip := range []time.Duration{100 * time.Microsecond, time.Millisecond, 4 * time.Millisecond} {
				if trip < time.Millisecond && !tt.one {
					continue // it takes long
				}
				t.Run(name+"/"+how+"/"+trip.String(), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := newFakeServer(t, tt.alg)
						f.Delay = trip
						used := saturate(t, f, how, time.Second, 3*time.Second)
						want := 2 * float64(tt.rate)
						if tt.one && how != "wait" {
							want /= 1 + float64(tt.rate)*trip.Seconds()
						}
						t.Logf("%.2f %% used", 100*float64(used)/float64(2*tt.rate))
						assert.GreaterOrEqual(t, float64(used), 0.995*want-1)
						assert.LessOrEqual(t, float64(used), 1.005*want+1)
					})
				})
			}
		}
	}
}

// saturate makes callers of several processes take one event of a key after another, or wait
// for them, and returns how many are granted from one time to another.
func saturate(t *testing.T, f *fakeServer, how string, from, to time.Duration) (granted int) {
	const processes, callers = 3, 8
	var opts []Option
	if how == "lease" {
		opts = []Option{WithLease(50, 50*time.Millisecond)}
	}
	var mu sync.Mutex
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), to)
	defer cancel()
	call := func(l ratelimit.Limiter) (d ratelimit.Decision) {
		var err error
		if how == "wait" {
			if l.Wait(ctx, "k") != nil {
				<-ctx.Done() // its turn is later
			}
			d.Allowed = ctx.Err() == nil
		} else {
			d, err = l.Take(context.Background(), "k", 1)
			require.NoError(t, err)
		}
		return d
	}
	var wg sync.WaitGroup
	for p := range processes {
		s, l := f.store(t, opts...)
		var in sync.WaitGroup
		for c := range callers {
			in.Go(func() {
				time.Sleep(time.Duration(p*callers+c) * 100 * time.Microsecond)
				for ctx.Err() == nil {
					d := call(l)
					if now := time.Since(begin); d.Allowed && from <= now && now < to {
						mu.Lock()
						granted++
						mu.Unlock()
					}
					time.Sleep(max(d.RetryAfter, 100*time.Microsecond))
				}
			})
		}
		wg.Go(func() {
			in.Wait()
			assert.NoError(t, s.Close(context.Background()))
			assert.Zero(t, s.Stats().Lost)
		})
	}
	wg.Wait()
	settle()
	return granted
}

// Processes whose waiters leave at any time use what the limit grants, to those who stay, and nothing beyond; nobody
// polls.
func TestSaturation_WhoLeaves(t *testing.T) {
	const processes, callers, rate = 8, 64, 400
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket":  ratelimit.TokenBucket{Rate: ratelimit.PerSecond(rate)},
		"strict":  ratelimit.TokenBucket{Rate: ratelimit.PerSecond(rate), Burst: 1},
		"leaky":   ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(rate), Capacity: 4 * processes * callers},
		"fixed":   ratelimit.FixedWindow{Limit: rate / 4, Window: time.Second / 4},
		"sliding": ratelimit.SlidingWindow{Limit: rate, Window: time.Second, Segments: 10},
		"log":     ratelimit.SlidingLog{Limit: rate / 4, Window: time.Second / 4},
	} {
		for _, trip := range []time.Duration{100 * time.Microsecond, 2 * time.Millisecond} {
			t.Run(name+"/"+trip.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeServer(t, alg)
					f.Delay = trip
					begin := time.Now()
					over, stop := context.WithCancel(t.Context()) // clients that leave say nothing before
					time.AfterFunc(6*time.Second, stop)
					var served, all atomic.Int64
					for p := range processes {
						_, l := f.store(t)
						for c := range callers {
							rnd := rand.New(rand.NewPCG(uint64(p), uint64(c)))
							go func() {
								for over.Err() == nil {
									ctx, leave := context.WithCancel(over)
									if rnd.IntN(5) == 0 {
										time.AfterFunc(time.Duration(rnd.IntN(1500))*time.Millisecond, leave)
									}
									if l.Wait(ctx, "k") == nil {
										all.Add(1)
										if time.Since(begin) >= 2*time.Second {
											served.Add(1)
										}
									}
									leave()
									time.Sleep(time.Duration(1+rnd.IntN(20)) * time.Millisecond)
								}
							}()
						}
					}
					time.Sleep(6 * time.Second)
					calls := f.Calls()
					synctest.Wait()
					t.Logf("%.1f %% used, %.2f calls for each", float64(served.Load())/(4*rate)*100, float64(calls)/float64(all.Load()))
					assert.GreaterOrEqual(t, served.Load(), int64(0.97*4*rate))
					assert.LessOrEqual(t, served.Load(), int64(1.02*4*rate+rate/4))
					assert.LessOrEqual(t, float64(calls)/float64(all.Load()), 3.0)
					settle()
				})
			})
		}
	}
}
