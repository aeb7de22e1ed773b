package redis_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// Several goroutines make different requests on one key at once, so that the requests share
// commands. Redis must answer as the limiter in this process does if it gets the requests in
// some order, field by field, and must then hold the same bytes.

func FuzzBatches(f *testing.F) {
	addHistories(f, budget.Histories(12, 30))
	f.Add(uint64(60))      // a command settles the last hold, and opens another
	f.Add(uint64(863))     // a charge is refused, and a turn reserved, while a hold is open
	f.Add(uint64(18932))   // the same, in another bucket
	f.Add(uint64(11262))   // a denial is known when a hold that is open has ended
	f.Add(uint64(1000028)) // a denial has looked at a ring before a hold is settled
	f.Add(uint64(3000017)) // the same, before a turn is cancelled
	conn := &gate{Conn: connectors["rueidis"](f, startServer(f).addr())}
	var requests, commands int64
	f.Fuzz(func(t *testing.T, seed uint64) {
		tr := newTrace(t, conn, seed)
		switch seed % 4 {
		case 3:
			tr.holdMany()
		case 1:
			tr.reservesBefore = true
		}
		made, sent := tr.batches(conn)
		requests += made
		commands += sent
	})
	if requests > 0 && commands > requests*2/3 {
		f.Errorf("%d requests took %d commands: they do not share commands", requests, commands)
	}
}

// holdMany opens a long list of holds.
func (tr *trace) holdMany() {
	for range 40 {
		tr.hold("a", 1)
	}
}

// batches makes batches of requests, and returns how many requests and commands there were.
func (tr *trace) batches(conn *gate) (requests, commands int64) {
	tr.opened.number[0], tr.store.number[0] = 1<<20, 1<<20
	for range 20 {
		tr.advance()
		tr.holdBefore()
		before := conn.sent.Load()
		requests += int64(tr.batch(conn))
		commands += conn.sent.Load() - before
	}
	return requests, commands
}

// A gate holds back commands while it is closed.
type gate struct {
	redisstore.Conn
	sent atomic.Int64
	mu   sync.RWMutex // is locked while the gate is closed
}

func (g *gate) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, c := range commands {
		if c.Words[0] == "EVALSHA" {
			g.sent.Add(1)
		}
	}
	return g.Conn.Do(ctx, commands)
}

// A request is one of a batch: what to ask a limiter, and the answer in Redis. It returns the
// answer as text.
type request struct {
	what string
	ask  func(l ratelimit.Limiter) string
	got  string
}

// batch makes up to six requests on a key at once, and returns their number.
func (tr *trace) batch(g *gate) int {
	tr.Helper()
	key := string(rune('a' + tr.rng.IntN(2)))
	requests := make([]request, 2+tr.rng.IntN(5))
	for i := range requests {
		requests[i] = tr.request(key)
	}
	var started atomic.Int64
	var wg sync.WaitGroup
	g.mu.Lock()
	for i := range requests {
		wg.Go(func() {
			started.Add(1)
			requests[i].got = requests[i].ask(tr.redis)
		})
	}
	// The requests are the same whether or not they share a command, so it does not matter
	// if one of them is late.
	for started.Load() < int64(len(requests)) {
		runtime.Gosched()
	}
	for range 100 {
		runtime.Gosched()
	}
	g.mu.Unlock()
	wg.Wait()

	tr.note("at once on %s:", key)
	for _, r := range requests {
		tr.note("\t%s: %s", r.what, r.got)
	}
	stored, err := tr.conn.get(tr.Context(), key)
	require.NoError(tr, err)
	if !tr.explains(key, requests, stored) {
		tr.fail("no order of the requests gives these answers and, in Redis,\n\t%q", stored)
	}
	d, err := tr.here.Peek(tr.Context(), key)
	require.NoError(tr, err)
	tr.last = d
	return len(requests)
}

