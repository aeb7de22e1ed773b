package rules

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// A slowStore answers after a while or, while it hangs, never. It may ignore contexts.
type slowStore struct {
	takes   time.Duration
	heeding bool
	hangs   atomic.Bool
	limit   atomic.Int64
	lookups atomic.Int32
	at      atomic.Int32
	most    atomic.Int32
	release chan struct{}
}

func newSlowStore(heeding bool) *slowStore {
	s := &slowStore{heeding: heeding, release: make(chan struct{})}
	s.limit.Store(5)
	return s
}

func (s *slowStore) Limit(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
	s.lookups.Add(1)
	for at, most := s.at.Add(1), s.most.Load(); at > most && !s.most.CompareAndSwap(most, at); {
		most = s.most.Load()
	}
	defer s.at.Add(-1)
	switch {
	case s.hangs.Load() && s.heeding:
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.release:
		}
	case s.hangs.Load():
		<-s.release
	case s.takes > 0:
		time.Sleep(s.takes)
	}
	return perMinute(int(s.limit.Load())), nil
}

// TestKnownKeysNeverWait checks that known limits are returned at once while the store
// hangs, however long it hangs and however old the limit is.
func TestKnownKeysNeverWait(t *testing.T) {
	for _, heeding := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := newSlowStore(heeding)
			c, err := Cached(store, WithTTL(200*time.Millisecond), WithLookupTimeout(400*time.Millisecond), WithMaxLookups(2))
			require.NoError(t, err)
			for i := range 20 {
				_, err := c.Limit(t.Context(), fmt.Sprint(i))
				require.NoError(t, err)
			}
			store.hangs.Store(true)
			for range 250 {
				time.Sleep(10 * time.Millisecond)
				for i := range 20 {
					start := time.Now()
					alg, err := c.Limit(t.Context(), fmt.Sprint(i))
					require.NoError(t, err)
					require.Equal(t, perMinute(5), alg)
					require.Zero(t, time.Since(start))
				}
			}
			for range 100 { // for longer than the greatest age
				time.Sleep(9 * time.Minute)
				start := time.Now()
				alg, err := c.Limit(t.Context(), "7")
				require.NoError(t, err)
				require.Equal(t, perMinute(5), alg)
				require.Zero(t, time.Since(start))
			}
			store.hangs.Store(false)
			store.limit.Store(6)
			close(store.release)
			time.Sleep(time.Minute)
			var alg ratelimit.Algorithm
			for range 2 {
				alg, err = c.Limit(t.Context(), "7")
				require.NoError(t, err)
				synctest.Wait()
			}
			assert.Equal(t, perMinute(6), alg, "it is looked up again when the store is back")
			assert.EqualValues(t, 2, store.most.Load())
		})
	}
}

// TestMaxAge has keys that nobody asks for, for longer than the greatest age, which is ten minutes
// without an option.
func TestMaxAge(t *testing.T) {
	for age, opts := range map[time.Duration][]CacheOption{
		10 * time.Minute: nil,
		time.Hour:        {WithMaxAge(time.Hour)},
	} {
		t.Run(age.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testMaxAge(t, age, opts...) })
		})
	}
}

func testMaxAge(t *testing.T, age time.Duration, opts ...CacheOption) {
	limit := perMinute(5)
	var fails error
	c, err := Cached(LookupFunc(func(context.Context, string) (ratelimit.Algorithm, error) {
		time.Sleep(100 * time.Millisecond)
		return limit, fails
	}), opts...)
	require.NoError(t, err)
	ask := func(want ratelimit.Algorithm, takes time.Duration) {
		t.Helper()
		start := time.Now()
		alg, err := c.Limit(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, want, alg)
		assert.Equal(t, takes, time.Since(start))
	}
	ask(perMinute(5), 100*time.Millisecond)
	limit = ratelimit.Blocked{}
	time.Sleep(age)
	ask(perMinute(5), 0)
	time.Sleep(time.Minute)
	ask(ratelimit.Blocked{}, 0)
	limit = perMinute(6)
	time.Sleep(age + 1)
	ask(perMinute(6), 100*time.Millisecond)
	fails = errors.New("down")
	time.Sleep(2 * age)
	ask(perMinute(6), 100*time.Millisecond)
	ask(perMinute(6), 0)
}

