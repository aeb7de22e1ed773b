package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The same calls on several keys are made to limiters in Redis, where a script decides, and to
// limiters in this process. Every field of every answer must be the same.

func FuzzJoint(f *testing.F) {
	addHistories(f, budget.Histories(50, 150))
	f.Add(uint64(637)) // a TakeAll loads both scripts
	conn := connectors["rueidis"](f, startServer(f).addr())
	f.Fuzz(func(t *testing.T, seed uint64) { newJointTrace(t, conn, seed).run(60) })
}

// jointKeys is the number of keys in a trace, each of which has a limiter of its own.
const jointKeys = 3

type jointTrace struct {
	*trace
	store       *redisstore.Store
	redis, here [jointKeys]ratelimit.Limiter
	cached      bool // whether denials are: then a Decision tells only of the keys that are known to refuse
}

func newJointTrace(t *testing.T, conn redisstore.Conn, seed uint64) *jointTrace {
	j := &jointTrace{trace: &trace{T: t, rng: rand.New(rand.NewPCG(seed, 2))}}
	j.clk = storetest.NewClock(began)
	opts := []redisstore.Option{redisstore.WithLimiterClock(), redisstore.WithTimeout(patient), redisstore.WithPrefix(prefixes())}
	if j.cached = j.rng.IntN(3) == 0; !j.cached {
		opts = append(opts, redisstore.WithDenialCache(0))
	}
	var err error
	j.store, err = redisstore.New(conn, opts...)
	require.NoError(t, err)
	for i := range jointKeys {
		alg := j.algorithm()
		j.note("limit %d: %#v", i, alg)
		own := []ratelimit.Option{ratelimit.WithName(fmt.Sprint(i)), ratelimit.WithClock(j.clk)}
		if j.rng.IntN(4) == 0 {
			j.note("own limits")
			own = append(own, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil }))
		}
		for of, store := range map[*ratelimit.Limiter]ratelimit.Store{&j.redis[i]: j.store, &j.here[i]: &jointPortable{portableStore{states: map[string][]byte{}}}} {
			*of, err = ratelimit.New(alg, append(own, ratelimit.WithStore(store))...)
			require.NoError(t, err, "%v: %s", j.log, drawOthers)
		}
		d, err := j.here[i].Take(t.Context(), "probe", 1)
		require.NoError(t, err)
		j.span = max(j.span, d.ResetAfter, time.Microsecond)
	}
	return j
}

func (j *jointTrace) run(steps int) {
	ctx := j.Context()
	for range steps {
		j.advance()
		n := j.events()
		var keys []int
		var own []int                 // numbers of events, or -1
		for range 2 + j.rng.IntN(2) { // in any order, and some of them twice
			keys, own = append(keys, j.rng.IntN(jointKeys)), append(own, -1)
			if j.rng.IntN(4) == 0 {
				own[len(own)-1] = j.events() * j.rng.IntN(2)
			}
		}
		bounds := func(of [jointKeys]ratelimit.Limiter) (bounds []ratelimit.Bound) {
			for i, k := range keys {
				b := ratelimit.For(of[k], "k")
				if own[i] >= 0 {
					b = b.N(own[i])
				}
				bounds = append(bounds, b)
			}
			return bounds
		}
		k := keys[0]
		switch j.rng.IntN(9) {
		case 8:
			n *= 1 + j.rng.IntN(3)
			j.note("TakeUpTo(%d, %d)", k, n)
			var granted []int
			j.same(func(of [jointKeys]ratelimit.Limiter) (ratelimit.Decision, error) {
				m, d, err := of[k].TakeUpTo(ctx, "k", n)
				granted = append(granted, m)
				return d, err
			})
			require.Equal(j, granted[0], granted[1], "%v", j.log)
		case 0:
			j.note("Take(%d, %d)", k, n)
			j.same(func(of [jointKeys]ratelimit.Limiter) (ratelimit.Decision, error) { return of[k].Take(ctx, "k", n) })
		case 1:
			if len(j.held) > 0 {
				i := j.rng.IntN(len(j.held))
				h := j.held[i]
				m := j.rng.IntN(h.n + 2)
				j.held = slices.Delete(j.held, i, i+1)
				j.note("Settle(%d of %d)", m, h.n)
				j.same(func(of [jointKeys]ratelimit.Limiter) (ratelimit.Decision, error) {
					if of == j.redis {
						return h.redis.Settle(ctx, m)
					}
					return h.here.Settle(ctx, m)
				})
			}
		case 4:
			if n == 0 || strings.Contains(strings.Join(j.log, ""), "CountDenied:true") {
				break // a denial that is noted behind a turn is one of that key alone
			}
			within := j.span / 2
			if strings.Contains(strings.Join(j.log, ""), "CalendarWindow") {
				// While one for a window after the next is ahead, keys are asked one after the other.
				within = min(within, 20*time.Hour)
			}
			j.note("Reserve(%d, %d)", k, n)
			var holds []*ratelimit.Reservation
			j.same(func(of [jointKeys]ratelimit.Limiter) (ratelimit.Decision, error) {
				r, d, err := of[k].Reserve(ctx, "k", n, ratelimit.Within(within))
				holds = append(holds, r)
				return d, err
			})
			if holds[0] != nil && holds[1] != nil {
				j.held = append(j.held, held{"", n, holds[0], holds[1]})
			}
		case 2, 3:
			j.note("HoldAll(%d, %v, own %v)", n, keys, own)
			var holds []*ratelimit.Reservation
			j.same(func(of [jointKeys]ratelimit.Limiter) (ratelimit.Decision, error) {
				r, d, err := ratelimit.HoldAll(ctx, n, bounds(of)...)
				holds = append(holds, r)
				return d, err
			})
			if holds[0] != nil {
				j.held = append(j.held, held{"", n, holds[0], holds[1]})
			}
		default:
			j.note("TakeAll(%d, %v, own %v)", n, keys, own)
			j.same(func(of [jointKeys]ratelimit.Limiter) (ratelimit.Decision, error) {
				calls := j.store.Stats().Calls
				d, err := ratelimit.TakeAll(ctx, n, bounds(of)...)
				if of == j.redis && j.store.Stats().Calls-calls > 4+3*jointKeys { // one, another if holds are open, one more if a turn has come and one for that, and each again to load its script
					j.fail("%d calls", j.store.Stats().Calls-calls)
				}
				return d, err
			})
		}
	}
}

