package decide_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// unmetered are algorithms that need no state, with the decisions on a request.
var unmetered = []struct {
	name string
	alg  ratelimit.Algorithm
	want ratelimit.Decision
}{
	{"Unlimited", ratelimit.Unlimited{}, granting},
	{"Blocked", ratelimit.Blocked{}, denying(0)},
	{"All of Unlimited", ratelimit.All{ratelimit.Unlimited{}, ratelimit.All{ratelimit.Unlimited{}}}, granting},
	{"All with Blocked", ratelimit.All{
		ratelimit.Unlimited{},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
		ratelimit.Blocked{},
		ratelimit.Blocked{},
	}, denying(2)},
	{"All with Blocked and a log of denials", ratelimit.All{
		ratelimit.SlidingLog{Limit: 2, Window: time.Hour, CountDenied: true},
		ratelimit.Blocked{},
	}, denying(1)},
}

var granting = ratelimit.Decision{Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt}

func denying(part int) ratelimit.Decision {
	return ratelimit.Decision{RetryAfter: ratelimit.Never, Part: part}
}

// eachWay calls test with limiters that apply alg to every key: as the limit of New, as the limit
// of New beside a lookup that returns none, and as the limit that a lookup returns.
func eachWay(t *testing.T, alg ratelimit.Algorithm, test func(t *testing.T, l ratelimit.Limiter)) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}
	own := func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil }
	base := func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil } //nolint:nilnil // means the limiter's own limit
	for name, limiter := range map[string]func(opts ...ratelimit.Option) (ratelimit.Limiter, error){
		"all keys": func(opts ...ratelimit.Option) (ratelimit.Limiter, error) { return ratelimit.New(alg, opts...) },
		"base": func(opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.New(alg, append(opts, ratelimit.WithLimits(base))...)
		},
		"own": func(opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.New(bucket, append(opts, ratelimit.WithLimits(own))...)
		},
	} {
		for kind, open := range fakes.Stores {
			t.Run(name+" in "+kind, func(t *testing.T) {
				t.Parallel()
				store := open()
				calls := 0
				var with ratelimit.Store = &fakes.Hooked{Store: store, After: func(step.Request, step.Answer) { calls++ }}
				if kind == "memory" {
					with = store
				}
				l, err := limiter(ratelimit.WithStore(with), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New()))
				require.NoError(t, err)
				test(t, l)
				assert.Zero(t, calls, "calls of the store")
				if m, ok := store.(*ratelimit.MemoryStore); ok {
					assert.Zero(t, m.Len(), "keys in the store")
				}
			})
		}
	}
}

func TestPlans(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, tt := range unmetered {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			eachWay(t, tt.alg, func(t *testing.T, l ratelimit.Limiter) {
				none := tt.want
				none.Allowed, none.RetryAfter = true, 0
				decides := func(want, d ratelimit.Decision, err error) {
					t.Helper()
					require.NoError(t, err)
					assert.Equal(t, want, d)
				}
				for _, n := range []int{1, 2, 1 << 20, math.MaxInt} {
					assert.Equal(t, tt.want.Allowed, l.AllowN("k", n))
					d, err := l.Take(ctx, "k", n)
					decides(tt.want, d, err)

					d, err = l.Charge(ctx, "k", n)
					decides(tt.want, d, err)

					r, d, err := l.Reserve(ctx, "k", n, ratelimit.Within(time.Hour))
					decides(tt.want, d, err)
					assert.Equal(t, tt.want.Allowed, r != nil)

					held, d, err := l.Hold(ctx, "k", n)
					decides(tt.want, d, err)
					assert.Equal(t, tt.want.Allowed, held != nil)

					ahead, _, err := l.Reserve(ctx, "k", n)
					wait := l.WaitN(ctx, "k", n)
					soon, cancel := context.WithTimeout(ctx, time.Minute)
					early := l.WaitN(soon, "k", n)
					cancel()
					if !tt.want.Allowed {
						require.NoError(t, err)
						require.Nil(t, ahead)
						require.ErrorIs(t, wait, ratelimit.ErrNever)
						require.ErrorIs(t, early, ratelimit.ErrNever)
						continue
					}
					require.NoError(t, err)
					require.NoError(t, wait)
					require.NoError(t, early)
					for _, r := range []*ratelimit.Reservation{r, held, ahead} {
						assert.Zero(t, r.Delay())
						d, err = r.Settle(ctx, n/2)
						decides(tt.want, d, err)
						_, err = r.Settle(ctx, n)
						require.ErrorIs(t, err, ratelimit.ErrEnded)
						r.Cancel()
					}
				}
				assert.Equal(t, tt.want.Allowed, l.Allow("k"))
				assert.True(t, l.AllowN("k", 0))
				assert.False(t, l.AllowN("k", -1))
				d, err := l.Take(ctx, "k", 0)
				decides(none, d, err)
				require.NoError(t, l.WaitN(ctx, "k", 0))
				_, _, err = l.Reserve(ctx, "k", 0)
				require.NoError(t, err)
				d, err = l.Peek(ctx, "k")
				decides(tt.want, d, err)
				_, err = l.Take(ctx, "k", -1)
				require.ErrorIs(t, err, ratelimit.ErrInvalid)

				ds, err := l.TakeEach(ctx, []string{"k", "l", "k"}, 3, nil)
				require.NoError(t, err)
				assert.Equal(t, []ratelimit.Decision{tt.want, tt.want, tt.want}, ds)
				granted, d, err := l.TakeUpTo(ctx, "k", math.MaxInt)
				decides(tt.want, d, err)
				if tt.want.Allowed {
					assert.Equal(t, math.MaxInt, granted)
				} else {
					assert.Zero(t, granted)
				}
				require.NoError(t, l.Reset(ctx, "k"))
			})
		})
	}
}