// TestHungLookups checks that, once as many lookups hang as may run, calls of unknown keys do not
// wait any more, until one of the lookups returns.
func TestHungLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(false)
		store.hangs.Store(true)
		c, err := Cached(store, WithMaxLookups(2))
		require.NoError(t, err)
		for i := range 10 {
			start := time.Now()
			_, err := c.Limit(t.Context(), fmt.Sprint(i))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			if i >= 1 { // one lookup is left to known keys
				require.Zero(t, time.Since(start))
			}
		}
		assert.EqualValues(t, 9, c.Stats().Failures)
		assert.ErrorIs(t, c.Stats().Err, context.DeadlineExceeded)
		store.hangs.Store(false)
		store.release <- struct{}{}
		synctest.Wait()
		alg, err := c.Limit(t.Context(), "9")
		require.NoError(t, err)
		assert.Equal(t, perMinute(5), alg)
		close(store.release)
	})
}

// TestHotKeyOfAHungStore checks that calls for a key, known or not, leak nothing while its
// lookup hangs.
func TestHotKeyOfAHungStore(t *testing.T) {
	store := newSlowStore(false)
	c, err := Cached(store, WithTTL(time.Nanosecond), WithLookupTimeout(time.Nanosecond))
	require.NoError(t, err)
	c.known.put("known", found{alg: perMinute(5), at: time.Now()})
	store.hangs.Store(true)
	ctx := context.Background()
	for i, key := range []string{"known", "new"} {
		for store.lookups.Load() <= int32(i) { // until the lookup of the key hangs
			_, _ = c.Limit(ctx, key)
			runtime.Gosched()
		}
		goroutines := runtime.NumGoroutine()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range 100_000 {
			_, _ = c.Limit(ctx, key)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		assert.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(100_000), key)
		assert.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	}
	assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = c.Limit(ctx, "known") }))
	assert.Len(t, c.flights, 2)
	close(store.release)
}

// TestLookupsThatDoNotEnd checks that the number of lookups that ignore their context
// stays within the maximum, and that unknown keys get an error in time.
func TestLookupsThatDoNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(false)
		store.hangs.Store(true)
		c, err := Cached(store, WithMaxLookups(3), WithSize(50))
		require.NoError(t, err)
		for round := range 20 {
			var wg sync.WaitGroup
			for i := range 500 {
				wg.Go(func() {
					start := time.Now()
					_, err := c.Limit(t.Context(), fmt.Sprint(round%2, " ", i))
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					assert.LessOrEqual(t, time.Since(start), time.Second)
				})
			}
			wg.Wait()
			c.Forget(fmt.Sprint(round%2, " ", 0))
		}
		assert.EqualValues(t, 2, store.lookups.Load(), "one is left to known keys")
		synctest.Wait()
		c.mu.Lock()
		assert.LessOrEqual(t, len(c.flights), 2, "no caller waits for another one any more")
		c.mu.Unlock()
		start := time.Now()
		_, err = c.Limit(t.Context(), "0 1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		store.hangs.Store(false)
		close(store.release)
		synctest.Wait()
		alg, err := c.Limit(t.Context(), "another")
		require.NoError(t, err)
		assert.Equal(t, perMinute(5), alg)
		assert.LessOrEqual(t, time.Since(start), time.Second)
	})
}

// TestColdStart asks for 2,000 new keys at once: the store gets a few lookups at a time,
// and all keys get their limits.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(true)
		store.takes = 3 * time.Millisecond
		store.limit.Store(2)
		c, err := Cached(store)
		require.NoError(t, err)
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}, ratelimit.WithLimits(c.Limit)))
		var grants, failed atomic.Int32
		var wg sync.WaitGroup
		for key := range 2000 {
			for range 10 {
				wg.Go(func() {
					d, err := l.Take(t.Context(), fmt.Sprint(key), 1)
					if d.Allowed {
						grants.Add(1)
					}
					if err != nil {
						failed.Add(1)
					}
				})
			}
		}
		wg.Wait()
		assert.Zero(t, failed.Load())
		assert.EqualValues(t, 4000, grants.Load())
		assert.EqualValues(t, 7, store.most.Load(), "one is left to known keys")
		assert.EqualValues(t, 2000, store.lookups.Load())
	})
}

