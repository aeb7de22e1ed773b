package fault_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// The tests in this file check decisions on keys whose limit cannot be looked up: the limit given
// to New decides.

var errLookup = errors.New("no route to the plans")

// A planned limiter is one whose lookup a test fails.
type planned struct {
	ratelimit.Limiter
	own   *fakes.OwnLimits
	seen  *fakes.Witness
	store *fakes.Hooked
}

// newPlanned returns a limiter whose lookups find the limit own.
func newPlanned(t testing.TB, s ratelimit.Store, base, own ratelimit.Algorithm, opts ...ratelimit.Option) *planned {
	p := &planned{own: &fakes.OwnLimits{}, seen: &fakes.Witness{}, store: &fakes.Hooked{Store: s}}
	p.own.Set("key", own)
	if _, inMemory := s.(*ratelimit.MemoryStore); !inMemory {
		s = p.store
	}
	p.Limiter, _ = fakes.At(t, base, append([]ratelimit.Option{ratelimit.WithStore(s), ratelimit.WithName("api"), ratelimit.WithFailureLog(nil),
		ratelimit.WithLimits(p.own.Lookup), ratelimit.WithObserver(p.seen.Observe)}, opts...)...)
	return p
}

// fails are the ways in which a lookup fails, and what the errors match.
var fails = map[string]struct {
	fail func(own *fakes.OwnLimits)
	want error
}{
	"error":             {func(own *fakes.OwnLimits) { own.Err = errLookup }, errLookup},
	"invalid":           {func(own *fakes.OwnLimits) { own.Set("key", ratelimit.TokenBucket{}) }, ratelimit.ErrInvalid},
	"invalid, a part":   {func(own *fakes.OwnLimits) { own.Set("key", ratelimit.All{ratelimit.TokenBucket{}}) }, ratelimit.ErrInvalid},
	"nil of a pointer":  {func(own *fakes.OwnLimits) { own.Set("key", (*ratelimit.TokenBucket)(nil)) }, ratelimit.ErrInvalid},
	"a deadline of its": {func(own *fakes.OwnLimits) { own.Err = context.DeadlineExceeded }, context.DeadlineExceeded},
}

func hours(n int) ratelimit.Algorithm { return ratelimit.FixedWindow{Limit: n, Window: time.Hour} }

// TestLimitOfNewDecides: the limit of New decides on the state of the key. So used events stay used
// when lookups begin to fail, and when they work again.
func TestLimitOfNewDecides(t *testing.T) {
	for store, make := range fakes.Stores {
		for how, tt := range fails {
			for name, call := range decidingCalls {
				t.Run(store+"/"+how+"/"+name, func(t *testing.T) {
					p := newPlanned(t, make(), hours(3), hours(10))
					require.True(t, p.AllowN("key", 2))
					p.seen.Answered()
					tt.fail(p.own)
					for _, want := range []ratelimit.Decision{
						{Allowed: true, Limit: 3, ResetAfter: time.Hour, Degraded: true, StandIn: true},
						{Limit: 3, RetryAfter: time.Hour, ResetAfter: time.Hour, Degraded: true, StandIn: true},
					} {
						if name == "Reserve" && !want.Allowed {
							continue // which reserves events of the next hour
						}
						d, err := call(p, 1)
						require.ErrorIs(t, err, tt.want)
						assert.ErrorContains(t, err, "the limit of New decides")
						assert.Equal(t, want, d)
						assert.True(t, d.Checked())
						o := p.seen.One(t)
						assert.Equal(t, ratelimit.Failed, o.Outcome)
						require.ErrorIs(t, o.Err, tt.want)
						assert.Equal(t, want, o.Decision)
						assert.Equal(t, want.Allowed, o.Granted == 1)
					}
					p.own.Err = nil
					p.own.Set("key", hours(10))
					assert.Equal(t, 7, fakes.Remaining(t, p))
				})
			}
		}
	}
}