// A key of no events is not written.
func TestJointWritesNoKeyOfNoEvents(t *testing.T) {
	s := startServer(t)
	store := makers["rueidis"](t, s.addr())
	l := limiter(t, store, ratelimit.SlidingLog{Limit: 5, Window: time.Hour})
	_, err := ratelimit.TakeAll(t.Context(), 2, ratelimit.For(l, "a"), ratelimit.For(l, "b").N(0))
	require.NoError(t, err)
	require.Equal(t, int64(1), s.do("DBSIZE"))
}

// same asks both, and checks that the answers are the same, and what all keys have left.
func (j *jointTrace) same(ask func(of [jointKeys]ratelimit.Limiter) (ratelimit.Decision, error)) {
	j.Helper()
	got, gotErr := ask(j.redis)
	want, wantErr := ask(j.here)
	j.last = want
	partial := j.cached && !got.Allowed && !want.Allowed && got.RetryAfter <= want.RetryAfter
	if got != want && !partial || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
		j.fail("in Redis %+v, %v\n    here %+v, %v", got, gotErr, want, wantErr)
	}
	for i := range jointKeys {
		got, err := j.redis[i].Peek(j.Context(), "k")
		require.NoError(j, err)
		want, err := j.here[i].Peek(j.Context(), "k")
		require.NoError(j, err)
		if got != want {
			j.fail("key %d: in Redis %+v\n            here %+v", i, got, want)
		}
	}
}

// A jointPortable is a portableStore that decides on several keys together.
type jointPortable struct {
	portableStore
}

func (s *jointPortable) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	_, err := s.portableStore.Open(name, t, timeout)
	return s, err
}

func (s *jointPortable) Group(string) any { return "all" }

func (s *jointPortable) ApplyAll(ctx context.Context, calls []limit.Call) (bool, error) {
	granted, possible, delay := true, true, time.Duration(0)
	for i := range calls {
		c := &calls[i]
		probe := &portableStore{states: map[string][]byte{c.Key: c.States.(*jointPortable).states[c.Key]}}
		if probe.states[c.Key] == nil {
			delete(probe.states, c.Key)
		}
		res, err := probe.Apply(ctx, c.Key, c.Limit, c.Request)
		if err != nil {
			return true, err
		}
		granted = granted && res.Allowed
		possible = possible && c.Request.N <= res.Limit
		delay = max(delay, res.Delay)
	}
	for i := range calls {
		c := &calls[i]
		req := c.Request
		req.Refused, req.Notes, req.Delay = !granted, possible, delay
		var err error
		if c.Answer, err = c.States.(*jointPortable).Apply(ctx, c.Key, c.Limit, req); err != nil {
			return true, err
		}
		c.Answered = true
	}
	return true, nil
}
