package redis_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// These tests cause each fault under load. No caller waits, the policy decides, and
// afterwards the limit is exact again. What a fault grants or loses is what redisstore's
// documentation says.

const callers = 8

// A server that crashes loses everything: a key may get its limit again, once for each
// crash.
func TestCrash(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(time.Second))
		l := limiter(t, store, hourly(50), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		of := start(t, l, "k", callers)
		meet(t, "it is denied", &of.denied)
		eventually(t, "the limit is reached", func() bool { return of.allowed.Load() == 50 })
		s.kill()
		meet(t, "it is degraded", &of.degraded)
		assert.EqualValues(t, 50, of.allowed.Load())
		assert.Zero(t, of.open.Load(), "FailClosed allows nothing")
		s.restart()
		meet(t, "it is denied by the server", &of.denied)
		of.end()
		assert.LessOrEqual(t, of.allowed.Load(), int64(100))
		exact(t, store, "after")
	})
}

// When a server hangs, callers wait for the timeout until the breaker opens, and then not
// at all.
func TestHang(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr())
		l := limiter(t, store, hourly(1_000_000)) // FailOpen
		of := start(t, l, "k", callers)
		meet(t, "it is allowed", &of.allowed)
		s.stop()
		meet(t, "it is degraded", &of.degraded)
		before := store.Stats()
		eventually(t, "the breaker refuses many calls", func() bool { return store.Stats().BreakerOpen > before.BreakerOpen+10_000 })
		after := store.Stats()
		assert.Less(t, after.Calls-before.Calls, uint64(200), "calls while the server hangs")
		s.cont()
		meet(t, "it is allowed by the server again", &of.allowed)
		of.end()
		assert.Equal(t, of.degraded.Load(), of.open.Load(), "FailOpen allows everything")
		exact(t, store, "after")
		// Requests without an answer may have been spent.
		eventually(t, "the count is the number of grants, and at most that of failed calls more", func() bool {
			d, err := l.Peek(t.Context(), "k")
			used := int64(1_000_000 - d.Remaining)
			return err == nil && used >= of.allowed.Load() && used <= of.allowed.Load()+of.degraded.Load()
		})
	})
}

// DEBUG SLEEP for longer than the timeout: the same, and the server recovers by itself.
func TestSleep(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr())
		share := ratelimit.Must(ratelimit.New(hourly(7)))
		l := limiter(t, store, hourly(1_000_000), ratelimit.WithFailurePolicy(ratelimit.Fallback(share)))
		of := start(t, l, "k", callers)
		meet(t, "it is allowed", &of.allowed)
		slept := inBackground(func() { s.do("DEBUG", "SLEEP", "1") })
		meet(t, "it is degraded", &of.degraded)
		<-slept
		meet(t, "it is allowed by the server again", &of.allowed)
		of.end()
		assert.EqualValues(t, 7, of.open.Load(), "the fallback's share")
		exact(t, store, "after")
	})
}

// inBackground runs f, and returns a channel that is closed when f is done.
func inBackground(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return done
}

// No matter how many callers there are when a server hangs, none waits for its answer: they
// all return before the server goes on.
func TestManyCallersOfHang(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithBreaker(0, 0), redisstore.WithTimeout(100*time.Millisecond))
		l := limiter(t, store, hourly(1_000_000))
		require.True(t, l.Allow("warm"))
		s.stop()
		var of load
		var wg sync.WaitGroup
		for i := range 6000 {
			wg.Go(func() { of.ask(l, fmt.Sprint(i)) })
		}
		wg.Wait()
		assert.EqualValues(t, 6000, of.degraded.Load())
		s.cont()
		exact(t, store, "after")
	})
}

// No caller waits for a new connection either.
func TestDialingHangs(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		p := startProxy(t, startServer(t).addr())
		store := create(t, p.addr(), redisstore.WithTimeout(100*time.Millisecond))
		t.Cleanup(p.release) // before the client is closed, because Close may wait for it
		l := limiter(t, store, hourly(1_000_000))
		eventually(t, "it is connected", func() bool { _, err := l.Peek(t.Context(), "k"); return err == nil })
		p.hold()
		p.cutAfterRequest("evalsha")
		var of load
		for range 20 {
			of.ask(l, "k")
		}
		assert.EqualValues(t, 20, of.degraded.Load())
		p.release()
		exact(t, store, "after")
	})
}

// SCRIPT FLUSH has no effect.
func TestScriptFlush(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
		l := limiter(t, store, hourly(2000))
		of := start(t, l, "k", callers)
		for range 20 {
			was := of.answered()
			eventually(t, "it is answered", func() bool { return of.answered() > was+10 })
			s.do("SCRIPT", "FLUSH")
		}
		eventually(t, "it is denied", func() bool { return of.denied.Load() > 0 })
		of.end()
		assert.EqualValues(t, 2000, of.allowed.Load())
		assert.Zero(t, of.degraded.Load())
	})
}

