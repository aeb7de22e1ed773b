package decide_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/internal/stray"
)

// A jointStore keeps states as bytes, and decides on several keys together. Only Apply may be
// called concurrently.
type jointStore struct {
	mu     sync.Mutex        // of Apply
	states map[string][]byte // by the limiter's name and the key
	single int               // the calls of Apply so far that decide
	keys   []int             // the number of keys of each ApplyAll so far

	undecided bool   // whether ApplyAll does nothing
	down      error  // the error of Apply and ApplyAll
	late      bool   // whether ApplyAll decides, and answers nothing until ctx ends
	partial   bool   // whether ApplyAll answers only for keys that refuse, if any do
	leaves    string // the key that ApplyAll does not answer, because it cannot read its state

	strays stray.List
}

func newJointStore() *jointStore { return &jointStore{states: map[string][]byte{}} }

type jointStates struct {
	fakes.NoLine
	*jointStore
	name string
}

func (s *jointStore) Open(name string, _ *limit.Limit, timeout time.Duration) (limit.States, error) {
	return &jointStates{jointStore: s, name: name}, nil
}

func (*jointStates) Timeout() time.Duration { return 0 }
func (s *jointStates) Strays() *stray.List  { return &s.strays }

func (s *jointStates) Group(string) any { return s.jointStore }

func (s *jointStates) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	if limit.Repeats(ctx) && !s.late {
		return step.Answer{}, errors.New("a test may be changing the fields")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.Op != step.OpSettle { // which ends what was held
		s.single++
	}
	if s.down != nil {
		return step.Answer{}, s.down
	}
	return s.apply(key, t, req)
}

func (s *jointStates) apply(key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	after, err := t.Apply(s.states[s.name+"/"+key], req)
	s.states[s.name+"/"+key] = after.State
	return after.Answer, err
}

func (s *jointStates) Reset(_ context.Context, key string) error {
	delete(s.states, s.name+"/"+key)
	return nil
}

func (s *jointStates) ApplyAll(ctx context.Context, calls []limit.Call) (decided bool, err error) {
	if s.down != nil || s.undecided {
		for i := range calls { // it has begun, which means nothing
			calls[i].Answered = true
		}
		return s.down != nil, s.down
	}
	s.keys = append(s.keys, len(calls))
	base, _ := calls[0].Request.Read()
	granted, notes, delay := true, true, time.Duration(0)
	for _, c := range calls {
		of := c.States.(*jointStates)
		after, unread := c.Limit.Apply(of.states[of.name+"/"+c.Key], c.Request.AsOf(&base))
		if unread != nil {
			return false, nil
		}
		res := after.Answer
		granted = granted && res.Allowed
		notes = notes && c.Request.N <= res.Limit
		delay = max(delay, res.Delay)
	}
	for i := range calls {
		c := &calls[i]
		if c.Key == s.leaves {
			continue
		}
		req := c.Request.AsOf(&base)
		req.Refused, req.Notes, req.Delay = !granted, notes, delay
		if c.Answer, err = c.States.(*jointStates).apply(c.Key, c.Limit, req); err != nil {
			return true, err
		}
		c.Answered = granted || !s.partial || !c.Answer.Allowed
	}
	if s.late {
		<-ctx.Done()
		return true, ctx.Err()
	}
	return true, nil
}

// of returns a limiter on s.
func (s *jointStore) of(clk clock.Clock, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	return ratelimit.Must(ratelimit.New(alg, append([]ratelimit.Option{
		ratelimit.WithStore(s), ratelimit.WithName(fmt.Sprintf("%T", alg)),
		ratelimit.WithFailureLog(nil), ratelimit.WithClock(clk),
	}, opts...)...))
}

