package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// Two processes make reservations on a key, and cancel any number of them together; and they
// make requests of all kinds that share a command. The answers and the states in Redis must
// be those of two limiters that share states as bytes in this process.
func FuzzCancel(f *testing.F) {
	addHistories(f, budget.Histories(60, 200))
	addr := startServer(f).addr()
	f.Fuzz(func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) { newCancels(t, addr, seed).run(60) })
	})
}

// cancels is a trace of two processes and one key.
type cancels struct {
	trace
	twins  [2]twin
	shared *sharedStore
}

// A twin is a process in Redis, and its counterpart in this process.
type twin struct {
	redis, here ratelimit.Limiter
	gates       [2]*gatedStore
	conn        *gatedConn
	held        [][2]*ratelimit.Reservation
}

func newCancels(t *testing.T, addr string, seed uint64) *cancels {
	c := &cancels{shared: &sharedStore{of: portableStore{states: map[string][]byte{}}}}
	c.store = &c.shared.of
	c.T, c.rng = t, rand.New(rand.NewPCG(seed, 2))
	c.clk = storetest.NewClock(began)
	alg := c.algorithm()
	c.note("seed %d: %#v", seed, alg)
	c.conn = &recorder{Conn: dial(t, addr)}
	prefix := fmt.Sprint(seed, rand.Uint64())
	var own []ratelimit.Option
	if c.rng.IntN(4) == 0 {
		c.of = &alg
		own = append(own, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return *c.of, nil }))
	}
	limiter := func(s ratelimit.Store) ratelimit.Limiter {
		l, err := ratelimit.New(alg, append(own, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithClock(c.clk))...)
		require.NoError(t, err, "%v: %s", c.log, drawOthers)
		return l
	}
	for i := range c.twins {
		tw := &c.twins[i]
		tw.conn = &gatedConn{Conn: c.conn}
		store, err := redisstore.New(tw.conn, redisstore.WithLimiterClock(), redisstore.WithTimeout(patient), redisstore.WithPrefix(prefix), redisstore.WithDenialCache(0))
		require.NoError(t, err)
		tw.gates = [2]*gatedStore{{Store: store, ids: &c.random}, {Store: c.shared, ids: &c.random}}
		tw.redis, tw.here = limiter(tw.gates[0]), limiter(tw.gates[1])
	}
	d, err := c.twins[0].here.Take(t.Context(), "probe", 1)
	require.NoError(t, err)
	c.span = max(d.ResetAfter, time.Microsecond)
	return c
}

// algorithm returns an algorithm of which a few reservations are in one window or slot, or
// in several, or any algorithm.
func (c *cancels) algorithm() ratelimit.Algorithm {
	switch c.rng.IntN(10) {
	default:
		return c.trace.algorithm()
	case 0:
		return ratelimit.FixedWindow{Limit: 1 + c.rng.IntN(4), Window: time.Minute, Start: ratelimit.WindowStart(c.rng.IntN(2))}
	case 1:
		return ratelimit.SlidingWindow{Limit: 7, Window: time.Minute, Segments: 1 + c.rng.IntN(2)}
	case 2:
		return ratelimit.SlidingWindow{Limit: 2, Window: time.Second, Segments: 1 << c.rng.IntN(5)}
	case 3:
		return ratelimit.RollingWindow{Quota: 3, Window: 3 * time.Second, Period: time.Second, PeriodLimit: c.rng.IntN(3)}
	case 4:
		return ratelimit.RollingWindow{Quota: 9, Window: 3 * time.Second, Period: 500 * time.Millisecond, PeriodLimit: 4}
	case 5:
		return ratelimit.SlidingLog{Limit: 3, Window: time.Second, CountDenied: c.rng.IntN(2) == 0}
	case 6:
		return ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4},
			ratelimit.FixedWindow{Limit: 5, Window: 1700 * time.Millisecond},
			ratelimit.SlidingWindow{Limit: 4, Window: time.Second, Segments: 2},
			ratelimit.SlidingLog{Limit: 4, Window: 1300 * time.Millisecond},
			ratelimit.RollingWindow{Quota: 6, Window: 2 * time.Second, Period: 500 * time.Millisecond},
		}
	case 7:
		return ratelimit.All{
			ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(2), Capacity: 3},
			ratelimit.SlidingWindow{Limit: 2, Window: time.Second},
			ratelimit.WarmingUp{Rate: ratelimit.PerSecond(5), Warmup: time.Second},
		}
	}
}

