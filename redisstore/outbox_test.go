package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// takeEach takes one event of each key at once, and waits for the answers.
func takeEach(t *testing.T, l ratelimit.Limiter, keys []string) {
	t.Helper()
	_, err := l.TakeEach(t.Context(), keys, 1, nil)
	require.NoError(t, err)
}

// A batch has at most 256 commands.
func TestLargeBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		s, l := f.store(t)
		takeEach(t, l, manyKeys(512))
		assert.Equal(t, []int{256, 256}, f.Together)
		requireIdle(t, s)
	})
}

// If the server of a key is not known, its command is sent by itself: others may be on a server that
// hangs.
func TestCommandsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		s, l := f.storeThrough(t, unknownServer{f})
		begin := time.Now()
		takeEach(t, l, manyKeys(20))
		assert.Equal(t, slices.Repeat([]int{1}, 20), f.Together)
		assert.Equal(t, f.Delay, time.Since(begin), "at once")
		requireIdle(t, s)
	})
}

// A command for more than 64 calls on a key is sent by itself, because the server takes long for
// it.
func TestBulkyCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t)
		keys := manyKeys(3)
		for range 64 {
			keys = append(keys, "hot", "warm")
		}
		takeEach(t, l, append(keys, "hot", "last"))
		assert.ElementsMatch(t, []int{5, 1}, f.Together)
		assert.ElementsMatch(t, []int{1, 1, 1, 65, 64, 1}, f.Batches)
		requireIdle(t, s)
	})
}

// While fewer than eight batches are in progress, a command does not wait for one of them. From
// then on commands wait together, until a batch returns. If none returns they wait for the next
// tick.
func TestSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		f.Delay = 1010 * time.Millisecond
		s, l := f.store(t, WithTimeout(2*time.Second)) // with a tick every 200 ms
		begin := time.Now()
		var wg sync.WaitGroup
		// callAt calls at a time on as many keys, all of which are to be answered at another time.
		callAt := func(at time.Duration, keys int, answered time.Duration) {
			time.Sleep(time.Until(begin.Add(at)))
			for i := range keys {
				wg.Go(func() {
					assert.True(t, l.Allow(fmt.Sprint(at, i)))
					assert.Equal(t, answered, time.Since(begin), "called at %v", at)
				})
			}
			synctest.Wait()
		}
		const ms = time.Millisecond
		for i := range 8 {
			at := time.Duration(i) * 100 * ms
			callAt(at, 1, at+f.Delay)
		}
		callAt(750*ms, 20, 800*ms+f.Delay)   // at the next tick, because nothing was answered
		callAt(850*ms, 30, 1000*ms+f.Delay)  // likewise
		callAt(1150*ms, 40, 1210*ms+f.Delay) // after the third answer: two came since the tick before
		wg.Wait()
		assert.Equal(t, append(slices.Repeat([]int{1}, 8), 20, 30, 40), f.Together)
		settle()
		requireIdle(t, s)
	})
}

// A batch that was given up sends nothing when it returns after all, to a client that ignores
// contexts: while as many other batches are in progress, commands wait for one of these.
func TestBatchThatReturnsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		f.Delay = 2950 * time.Millisecond
		s, l := f.storeThrough(t, deafConn{f}, WithTimeout(2*time.Second)) // with a tick every 200 ms
		begin := time.Now()
		var wg sync.WaitGroup
		call := func(key string, err error, answered time.Duration) {
			wg.Go(func() {
				_, got := l.Take(t.Context(), key, 1)
				assert.ErrorIs(t, got, err, key)
				assert.Equal(t, answered, time.Since(begin), key)
			})
			synctest.Wait()
		}
		const ms = time.Millisecond
		for i := range fewSenders {
			call(fmt.Sprint("late ", i), ErrTimeout, 2000*ms)
		}
		time.Sleep(2050 * ms)
		f.Set(func() { f.Delay = 1000 * ms })
		for i := range fewSenders {
			call(fmt.Sprint("in time ", i), nil, 3050*ms)
		}
		time.Sleep(850 * ms)
		call("waits", nil, 4050*ms)
		wg.Wait()
		settle()
		requireIdle(t, s)
	})
}

// A deafConn does not notice that a context ends.
type deafConn struct{ *fakeServer }