// TestPlanKeepsUsage: a key is unlimited or blocked for a while. Afterwards, the key is as if no
// request had been made meanwhile.
func TestPlanKeepsUsage(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, a := range accounted {
		for _, tt := range unmetered {
			for kind, open := range fakes.Stores {
				t.Run(fmt.Sprintf("%T", a.alg)+"/"+tt.name+"/"+kind, func(t *testing.T) {
					t.Parallel()
					alg := a.alg
					clk, limit := stepclock.New(), alg
					store := open()
					lookup := func(context.Context, string) (ratelimit.Algorithm, error) { return limit, nil }
					l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"),
						ratelimit.WithClock(clk), ratelimit.WithLimits(lookup)))
					same := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk),
						ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })))
					var helds []*ratelimit.Reservation
					both := []ratelimit.Limiter{l, same}
					for _, l := range both {
						require.True(t, l.AllowN("k", 1))
					}
					clk.Advance(time.Second / 2)
					for _, l := range both {
						held, _, err := l.Hold(ctx, "k", 3)
						require.NoError(t, err)
						helds = append(helds, held)
					}

					limit = tt.alg
					for range 30 {
						assert.Equal(t, tt.want.Allowed, l.AllowN("k", 3))
						_, _ = l.Charge(ctx, "k", 5)
						_, _, _ = l.Reserve(ctx, "k", 4)
					}
					ahead, _, err := l.Hold(ctx, "k", 7) // ahead is settled once the key has a limit again
					require.NoError(t, err)
					if helds[0] != nil { // these are settled while the key is unlimited or blocked
						for _, held := range helds {
							_, err := held.Settle(ctx, 1)
							require.NoError(t, err)
						}
					}

					limit = alg
					if ahead != nil {
						_, err = ahead.Settle(ctx, 9)
						require.NoError(t, err)
					}
					for range 5 {
						want, err := same.Peek(ctx, "k")
						require.NoError(t, err)
						d, err := l.Peek(ctx, "k")
						require.NoError(t, err)
						assert.Equal(t, want, d)
						clk.Advance(time.Second / 10)
					}
				})
			}
		}
	}
}

// TestPlanKeepsFlights: events in flight are released even if their key has become unlimited or
// blocked. Events that an Unlimited key grants are never in flight.
func TestPlanKeepsFlights(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	flight := ratelimit.InFlight{Limit: 5, Timeout: time.Hour}
	for _, alg := range []ratelimit.Algorithm{flight, ratelimit.All{ratelimit.FixedWindow{Limit: 100, Window: 24 * time.Hour}, flight}} {
		for _, tt := range unmetered {
			for kind, open := range fakes.Stores {
				t.Run(fmt.Sprintf("%T/%s/%s", alg, tt.name, kind), func(t *testing.T) {
					limit := alg
					l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(open()), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New()),
						ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return limit, nil })))
					hold := func(n int) *ratelimit.Reservation {
						r, _, err := l.Hold(ctx, "key", n)
						require.NoError(t, err)
						return r
					}
					first, second := hold(2), hold(1)
					limit = tt.alg
					planned := hold(3)
					require.NoError(t, first.Release(ctx))
					limit = alg
					assert.Equal(t, 4, fakes.Remaining(t, l), "the first two are released, and the plan counts nothing")
					if planned != nil {
						require.NoError(t, planned.Release(ctx))
					}
					assert.Equal(t, 4, fakes.Remaining(t, l))
					require.NoError(t, second.Release(ctx))
					assert.Equal(t, 5, fakes.Remaining(t, l))
				})
			}
		}
	}
}