// TestAllowByTheLimitOfNew: a service that starts while its plans are away is limited.
func TestAllowByTheLimitOfNew(t *testing.T) {
	for store, make := range fakes.Stores {
		for name, opts := range map[string][]ratelimit.Option{"": nil, "observed": {ratelimit.WithObserver(func(context.Context, ratelimit.Observation) {})}} {
			own := &fakes.OwnLimits{Err: errLookup}
			l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)},
				append(opts, ratelimit.WithStore(make()), ratelimit.WithName("api"), ratelimit.WithFailureLog(nil),
					ratelimit.WithLimits(own.Lookup))...)
			granted := 0
			for range 5001 {
				if l.Allow("key") {
					granted++
				}
			}
			assert.Equal(t, 60, granted, "%s %s", store, name)
			assert.False(t, l.AllowN("other", 61))
			assert.True(t, l.AllowN("other", 60))
		}
	}
}

// TestPeekAndChargeByTheLimitOfNew: a Charge counts its events. If it cannot, its error says that
// as well.
func TestPeekAndChargeByTheLimitOfNew(t *testing.T) {
	for store, make := range fakes.Stores {
		t.Run(store, func(t *testing.T) {
			p := newPlanned(t, make(), hours(3), hours(10))
			require.True(t, p.AllowN("key", 2))
			p.seen.Answered()
			p.own.Err = errLookup
			d, err := p.Peek(ctx, "key")
			require.ErrorIs(t, err, errLookup)
			assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, Remaining: 1, ResetAfter: time.Hour, Degraded: true, StandIn: true}, d)
			d, err = p.Charge(ctx, "key", 4)
			require.ErrorIs(t, err, errLookup)
			assert.Equal(t, ratelimit.Decision{Limit: 3, RetryAfter: time.Hour, ResetAfter: time.Hour, Degraded: true, StandIn: true}, d)
			assert.Equal(t, ratelimit.Failed, p.seen.One(t).Outcome)
			if math.MaxInt > math.MaxInt32 { // an int of 32 bits is never too much
				_, err = p.Charge(ctx, "key", math.MaxInt)
				require.ErrorIs(t, err, errLookup)
				require.ErrorIs(t, err, ratelimit.ErrDebt)
			}
			p.own.Err = nil
			assert.Equal(t, 4, fakes.Remaining(t, p))
		})
	}
}

// TestChargeByALimitOfNewWithoutState: Unlimited and Blocked count nothing.
func TestChargeByALimitOfNewWithoutState(t *testing.T) {
	for store, make := range fakes.Stores {
		for _, base := range []ratelimit.Algorithm{ratelimit.Unlimited{}, ratelimit.Blocked{}} {
			p := newPlanned(t, make(), base, hours(10))
			require.True(t, p.AllowN("key", 2))
			p.own.Err = errLookup
			_, err := p.Charge(ctx, "key", 4)
			require.ErrorIs(t, err, errLookup)
			p.own.Err = nil
			assert.Equal(t, 8, fakes.Remaining(t, p), "%s: %T", store, base)
		}
	}
}

// TestHoldByTheLimitOfNew: what is held can be settled, whether the lookup still fails or not.
func TestHoldByTheLimitOfNew(t *testing.T) {
	for store, make := range fakes.Stores {
		for _, back := range []bool{false, true} {
			p := newPlanned(t, make(), hours(3), hours(10))
			p.own.Err = errLookup
			r, _, err := p.Hold(ctx, "key", 3)
			require.ErrorIs(t, err, errLookup)
			all, d, err := ratelimit.HoldAll(ctx, 1, ratelimit.For(p, "other"), ratelimit.For(p.Limiter, "other"))
			require.ErrorIs(t, err, errLookup)
			require.True(t, d.Allowed && d.Degraded && d.Checked())
			if back {
				p.own.Err = nil
			}
			d, err = r.Settle(ctx, 1)
			require.NoError(t, err, store)
			assert.False(t, d.Degraded)
			assert.Equal(t, 2, d.Remaining, "%s, by the limit of the hold", store)
			_, err = all.Settle(ctx, 0)
			require.NoError(t, err)
			p.own.Err = nil
			assert.Equal(t, 9, fakes.Remaining(t, p), store)
		}
	}
}