func (c deafConn) Do(ctx context.Context, commands []Command) []Reply {
	return c.fakeServer.Do(context.WithoutCancel(ctx), commands)
}

// Commands that fill a batch do not wait for one to return: neither many commands, nor one for many
// calls, which is sent by itself. So far from the server, they are answered in time.
func TestFullBatchesDoNotWait(t *testing.T) {
	hot := func(key string) []string { return slices.Repeat([]string{key}, bulky+1) }
	for what, keys := range map[string][]string{
		"many": manyKeys(maxBatch), "very many": manyKeys(2 * maxBatch),
		"one hot key": hot("hot"), "hot keys": slices.Concat(hot("1"), hot("2"), hot("3")),
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newDelayedServer(t)
			s, l := f.store(t, WithTimeout(time.Second))
			for i := range fewSenders {
				go l.Allow(fmt.Sprint("few ", i))
				synctest.Wait()
			}
			begin := time.Now()
			var wg sync.WaitGroup
			for _, key := range keys {
				wg.Go(func() {
					_, err := l.Take(t.Context(), key, 1)
					assert.NoError(t, err)
					assert.Equal(t, f.Delay, time.Since(begin), what)
				})
			}
			wg.Wait()
			requireIdle(t, s)
		})
	}
}

// A server that has as much to do as it can answers in time, because it does not get ever more and
// ever smaller batches.
func TestServerAtItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		s, l := f.storeThrough(t, &busyServer{Conn: f})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		callers := 1024
		if budget.UnderRace() { // they are so late on two processors that some batches are smaller
			callers = 640
		}
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					d, err := l.Take(t.Context(), fmt.Sprint(i), 1)
					if !assert.NoError(t, err) || !assert.True(t, d.Allowed) {
						return
					}
				}
			})
		}
		wg.Wait()
		settle()
		requireIdle(t, s)
	})
}

// A busyServer carries out one batch after another.
type busyServer struct {
	Conn
	mu   sync.Mutex
	free time.Time // when it has carried out all batches that it has got
}

// Do implements Conn.
func (b *busyServer) Do(ctx context.Context, commands []Command) []Reply {
	const away, batch, command = 2 * time.Millisecond, 500 * time.Microsecond, 30 * time.Microsecond
	time.Sleep(away)
	b.mu.Lock()
	if b.free.Before(time.Now()) {
		b.free = time.Now()
	}
	b.free = b.free.Add(batch + time.Duration(len(commands))*command)
	done := b.free
	b.mu.Unlock()
	time.Sleep(time.Until(done) + away)
	return b.Conn.Do(ctx, commands)
}

// An outbox that the store forgets, because there are too many servers, accepts no calls any more:
// nobody would notice that the time of these calls has passed.
func TestForgottenOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.Hangs = true
		s, l := f.storeThrough(t, manyServers{f})
		go l.Allow("busy")
		synctest.Wait()
		first, idle := s.outboxOf("busy"), s.outboxOf("idle 0")
		for i := 1; i < maxServers; i++ {
			s.outboxOf(fmt.Sprint("idle ", i))
		}
		assert.Len(t, s.allOutboxes(), 2, "the latest, and the one that has calls")
		assert.Same(t, first, s.outboxOf("busy"))
		assert.False(t, idle.accept(s.newCall()))
		_, err := l.Take(t.Context(), "idle 0", 1)
		require.ErrorIs(t, err, ErrTimeout)
		settle()
		requireIdle(t, s)
	})
}

// manyServers are one for each key.
type manyServers struct{ Conn }

func (manyServers) Server(key string) (name string, known bool) {
	return key[strings.LastIndexByte(key, ':')+1:], true
}

// Batches and queues that have ended are not kept by the memory of an outbox.
func TestOutboxKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		s, l := f.store(t)
		takeEach(t, l, manyKeys(maxEach))
		synctest.Wait()
		o := s.outboxOf("key")
		for _, q := range o.ready[:cap(o.ready)] {
			require.Nil(t, q)
		}
		for _, b := range o.batches[:cap(o.batches)] {
			require.Nil(t, b)
		}
	})
}

// A wrongServer returns a number of replies, however many commands there are.
type wrongServer struct {
	plainConn
	replies int
}