// The Decision of Settle is that of the limit that the latest call has looked up, unless that limit
// is Unlimited or Blocked.
func TestSettleAfterAPlan(t *testing.T) {
	ctx := context.Background()
	for kind, open := range fakes.Stores {
		limit := ratelimit.Algorithm(ratelimit.FixedWindow{Limit: 10, Window: time.Hour})
		l := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithStore(open()), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New()),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return limit, nil })))
		var holds []*ratelimit.Reservation
		for range 4 {
			r, _, err := l.Hold(ctx, "key", 1)
			require.NoError(t, err)
			holds = append(holds, r)
		}
		for i, step := range []struct {
			alg   ratelimit.Algorithm
			call  bool
			limit int
		}{
			{ratelimit.Unlimited{}, true, 10},
			{ratelimit.Blocked{}, true, 10},
			{ratelimit.FixedWindow{Limit: 20, Window: time.Hour}, false, 10},
			{ratelimit.FixedWindow{Limit: 20, Window: time.Hour}, true, 20},
		} {
			limit = step.alg
			if step.call {
				_, err := l.Peek(ctx, "key")
				require.NoError(t, err)
				l.Allow("key")
			}
			d, err := holds[i].Settle(ctx, 1)
			require.NoError(t, err)
			assert.Equal(t, step.limit, d.Limit, "%s: %T", kind, step.alg)
		}
	}
}

// TestUnlimitedAheadOfWaiters: an Unlimited key grants everything at once, even while a caller
// still waits for events in flight of its former limit.
func TestUnlimitedAheadOfWaiters(t *testing.T) {
	ctx := context.Background()
	flight := ratelimit.InFlight{Limit: 2, Timeout: time.Hour}
	for name, grants := range map[string]func(l ratelimit.Limiter) (bool, error){
		"Allow": func(l ratelimit.Limiter) (bool, error) { return l.Allow("key"), nil },
		"Take": func(l ratelimit.Limiter) (bool, error) {
			d, err := l.Take(ctx, "key", 1)
			return d.Allowed && d.Limit == math.MaxInt, err
		},
		"Peek": func(l ratelimit.Limiter) (bool, error) {
			d, err := l.Peek(ctx, "key")
			return d.Allowed && d.Remaining == math.MaxInt, err
		},
		"Hold": func(l ratelimit.Limiter) (bool, error) {
			r, _, err := l.Hold(ctx, "key", 1)
			return r != nil, err
		},
		"Reserve": func(l ratelimit.Limiter) (bool, error) {
			r, _, err := l.Reserve(ctx, "key", 1)
			return r != nil, err
		},
		"Reserve within": func(l ratelimit.Limiter) (bool, error) {
			r, _, err := l.Reserve(ctx, "key", 1, ratelimit.Within(0))
			return r != nil, err
		},
		"Wait": func(l ratelimit.Limiter) (bool, error) { return true, l.Wait(ctx, "key") },
		"TakeAll": func(l ratelimit.Limiter) (bool, error) {
			d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "key"), ratelimit.For(l, "other"))
			return d.Allowed, err
		},
		"TakeEach": func(l ratelimit.Limiter) (bool, error) {
			d, err := l.TakeEach(ctx, []string{"key"}, 1, nil)
			return d[0].Allowed, err
		},
		"TakeUpTo": func(l ratelimit.Limiter) (bool, error) {
			granted, _, err := l.TakeUpTo(ctx, "key", 7)
			return granted == 7, err
		},
	} {
		for kind, open := range fakes.Stores {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var limit ratelimit.Algorithm = flight
					l := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithStore(open()), ratelimit.WithName("test"),
						ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return limit, nil })))
					require.True(t, l.AllowN("key", 2))
					waiter, leave := context.WithCancel(ctx)
					defer leave()
					go func() { _ = l.Wait(waiter, "key") }()
					synctest.Wait()
					limit = ratelimit.Unlimited{}
					begin := time.Now()
					granted, err := grants(l)
					require.NoError(t, err)
					assert.True(t, granted)
					assert.Zero(t, time.Since(begin))
				})
			})
		}
	}
}

// TestUnlimitedPartInPlaceOfALimit: in the All of a key, an Unlimited part takes the place of a
// limit. Then the key starts afresh, and again when it gets the limit back.
func TestUnlimitedPartInPlaceOfALimit(t *testing.T) {
	t.Parallel()
	minute, hour := ratelimit.FixedWindow{Limit: 10, Window: time.Minute}, ratelimit.FixedWindow{Limit: 20, Window: time.Hour}
	for kind, open := range fakes.Stores {
		var limit ratelimit.Algorithm
		l := ratelimit.Must(ratelimit.New(minute, ratelimit.WithStore(open()), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New()),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return limit, nil })))
		for i, step := range []struct {
			alg  ratelimit.All
			left int
		}{
			{ratelimit.All{minute, hour}, 10},
			{ratelimit.All{ratelimit.Unlimited{}, hour}, 20},
			{ratelimit.All{minute, hour}, 10},
			{ratelimit.All{minute, ratelimit.Unlimited{}, hour}, 7}, // the Unlimited part takes the place of no limit
		} {
			limit = step.alg
			assert.Equal(t, step.left, fakes.Remaining(t, l), "%s, step %d", kind, i)
			require.True(t, l.AllowN("key", 3))
		}
	}
}