// TestJointStatesAnswerAsInMemory: limiters on a store with JointStates decide together as limiters
// in memory do. They call the store once.
func TestJointStatesAnswerAsInMemory(t *testing.T) {
	algs := []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 5},
		ratelimit.FixedWindow{Limit: 4, Window: time.Second},
		ratelimit.SlidingLog{Limit: 5, Window: time.Second, CountDenied: true},
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(4), Capacity: 5},
		ratelimit.SlidingWindow{Limit: 6, Window: time.Second, Segments: 4},
		ratelimit.All{ratelimit.FixedWindow{Limit: 9, Window: 2 * time.Second}, ratelimit.SlidingLog{Limit: 6, Window: time.Second}},
		ratelimit.InFlight{Limit: 7, Timeout: 2 * time.Second},
	}
	keys := map[string]int{"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "another a": 0, "another c": 2}
	s := &history.Twins{Limits: algs, Own: keys, Start: fakes.Midnight, Kept: "JointStates and memory"}
	several, calls := 0, 0 // decisions on several keys, and calls of ApplyAll
	s.Open = func(func(string) ratelimit.Algorithm) history.OpenTwins {
		clk, store := stepclock.New(), newJointStore()
		var there, here []ratelimit.Limiter
		for _, alg := range algs {
			there, here = append(there, store.of(clk, alg)), append(here, ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk))))
		}
		return history.OpenTwins{
			Stores: []history.Store{{Limiters: there}, {Limiters: here}},
			Clock:  clk,
			After: func(ops []history.Op) error {
				if len(store.keys) > 1 {
					return fmt.Errorf("%d calls of ApplyAll", len(store.keys))
				}
				calls += len(store.keys)
				store.keys = nil
				if ops[0].OfSeveral() && ops[0].Verb != history.Settle {
					several++
				}
				return nil
			},
		}
	}
	histories := budget.Histories(60, 600)
	for seed := range budget.Seeds(t, histories) {
		g := &history.Generator{
			Choices:   history.NewRandom(seed, 1),
			Keys:      slices.Sorted(maps.Keys(keys)),
			Spans:     []time.Duration{time.Second, 2 * time.Second},
			OfSeveral: true,
		}
		next := history.Before2100(g.Next)
		history.Run(t, s, history.AtMost(200, func(p history.Player) (history.Op, bool) {
			o, ok := next(p)
			if o.Verb == history.Charge {
				o.N %= 1 << 24 // a state in memory has less room for debt than bytes have
			}
			return o, ok
		}))
	}
	assert.Greater(t, calls, several/2)
	assert.Greater(t, several, 10*int(histories))
}

// One call asks all keys of a store. The keys in memory are asked afterwards.
func TestJointStatesInOneCall(t *testing.T) {
	clk, s, other := stepclock.New(), newJointStore(), newJointStore()
	a := ratelimit.For(s.of(clk, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}), "a")
	b := ratelimit.For(s.of(clk, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)}), "b")
	c := ratelimit.For(other.of(clk, ratelimit.FixedWindow{Limit: 9, Window: time.Hour}), "c")
	d := ratelimit.For(other.of(clk, ratelimit.TokenBucket{Rate: ratelimit.PerHour(9)}), "d")
	local := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 2, Window: time.Hour}, ratelimit.WithClock(clk))), "")
	left := func(want int, of ratelimit.Bound) {
		t.Helper()
		d, err := of.Limiter().Peek(t.Context(), of.Key())
		require.NoError(t, err)
		assert.Equal(t, want, d.Remaining)
	}
	take := func(part int, allowed bool, of ...ratelimit.Bound) {
		t.Helper()
		d, err := ratelimit.TakeAll(t.Context(), 1, of...)
		require.NoError(t, err)
		assert.Equal(t, allowed, d.Allowed)
		assert.Equal(t, part, d.Part)
	}
	take(1, true, a, b)
	assert.Zero(t, s.single)
	take(2, true, c, a, local, b, d)
	take(2, true, a, c, b, d, local) // b and local have nothing left
	assert.Equal(t, []int{2, 2, 2}, s.keys)
	assert.Equal(t, []int{2, 2}, other.keys)
	assert.Zero(t, s.single+other.single)
	take(2, false, a, c, b, d, local)
	assert.Equal(t, []int{2, 2}, other.keys, "the first store has refused")
	require.NoError(t, b.Limiter().Reset(t.Context(), b.Key()))
	take(4, false, a, c, b, d, local)
	assert.Equal(t, []int{2, 2, 2}, other.keys)
	left(2, a) // the held events are given back
	left(3, b)
	left(7, c)
	left(7, d)

	// The Decision of a refusal may take account of only some keys.
	s.partial = true
	require.True(t, b.Limiter().AllowN(b.Key(), 3))
	got, err := ratelimit.TakeAll(t.Context(), 1, a, b)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: 3, Part: 1, RetryAfter: 20 * time.Minute, ResetAfter: time.Hour}, got)
}

