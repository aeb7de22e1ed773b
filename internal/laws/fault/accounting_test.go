package fault_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// accountingCalls are calls that account for two events of a key, and return their decision.
var accountingCalls = map[string]func(ctx context.Context, l ratelimit.Limiter, key string) (ratelimit.Decision, error){
	"Hold": func(ctx context.Context, l ratelimit.Limiter, key string) (ratelimit.Decision, error) {
		r, d, err := l.Hold(ctx, key, 2)
		if (r != nil) != d.Allowed {
			return d, errors.Join(err, errors.New("the Reservation is not nil exactly if it is allowed"))
		}
		return d, err
	},
	"Charge": func(ctx context.Context, l ratelimit.Limiter, key string) (ratelimit.Decision, error) {
		return l.Charge(ctx, key, 2)
	},
}

// TestAccountingWhileTheStoreFails: while the store fails, the FailurePolicy decides, and the error
// is that of the store. If the caller has left during the call, the error is that of its context.
func TestAccountingWhileTheStoreFails(t *testing.T) {
	alg := ratelimit.FixedWindow{Limit: 5, Window: time.Hour}
	lost := errors.New("connection lost")
	for name, call := range accountingCalls {
		t.Run(name, func(t *testing.T) {
			alone, _ := fakes.At(t, alg)
			for _, tt := range []struct {
				policy ratelimit.FailurePolicy
				want   ratelimit.Decision
			}{
				{ratelimit.FailOpen(), ratelimit.Decision{Allowed: true, Limit: 5, Degraded: true}},
				{ratelimit.FailClosed(), ratelimit.Decision{Limit: 5, RetryAfter: time.Second, Degraded: true}},
				{ratelimit.Fallback(alone), ratelimit.Decision{Allowed: true, Limit: 5, Remaining: 3, ResetAfter: time.Hour, Degraded: true, StandIn: true}},
			} {
				db := fakes.NewMapDB()
				db.Err = lost
				l, _ := fakes.At(t, alg, ratelimit.WithStore(db.Store()), ratelimit.WithName("test"),
					ratelimit.WithFailurePolicy(tt.policy), ratelimit.WithFailureLog(nil))
				d, err := call(ctx, l, "key")
				require.ErrorIs(t, err, lost)
				assert.Equal(t, tt.want, d)

				over, cancel := context.WithCancel(ctx)
				db.Before = cancel // the caller leaves while the store is asked
				db.Err, db.Swap = nil, lost
				d, err = call(over, l, "key")
				require.ErrorIs(t, err, context.Canceled)
				assert.Zero(t, d)
			}
		})
	}
}

// A hold that FailOpen allowed holds nothing. So Settle counts all events that happened, under the
// limit of the key.
func TestSettleWhatWasNotHeld(t *testing.T) {
	db := fakes.NewMapDB()
	own := ratelimit.FixedWindow{Limit: 7, Window: time.Hour}
	l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.WithStore(db.Store()),
		ratelimit.WithName("test"), ratelimit.WithFailureLog(nil),
		ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return own, nil }))
	db.Err = errors.New("connection lost")
	first, _, err := l.Hold(ctx, "key", 2)
	require.ErrorIs(t, err, db.Err)
	second, _, err := l.Reserve(ctx, "key", 2)
	require.ErrorIs(t, err, db.Err)
	third, _, err := l.Reserve(ctx, "key", 0, ratelimit.Within(0))
	require.ErrorIs(t, err, db.Err)
	db.Err = nil
	d, err := first.Settle(ctx, 3)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 7, Remaining: 4, ResetAfter: time.Hour}, d)
	d, err = second.Settle(ctx, 0)
	require.NoError(t, err)
	assert.Equal(t, 4, d.Remaining)
	d, err = third.Settle(ctx, 1)
	require.NoError(t, err)
	assert.Equal(t, 3, d.Remaining)

	l, _ = fakes.At(t, ratelimit.InFlight{Limit: 5, Timeout: time.Hour}, ratelimit.WithStore(db.Store()),
		ratelimit.WithName("flight"), ratelimit.WithFailureLog(nil))
	db.Err = errors.New("connection lost")
	over, _, err := l.Hold(ctx, "key", 2)
	require.ErrorIs(t, err, db.Err)
	db.Err = nil
	d, err = over.Settle(ctx, 2)
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining, "none of them is in flight any more")
}

