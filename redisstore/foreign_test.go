package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// know makes the server execute the plain scripts of limits per key, and returns their programs.
func (f *fakeServer) know(t *testing.T, limits ...ratelimit.Algorithm) (progs []*program) {
	t.Helper()
	for _, limit := range limits {
		of, err := fakes.NewLimit(limit)
		require.NoError(t, err)
		prog, err := newProgram(of)
		require.NoError(t, err)
		f.Load(prog.For(script.Plain).Text)
		progs = append(progs, prog)
	}
	return progs
}

// varying returns another store on the server, and a limiter on that store whose limit is
// that of the pointer.
func (f *fakeServer) varying(t *testing.T, limit *atomic.Pointer[ratelimit.FixedWindow]) (*Store, ratelimit.Limiter) {
	t.Helper()
	s, err := New(f, WithDenialCache(0))
	require.NoError(t, err)
	s.backlog = func() bool { return false }
	l, err := ratelimit.New(*limit.Load(), ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
		ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return *limit.Load(), nil }))
	require.NoError(t, err)
	return s, l
}

// hours are limits that differ from each other.
func hours(limit, n int) (all []ratelimit.Algorithm) {
	for i := range n {
		all = append(all, ratelimit.FixedWindow{Limit: limit + i, Window: time.Hour})
	}
	return all
}

func pointerTo(limit ratelimit.Algorithm) *atomic.Pointer[ratelimit.FixedWindow] {
	p := new(atomic.Pointer[ratelimit.FixedWindow])
	window := limit.(ratelimit.FixedWindow)
	p.Store(&window)
	return p
}

// When the limit of a key changes, all waiting calls are answered by two commands: one that learns
// which limit left the state, and one that replaces it. From then on, a command of one limit takes
// the states of the other.
func TestLimitChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := hours(300, 2)
		f := newFakeServer(t, limits[0])
		f.Delay = 4 * time.Millisecond
		f.know(t, limits...)
		limit := pointerTo(limits[0])
		s, l := f.varying(t, limit)
		require.True(t, l.Allow("k"))
		require.True(t, l.Allow("other"))
		*limit = *pointerTo(limits[1]) // no call reads it now
		f.Trips = 0
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				d, err := l.Take(t.Context(), "k", 1)
				assert.NoError(t, err)
				assert.True(t, d.Allowed)
			})
			if i == 0 {
				synctest.Wait() // its command is under way
			}
		}
		wg.Wait()
		assert.Equal(t, 2+1, f.Trips, "and one for the calls that came meanwhile")
		assert.Equal(t, 3*f.Delay, time.Since(began))
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 301-61, d.Remaining)

		f.Trips = 0
		require.True(t, l.Allow("other"))
		assert.Equal(t, 1, f.Trips, "the process knows the limit that left this state")
		assert.Equal(t, 1, f.Replaced)
		*limit = *pointerTo(limits[0])
		time.Sleep(similarAge + time.Second)
		require.True(t, l.Allow("k"))
		assert.Equal(t, 2, f.Replaced, "it has met no such state lately")
		assert.Zero(t, s.Stats().Failures)
	})
}

// A process knows the latest limits whose states it has met, and not only one of them: it decides
// on a state of each by one command. It knows so many of them at most.
func TestStatesOfManyLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := hours(300, 1+maxSimilars+1)
		f := newFakeServer(t, limits[0])
		f.know(t, limits...)
		limit := pointerTo(limits[0])
		s, l := f.varying(t, limit)
		for i, other := range limits {
			*limit = *pointerTo(other)
			for _, key := range []string{"first ", "then ", "last "} {
				require.True(t, l.Allow(fmt.Sprint(key, i)))
			}
		}
		*limit = *pointerTo(limits[0])
		trips := func(key string, of int) int {
			f.Trips = 0
			require.True(t, l.Allow(fmt.Sprint(key, " ", of)))
			return f.Trips
		}
		for i := range maxSimilars {
			require.Equal(t, 2, trips("first", 1+i), "it meets this limit for the first time")
		}
		for i := range maxSimilars {
			assert.Equal(t, 1, trips("then", 1+i), "it has met %d limits", maxSimilars)
		}
		require.Equal(t, 2, trips("first", 1+maxSimilars))
		for i := range maxSimilars {
			assert.Equal(t, 1, trips("last", 2+i), "the latest of %d", 1+maxSimilars)
		}
		assert.Equal(t, 2, trips("last", 1), "the one that it met first is forgotten")
		assert.Zero(t, s.Stats().Failures)
	})
}

// A state that the process stores is kept until it is idle, rounded up to milliseconds or one more,
// and never for longer than time lasts. By the limiter's clock it is kept for an hour more.
func TestReplacedStateIsKeptUntilItIsIdle(t *testing.T) {
	f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	byServer, _ := f.store(t)
	byLimiter, _ := f.store(t, WithLimiterClock())
	for idle, want := range map[time.Duration]int64{
		0: 1, time.Millisecond - 1: 1, 1500*time.Millisecond + 1: 1501, 24 * time.Hour: 86_400_001,
	} {
		for s, want := range map[*Store]int64{byServer: want, byLimiter: want + 3_600_000} {
			answer := step.Answer{Decision: step.Decision{ResetAfter: idle}}
			assert.Equal(t, strconv.FormatInt(want, 10), s.ttl(&answer), idle)
		}
	}
	never := step.Answer{Decision: step.Decision{ResetAfter: ratelimit.Never}}
	assert.Equal(t, strconv.FormatInt(1<<53/1000, 10), byServer.ttl(&never))
}