// A key that a store has left out of its decision is asked alone, and the others are not asked again.
// If it refuses, what the others hold is given back.
func TestJointStatesLeaveAKey(t *testing.T) {
	clk, s := stepclock.New(), newJointStore()
	a := ratelimit.For(s.of(clk, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}), "a")
	b := ratelimit.For(s.of(clk, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)}), "b")
	left := func(want int, of ratelimit.Bound) {
		t.Helper()
		d, err := of.Limiter().Peek(t.Context(), of.Key())
		require.NoError(t, err)
		assert.Equal(t, want, d.Remaining)
	}
	s.leaves = "b"
	d, err := ratelimit.TakeAll(t.Context(), 2, a, b)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, Remaining: 1, Part: 1, ResetAfter: time.Hour}, d)
	assert.Equal(t, []int{2}, s.keys)
	assert.Equal(t, 1, s.single)
	left(3, a)
	left(1, b)
	r, d, err := ratelimit.HoldAll(t.Context(), 1, a, b)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	left(2, a)
	left(0, b)
	_, err = r.Settle(t.Context(), 0)
	require.NoError(t, err)
	left(3, a)
	left(1, b)

	s.leaves = "a"
	require.True(t, a.Limiter().AllowN("a", 3))
	r, d, err = ratelimit.HoldAll(t.Context(), 1, a, b)
	require.NoError(t, err)
	assert.Nil(t, r)
	assert.False(t, d.Allowed)
	left(1, b)
}

// If a store cannot decide on the keys together, it is asked for one key after the other.
func TestJointStatesUndecided(t *testing.T) {
	clk, s := stepclock.New(), newJointStore()
	s.undecided = true
	a := ratelimit.For(s.of(clk, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}), "a")
	b := ratelimit.For(s.of(clk, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)}), "b")
	for i := range 4 {
		d, err := ratelimit.TakeAll(t.Context(), 1, a, b)
		require.NoError(t, err)
		assert.Equal(t, i < 3, d.Allowed)
	}
	d, err := a.Limiter().Peek(t.Context(), a.Key())
	require.NoError(t, err)
	assert.Equal(t, 2, d.Remaining)
	assert.Empty(t, s.keys)
}

// A key without a state is decided on apart from the other keys of its store. A key whose limit
// cannot be looked up is decided on together with the others.
func TestJointStatesOfPlans(t *testing.T) {
	odd := errors.New("odd")
	clk, s := stepclock.New(), newJointStore()
	l := s.of(clk, ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
		ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
		ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			switch key {
			case "blocked":
				return ratelimit.Blocked{}, nil
			case "unlimited":
				return ratelimit.Unlimited{}, nil
			case "odd":
				return nil, odd
			}
			return nil, nil
		}))
	for _, tt := range []struct {
		key     string
		allowed bool
		left    int
		err     error
	}{{"unlimited", true, 4, nil}, {"blocked", false, 4, nil}, {"odd", true, 3, odd}, {"c", true, 2, nil}} {
		d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, tt.key), ratelimit.For(l, "a"), ratelimit.For(l, "b"))
		require.ErrorIs(t, err, tt.err)
		assert.Equal(t, tt.allowed, d.Allowed, tt.key)
		for _, key := range []string{"a", "b"} {
			d, err := l.Peek(t.Context(), key)
			require.NoError(t, err)
			assert.Equal(t, tt.left, d.Remaining, "%s after %s", key, tt.key)
		}
	}
}

