package redisstore

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// incidents returns how many failures in a row the breaker of a store with one server has counted.
func incidents(s *Store) int {
	b := &s.outboxOf("").server.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.incidents
}

// trip opens the breaker of a store with one server.
func trip(s *Store) {
	o := s.outboxOf("")
	for range s.failures {
		now := s.elapsed()
		o.server.breaker.report(false, now, now, errors.New("lost"))
	}
}

// TestBreakerOpens: a breaker opens after a number of incidents in a row, and one batch at a time
// tests the server after the cooldown.
func TestBreakerOpens(t *testing.T) {
	const ms = time.Millisecond
	slow := 20 * ms // longer than the client that fails at once
	for name, steps := range map[string][]struct {
		at      time.Duration
		sent    time.Duration // of a batch that ends now, or -1 for one that asks whether it may be sent
		tests   bool
		outcome error
		state   string // after that
	}{
		"opens and is tested": {
			{0, 0, false, io.EOF, "closed"}, {2 * ms, 1 * ms, false, io.EOF, "closed"},
			{4 * ms, 3 * ms, false, io.EOF, "open"}, {5 * ms, -1, false, ErrOpen, "open"},
			{103 * ms, -1, false, ErrOpen, "open"}, {104 * ms, -1, true, nil, "half-open"},
			{105 * ms, -1, false, ErrOpen, "half-open"},
			{106 * ms, 104 * ms, true, nil, "closed"}, {107 * ms, -1, false, nil, "closed"},
		},
		"a success in between": {
			{1 * ms, 1 * ms, false, io.EOF, "closed"}, {2 * ms, 2 * ms, false, io.EOF, "closed"},
			{3 * ms, 3 * ms, false, nil, "closed"}, {4 * ms, 4 * ms, false, io.EOF, "closed"},
		},
		"one incident": {
			{5 * ms, 1 * ms, false, io.EOF, "closed"}, {6 * ms, 2 * ms, false, io.EOF, "closed"},
			{7 * ms, 4 * ms, false, io.EOF, "closed"}, {8 * ms, 3 * ms, false, io.EOF, "closed"},
		},
		"nothing is known": {
			{1 * ms, 1 * ms, false, context.Canceled, "closed"},
			{2 * ms, 2 * ms, false, context.Canceled, "closed"},
			{3 * ms, 3 * ms, false, context.Canceled, "closed"},
		},
		"an answer from before it opened": {
			{2 * ms, 2 * ms, false, io.EOF, "closed"}, {3 * ms, 3 * ms, false, io.EOF, "closed"},
			{4 * ms, 4 * ms, false, io.EOF, "open"}, {5 * ms, 1 * ms, false, nil, "closed"},
		},
		"a test that gets no answer": {
			{1 * ms, 1 * ms, false, io.EOF, "closed"}, {2 * ms, 2 * ms, false, io.EOF, "closed"},
			{3 * ms, 3 * ms, false, io.EOF, "open"}, {103 * ms, -1, true, nil, "half-open"},
			{103*ms + slow, 103 * ms, true, io.EOF, "open"},
			{202*ms + slow, -1, false, ErrOpen, "open"},
			{203*ms + slow, -1, true, nil, "half-open"},
		},
		"a test that fails at once": {
			{1 * ms, 1 * ms, false, io.EOF, "closed"}, {2 * ms, 2 * ms, false, io.EOF, "closed"},
			{3 * ms, 3 * ms, false, io.EOF, "open"}, {103 * ms, -1, true, nil, "half-open"},
			{104 * ms, 103 * ms, true, io.EOF, "open"}, {104*ms + testAgain - 1, -1, false, ErrOpen, "open"},
			{104*ms + testAgain, -1, true, nil, "half-open"},
		},
		"a test of which nothing is known": {
			{1 * ms, 1 * ms, false, io.EOF, "closed"}, {2 * ms, 2 * ms, false, io.EOF, "closed"},
			{3 * ms, 3 * ms, false, io.EOF, "open"}, {103 * ms, -1, true, nil, "half-open"},
			{104 * ms, 103 * ms, true, context.Canceled, "half-open"},
			{104 * ms, -1, true, nil, "half-open"},
		},
	} {
		b := breaker{limit: 3, cooldown: 100 * ms, soon: 10 * ms}
		for i, step := range steps {
			if step.sent >= 0 {
				b.report(step.tests, step.sent, step.at, step.outcome)
			} else {
				tests, err := b.allow(step.at)
				require.ErrorIs(t, err, step.outcome, "%s, step %d", name, i)
				require.Equal(t, step.tests, tests, "%s, step %d", name, i)
			}
			state, _ := b.look(step.at)
			require.Equal(t, step.state, state, "%s, step %d", name, i)
		}
	}
}

// The calls that a breaker refuses are not sent, and they are counted.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		s, l := f.store(t)
		require.True(t, l.Allow("k"))

		f.Fail = errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, f.Fail)
		assert.Zero(t, incidents(s), "the error concerns one key only")

		f.Fail = errors.New("LOADING Redis is loading the dataset in memory")
		_, err = l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, f.Fail)
		assert.Equal(t, 1, incidents(s))

		trip(s)
		calls := f.Calls()
		_, err = l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, ErrOpen)
		require.ErrorIs(t, l.Reset(t.Context(), "k"), ErrOpen)
		assert.Equal(t, calls, f.Calls())
		assert.EqualValues(t, 1, s.Stats().BreakerOpen, "Reset returns its error, and no policy decides")
		assert.EqualValues(t, 3, s.Stats().Failures)

		f.Fail = nil
		time.Sleep(s.cooldown)
		require.True(t, l.Allow("k"))
		assert.Equal(t, "closed", s.Stats().Breakers[""])
		settle()
		requireIdle(t, s)
	})
}

// TestBreakerDefaults checks that without options, the breaker opens after five failures in a row, for
// half a second.
func TestBreakerDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		byDefault, err := New(f)
		require.NoError(t, err)
		s, l := f.store(t, WithBreaker(byDefault.failures, byDefault.cooldown))
		require.True(t, l.Allow("k"))
		f.Fail = errors.New("LOADING Redis is loading the dataset in memory")
		for range 5 {
			require.Equal(t, "closed", s.Stats().Breakers[""])
			time.Sleep(time.Millisecond)
			_, err := l.Take(t.Context(), "k", 1)
			require.ErrorIs(t, err, f.Fail)
		}
		f.Fail = nil
		time.Sleep(500*time.Millisecond - 1)
		_, err = l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, ErrOpen)
		time.Sleep(1 * time.Nanosecond)
		require.True(t, l.Allow("k"))
		settle()
		requireIdle(t, s)
	})
}

// While the server is away, one command in each cooldown finds that out. When it is back, the next
// one does.
func TestOneTestAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 10_000, Window: time.Hour})
		s, l := f.store(t, WithTimeout(50*time.Millisecond))
		f.Hangs = true
		trip(s)
		for range 1000 {
			l.Allow("k")
			time.Sleep(10 * time.Millisecond)
		}
		// A call comes up to 10 ms after a cooldown has ended.
		assert.InDelta(t, 10*time.Second/(s.cooldown+s.timeout), f.Trips, 2)
		f.Set(func() { f.Hangs = false })
		back := time.Now()
		for !l.Allow("k") {
			time.Sleep(10 * time.Millisecond)
		}
		assert.LessOrEqual(t, time.Since(back), s.cooldown+s.timeout)
		settle()
		requireIdle(t, s)
	})
}