// Release of what FailOpen allowed has nothing to count. So it does not ask the store, which may still be
// away, and whose answer a request would wait for in vain.
func TestReleaseWhatWasNotHeld(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"window": ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, "flight": ratelimit.InFlight{Limit: 5, Timeout: time.Hour},
	} {
		db := fakes.NewMapDB()
		var seen []ratelimit.Observation
		l, _ := fakes.At(t, alg, ratelimit.WithStore(db.Store()), ratelimit.WithName(name), ratelimit.WithFailureLog(nil),
			ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) { seen = append(seen, o) }))
		db.Err = errors.New("connection lost")
		one, _, err := l.Hold(ctx, "key", 2)
		require.ErrorIs(t, err, db.Err, name)
		all, _, err := ratelimit.HoldAll(ctx, 2, ratelimit.For(l, "key"), ratelimit.For(l, "other"))
		require.ErrorIs(t, err, db.Err, name)
		seen = nil
		assert.NoError(t, one.Release(ctx), name)
		assert.ErrorIs(t, one.Release(ctx), ratelimit.ErrEnded, name)
		assert.NoError(t, all.Release(ctx), name)
		assert.ErrorIs(t, all.Release(ctx), ratelimit.ErrEnded, name)
		require.Len(t, seen, 3, name)
		for _, o := range seen {
			assert.Equal(t, ratelimit.CallSettle, o.Call, name)
			assert.Equal(t, ratelimit.Counted, o.Outcome, name)
		}
	}
}

// If the store fails when it writes, Settle returns the error, and cannot be called again.
func TestSettleWhileTheStoreFails(t *testing.T) {
	for _, policy := range []ratelimit.FailurePolicy{
		ratelimit.FailOpen(),
		ratelimit.FailClosed(),
		ratelimit.Fallback(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour}))),
	} {
		db := fakes.NewMapDB()
		l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.WithStore(db.Store()),
			ratelimit.WithName("test"), ratelimit.WithFailurePolicy(policy), ratelimit.WithFailureLog(nil))
		one, _, err := l.Hold(ctx, "key", 1)
		require.NoError(t, err)
		all, _, err := ratelimit.HoldAll(ctx, 1, ratelimit.For(l, "key"), ratelimit.For(l, "other"))
		require.NoError(t, err)
		db.Swap = errors.New("connection lost")
		for _, r := range []*ratelimit.Reservation{one, all} {
			d, err := r.Settle(ctx, 0)
			require.ErrorIs(t, err, db.Swap)
			assert.True(t, d.Degraded)
			_, err = r.Settle(ctx, 0)
			require.ErrorIs(t, err, ratelimit.ErrEnded)
		}
		assert.Equal(t, 3, fakes.Take(t, l, 0).Remaining, "nothing was given back")
	}
}

// A Hold or Charge does not wait longer for a store that hangs than its timeout.
func TestAccountingAbandonsTheStore(t *testing.T) {
	for name, call := range accountingCalls {
		t.Run(name, func(t *testing.T) {
			db := fakes.NewMapDB()
			hang := make(chan struct{})
			defer close(hang)
			l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.WithStore(db.Store()), ratelimit.WithName("test"),
				ratelimit.WithStoreTimeout(time.Millisecond), ratelimit.WithFailurePolicy(ratelimit.FailClosed()), ratelimit.WithFailureLog(nil))
			db.Before = func() { <-hang }
			d, err := call(ctx, l, "key")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.True(t, d.Degraded)
			assert.False(t, d.Allowed)
		})
	}
}