// TestQueuedCallersLeave checks that a key that no caller waits for is not looked up.
func TestQueuedCallersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(true)
		store.takes = 100 * time.Millisecond
		c, err := Cached(store, WithMaxLookups(1))
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.Limit(t.Context(), "first") })
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 5 {
			wg.Go(func() {
				_, err := c.Limit(ctx, fmt.Sprint(i))
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		wg.Go(func() {
			alg, err := c.Limit(t.Context(), "3")
			assert.NoError(t, err)
			assert.Equal(t, perMinute(5), alg)
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		assert.EqualValues(t, 2, store.lookups.Load())
		_, err = c.Limit(nil, "first") //nolint:staticcheck // it is refused
		assert.Error(t, err)
	})
}

// TestRefreshesAreBounded checks that there are only a few refreshes for each lookup that may run,
// and that a refresh whose deadline has passed is not made.
func TestRefreshesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(false)
		c, err := Cached(store, WithMaxLookups(1), WithSize(10), WithTTL(time.Second))
		require.NoError(t, err)
		ask := func() {
			for i := range 30 {
				_, _ = c.Limit(t.Context(), fmt.Sprint(i))
			}
		}
		ask()
		require.EqualValues(t, 30, store.lookups.Load())
		store.hangs.Store(true)
		time.Sleep(2 * time.Second)
		for i := 20; i < 30; i++ { // these are known
			_, err := c.Limit(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		}
		synctest.Wait()
		c.mu.Lock()
		assert.Len(t, c.flights, refreshesPerSlot)
		c.mu.Unlock()
		time.Sleep(2 * time.Second)
		store.hangs.Store(false)
		close(store.release)
		synctest.Wait()
		assert.EqualValues(t, 31, store.lookups.Load(), "the others' time was up")
		assert.Empty(t, c.flights)
		assert.Zero(t, c.customers.refreshes)
	})
}

// TestAnyNumberOfLookups has no bound on the lookups at once.
func TestAnyNumberOfLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore(true)
		c, err := Cached(store, WithMaxLookups(math.MaxInt), WithTTL(time.Second))
		require.NoError(t, err)
		for _, want := range []int{5, 5, 6} { // the second call begins the lookup of the third
			alg, err := c.Limit(t.Context(), "key")
			require.NoError(t, err)
			assert.Equal(t, perMinute(want), alg)
			store.limit.Store(6)
			time.Sleep(time.Minute)
		}
	})
}

// TestUnusableLimits checks that a limit of 0 or null does not disable limiting: the last
// valid limit stays in force, or else the limiter's own, and Stats says so.
func TestUnusableLimits(t *testing.T) {
	for _, unusable := range []struct {
		name string
		alg  ratelimit.Algorithm
		err  error
	}{
		{"a column", nil, &FieldError{"key", "capacity", nil, "at least 1"}},
		{"an algorithm of 0 events", ratelimit.TokenBucket{Rate: ratelimit.PerMinute(0)}, nil},
		{"an empty All", ratelimit.All{}, nil},
		{"a negative limit", ratelimit.FixedWindow{Limit: -1, Window: time.Hour}, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			good := map[string]bool{"known": true}
			c, err := Cached(LookupFunc(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
				if good[key] {
					return ratelimit.FixedWindow{Limit: 7, Window: time.Hour}, nil
				}
				return unusable.alg, unusable.err
			}))
			require.NoError(t, err)
			l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 3, Window: time.Hour}, ratelimit.WithLimits(c.Limit)))
			count := func(key string) (n int) {
				for range 20 {
					d, err := l.Take(t.Context(), key, 1)
					require.NoError(t, err)
					if d.Allowed {
						n++
					}
				}
				return n
			}
			require.Equal(t, 7, count("known"))
			good["known"] = false
			time.Sleep(2 * time.Minute)
			assert.Zero(t, count("known"), unusable.name)
			synctest.Wait()
			assert.Zero(t, count("known"), unusable.name)
			require.Error(t, c.Stats().Err, unusable.name)
			assert.EqualValues(t, 1, c.Stats().Invalid)
			assert.Zero(t, c.Stats().Failures)
			assert.Equal(t, 3, count("new"), unusable.name)
			assert.EqualValues(t, 2, c.Stats().Invalid)
			good["new"] = true
			time.Sleep(2 * time.Minute)
			_, _ = c.Limit(t.Context(), "new")
			synctest.Wait()
			assert.Equal(t, 4, count("new"), "it was put right")
		})
	}
}

// TestStatsOfFailures checks that Stats has the latest error.
func TestStatsOfFailures(t *testing.T) {
	down := errors.New("down")
	c, err := Cached(LookupFunc(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, down }))
	require.NoError(t, err)
	_, err = c.Limit(t.Context(), "key")
	require.ErrorIs(t, err, down)
	assert.Equal(t, CacheStats{Misses: 1, Failures: 1, Err: down}, c.Stats())
}

// TestNoSecretInErrors checks that neither the log of the cache, nor its errors, nor those of
// SQLLimits have a whole key, which may be an API key.
func TestNoSecretInErrors(t *testing.T) { synctest.Test(t, testNoSecretInErrors) }