func (w wrongServer) Do(context.Context, []Command) []Reply { return make([]Reply, w.replies) }

// Too few replies are an error of all commands, and so are too many.
func TestNumberOfReplies(t *testing.T) {
	for _, replies := range []int{0, 1, 3} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
			s, l := f.storeThrough(t, wrongServer{replies: replies})
			out, err := l.TakeEach(t.Context(), manyKeys(2), 1, nil)
			require.ErrorContains(t, err, "wrongServer.Do returned")
			require.ErrorContains(t, err, "to 2 commands")
			assert.True(t, out[0].Degraded && out[1].Degraded)
			assert.Equal(t, 1, incidents(s))
			if replies != 1 {
				require.ErrorContains(t, s.Check(t.Context()), "to 1 command")
			}
			settle()
			requireIdle(t, s)
		})
	}
}

// A server that says where a key is has answered: its breaker counts no failure.
func TestRedirectionsAreNoFailures(t *testing.T) {
	for _, text := range []string{
		"MOVED 7 127.0.0.1:7001", "ASK 7 127.0.0.1:7001", "TRYAGAIN Multiple keys request",
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
			s, l := f.store(t)
			f.Fail = errors.New(text)
			_, err := l.Take(t.Context(), "k", 1)
			require.ErrorIs(t, err, f.Fail)
			assert.Zero(t, incidents(s))
			assert.Empty(t, s.Stats().Outages)
		})
	}
}

// leaseNext makes calls on a key until the next command asks for a lease.
func leaseNext(t *testing.T, l ratelimit.Limiter) {
	t.Helper()
	for range 7 {
		require.True(t, l.Allow("k"))
	}
}

// requireLeases checks that leases of a key are still taken, and given back.
func requireLeases(t *testing.T, f *fakeServer, s *Store, l ratelimit.Limiter, granted int) {
	t.Helper()
	for s.Stats().Leased == 0 {
		require.True(t, l.Allow("k"))
		granted++
		require.Less(t, granted, 100)
	}
	conserved(t, f, s, 10_000, granted)
	assert.Zero(t, s.Stats().Lost)
}

// A lateServer redirects commands after the store has given them up.
type lateServer struct {
	*fakeServer
	late atomic.Bool
}

func (l *lateServer) Do(ctx context.Context, commands []Command) []Reply {
	if !l.late.Load() {
		return l.fakeServer.Do(ctx, commands)
	}
	<-ctx.Done()
	return errorsOf(commands, errors.New("MOVED 7 127.0.0.1:7001"))
}

// A lease that is asked for by a command which is redirected too late is not taken, and does not stay
// asked for.
func TestLeaseRedirectedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		conn := &lateServer{fakeServer: f}
		s, l := f.storeThrough(t, conn, WithLease(100, time.Hour))
		leaseNext(t, l)
		conn.late.Store(true)
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, ErrTimeout)
		synctest.Wait()
		conn.late.Store(false)
		requireLeases(t, f, s, l, 7)
		requireIdle(t, s)
	})
}

// A movedServer redirects the first of two commands, and does not carry out the other one.
type movedServer struct {
	*fakeServer
	redial func()
}

func (m *movedServer) Do(ctx context.Context, commands []Command) []Reply {
	if len(commands) != 2 {
		return m.fakeServer.Do(ctx, commands)
	}
	return []Reply{
		{Err: errors.New("MOVED 7 127.0.0.1:7001")},
		{Err: errors.New("LOADING Redis is loading the dataset in memory")},
	}
}

func (m *movedServer) Redial(context.Context, string) { m.redial() }

// A lease that is asked for by a command which the breaker does not allow to be sent again is not
// taken, and does not stay asked for.
func TestLeaseRedirectedWhileOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		conn := &movedServer{fakeServer: f}
		s, l := f.storeThrough(t, conn, WithLease(100, time.Hour))
		conn.redial = func() { trip(s) } // before the command is sent again
		leaseNext(t, l)
		_, err := l.TakeEach(t.Context(), []string{"k", "other"}, 1, nil)
		require.ErrorIs(t, err, ErrOpen)
		time.Sleep(s.cooldown)
		requireLeases(t, f, s, l, 7)
		requireIdle(t, s)
	})
}