// holdBefore holds some events of each key, or reserves them, for requests of a batch to settle or
// cancel.
func (tr *trace) holdBefore() {
	for _, key := range []string{"a", "b"} {
		_, err := tr.here.Peek(tr.Context(), key) // sets the request
		require.NoError(tr, err)
		req := tr.store.req
		tr.ids++
		req.Op, req.N = step.OpHold, tr.events()
		req.Hold = step.Handle{ID: tr.ids, For: tr.lasts(), Back: tr.rng.IntN(2) == 0}
		if tr.reservesBefore && req.N > 0 {
			tr.ids += tr.ids % 2
			req.Op, req.MaxWait, req.Hold = step.OpReserve, 2*tr.span, step.Handle{ID: tr.ids}
		}
		sent := tr.conn.sent
		got, err := tr.opened.Apply(tr.Context(), key, tr.store.t, req)
		require.NoError(tr, err)
		was := tr.store.states[key]
		want, err := tr.store.Apply(tr.Context(), key, tr.store.t, req)
		require.NoError(tr, err)
		if tr.conn.sent == sent { // a known denial ends no holds
			tr.store.states[key] = was
		}
		require.Equal(tr, want.Decision, got.Decision)
		if got.Held {
			tr.holds = append(tr.holds, hold{key, req})
		}
	}
}

// A hold is a request that was granted.
type hold struct {
	key string
	req step.Request
}

// settlement returns a request that settles a hold, if there is one.
func (tr *trace) settlement(key string) (_ request, ok bool) {
	i := slices.IndexFunc(tr.holds, func(h hold) bool { return h.key == key })
	if i < 0 {
		return request{}, false
	}
	req := tr.holds[i].req
	tr.holds = slices.Delete(tr.holds, i, i+1)
	held := req.N
	req.Op, req.N, req.Of = step.OpSettle, tr.rng.IntN(held+2), held
	return request{what: fmt.Sprintf("Settle(%d of %d)", req.N, held), ask: func(l ratelimit.Limiter) string {
		var s limit.States = tr.store
		if l == tr.redis {
			s = &tr.opened
		}
		res, err := s.Apply(tr.Context(), key, tr.store.t, req)
		return fmt.Sprintf("%+v, %v", res.Decision, err)
	}}, true
}

// request returns a random request on a key.
func (tr *trace) request(key string) request {
	ctx := tr.Context()
	n := tr.events()
	switch tr.rng.IntN(14) {
	case 2:
		n = tr.debt(n)
		return request{what: fmt.Sprintf("Charge(%d)", n), ask: func(l ratelimit.Limiter) string {
			d, err := l.Charge(ctx, key, n)
			return fmt.Sprintf("%+v, %v", d, err)
		}}
	case 5, 6, 7:
		if r, ok := tr.settlement(key); ok {
			return r
		}
	case 3, 4:
		n *= 1 + tr.rng.IntN(3)
		return request{what: fmt.Sprintf("TakeUpTo(%d)", n), ask: func(l ratelimit.Limiter) string {
			granted, d, err := l.TakeUpTo(ctx, key, n)
			return fmt.Sprintf("%d, %+v, %v", granted, d, err)
		}}
	case 0:
		return request{what: "Peek", ask: func(l ratelimit.Limiter) string {
			d, err := l.Peek(ctx, key)
			return fmt.Sprintf("%+v, %v", d, err)
		}}
	case 1:
		return request{what: fmt.Sprintf("Reserve(%d)", n), ask: func(l ratelimit.Limiter) string {
			r, d, err := l.Reserve(ctx, key, n)
			return fmt.Sprint(r.Delay(), d, err)
		}}
	}
	return request{what: fmt.Sprintf("Take(%d)", n), ask: func(l ratelimit.Limiter) string {
		d, err := l.Take(ctx, key, n)
		return fmt.Sprintf("%+v, %v", d, err)
	}}
}

// explains reports whether the limiter in this process gives the same answers in some order,
// and leaves the state that Redis has. If so, it leaves that state here.
func (tr *trace) explains(key string, requests []request, stored string) bool {
	if len(requests) == 0 {
		return stored == "" || tr.sameState(stored, string(tr.store.states[key]))
	}
	before, known := tr.store.states[key]
	for i, r := range requests {
		if r.ask(tr.here) == r.got {
			rest := append(append([]request{}, requests[:i]...), requests[i+1:]...)
			if tr.explains(key, rest, stored) {
				return true
			}
		}
		if known {
			tr.store.states[key] = before
		} else {
			delete(tr.store.states, key)
		}
	}
	return false
}
