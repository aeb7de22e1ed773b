package casstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
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
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

var ctx = context.Background()

func TestStore(t *testing.T) {
	day := ratelimit.FixedWindow{Limit: 3, Window: 24 * time.Hour}
	limiter := func(t *testing.T, s ratelimit.Store, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
		l, _ := fakes.At(t, alg, append([]ratelimit.Option{
			ratelimit.WithStore(s),
			ratelimit.WithName("test"),
			ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
		}, opts...)...)
		return l
	}

	t.Run("conflict", func(t *testing.T) {
		db := fakes.NewMapDB()
		l := limiter(t, db.Store(), day)
		other := limiter(t, db.Store(), day)
		db.Before = func() { require.True(t, other.Allow("key")) }
		d, err := l.Take(ctx, "key", 1)
		require.NoError(t, err)
		assert.Equal(t, 1, d.Remaining, "the other came first")
		assert.Equal(t, 1, db.Conflicts)
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
		s := ratelimit.NewStore(neverSwaps{fakes.NewMapDB()})
		ended, cancel := context.WithCancel(ctx)
		cancel()
		tr, err := fakes.NewLimit(day)
		require.NoError(t, err)
		st, err := s.Open("test", tr, 0)
		require.NoError(t, err)
		_, err = st.Apply(ended, "key", tr, step.Request{N: 1}.At(fakes.Midnight))
		assert.ErrorIs(t, err, context.Canceled)
	})
	t.Run("unreadable", func(t *testing.T) {
		db := fakes.NewMapDB()
		db.States["api:key"] = "nonsense"
		l := limiter(t, db.Store(), day, ratelimit.WithName("api"))
		_, err := l.Take(ctx, "key", 1)
		require.ErrorIs(t, err, ratelimit.ErrState)
		d, err := l.Take(ctx, "key", 1)
		require.NoError(t, err, "it is reported once")
		assert.Equal(t, 1, d.Remaining)
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
	t.Run("no database", func(t *testing.T) {
		for _, db := range []ratelimit.Database{nil, (*fakes.MapDB)(nil)} {
			_, err := ratelimit.New(day, ratelimit.WithStore(ratelimit.NewStore(db)), ratelimit.WithName("test"))
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
			assert.ErrorContains(t, err, "NewStore's Database is nil")
		}
	})
	t.Run("no state is nil", func(t *testing.T) {
		db := &swaps{MapDB: fakes.NewMapDB()} // whose Get returns an empty slice
		require.True(t, limiter(t, ratelimit.NewStore(db), day).Allow("key"))
		assert.Equal(t, [][]byte{nil}, db.olds)
	})
}

// Close has the Database asked once more about holds that may be open, and leaves nothing that goes
// on.
func TestClose(t *testing.T) {
	for name, tt := range map[string]struct {
		back bool // whether the database answers again
		left int
	}{"answers": {true, 30}, "is away": {false, 29}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &mayBeAway{MapDB: fakes.NewMapDB()}
				db.Repeats = true
				s := ratelimit.NewStore(db)
				l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 30, Window: 1000 * time.Hour},
					ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailureLog(nil)))
				r, _, err := l.Hold(ctx, "k", 1)
				require.NoError(t, err)
				db.away.Store(true)
				_, err = r.Settle(ctx, 0)
				require.ErrorIs(t, err, errAway)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				db.away.Store(!tt.back)
				require.NoError(t, s.Close(ctx))
				db.away.Store(false)
				asked := db.asked.Load()
				time.Sleep(time.Hour)
				synctest.Wait()
				assert.Equal(t, asked, db.asked.Load())
				d, err := l.Peek(ctx, "k")
				require.NoError(t, err)
				assert.Equal(t, tt.left, d.Remaining, "the store remains usable")
			})
		})
	}
	s := ratelimit.NewStore(fakes.NewMapDB())
	require.NoError(t, s.Close(ctx))
	require.NoError(t, s.Close(ctx))
	require.ErrorIs(t, s.Close(nil), ratelimit.ErrInvalid) //nolint:staticcheck // that is tested
	require.NoError(t, new(ratelimit.DatabaseStore).Close(ctx))
	_, err := ratelimit.New(ratelimit.Blocked{}, ratelimit.WithStore(new(ratelimit.DatabaseStore)), ratelimit.WithName("test"))
	require.ErrorContains(t, err, "the DatabaseStore is zero: it must be one that NewStore returns")
}

var errAway = errors.New("the database is away")

// mayBeAway counts the calls of Get, which fail while it is away.
type mayBeAway struct {
	*fakes.MapDB
	away  atomic.Bool
	asked atomic.Int64
}

func (db *mayBeAway) Get(ctx context.Context, key string) ([]byte, error) {
	db.asked.Add(1)
	if db.away.Load() {
		return nil, errAway
	}
	return db.MapDB.Get(ctx, key)
}

type neverSwaps struct{ *fakes.MapDB }

func (neverSwaps) CompareAndSwap(context.Context, string, []byte, []byte, time.Time) (bool, error) {
	return false, nil
}