func (c *cancels) run(steps int) {
	ctx := c.Context()
	for range steps {
		c.advance()
		i := c.rng.IntN(2)
		tw := &c.twins[i]
		n := 1
		if c.rng.IntN(4) == 0 {
			n = c.events()
		}
		switch c.rng.IntN(15) {
		default:
			c.redis, c.here = tw.redis, tw.here
			c.held = nil
			c.reserve("k", n)
			c.note("by %d", i)
			for _, h := range c.held {
				tw.held = append(tw.held, [2]*ratelimit.Reservation{h.redis, h.here})
			}
		case 0, 1:
			c.note("Take(%d) by %d", n, i)
			c.redis, c.here = tw.redis, tw.here
			c.compare("k", func(l ratelimit.Limiter) (ratelimit.Decision, error) { return l.Take(ctx, "k", n) })
		case 2, 3, 4:
			c.together(i)
		case 7, 8, 9, 10:
			c.cancel(i, 1+c.rng.IntN(max(1, len(tw.held))))
		case 11:
			if c.of != nil && c.rng.IntN(3) == 0 {
				*c.of = c.algorithm()
				c.note("now %#v", *c.of)
			} else if c.rng.IntN(8) == 0 {
				c.note("Reset by %d", i)
				require.NoError(c, tw.redis.Reset(ctx, "k"))
				require.NoError(c, tw.here.Reset(ctx, "k"))
			}
		}
	}
}

// cancel cancels some of the reservations of a process together: the first one alone, and
// the others while that is under way.
func (c *cancels) cancel(i, many int) {
	tw := &c.twins[i]
	if many > len(tw.held) {
		return
	}
	c.rng.Shuffle(len(tw.held), func(i, j int) { tw.held[i], tw.held[j] = tw.held[j], tw.held[i] })
	for _, r := range tw.held[:many] {
		c.note("Cancel of %v by %d", r[0].Delay(), i)
	}
	var calls []func()
	for _, r := range tw.held[:many] {
		calls = append(calls, r[0].Cancel)
	}
	tw.conn.gather(calls)
	for _, r := range tw.held[:many] {
		r[1].Cancel()
	}
	tw.held = tw.held[many:]
	c.compareStates("k")
}

// together makes several requests of a process, which share a command while the first one is
// under way: takes, holds, reservations and their ends.
func (c *cancels) together(i int) {
	tw := &c.twins[i]
	limiters := [2]ratelimit.Limiter{tw.redis, tw.here}
	c.redis, c.here = tw.redis, tw.here
	c.compare("k", func(l ratelimit.Limiter) (ratelimit.Decision, error) { return l.Peek(c.Context(), "k") })
	var asks []func(side int) string
	take := func(n int) {
		c.note("Take(%d) together by %d", n, i)
		asks = append(asks, func(side int) string {
			return fmt.Sprint(limiters[side].Take(c.Context(), "k", n))
		})
	}
	take(1)
	var made [][2]*ratelimit.Reservation
	for range 1 + c.rng.IntN(6) {
		n := c.events()
		switch c.rng.IntN(4) {
		case 0:
			take(n)
		case 1:
			c.note("Hold(%d) together by %d", n, i)
			j := len(made)
			made = append(made, [2]*ratelimit.Reservation{})
			asks = append(asks, func(side int) string {
				r, d, err := limiters[side].Hold(c.Context(), "k", n)
				made[j][side] = r
				return fmt.Sprint(d, err)
			})
		case 2:
			if len(tw.held) > 0 {
				r := tw.held[0]
				tw.held = tw.held[1:]
				c.note("Cancel of %v together by %d", r[0].Delay(), i)
				asks = append(asks, func(side int) string {
					r[side].Cancel()
					return ""
				})
			}
		case 3:
			c.note("Reserve(%d) together by %d", n, i)
			j := len(made)
			made = append(made, [2]*ratelimit.Reservation{})
			asks = append(asks, func(side int) string {
				r, d, err := limiters[side].Reserve(c.Context(), "k", n)
				made[j][side] = r
				return fmt.Sprint(r.Delay(), d, err)
			})
		}
	}
	got := make([]string, len(asks))
	var calls []func()
	for j, ask := range asks {
		calls = append(calls, func() { got[j] = ask(0) })
	}
	tw.conn.gather(calls)
	for j, ask := range asks {
		if want := ask(1); got[j] != want {
			c.fail("request %d together: in Redis %s\n    here %s", j, got[j], want)
		}
	}
	for _, r := range made {
		if r[0] != nil {
			tw.held = append(tw.held, r)
		}
	}
	c.compareStates("k")
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
	barrier
}

func (g *gatedConn) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	g.pass()
	return g.Conn.Do(ctx, commands)
}

// A gatedStore keeps the States of the one limiter on a store, and the IDs of its reservations.
type gatedStore struct {
	ratelimit.Store
	limit.States
	t   *limit.Limit
	ids *sync.Map // the IDs of reservations
}

func (g *gatedStore) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	var err error
	g.States, err = g.Store.Open(name, t, timeout)
	g.t = t
	return g, err
}

