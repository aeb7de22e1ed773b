package redis_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakeredis"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The same calls on several keys are made to limiters in Redis, where a script decides, and to
// limiters in this process. Every field of every answer must be the same, and what all keys have
// left.

func FuzzJoint(f *testing.F) {
	addHistories(f, budget.Histories(80, 200))
	conn := connectors["rueidis"](f, startServer(f).addr())
	f.Fuzz(func(t *testing.T, seed uint64) { playJoint(t, conn, seed) })
}

// FuzzFakeJoint makes the calls of FuzzJoint to a fake server.
func FuzzFakeJoint(f *testing.F) {
	addHistories(f, budget.Histories(80, 200))
	f.Fuzz(func(t *testing.T, seed uint64) {
		playJoint(t, fakeConn{fake: fakeredis.New()}, seed)
	})
}

// jointKeys are keys that have limiters of their own, and the numbers of these.
var jointKeys = map[string]int{"a": 0, "b": 1, "c": 2}

// playJoint plays a random history of three keys.
func playJoint(t *testing.T, conn redisstore.Conn, seed uint64) {
	t.Helper()
	draw := newDrawer(seed, 2)
	how := [...]setup{uncached, uncached, cached}[draw.rng.IntN(3)]
	var limits []ratelimit.Algorithm
	var looksUp []bool // whether the limiter of a key looks up the limit
	for range jointKeys {
		limits, looksUp = append(limits, draw.algorithm()), append(looksUp, draw.rng.IntN(4) == 0)
	}
	span := spanOf(t, limits...)
	g := &history.Generator{
		Choices:   history.NewRandom(seed, 12),
		Keys:      slices.Sorted(maps.Keys(jointKeys)),
		Spans:     []time.Duration{span, span/10 + 1},
		OfSeveral: true,
	}
	next := history.AtMost(80, history.Before2100(asJoint(limits, span/2, g.Next)))
	history.Run(t, joint(t, conn, limits, looksUp, how), next)
}

// asJoint leaves out operations that scripts leave to the process, which asks one key after the
// other: while a turn in a window of a calendar after the next is ahead, and if a denial is noted
// behind a turn, which is then one of that key alone.
func asJoint(limits []ratelimit.Algorithm, within time.Duration, next history.Step) history.Step {
	text := fmt.Sprintf("%#v", limits)
	if strings.Contains(text, "CalendarWindow") {
		within = min(within, 20*time.Hour)
	}
	return func(p history.Player) (history.Op, bool) {
		o, ok := next(p)
		if o.Verb == history.Reserve {
			o.Within, o.LimitsWait = min(o.Within, within), true
			if strings.Contains(text, "CountDenied:true") {
				o = history.Op{Verb: history.Peek, Key: o.Key}
			}
		}
		return o, ok
	}
}

// joint returns what histories are played on in which some operations are on several keys.
func joint(
	t *testing.T, conn redisstore.Conn, limits []ratelimit.Algorithm, looksUp []bool, how setup,
) *history.Twins {
	s := &history.Twins{Limits: limits, Own: jointKeys, Start: began, Tick: time.Microsecond, Kept: "Redis and this process"}
	s.Open = func(of func(key string) ratelimit.Algorithm) (on history.OpenTwins) {
		tr := &trace{T: t, clk: storetest.NewClock(began)}
		store := tr.newStore(conn, prefixes(), how)
		inRedis, here := make([]ratelimit.Limiter, len(jointKeys)), make([]ratelimit.Limiter, len(jointKeys))
		for key, i := range jointKeys {
			tr.alg, tr.limitOf = limits[i], nil
			if looksUp[i] {
				tr.limitOf = of
			}
			var err error
			inRedis[i], err = tr.newLimiter(store, ratelimit.WithName(key))
			require.NoError(t, err, "%#v: %s", tr.alg, drawOthers)
			here[i], err = tr.newLimiter(&jointPortable{portableStore{states: map[string][]byte{}}}, ratelimit.WithName(key))
			require.NoError(t, err)
		}
		before := store.Stats().Calls
		on.After = func(ops []history.Op) (wrong error) {
			o, calls := ops[0], store.Stats().Calls-before
			// one, another if holds are open, one more if a turn has come and one for that, and
			// each again to load its script
			if o.Verb == history.Take && calls > 4+3*uint64(len(jointKeys)) {
				wrong = fmt.Errorf("%d calls", calls)
			}
			for key, i := range jointKeys {
				wrong = cmp.Or(wrong, samePeek(key, inRedis[i], here[i]))
			}
			before = store.Stats().Calls
			return wrong
		}
		on.Clock, on.Partial = tr.clk, how == cached
		on.Stores = []history.Store{{Limiters: inRedis}, {Limiters: here}}
		return on
	}
	return s
}

// samePeek returns an error if limiters tell something else of a key.
func samePeek(key string, one, other ratelimit.Limiter) error {
	ctx := context.Background()
	got, err := one.Peek(ctx, key)
	want, otherErr := other.Peek(ctx, key)
	if got != want {
		return fmt.Errorf("of %q, store 0 has %+v\nstore 1 has %+v", key, got, want)
	}
	return cmp.Or(err, otherErr)
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