// A hold that is open when the limit changes stays in the state that the process stores. The next
// command can use it, so it is not sent twice.
func TestLimitChangeWhileAHoldIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := hours(300, 2)
		f := newFakeServer(t, limits[0])
		for _, prog := range f.know(t, limits...) {
			f.Load(prog.For(script.Holding).Text)
		}
		limit := pointerTo(limits[0])
		_, l := f.varying(t, limit)
		_, _, err := l.Hold(t.Context(), "k", 2)
		require.NoError(t, err)
		*limit = *pointerTo(limits[1])
		require.True(t, l.Allow("k"))
		require.Equal(t, 1, f.Replaced)
		f.Trips = 0
		require.True(t, l.Allow("k"))
		assert.Equal(t, 1, f.Trips)
	})
}

// If another process changes the value before it is replaced, the process begins again with the
// present one.
func TestReplacedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		day := ratelimit.FixedWindow{Limit: 100, Window: 24 * time.Hour}
		limits := append(hours(300, 1), day)
		f := newFakeServer(t, limits[0])
		progs := f.know(t, limits...)
		s, l := f.varying(t, pointerTo(limits[0]))
		require.True(t, l.Allow("k"))
		meddled := 0
		f.Meddle = func() { // before each of five commands, a process with another limit uses the key
			if meddled++; meddled > 5 {
				return
			}
			for key, value := range f.Values {
				after, err := progs[1].Limit.Apply([]byte(value), step.Request{Op: step.OpTake, N: 1}.At(time.Now()))
				require.NoError(t, err)
				f.Values[key] = string(after.State)
			}
		}
		before := s.Stats()
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.Equal(t, 300-7, d.Remaining)
		assert.EqualValues(t, 6, s.Stats().Calls-before.Calls)
		assert.Equal(t, 1, f.Replaced)
		for _, value := range f.Values {
			from, err := progs[0].Limit.Origin([]byte(value))
			require.NoError(t, err)
			assert.Nil(t, from, "it is a state of both")
		}
	})
}

// A denial takes one command, whatever limit left the state, and changes nothing. Only the first one of a
// window that remembers longer is stored, in another command.
func TestDenialUnderAnotherLimit(t *testing.T) {
	for window, stored := range map[time.Duration]int{time.Hour: 0, 24 * time.Hour: 1} {
		synctest.Test(t, func(t *testing.T) {
			limits := append(hours(10, 1), ratelimit.FixedWindow{Limit: 5, Window: window})
			f := newFakeServer(t, limits[0])
			f.know(t, limits...)
			limit := pointerTo(limits[0])
			_, l := f.varying(t, limit)
			require.True(t, l.AllowN("k", 10))
			*limit = *pointerTo(limits[1])
			f.Trips = 0
			for range 3 {
				require.False(t, l.Allow("k"))
			}
			_, err := l.Peek(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, 4+stored, f.Trips)
			assert.Equal(t, stored, f.Replaced)
		})
	}
}

// A state of another kind is replaced by a fresh one in the same way. One whose limit
// cannot be read is replaced once, and reported.
func TestOtherKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := append(hours(2, 1), ratelimit.SlidingLog{Limit: 1, Window: time.Hour})
		f := newFakeServer(t, limits[0])
		progs := f.know(t, limits...)
		s, l := f.varying(t, pointerTo(limits[0]))
		require.True(t, l.Allow("k"))
		for key := range f.Values {
			after, err := progs[1].Limit.Apply(nil, step.Request{Op: step.OpTake, N: 1}.At(time.Now()))
			require.NoError(t, err)
			f.Values[key] = string(after.State)
		}
		require.True(t, l.AllowN("k", 2), "it starts afresh")
		for key := range f.Values {
			f.Values[key] = "\x7fwritten by a later version"
		}
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, ratelimit.ErrState)
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.Zero(t, d.Remaining)
		assert.EqualValues(t, 1, s.Stats().Unreadable)
	})
}

// However often others change the value first, the policy has nothing to decide while the server
// answers; but a call does not wait for ever.
func TestReplacedAgainAndAgain(t *testing.T) {
	for times, fails := range map[int]bool{40: false, 1 << 30: true} {
		synctest.Test(t, func(t *testing.T) {
			limits := append(hours(1_000_000, 1), ratelimit.FixedWindow{Limit: 1_000_000, Window: 24 * time.Hour})
			f := newFakeServer(t, limits[0])
			f.Delay = 4 * time.Millisecond
			progs := f.know(t, limits...)
			s, l := f.varying(t, pointerTo(limits[0]))
			require.True(t, l.Allow("k"))
			meddled := 0
			f.Meddle = func() {
				if meddled++; meddled > times {
					return
				}
				for key, value := range f.Values {
					after, err := progs[1].Limit.Apply([]byte(value), step.Request{Op: step.OpTake, N: 1}.At(time.Now()))
					assert.NoError(t, err)
					f.Values[key] = string(after.State)
				}
			}
			asked := time.Now()
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					_, err := l.Take(t.Context(), "k", 1)
					assert.Equal(t, fails, err != nil, "%v", err)
				})
			}
			wg.Wait()
			if took := time.Since(asked); fails {
				assert.Greater(t, took, 700*time.Millisecond)
				assert.LessOrEqual(t, took, 2*mostBusy*50*time.Millisecond)
			} else {
				assert.Greater(t, took, 160*time.Millisecond)
				assert.Zero(t, s.Stats().Failures)
			}
		})
	}
}