// swaps has the old states of all swaps.
type swaps struct {
	*fakes.MapDB
	olds [][]byte
}

func (db *swaps) CompareAndSwap(ctx context.Context, key string, old, state []byte, expires time.Time) (bool, error) {
	db.olds = append(db.olds, old)
	return db.MapDB.CompareAndSwap(ctx, key, old, state, expires)
}

// Keys in the database are different for different pairs of a name and a key, short,
// and of ASCII.
func TestStore_Keys(t *testing.T) {
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

// A slow database needs a millisecond to read and ten to write, and does not write if the context ends
// before.
type slow struct{ *fakes.MapDB }

func (db slow) Get(ctx context.Context, key string) ([]byte, error) {
	time.Sleep(time.Millisecond)
	return db.MapDB.Get(ctx, key)
}

func (db slow) CompareAndSwap(ctx context.Context, key string, old, state []byte, expires time.Time) (bool, error) {
	time.Sleep(10 * time.Millisecond)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return db.MapDB.CompareAndSwap(ctx, key, old, state, expires)
}

// Parallel calls on one key get what one caller would get, and the policy decides nothing,
// however many there are, in one process or in several.
func TestStore_ParallelCalls(t *testing.T) {
	for _, tt := range []struct{ processes, calls, limit int }{{1, 100, 50}, {1, 1000, 50}, {1, 1000, 900}, {1, 20_000, 50}, {5, 400, 50}, {5, 400, 300}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := fakes.NewMapDB()
				var granted, failed atomic.Int64
				var wg sync.WaitGroup
				for range tt.processes {
					l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: tt.limit, Window: 24 * time.Hour},
						ratelimit.WithStore(ratelimit.NewStore(slow{db})), ratelimit.WithName("api")))
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
func TestStore_CallersWhoLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := fakes.NewMapDB()
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour},
			ratelimit.WithStore(ratelimit.NewStore(slow{db})), ratelimit.WithName("api")))
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

type panicking struct {
	*fakes.MapDB
	end atomic.Pointer[func()] // what Get does, if that is set
}

func (db *panicking) Get(ctx context.Context, key string) ([]byte, error) {
	time.Sleep(time.Millisecond)
	if end := db.end.Load(); end != nil {
		(*end)()
	}
	return db.MapDB.Get(ctx, key)
}

// If a database panics, or ends the goroutine, all calls that share its read fail, and those after them do not.
func TestStore_Panic(t *testing.T) {
	for want, end := range map[string]func(){
		"the store panicked: odd": func() { panic("odd") },
		"the store panicked: EOF": func() { panic(io.EOF) },
		"the database has ended":  runtime.Goexit,
	} {
		synctest.Test(t, func(t *testing.T) {
			db := &panicking{MapDB: fakes.NewMapDB()}
			l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour},
				ratelimit.WithStore(ratelimit.NewStore(db)), ratelimit.WithName("api")))
			db.end.Store(&end)
			var wg sync.WaitGroup
			var failed atomic.Int64
			for range 3 { // the first has the turn
				wg.Go(func() {
					d, err := l.Take(ctx, "key", 1)
					assert.ErrorContains(t, err, want)
					assert.True(t, d.Allowed && d.Degraded, "the policy has decided")
					failed.Add(1)
				})
				synctest.Wait()
			}
			time.Sleep(1500 * time.Microsecond)
			assert.EqualValues(t, 1, failed.Load())
			wg.Wait()
			assert.True(t, l.Allow("key"))
			assert.EqualValues(t, 3, failed.Load())
			db.end.Store(nil)
			d, err := l.Take(ctx, "key", 1)
			require.NoError(t, err)
			assert.Equal(t, 9, d.Remaining, "the store goes on")
		})
	}
}

// A state expires when the key is fresh by the limiter's clock, wherever that stands.
func TestStore_Expiry(t *testing.T) {
	for _, start := range []time.Time{{}, time.Unix(0, 0), time.Date(2026, 3, 1, 12, 0, 0, 7, time.UTC), time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)} {
		db := fakes.NewMapDB()
		s := db.Store()
		clk := stepclock.New()
		clk.Set(start)
		l := ratelimit.Must(ratelimit.New(
			ratelimit.FixedWindow{Limit: 10, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
			ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithClock(clk)))
		clk.Advance(time.Minute)
		for range 3 {
			require.True(t, l.Allow("key"))
			assert.True(t, start.Add(61*time.Minute).Equal(db.Until["test:key"]), "%v", db.Until)
			clk.Advance(-time.Second) // time stands still, and is a second behind
		}
		l = ratelimit.Must(ratelimit.New(
			ratelimit.FixedWindow{Limit: 10, Window: math.MaxInt64, Start: ratelimit.StartOnFirstEvent},
			ratelimit.WithStore(s), ratelimit.WithClock(clk), ratelimit.WithName("never")))
		require.True(t, l.Allow("key"))
		assert.Equal(t, time.Time{}, db.Until["never:key"])
		assert.Contains(t, db.Until, "never:key")
	}
}
