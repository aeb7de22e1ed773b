package redis_test

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakeredis"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// Two processes make requests of all kinds on two keys. Some are made by a process at once, so that
// they share a command. Redis must answer as a limiter in this process does that gets the requests
// one after the other, field by field, and must then hold the same bytes.

func FuzzBatches(f *testing.F) {
	addHistories(f, budget.Histories(100, 300))
	conn := dial(f, startServer(f).addr())
	count := &shared{}
	f.Fuzz(func(t *testing.T, seed uint64) { playBatches(t, conn, seed, count) })
	count.check(f)
}

// TestBatches: histories in which Redis was wrong once. A command of several requests had kept what
// the first ones had read, although a later one had changed it.
func TestBatches(t *testing.T) {
	conn := dial(t, startServer(t).addr())
	ring := ratelimit.SlidingWindow{Limit: 3, Window: time.Minute, Segments: 4}
	for name, tt := range map[string]struct {
		alg     ratelimit.Algorithm
		history string
	}{
		"the last hold is settled, and another is opened": {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5}, `
			hold 1 for 1s as h1 of "a"
			peek of "a" and
			settle h1 for 0 of "a" and
			hold 2 for 1m0s as h2 of "a"
			settle h2 for 1 of "a"
		`},
		"a denial looks at a ring before a hold is settled": {ring, `
			hold 2 as h1 of "a"
			take 1 of "a" and
			take 1 of "a" and
			settle h1 for 0 of "a" and
			take 2 of "a"
		`},
		"a denial looks at a ring before a turn is cancelled": {ring, `
			charge 4 of "a"
			reserve 1 as h1 of "a"
			reserve 1 as h2 of "a" and
			hold 1 as h3 of "a" and
			cancel h1 of "a"
		`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				history.Check(t, batches(t, conn, []ratelimit.Algorithm{tt.alg}, &shared{}), tt.history)
			})
		})
	}
}

// FuzzFakeBatches makes the calls of FuzzBatches to a fake server.
func FuzzFakeBatches(f *testing.F) {
	addHistories(f, budget.Histories(100, 300))
	count := &shared{}
	f.Fuzz(func(t *testing.T, seed uint64) {
		playBatches(t, fakeConn{fake: fakeredis.New()}, seed, count)
	})
	count.check(f)
}

// playBatches plays a random history of two processes.
func playBatches(t *testing.T, conn redisstore.Conn, seed uint64, count *shared) {
	t.Helper()
	draw := newDrawer(seed, 2)
	alg := draw.short()
	limits := []ratelimit.Algorithm{alg}
	if draw.rng.IntN(2) == 0 {
		limits = append(limits, draw.like(alg), draw.short())
	}
	synctest.Test(t, func(t *testing.T) {
		span := spanOf(t, alg)
		g := &history.Generator{
			Choices:  history.NewRandom(seed, 12),
			Keys:     []string{"a", "b"},
			Spans:    []time.Duration{span, span/10 + 1},
			By:       2,
			Limits:   len(limits),
			Together: true,
		}
		next := history.AtMost(100, history.Before2100(g.Next))
		history.Run(t, batches(t, conn, limits, count), holdsFirst(seed, next))
	})
}

// batches returns what histories are played on whose operations may be made together.
func batches(
	t *testing.T, conn redisstore.Conn, limits []ratelimit.Algorithm, count *shared,
) *history.Twins {
	s := &history.Twins{Limits: limits, Start: began, Tick: time.Microsecond, Kept: "Redis and this process"}
	s.Open = func(of func(key string) ratelimit.Algorithm) (on history.OpenTwins) {
		tr := &trace{T: t, alg: limits[0], clk: storetest.NewClock(began)}
		tr.conn, tr.store = &recorder{Conn: conn}, &portableStore{states: map[string][]byte{}}
		tr.note("%#v", limits)
		if len(limits) > 1 {
			tr.limitOf = of
		}
		gate, prefix := &barrier{}, prefixes()
		inRedis, here := history.Store{}, history.Store{}
		var stores []*redisstore.Store
		for range 2 {
			store := tr.newStore(&gatedConn{tr.conn, gate}, prefix, uncached)
			stores = append(stores, store)
			l, err := tr.newLimiter(&seenIDs{Store: store, seen: &tr.random})
			require.NoError(t, err, "%#v: %s", limits, drawOthers)
			inRedis.Limiters = append(inRedis.Limiters, l)
			l, err = tr.newLimiter(&seenIDs{Store: tr.store, seen: &tr.random})
			require.NoError(t, err)
			here.Limiters = append(here.Limiters, l)
		}
		inRedis.Together = count.of(stores, gate.gather)
		on.Stores, on.Clock = []history.Store{inRedis, here}, tr.clk
		on.After = func(ops []history.Op) (wrong error) {
			for _, o := range ops {
				wrong = cmp.Or(wrong, tr.stateDiffers(o.Key))
			}
			return wrong
		}
		return on
	}
	return s
}

// A barrier holds calls back while it is up.
type barrier struct{ up chan struct{} } // closed when they may go on; nil if they need not wait

func (b *barrier) pass() {
	if b.up != nil {
		<-b.up
	}
}

// gather makes calls in a bubble: each one when those before it are held back, or wait for one that
// is. Then it lets them go on, and returns when all are done.
func (b *barrier) gather(calls []func()) {
	b.up = make(chan struct{})
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(call)
		synctest.Wait()
	}
	close(b.up)
	wg.Wait()
	b.up = nil
}

// A gatedConn is a Conn whose commands wait at a barrier.
type gatedConn struct {
	redisstore.Conn
	*barrier
}

func (g *gatedConn) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	g.pass()
	return g.Conn.Do(ctx, commands)
}

// shared counts how many requests were made together, and how many of these shared a command with
// another one.
type shared struct{ requests, coalesced uint64 }

// of counts the calls of gather.
func (s *shared) of(stores []*redisstore.Store, gather func(calls []func())) func(calls []func()) {
	coalesced := func() (n uint64) {
		for _, store := range stores {
			n += store.Stats().Coalesced
		}
		return n
	}
	return func(calls []func()) {
		before := coalesced()
		gather(calls)
		s.requests += uint64(len(calls))
		s.coalesced += coalesced() - before
	}
}

// check requires that many requests have shared commands. The first one of each batch is alone.
func (s *shared) check(f *testing.F) {
	if s.coalesced*4 < s.requests {
		f.Errorf("of %d requests that were made together, %d shared a command with another", s.requests, s.coalesced)
	}
}

// A seenIDs keeps the States of the one limiter on a store, and the IDs of its reservations.
type seenIDs struct {
	ratelimit.Store
	limit.States
	seen *sync.Map
}

func (g *seenIDs) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	var err error
	g.States, err = g.Store.Open(name, t, timeout)
	return g, err
}

func (g *seenIDs) Bounded() bool { return true }

func (g *seenIDs) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	g.seen.Store(req.Hold.ID, true)
	return g.States.Apply(ctx, key, t, req)
}