// TestLimitOfNewThatNeverGrants: what it can never grant is refused as with FailClosed, because the
// limit of the key may grant it.
func TestLimitOfNewThatNeverGrants(t *testing.T) {
	for store, make := range fakes.Stores {
		for name, tt := range map[string]struct {
			base     ratelimit.Algorithm
			limit, n int
		}{
			"too many":           {hours(3), 3, 4},
			"blocked":            {ratelimit.Blocked{}, 0, 1},
			"too many in flight": {fakes.Five, 5, 6},
		} {
			t.Run(store+"/"+name, func(t *testing.T) {
				p := newPlanned(t, make(), tt.base, hours(10))
				p.own.Err = errLookup
				refused := ratelimit.Decision{Limit: tt.limit, RetryAfter: time.Second, Degraded: true}
				for call, do := range decidingCalls {
					d, err := do(p, tt.n)
					require.ErrorIs(t, err, errLookup, call)
					assert.Equal(t, refused, d, call)
					assert.False(t, d.Checked(), call)
					assert.Equal(t, ratelimit.Failed, p.seen.One(t).Outcome, call)
				}
				for call, do := range waitingCalls {
					err := do(p, tt.n)
					require.ErrorIs(t, err, errLookup, call)
					require.NotErrorIs(t, err, ratelimit.ErrNever, call)
					o := p.seen.One(t)
					assert.Equal(t, ratelimit.Failed, o.Outcome, call)
					assert.Equal(t, refused, o.Decision, call)
				}
				assert.False(t, p.AllowN("key", tt.n))
				if tt.limit == 0 {
					for call, do := range singleCalls {
						d, err := do(p, 1)
						require.ErrorIs(t, err, errLookup, call)
						assert.Equal(t, refused, d, call)
					}
				}
				d, err := p.Take(ctx, "key", 0)
				require.ErrorIs(t, err, errLookup)
				assert.True(t, d.Allowed, "0 events are always")
				p.own.Err = nil
				assert.Equal(t, 10, fakes.Remaining(t, p))
			})
		}
	}
}

// TestWaitByTheLimitOfNew: a Wait waits in line as long as the limit of New says, and observers see
// a failure.
func TestWaitByTheLimitOfNew(t *testing.T) {
	for store, make := range fakes.Stores {
		t.Run(store, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				own, w := &fakes.OwnLimits{Err: errLookup}, &fakes.Witness{}
				l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithStore(make()), ratelimit.WithName("api"),
					ratelimit.WithFailureLog(nil), ratelimit.WithLimits(own.Lookup), ratelimit.WithObserver(w.Observe)))
				began := time.Now()
				for i := range 3 {
					require.NoError(t, l.Wait(t.Context(), "key"))
					assert.Equal(t, time.Duration(i)*time.Second, time.Since(began))
					o := w.One(t)
					assert.Equal(t, ratelimit.Failed, o.Outcome)
					require.ErrorIs(t, o.Err, errLookup)
					assert.True(t, o.Decision.Allowed && o.Decision.Degraded && o.Decision.Checked())
					assert.Equal(t, 1, o.Granted)
				}
				r, d, err := l.Hold(t.Context(), "key", 1, ratelimit.Waiting())
				require.NoError(t, err)
				assert.True(t, d.Allowed && d.Degraded && d.Checked())
				_, err = r.Settle(t.Context(), 1) // while it is open, nobody knows a turn
				require.NoError(t, err)
				w.Answered()

				hurried, cancel := context.WithTimeout(t.Context(), time.Second/2)
				defer cancel()
				err = l.Wait(hurried, "key")
				_, early := errors.AsType[*ratelimit.TurnError](err)
				assert.True(t, early, "%v", err)
				o := w.One(t)
				assert.Equal(t, ratelimit.Failed, o.Outcome)
				require.ErrorIs(t, o.Err, errLookup)
				assert.False(t, o.Decision.Allowed)
				assert.True(t, o.Decision.Checked())
			})
		})
	}
}

