package fault_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

func TestCASStore(t *testing.T) {
	day := ratelimit.FixedWindow{Limit: 3, Window: 24 * time.Hour}
	limiter := func(t *testing.T, s ratelimit.Store, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
		l, _ := fakes.At(t, alg, append([]ratelimit.Option{ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed)}, opts...)...)
		return l
	}

	t.Run("conflict", func(t *testing.T) {
		db := fakes.NewMapDB()
		s := db.Store()
		l := limiter(t, s, day)
		other := limiter(t, db.Store(), day)
		db.Before = func() { require.True(t, other.Allow("key")) }
		d, err := l.Take(ctx, "key", 1)
		require.NoError(t, err)
		assert.Equal(t, 1, d.Remaining, "the other came first")
		assert.Equal(t, ratelimit.CASStats{Conflicts: 1}, s.Stats())
	})
	t.Run("expires", func(t *testing.T) {
		db := fakes.NewMapDB()
		require.True(t, limiter(t, db.Store(), day).Allow("key"))
		assert.True(t, fakes.Midnight.Add(24*time.Hour).Equal(db.Until["test:key"]), db.Until)
	})
	t.Run("errors", func(t *testing.T) {
		db := fakes.NewMapDB()
		l := limiter(t, db.Store(), day)
		db.Err = errors.New("no such table")
		_, err := l.Take(ctx, "key", 1)
		assert.ErrorIs(t, err, db.Err)
		assert.ErrorIs(t, l.Reset(ctx, "key"), db.Err)
		db.Err, db.Swap = nil, errors.New("disk full")
		_, err = l.Take(ctx, "key", 1)
		assert.ErrorIs(t, err, db.Swap)
	})
	t.Run("never swaps", func(t *testing.T) {
		db := fakes.NewMapDB()
		s := ratelimit.NewCASStore(db.Get, func(ctx context.Context, key, version string, state []byte, _ time.Time) (bool, error) {
			return false, nil
		}, db.Remove)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		tr, err := ratelimit.NewTransition(day)
		require.NoError(t, err)
		st, err := s.Open("test", tr)
		require.NoError(t, err)
		_, err = st.Apply(ended, "key", tr, ratelimit.Request{N: 1}.At(fakes.Midnight))
		assert.ErrorIs(t, err, context.Canceled)
	})
	t.Run("unreadable", func(t *testing.T) {
		db := fakes.NewMapDB()
		db.States["api:key"] = "nonsense"
		s := db.Store()
		l := limiter(t, s, day, ratelimit.WithName("api"))
		_, err := l.Take(ctx, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrState)
		require.True(t, l.Allow("key"))
		assert.Equal(t, ratelimit.CASStats{Unreadable: 1}, s.Stats())
	})
	t.Run("one name, two algorithms", func(t *testing.T) {
		db := fakes.NewMapDB()
		s := db.Store()
		limiter(t, s, day, ratelimit.WithName("api"))
		limiter(t, s, day, ratelimit.WithName("api"))
		limiter(t, s, ratelimit.SlidingLog{Limit: 1, Window: time.Hour})
		own := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil })
		for _, opts := range [][]ratelimit.Option{{}, {own}} {
			alg := ratelimit.FixedWindow{Limit: 4, Window: 24 * time.Hour}
			if len(opts) > 0 {
				alg = day
			}
			_, err := ratelimit.New(alg, append(opts, ratelimit.WithStore(s), ratelimit.WithName("api"))...)
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
			assert.ErrorContains(t, err, `"api"`)
		}
		l := limiter(t, db.Store(), ratelimit.FixedWindow{Limit: 4, Window: 24 * time.Hour}, ratelimit.WithName("api"))
		assert.True(t, l.Allow("key"), "after a restart it may have another")
	})
	t.Run("functions that are missing", func(t *testing.T) {
		db := fakes.NewMapDB()
		for want, s := range map[string]*ratelimit.CASStore{
			"NewCASStore's get is nil":            ratelimit.NewCASStore(nil, db.CompareAndSwap, db.Remove),
			"NewCASStore's compareAndSwap is nil": ratelimit.NewCASStore(db.Get, nil, db.Remove),
			"NewCASStore's remove is nil":         ratelimit.NewCASStore(db.Get, db.CompareAndSwap, nil),
			"must be made by NewCASStore":         {},
		} {
			_, err := ratelimit.New(day, ratelimit.WithStore(s), ratelimit.WithName("test"))
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
			assert.ErrorContains(t, err, want)
		}
	})
}

// Keys in the database are different for different pairs of a name and a key, short,
// and of ASCII.
func TestCASStoreKeys(t *testing.T) {
	long := strings.Repeat("x", 1000)
	parts := []string{"", "a", "b", ":", "a:", ":a", "%3A", "#", "A", "a b", "a+b", "\xff", "\xfe", "é", long, long + "x", "%" + long, strings.Repeat("é", 40)}
	db := fakes.NewMapDB()
	for _, name := range parts[1:] { // a name is not empty
		l, err := ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour}, ratelimit.WithStore(db.Store()), ratelimit.WithName(name))
		require.NoError(t, err)
		for _, key := range parts {
			assert.True(t, l.Allow(key), "%.10q, %.10q", name, key)
		}
	}
	assert.Len(t, db.States, (len(parts)-1)*len(parts))
	for key := range db.States {
		assert.NotEmpty(t, key)
		assert.LessOrEqual(t, len(key), 200)
		for _, r := range key {
			assert.True(t, r > ' ' && r < 0x7f, "%q", key)
		}
	}
}