// A Blocked key refuses before any store is asked. So nothing is spent, not even events that cannot
// be given back, and no denial is counted.
func TestTakeAllOfABlockedKey(t *testing.T) {
	clk, other, s := stepclock.New(), newJointStore(), newJointStore()
	lookups := 0
	plans := ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
		lookups++
		if key == "blocked" {
			return ratelimit.Blocked{}, nil
		}
		return nil, nil
	})
	log := ratelimit.For(s.of(clk, ratelimit.SlidingLog{Limit: 3, Window: time.Hour, CountDenied: true}), "k")
	queue := ratelimit.For(other.of(clk, ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1), Capacity: 3}), "k")
	local := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 3, Window: time.Hour, CountDenied: true}, ratelimit.WithClock(clk))), "k")
	for name, blocked := range map[string]ratelimit.Bound{
		"its limiter":      ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.Blocked{})), "k"),
		"in a store":       ratelimit.For(s.of(clk, ratelimit.Blocked{}), "k"),
		"with limits":      ratelimit.For(s.of(clk, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, plans), "blocked"),
		"in another store": ratelimit.For(newJointStore().of(clk, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, plans), "blocked"),
		"in memory": ratelimit.For(ratelimit.Must(ratelimit.New(
			ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, plans, ratelimit.WithClock(clk))), "blocked"),
	} {
		lookups = 0
		d, err := ratelimit.TakeAll(t.Context(), 1, log, queue, local, blocked)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Part: 3, RetryAfter: ratelimit.Never}, d, name)
		assert.LessOrEqual(t, lookups, 2, name)
	}
	assert.Zero(t, s.single+other.single)
	assert.Empty(t, s.keys)
	for _, b := range []ratelimit.Bound{log, queue, local} {
		d, err := b.Limiter().Peek(t.Context(), b.Key())
		require.NoError(t, err)
		assert.Equal(t, 3, d.Remaining, b.Limiter())
	}
}

// If the store fails, the FailurePolicy of each limiter decides on its key.
func TestJointStatesFail(t *testing.T) {
	clk, s := stepclock.New(), newJointStore()
	down := errors.New("down")
	alone := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithClock(clk)))
	open := ratelimit.For(s.of(clk, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}), "k")
	closed := ratelimit.For(s.of(clk, ratelimit.TokenBucket{Rate: ratelimit.PerHour(5)}, ratelimit.WithFailurePolicy(ratelimit.FailClosed())), "k")
	falls := ratelimit.For(s.of(clk, ratelimit.SlidingLog{Limit: 5, Window: time.Hour}, ratelimit.WithFailurePolicy(ratelimit.Fallback(alone))), "k")
	s.down = down
	for _, tt := range []struct {
		of      []ratelimit.Bound
		allowed bool
		errs    []string
	}{
		{[]ratelimit.Bound{falls, open, closed}, false, []string{"bounds[0]: ", "bounds[1]: ", "bounds[2]: "}}, // the event of the fallback is given back
		{[]ratelimit.Bound{falls, open}, true, []string{"bounds[0]: ", "bounds[1]: "}},
		{[]ratelimit.Bound{falls, open}, false, []string{"bounds[0]: "}},
		{[]ratelimit.Bound{closed, open}, false, []string{"bounds[0]: "}},
	} {
		d, err := ratelimit.TakeAll(t.Context(), 1, tt.of...)
		assert.Positive(t, d.Limit, "only keys that were asked are told of")
		require.ErrorIs(t, err, down)
		assert.Equal(t, tt.allowed, d.Allowed)
		assert.True(t, d.Degraded)
		for _, text := range tt.errs {
			require.ErrorContains(t, err, text)
		}
	}
}