func (g *gatedStore) Bounded() bool { return true }

func (g *gatedStore) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	g.ids.Store(req.Hold.ID, true)
	return g.States.Apply(ctx, key, t, req)
}

// A sharedStore is a portableStore for several goroutines.
type sharedStore struct {
	fakes.NoLine
	mu sync.Mutex
	of portableStore
}

func (s *sharedStore) Open(_ string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	_, err := t.Portable(time.Microsecond)
	return s, err
}

func (s *sharedStore) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of.Apply(ctx, key, t, req)
}

func (s *sharedStore) Reset(ctx context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of.Reset(ctx, key)
}

// A plainConn is a connection without goroutines, for use in bubbles.
type plainConn struct {
	loneServer
	mu sync.Mutex
	c  net.Conn
	r  *bufio.Reader
}

func dial(t *testing.T, addr string) *plainConn {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return &plainConn{c: c, r: bufio.NewReader(c)}
}

func (p *plainConn) Do(_ context.Context, commands []redisstore.Command) []redisstore.Reply {
	return oneByOne(commands, p.do)
}

func (p *plainConn) do(c redisstore.Command) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(c.Words))
	for _, w := range c.Words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.c.Write([]byte(b.String())); err != nil {
		return "", err
	}
	value, err := readValue(p.r)
	if err != nil {
		return "", err
	}
	line, rest, _ := strings.Cut(string(value), "\r\n")
	switch n, _ := strconv.Atoi(line[1:]); {
	case line[0] == '-':
		return "", errors.New(line[1:])
	case line[0] == '$' && n >= 0:
		return rest[:n], nil
	case line[0] == '$':
		return "", nil
	}
	return line[1:], nil
}

// Whatever is charged, taken and cancelled while turns are ahead, Redis has the state that the kernel has, also if
// turns come too early then, or are needed by later ones.
func TestTurns(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	window := ratelimit.FixedWindow{Limit: 3, Window: time.Minute, Start: ratelimit.StartOnFirstEvent}
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(7), Burst: 3}
	interval := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(3), Refill: ratelimit.RefillInterval}
	queue := ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(6), Capacity: 4}
	for _, alg := range []ratelimit.Algorithm{
		window, bucket, interval, queue,
		ratelimit.SlidingLog{Limit: 3, Window: time.Minute},
		ratelimit.SlidingWindow{Limit: 3, Window: time.Minute, Segments: 4},
		ratelimit.RollingWindow{Quota: 5, Window: time.Minute, Period: 10 * time.Second, PeriodLimit: 2},
		ratelimit.InFlight{Limit: 3, Timeout: time.Minute},
		ratelimit.WarmingUp{Rate: ratelimit.PerMinute(6), Warmup: time.Minute},
		ratelimit.All{window, bucket},
		ratelimit.All{interval, queue, ratelimit.SlidingLog{Limit: 4, Window: time.Minute}},
	} {
		for seed := range budget.Seeds(t, budget.Histories(6, 40)) {
			tr := newTraceOf(t, conn, prefixes(), alg, uncached)
			tr.rng = rand.New(rand.NewPCG(seed, 3))
			_, err := tr.here.Peek(t.Context(), "k") // sets the request
			require.NoError(t, err)
			ask := func(req step.Request) step.Answer {
				tr.note("%+v", req)
				return tr.ask("k", req)
			}
			var held []openHold
			for id := range uint64(60) {
				n := 1 + tr.rng.IntN(2)
				switch tr.rng.IntN(9) {
				default:
					req := step.Request{Op: step.OpReserve, N: n, MaxWait: time.Hour, Hold: step.Handle{ID: 2*id + 2}}
					if tr.rng.IntN(4) == 0 {
						req.Hold = step.Handle{ID: 2*id + 1, For: time.Minute, Back: n == 1}
					}
					req.Yields = tr.rng.IntN(4) == 0 // as that of a caller who waits
					if ask(req).Held {
						held = append(held, openHold{"k", req.Hold.ID, n})
					}
				case 0:
					ask(step.Request{Op: step.OpCharge, N: n})
				case 1, 2:
					if len(held) > 0 {
						i := tr.rng.IntN(len(held))
						ask(step.Request{Op: step.OpSettle, Of: held[i].n, Hold: step.Handle{ID: held[i].id}})
						held = slices.Delete(held, i, i+1)
					}
				case 3:
					ask(step.Request{Op: step.OpTake, N: n})
				case 4, 5:
					tr.clk.Advance(time.Duration(tr.rng.Int64N(int64(20 * time.Second))).Truncate(time.Microsecond))
					tr.note("at %d", tr.clk.Now().UnixMicro())
				}
			}
		}
	}
}