// TestBehindALineByTheLimitOfNew: while somebody stands in line, other requests are denied, even if
// the lookup fails.
func TestBehindALineByTheLimitOfNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := &fakes.OwnLimits{}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2},
			ratelimit.WithFailureLog(nil), ratelimit.WithLimits(own.Lookup)))
		require.True(t, l.AllowN("key", 2))
		w := fakes.WaitFor(t, l, "key", 2)
		synctest.Wait()
		own.Err = errLookup
		time.Sleep(time.Second) // there is room for 1
		d, err := l.Take(t.Context(), "key", 1)
		require.ErrorIs(t, err, errLookup)
		assert.False(t, d.Allowed)
		assert.True(t, d.Degraded && d.Checked())
		time.Sleep(time.Second)
		synctest.Wait()
		require.True(t, w.Done.Load())
		require.NoError(t, w.Err)
	})
}

// TestLookupOfACallerWhoLeft: an ended context is no failed lookup: its error is returned, and
// nothing is spent.
func TestLookupOfACallerWhoLeft(t *testing.T) {
	causes := map[string]func() (context.Context, func()){
		"cancelled": func() (context.Context, func()) { return context.WithCancel(ctx) },
		"too late": func() (context.Context, func()) {
			late := &lateContext{Context: ctx}
			return late, func() { late.err = context.DeadlineExceeded }
		},
	}
	for store, make := range fakes.Stores {
		for name, cause := range causes {
			for call, do := range map[string]func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error){
				"Take": func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error) {
					return l.Take(ctx, "key", 1)
				},
				"Peek": func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error) { return l.Peek(ctx, "key") },
				"Hold": func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error) {
					_, d, err := l.Hold(ctx, "key", 1)
					return d, err
				},
				"Charge": func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error) {
					return l.Charge(ctx, "key", 1)
				},
				"Wait": func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error) {
					return ratelimit.Decision{}, l.Wait(ctx, "key")
				},
				"TakeAll": func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error) {
					return ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "key"), ratelimit.For(l, "other"))
				},
			} {
				t.Run(store+"/"+name+"/"+call, func(t *testing.T) {
					leaving, leave := cause()
					fails := true
					l, _ := fakes.At(t, hours(3), ratelimit.WithStore(make()), ratelimit.WithName("api"),
						ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
							if !fails {
								return nil, nil
							}
							leave()
							return nil, errLookup
						}))
					d, err := do(leaving, l)
					require.ErrorIs(t, err, leaving.Err())
					require.NotErrorIs(t, err, errLookup)
					assert.Zero(t, d)
					fails = false
					assert.Equal(t, 3, fakes.Remaining(t, l))
				})
			}
		}
	}
}

// A lateContext ends when a test says so.
type lateContext struct {
	context.Context
	err error
}

func (c *lateContext) Err() error { return c.err }