// answered returns how many requests the server has decided.
func (of *load) answered() int64 { return of.allowed.Load() + of.denied.Load() }

// On a write to a replica the policy decides. A Peek is answered.
func TestReadOnly(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		primary, replica := startReplicated(t)
		store := create(t, primary.addr(), redisstore.WithTimeout(patient))
		require.True(t, limiter(t, store, hourly(5)).Allow("k"))
		awaitSync(t, primary, replica)
		store = create(t, replica.addr(), redisstore.WithTimeout(patient))
		l := limiter(t, store, hourly(5), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		d, err := l.Take(t.Context(), "k", 1)
		require.ErrorContains(t, err, "READONLY")
		assert.True(t, d.Degraded && !d.Allowed)
		d, err = l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 4, d.Remaining)
		promote(t, replica)
		exact(t, store, "after")
		for range 4 {
			assert.True(t, l.Allow("k"))
		}
		assert.False(t, l.Allow("k"), "the fifth was granted by the old primary")
	})
}

// A server that is out of memory refuses writes. Denials need no write.
func TestMaxMemory(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
		l := limiter(t, store, hourly(2), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		require.True(t, l.AllowN("k", 2))
		s.do("CONFIG", "SET", "maxmemory", "1kb")
		for range 10 {
			d, err := l.Take(t.Context(), "another", 1)
			require.ErrorContains(t, err, "OOM")
			assert.True(t, d.Degraded && !d.Allowed)
		}
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err, "a denial needs no memory")
		assert.False(t, d.Allowed)
		s.do("CONFIG", "SET", "maxmemory", "0")
		assert.True(t, l.AllowN("another", 2))
		assert.False(t, l.Allow("another"), "the refused request was not spent")
		exact(t, store, "after")
	})
}

// If the connection is cut after the script ran, the event is spent, and the caller gets an
// error: each failed call loses at most one event, and none is granted twice.
func TestCut(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		p := startProxy(t, s.addr())
		store := create(t, p.addr(), redisstore.WithTimeout(time.Second))
		l := limiter(t, store, hourly(10), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		require.True(t, l.Allow("k"))
		p.cutAfterRequest("evalsha")
		d, err := l.Take(t.Context(), "k", 1)
		require.Error(t, err)
		assert.True(t, d.Degraded && !d.Allowed)
		eventually(t, "the client is connected again", func() bool {
			d, err = l.Peek(t.Context(), "k")
			return err == nil
		})
		assert.Equal(t, 8, d.Remaining)
		exact(t, store, "after")
	})
}

// The clocks of callers do not matter.
func TestCallersClock(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		allowed := 0
		for _, off := range []time.Duration{-time.Hour, 0, time.Hour, 24 * time.Hour} {
			clk := clock.NewMock()
			clk.Set(time.Now().Add(off))
			l := limiter(t, create(t, s.addr(), redisstore.WithTimeout(patient)), hourly(10), ratelimit.WithClock(clk))
			for range 4 {
				d, err := l.Take(context.Background(), "k", 1)
				require.NoError(t, err)
				if d.Allowed {
					allowed++
				}
				assert.InDelta(t, time.Hour, d.ResetAfter, float64(time.Minute), "by the server's clock")
			}
		}
		assert.Equal(t, 10, allowed)
	})
}

// A string that another program wrote is an error once, and is then replaced. A value of
// another type is an error, and stays.
func TestForeignValues(t *testing.T) {
	s := startServer(t)
	store := makers["rueidis"](t, s.addr(), redisstore.WithBreaker(0, 0), redisstore.WithDenialCache(0))
	conn := &recorder{Conn: connectors["rueidis"](t, s.addr())}
	probe, err := redisstore.New(conn)
	require.NoError(t, err)
	for name, alg := range algorithms(10) {
		l := limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		limiter(t, probe, alg).Allow("k")
		for _, value := range []string{"x", "123", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", string(make([]byte, 24)) + "y"} {
			s.do("SET", conn.key, value)
			d, err := l.Take(t.Context(), "k", 1)
			if err == nil {
				continue // it may be a valid state
			}
			assert.True(t, d.Degraded, name)
			assert.ErrorIs(t, err, ratelimit.ErrState, name)
			_, err = l.Take(t.Context(), "k", 1)
			assert.NoError(t, err, name)
		}
		s.do("DEL", conn.key)
		s.do("LPUSH", conn.key, "x")
		_, err := l.Take(t.Context(), "k", 1)
		assert.ErrorContains(t, err, "WRONGTYPE", name)
		require.NoError(t, l.Reset(t.Context(), "k"))
		assert.True(t, l.Allow("k"), name)
	}
}