// TestUnlimitedPart: an Unlimited part of an All changes only the indexes of the other parts.
func TestUnlimitedPart(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	clk := stepclock.New()
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5), Burst: 10}
	window := ratelimit.FixedWindow{Limit: 12, Window: time.Minute}
	for kind, open := range fakes.Stores {
		l := ratelimit.Must(ratelimit.New(
			ratelimit.All{ratelimit.Unlimited{}, bucket, ratelimit.Unlimited{}, window, ratelimit.Unlimited{}},
			ratelimit.WithStore(open()), ratelimit.WithName("test"), ratelimit.WithClock(clk)))
		same := ratelimit.Must(ratelimit.New(ratelimit.All{bucket, window}, ratelimit.WithClock(clk)))
		for range 40 {
			want, err := same.Take(ctx, "k", 3)
			require.NoError(t, err)
			d, err := l.Take(ctx, "k", 3)
			require.NoError(t, err)
			want.Part = 1 + 2*want.Part
			assert.Equal(t, want, d, kind)
			_, want, err = same.Reserve(ctx, "k", 4, ratelimit.Within(time.Millisecond))
			require.NoError(t, err)
			_, d, err = l.Reserve(ctx, "k", 4, ratelimit.Within(time.Millisecond))
			require.NoError(t, err)
			want.Part = 1 + 2*want.Part
			assert.Equal(t, want, d, kind)
			clk.Advance(200 * time.Millisecond)
		}
	}
	all := ratelimit.Must(ratelimit.New(ratelimit.All{ratelimit.Unlimited{}, ratelimit.Unlimited{}}))
	d, err := all.Take(ctx, "k", 0)
	require.NoError(t, err)
	assert.Equal(t, 0, d.Part, "the first among equals")
}

// TestPlanWithInvalidPart: an invalid part of an All is reported even if another part is Blocked.
func TestPlanWithInvalidPart(t *testing.T) {
	_, err := ratelimit.New(ratelimit.All{ratelimit.Blocked{}, ratelimit.FixedWindow{}})
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
}

func TestSharePlan(t *testing.T) {
	assert.Equal(t, ratelimit.Unlimited{}, ratelimit.Share(ratelimit.Unlimited{}, 3))
	assert.Equal(t, ratelimit.All{ratelimit.Blocked{}}, ratelimit.Share(ratelimit.All{ratelimit.Blocked{}}, 3))
}

func TestDescribePlan(t *testing.T) {
	alg := ratelimit.All{ratelimit.Unlimited{}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1}, ratelimit.Blocked{}}
	assert.Equal(t, alg, ratelimit.Must(ratelimit.New(alg)).Describe().Algorithm)
	assert.Equal(t, ratelimit.Blocked{}, ratelimit.Must(ratelimit.New(ratelimit.Blocked{})).Describe().Algorithm)
}

// TestPlanAppliesToBytes: Unlimited and Blocked, applied to a state as bytes, leave it unchanged.
func TestPlanAppliesToBytes(t *testing.T) {
	limited, err := fakes.NewLimit(ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	require.NoError(t, err)
	now := step.Request{N: 1}.At(time.Unix(1000, 0))
	taken, err := limited.Apply(nil, now)
	require.NoError(t, err)
	for _, tt := range unmetered {
		plan, err := fakes.NewLimit(tt.alg)
		require.NoError(t, err)
		assert.True(t, plan.Stateless())
		for _, state := range [][]byte{nil, taken.State, {1, 2, 3}} {
			after, err := plan.Apply(state, now)
			require.NoError(t, err)
			assert.False(t, after.Changed)
			assert.Equal(t, state, after.State)
			assert.Equal(t, tt.want, ratelimit.Decision(after.Answer.Decision))
		}
	}
	assert.False(t, limited.Stateless())
}

func TestPlanAllocations(t *testing.T) {
	for _, tt := range unmetered {
		l := ratelimit.Must(ratelimit.New(tt.alg))
		assert.Zero(t, testing.AllocsPerRun(100, func() { l.Allow("k") }), tt.name)
		assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = l.Take(context.Background(), "k", 2) }), tt.name)
		alg := tt.alg
		own := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)},
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })))
		if _, all := alg.(ratelimit.All); all {
			continue // a lookup that returns an All allocates
		}
		assert.Zero(t, testing.AllocsPerRun(100, func() { own.Allow("k") }), tt.name)
	}
}