// TestLookupAndStoreFail: the FailurePolicy decides, and the error has both.
func TestLookupAndStoreFail(t *testing.T) {
	down := errors.New("connection refused")
	spare, _ := fakes.At(t, hours(1))
	for name, tt := range map[string]struct {
		policy ratelimit.FailurePolicy
		want   ratelimit.Decision
	}{
		"open":     {ratelimit.FailOpen(), ratelimit.Decision{Allowed: true, Limit: 3, Degraded: true}},
		"closed":   {ratelimit.FailClosed(), ratelimit.Decision{Limit: 3, RetryAfter: time.Second, Degraded: true}},
		"fallback": {ratelimit.Fallback(spare), ratelimit.Decision{Limit: 1, RetryAfter: time.Second, ResetAfter: 0, Degraded: true}},
	} {
		for call, do := range decidingCalls {
			p := newPlanned(t, fakes.NewMapDB().Store(), hours(3), hours(10), ratelimit.WithFailurePolicy(tt.policy))
			p.own.Err, p.store.Err = errLookup, down
			d, err := do(p, 2)
			require.ErrorIs(t, err, errLookup, "%s %s", name, call)
			require.ErrorIs(t, err, down, "%s %s", name, call)
			d.Remaining = 0
			assert.Equal(t, tt.want, d, "%s %s", name, call)
		}
		for call, do := range waitingCalls {
			p := newPlanned(t, fakes.NewMapDB().Store(), hours(3), hours(10), ratelimit.WithFailurePolicy(tt.policy))
			p.own.Err, p.store.Err = errLookup, down
			err := do(p, 2)
			assert.Equal(t, tt.want.Allowed, err == nil, "%s %s: %v", name, call, err)
			require.NotErrorIs(t, err, ratelimit.ErrNever)
			o := p.seen.One(t)
			assert.Equal(t, ratelimit.Failed, o.Outcome)
			require.ErrorIs(t, o.Err, down)
			require.ErrorIs(t, o.Err, errLookup)
		}
	}
}

// TestSettleOfNothingByTheLimitOfNew: a Settle of what FailOpen has allowed counts by the limit of
// New.
func TestSettleOfNothingByTheLimitOfNew(t *testing.T) {
	for _, tt := range []struct {
		base ratelimit.Algorithm
		left int
	}{{hours(3), 8}, {fakes.Five, 10}} {
		p := newPlanned(t, fakes.NewMapDB().Store(), tt.base, hours(10))
		p.store.Err = errors.New("connection refused")
		r, _, err := p.Hold(ctx, "key", 1)
		require.Error(t, err)
		p.store.Err, p.own.Err = nil, errLookup
		d, err := r.Settle(ctx, 2)
		require.ErrorIs(t, err, errLookup)
		assert.True(t, d.Degraded && d.Checked())
		p.own.Err = nil
		assert.Equal(t, tt.left, fakes.Remaining(t, p), "%T", tt.base)
	}
}

// TestTakeAllByTheLimitOfNew: a Bound whose lookup fails is decided on together with the others.
func TestTakeAllByTheLimitOfNew(t *testing.T) {
	for store, make := range fakes.Stores {
		t.Run(store, func(t *testing.T) {
			s := make()
			p := newPlanned(t, s, hours(2), hours(10))
			other, _ := fakes.At(t, hours(5), ratelimit.WithName("other"))
			p.own.Err = errLookup
			bounds := []ratelimit.Bound{ratelimit.For(other, "key"), ratelimit.For(p.Limiter, "key")}
			for i := range 3 {
				d, err := ratelimit.TakeAll(ctx, 1, bounds...)
				require.ErrorIs(t, err, errLookup)
				require.ErrorContains(t, err, "bounds[1]: ")
				assert.True(t, d.Degraded && d.Checked())
				assert.Equal(t, i < 2, d.Allowed)
				if !d.Allowed {
					assert.Equal(t, 1, d.Part)
					assert.Equal(t, time.Hour, d.RetryAfter)
				}
			}
			assert.Equal(t, 3, fakes.Remaining(t, other), "nothing is spent if it refuses")
			d, err := ratelimit.TakeAll(ctx, 3, bounds...)
			require.ErrorIs(t, err, errLookup)
			assert.Equal(t, time.Second, d.RetryAfter, "more than New's limit")
			assert.False(t, d.Checked())
			assert.Equal(t, 3, fakes.Remaining(t, other))
		})
	}
}