func testNoSecretInErrors(t *testing.T) {
	const secret = "sk_live_0123456789abcdef"
	logger, logged := fakes.Log()
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(logger)
	limits := SQLLimits(new(sql.DB), "", nil).(*sqlLimits)
	var shown []string
	for _, lookup := range []LookupFunc{
		func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			return nil, fmt.Errorf("no customer %s: %w", key, ratelimit.ErrInvalid)
		},
		func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			return ratelimit.FixedWindow{Limit: -1, Window: time.Hour}, nil
		},
		func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			return nil, fmt.Errorf("invalid input syntax for type uuid: %q", key)
		},
		func(_ context.Context, key string) (ratelimit.Algorithm, error) { panic("no " + key) },
		func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			_, err := limits.limitOf(cell{}, cell{"-1"}, cell{})
			return nil, limitError(key, err)
		},
	} {
		c, err := Cached(lookup)
		require.NoError(t, err)
		if _, err = c.Limit(t.Context(), secret); err != nil {
			shown = append(shown, err.Error())
		}
		shown = append(shown, c.Stats().Err.Error(), (&flight{key: secret}).late().Error())
	}
	synctest.Wait() // for the log
	for _, text := range append(shown, logged()) {
		assert.Contains(t, text, "sk_liv")
		assert.NotContains(t, text, secret)
	}
}

// A pool is a lookup that limits how many may run at once.
type pool struct {
	*slowStore
	n int
}

func (p pool) most() (int, bool) { return p.n, p.n > 0 }

// TestPool checks that no more lookups run at once than a pool of connections says, and eight at
// most, unless WithMaxLookups says otherwise.
func TestPool(t *testing.T) {
	for connections, want := range map[int]int{0: 8, 1: 1, 3: 3, 100: 8} {
		c, err := Cached(pool{newSlowStore(true), connections})
		require.NoError(t, err)
		assert.Equal(t, want, c.most)
		c, err = Cached(pool{newSlowStore(true), connections}, WithMaxLookups(50))
		require.NoError(t, err)
		assert.Equal(t, 50, c.most)
	}
}

// TestFloodWhileDown checks that new keys that fail while the store is down do not evict
// known ones.
func TestFloodWhileDown(t *testing.T) {
	down := false
	c, err := Cached(LookupFunc(func(context.Context, string) (ratelimit.Algorithm, error) {
		if down {
			return nil, errors.New("down")
		}
		return perMinute(5), nil
	}), WithSize(10))
	require.NoError(t, err)
	_, err = c.Limit(t.Context(), "customer")
	require.NoError(t, err)
	down = true
	for i := range 1000 {
		_, err := c.Limit(t.Context(), fmt.Sprint(i))
		require.Error(t, err)
	}
	alg, err := c.Limit(t.Context(), "customer")
	require.NoError(t, err)
	assert.Equal(t, perMinute(5), alg)
	assert.LessOrEqual(t, len(c.failed.byKey), 10)
}

// away is a database that cannot be reached.
type away struct{}

func (away) Connect(context.Context) (driver.Conn, error) {
	return nil, errors.New("connection refused")
}
func (away) Driver() driver.Driver { return nil }

// TestDatabaseAwayAtTheStart checks that a service starts without its database, and that the limit given to New
// decides until a lookup succeeds.
func TestDatabaseAwayAtTheStart(t *testing.T) {
	for name, tt := range map[string]struct {
		own    ratelimit.Algorithm
		status []int
	}{
		"a limit":       {ratelimit.FixedWindow{Limit: 2, Window: time.Hour}, []int{200, 200, 429}},
		"blocked":       {ratelimit.Blocked{}, []int{503}},
		"without limit": {ratelimit.Unlimited{}, []int{200, 200, 200}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := sql.OpenDB(away{})
				defer db.Close()
				lookup, err := Cached(SQLLimits(db, "SELECT 60, per_minute FROM plans WHERE customer = $1", nil))
				require.NoError(t, err)
				limiter, err := ratelimit.New(tt.own, ratelimit.WithLimits(lookup.Limit), ratelimit.WithFailureLog(nil))
				require.NoError(t, err)
				answer := httplimit.Middleware(limiter)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				for i, want := range tt.status {
					w := httptest.NewRecorder()
					answer.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
					assert.Equal(t, want, w.Code, "request %d", i)
				}
				d, err := limiter.Take(t.Context(), "another customer", 1)
				assert.ErrorContains(t, err, "connection refused")
				assert.True(t, d.Degraded)
			})
		})
	}
}