// slow returns a store on db whose reads take a millisecond and whose writes take ten, and fail if
// their context ends before.
func slow(db *fakes.MapDB) *ratelimit.CASStore {
	return ratelimit.NewCASStore(
		func(ctx context.Context, key string) ([]byte, string, error) {
			time.Sleep(time.Millisecond)
			return db.Get(ctx, key)
		},
		func(ctx context.Context, key, version string, state []byte, expires time.Time) (bool, error) {
			time.Sleep(10 * time.Millisecond)
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			return db.CompareAndSwap(ctx, key, version, state, expires)
		}, db.Remove)
}

// Parallel calls on one key get what one caller would get, and the policy decides nothing,
// however many there are, in one process or in several.
func TestCASStoreParallelCalls(t *testing.T) {
	for _, tt := range []struct{ processes, calls, limit int }{{1, 100, 50}, {1, 1000, 50}, {1, 1000, 900}, {1, 20_000, 50}, {5, 400, 50}, {5, 400, 300}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := fakes.NewMapDB()
				var granted, failed atomic.Int64
				var wg sync.WaitGroup
				for range tt.processes {
					l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: tt.limit, Window: 24 * time.Hour}, ratelimit.WithStore(slow(db)), ratelimit.WithName("api")))
					for range tt.calls {
						wg.Go(func() {
							switch d, err := l.Take(ctx, "key", 1); {
							case err != nil:
								failed.Add(1)
							case d.Allowed:
								granted.Add(1)
							}
						})
					}
				}
				wg.Wait()
				assert.Zero(t, failed.Load(), "decided by the policy")
				assert.EqualValues(t, tt.limit, granted.Load())
			})
		})
	}
}

// A caller who leaves before its call is applied spends nothing, and does not end the calls of
// others.
func TestCASStoreCallersWhoLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := fakes.NewMapDB()
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour}, ratelimit.WithStore(slow(db)), ratelimit.WithName("api")))
		var wg sync.WaitGroup
		take := func(ctx context.Context, want error) {
			wg.Go(func() {
				_, err := l.Take(ctx, "key", 1)
				assert.ErrorIs(t, err, want)
			})
			synctest.Wait()
		}
		leaving, leave := context.WithCancel(ctx)
		take(ctx, nil) // has the turn
		take(leaving, context.Canceled)
		take(ctx, nil)
		leave()
		wg.Wait()
		d, err := l.Peek(ctx, "key")
		require.NoError(t, err)
		assert.Equal(t, 8, d.Remaining)

		// The one who has the turn leaves, and the others are served.
		leaving, leave = context.WithCancel(ctx)
		take(ctx, nil)
		take(leaving, context.Canceled)
		take(ctx, nil)
		time.Sleep(11500 * time.Microsecond) // the first has been served, and the state read for the others
		leave()
		wg.Wait()
		d, err = l.Peek(ctx, "key")
		require.NoError(t, err)
		assert.Equal(t, 6, d.Remaining)
	})
}

// A database that panics does so in one of the calls that share its read; the others fail.
func TestCASStorePanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := fakes.NewMapDB()
		var panics atomic.Bool
		s := ratelimit.NewCASStore(func(ctx context.Context, key string) ([]byte, string, error) {
			time.Sleep(time.Millisecond)
			if panics.Load() {
				panic("odd")
			}
			return db.Get(ctx, key)
		}, db.CompareAndSwap, db.Remove)
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour}, ratelimit.WithStore(s), ratelimit.WithName("api")))
		var wg sync.WaitGroup
		var panicked, failed atomic.Int64
		take := func() {
			wg.Go(func() {
				defer func() {
					if recover() != nil {
						panicked.Add(1)
					}
				}()
				if _, err := l.Take(ctx, "key", 1); err != nil {
					failed.Add(1)
				}
			})
			synctest.Wait()
		}
		take() // has the turn
		take()
		take()
		panics.Store(true)
		wg.Wait()
		assert.EqualValues(t, 2, panicked.Load(), "the first, and one of the others, which share a read")
		assert.EqualValues(t, 1, failed.Load())
		panics.Store(false)
		take()
		wg.Wait()
		d, err := l.Peek(ctx, "key")
		require.NoError(t, err)
		assert.Equal(t, 9, d.Remaining, "the store goes on")
	})
}

// A state expires when the key is fresh by the limiter's clock, wherever that stands.
func TestCASStoreExpiry(t *testing.T) {
	for _, start := range []time.Time{{}, time.Unix(0, 0), time.Date(2026, 3, 1, 12, 0, 0, 7, time.UTC), time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)} {
		var expires time.Time
		db := fakes.MapStates{}
		s := ratelimit.NewCASStore(
			func(_ context.Context, key string) ([]byte, string, error) { return []byte(db[key]), db[key], nil },
			func(_ context.Context, key, _ string, state []byte, until time.Time) (bool, error) {
				db[key], expires = string(state), until
				return true, nil
			},
			func(context.Context, string) error { return nil })
		clk := stepclock.New()
		clk.Set(start)
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithClock(clk)))
		clk.Advance(time.Minute)
		for range 3 {
			require.True(t, l.Allow("key"))
			assert.True(t, start.Add(61*time.Minute).Equal(expires), "%v", expires)
			clk.Advance(-time.Second) // time stands still, and is a second behind
		}
		l = ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: math.MaxInt64, Start: ratelimit.StartOnFirstEvent}, ratelimit.WithStore(s), ratelimit.WithClock(clk), ratelimit.WithName("never")))
		require.True(t, l.Allow("key"))
		assert.Zero(t, expires)
	}
}