// A decision on several keys at once shows that the store answers again.
func TestJointStatesAnswerAgain(t *testing.T) {
	clk, s := stepclock.New(), newJointStore()
	logger, logged := fakes.Log()
	l := s.of(clk, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.WithFailureLog(logger))
	take := func() error {
		_, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "k"), ratelimit.For(l, "other"))
		return err
	}
	s.down = errors.New("down")
	require.ErrorIs(t, take(), s.down)
	require.Contains(t, logged(), "the store failed")
	clk.Advance(time.Minute)
	logged()
	s.down = nil
	require.NoError(t, take())
	assert.Contains(t, logged(), "answers again")
	assert.Zero(t, s.single)
}

// If a state is unreadable, the error says so, and the FailurePolicy decides on its key.
func TestJointStatesUnreadable(t *testing.T) {
	for _, policy := range []ratelimit.FailurePolicy{ratelimit.FailOpen(), ratelimit.FailClosed()} {
		clk, s := stepclock.New(), newJointStore()
		a := ratelimit.For(s.of(clk, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}), "a")
		b := ratelimit.For(s.of(clk, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)}, ratelimit.WithFailurePolicy(policy)), "b")
		require.True(t, a.Limiter().Allow(a.Key()))
		require.True(t, b.Limiter().Allow(b.Key()))
		s.states["ratelimit.TokenBucket/b"] = []byte("nonsense")
		r, d, err := ratelimit.HoldAll(t.Context(), 1, a, b)
		require.ErrorIs(t, err, ratelimit.ErrState)
		assert.Equal(t, policy == ratelimit.FailOpen(), d.Allowed)
		assert.Equal(t, d.Allowed, r != nil)
		d, err = a.Limiter().Peek(t.Context(), a.Key())
		require.NoError(t, err)
		want := 4
		if policy == ratelimit.FailOpen() {
			want = 3
		}
		assert.Equal(t, want, d.Remaining)
		d, err = ratelimit.TakeAll(t.Context(), 1, a, b)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
	}
}

// If the context of HoldAll ends while the store grants the events, they are given back. Otherwise,
// events in flight would be held until they time out.
func TestJointStatesGrantTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newJointStore()
		s.late = true
		flights := s.of(clock.New(), ratelimit.InFlight{Limit: 3, Timeout: time.Hour})
		window := s.of(clock.New(), ratelimit.FixedWindow{Limit: 5, Window: 24 * time.Hour})
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, _, err := ratelimit.HoldAll(ctx, 2, ratelimit.For(flights, "k"), ratelimit.For(window, "k"))
			left <- err
		}()
		synctest.Wait()
		leave()
		require.ErrorIs(t, <-left, context.Canceled)
		remaining := func() (of []int) {
			for _, l := range []ratelimit.Limiter{flights, window} {
				d, err := l.Peek(t.Context(), "k")
				require.NoError(t, err)
				of = append(of, d.Remaining)
			}
			return of
		}
		assert.Equal(t, []int{1, 3}, remaining(), "they are granted")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []int{3, 5}, remaining(), "and given back")
	})
}

// TestJointStatesRefusedElsewhere: one store has granted the events of several keys at once. If
// another store then refuses, or a limiter that New has not made, these events are given back.
func TestJointStatesRefusedElsewhere(t *testing.T) {
	clk := ratelimit.WithClock(stepclock.New())
	first, second := newJointStore(), newJointStore()
	one := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.WithStore(first), ratelimit.WithName("one"), clk))
	two := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithStore(second), ratelimit.WithName("two"), clk))
	require.True(t, two.Allow("c"))
	for _, refusing := range []ratelimit.Limiter{two, struct{ ratelimit.Limiter }{two}} {
		first.keys = nil
		d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(one, "a"), ratelimit.For(one, "b"), ratelimit.For(refusing, "c"))
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.Equal(t, []int{2}, first.keys, "it has granted")
		for _, key := range []string{"a", "b"} {
			d, err := one.Peek(t.Context(), key)
			require.NoError(t, err)
			assert.Equal(t, 5, d.Remaining, key)
		}
	}
}