// TestAccountingInFullStores: a full store with RefuseNew denies a Hold of a new key, and a Charge
// of it fails with ErrFull. A hold of a known key can be settled.
func TestAccountingInFullStores(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"tables": ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
		"logs":   ratelimit.SlidingLog{Limit: 5, Window: time.Hour},
		"words":  ratelimit.SlidingWindow{Limit: 5, Window: time.Hour, Segments: 6},
	} {
		for _, own := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				var opts []ratelimit.Option
				if own {
					opts = append(opts, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil }))
				}
				refuses, _ := fakes.At(t, alg, append(opts,
					ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: 1, RefuseNew: true}), ratelimit.WithName("test"))...)
				kept, _, err := refuses.Hold(ctx, "old", 5)
				require.NoError(t, err)
				for name, call := range accountingCalls {
					d, err := call(ctx, refuses, "new")
					assert.False(t, d.Allowed, name)
					if name == "Charge" {
						require.ErrorIs(t, err, ratelimit.ErrFull)
					} else {
						require.NoError(t, err, name)
					}
				}
				d, err := kept.Settle(ctx, 1)
				require.NoError(t, err)
				assert.Equal(t, 4, d.Remaining)
			})
		}
	}
}

// TestSettleAfterTheKeyLostItsPlace: a key with holds is reset, and another key takes its place in
// a full store. Then nothing of the first key is held any more, and events that happened in
// addition find no room.
func TestSettleAfterTheKeyLostItsPlace(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"word":  ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
		"words": ratelimit.SlidingWindow{Limit: 5, Window: time.Hour, Segments: 6},
		"wide":  ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 7, Per: time.Hour}, Burst: 5},
		"all":   ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(5)}, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}},
		"first": ratelimit.FixedWindow{Limit: 5, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
		"log":   ratelimit.SlidingLog{Limit: 5, Window: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := fakes.At(t, alg, ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: 1, RefuseNew: true}), ratelimit.WithName("test"))
			less, _, err := l.Hold(ctx, "key", 1)
			require.NoError(t, err)
			more, _, err := l.Hold(ctx, "key", 1)
			require.NoError(t, err)
			require.NoError(t, l.Reset(ctx, "key"))
			require.True(t, l.Allow("other"))
			_, err = less.Settle(ctx, 0)
			require.NoError(t, err)
			_, err = more.Settle(ctx, 3)
			require.ErrorIs(t, err, ratelimit.ErrFull)
			d, err := l.Peek(ctx, "other")
			require.NoError(t, err)
			assert.Equal(t, 4, d.Remaining)
		})
	}
}

// If another limit of the same kind has granted events since a hold, Settle still gives back the
// events that have not happened. Events that happened in addition count under the present limit of
// the key.
func TestSettleUnderAnotherLimit(t *testing.T) {
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			var own ratelimit.Algorithm = ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 10}
			l, _ := fakes.At(t, own, ratelimit.WithStore(store()), ratelimit.WithName("test"),
				ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return own, nil }))
			hold := func(n int) *ratelimit.Reservation {
				r, d, err := l.Hold(ctx, "key", n)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				return r
			}
			d, err := hold(5).Settle(ctx, 1)
			require.NoError(t, err)
			assert.Equal(t, 9, d.Remaining)
			less, more := hold(3), hold(3)
			own = ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 20}
			assert.Equal(t, 12, fakes.Take(t, l, 1).Remaining)
			d, err = less.Settle(ctx, 0)
			require.NoError(t, err)
			assert.Equal(t, 15, d.Remaining)
			d, err = more.Settle(ctx, 4)
			require.NoError(t, err)
			assert.Equal(t, 14, d.Remaining)

			own = ratelimit.SlidingLog{Limit: 5, Window: time.Hour} // another kind of limit: the key starts afresh
			log := hold(2)
			d, err = log.Settle(ctx, 0)
			require.NoError(t, err)
			assert.Equal(t, 5, d.Remaining)
			d, err = l.Charge(ctx, "key", 6)
			require.NoError(t, err)
			assert.Equal(t, ratelimit.Decision{Limit: 5, RetryAfter: time.Hour, ResetAfter: time.Hour}, d)
			assert.Equal(t, 5, fakes.TakeUpTo(t, l, "another key", 9))
		})
	}
}
