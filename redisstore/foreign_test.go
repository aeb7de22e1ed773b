package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// know makes the server execute the plain scripts of limits per key, and returns their programs.
func (f *fakeServer) know(t *testing.T, limits ...ratelimit.Algorithm) (progs []*program) {
	t.Helper()
	if f.limits == nil {
		f.limits = map[string]*program{}
	}
	for _, limit := range limits {
		of, err := ratelimit.NewTransition(limit)
		require.NoError(t, err)
		prog, err := newProgram(of)
		require.NoError(t, err)
		prog.tag = prog.header
		f.limits[prog.tag] = prog
		f.known[prog.variantOf(plain).sha] = true
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
	l, err := ratelimit.New(*limit.Load(), ratelimit.WithStore(s), ratelimit.WithFailurePolicy(ratelimit.FailClosed),
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

// When the limit of a key changes, all waiting calls are answered by two commands: one that
// learns which limit left the state, and one that adopts it, with a script that the server does
// not know yet. Later ones take one command.
func TestLimitChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := hours(300, 2)
		f := newFakeServer(t, limits[0])
		f.delay = 4 * time.Millisecond
		f.know(t, limits...)
		limit := pointerTo(limits[0])
		s, l := f.varying(t, limit)
		require.True(t, l.Allow("k"))
		require.True(t, l.Allow("other"))
		*limit = *pointerTo(limits[1]) // no call reads it now
		f.trips = 0
		began := time.Now()
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(func() {
				d, err := l.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				assert.True(t, d.Allowed)
			})
		}
		wg.Wait()
		assert.Equal(t, 2, f.trips)
		assert.Equal(t, 2*f.delay, time.Since(began))
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 301-61, d.Remaining)

		f.trips = 0
		require.True(t, l.Allow("other"))
		assert.Equal(t, 1, f.trips, "the process knows the limit that left this state")

		time.Sleep(foreignAge + time.Second)
		f.adopting = 0
		require.True(t, l.Allow("k"))
		assert.Zero(t, f.adopting, "it has met no such state lately")
		assert.Zero(t, s.Stats().Failures)
	})
}

// However many processes disagree, a call learns of their limits one by one. What other
// processes do to the value meanwhile makes no difference.
func TestManyLimits(t *testing.T) {
	for others, want := range map[int]int{1: 2, 3: 4, 8: 9, 40: 9} {
		synctest.Test(t, func(t *testing.T) {
			limits := hours(300, 1+others)
			f := newFakeServer(t, limits[0])
			progs := f.know(t, limits...)
			s, l := f.varying(t, pointerTo(limits[0]))
			require.True(t, l.Allow("k"))
			turn := 0
			f.meddle = func() { // another process uses the key before each command
				for key, value := range f.states {
					prog := progs[1+turn%others]
					state, _, _, err := prog.t.Apply([]byte(value), ratelimit.Request{Op: ratelimit.OpTake, N: 1}.At(time.Now()))
					require.NoError(t, err)
					f.states[key] = string(state)
				}
				turn++
			}
			f.trips = 0
			d, err := l.Take(t.Context(), "k", 1)
			assert.Equal(t, want, f.trips, "%d others", others)
			if others > maxForeigns {
				require.ErrorContains(t, err, "of another limit")
				return
			}
			require.NoError(t, err)
			assert.True(t, d.Allowed)
			assert.Equal(t, 300-1-want-1, d.Remaining)
			f.trips = 0
			require.True(t, l.Allow("k"))
			require.True(t, l.Allow("k"))
			assert.Equal(t, 2, f.trips)
			for _, prog := range s.programs.known {
				assert.Len(t, s.expected(prog), min(others, maxForeigns))
			}
		})
	}
}

// Requests that are sent together, and again because of the state, are counted once.
func TestCoalescedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := hours(300, 3)
		f := newFakeServer(t, limits[0])
		f.delay = time.Millisecond
		progs := f.know(t, limits...)
		s, l := f.varying(t, pointerTo(limits[0]))
		require.True(t, l.Allow("k"))
		turn := 0
		f.meddle = func() { // before each command, a process with another limit uses the key
			for key, value := range f.states {
				prog := progs[1+turn%2]
				state, _, _, err := prog.t.Apply([]byte(value), ratelimit.Request{Op: ratelimit.OpTake, N: 1}.At(time.Now()))
				require.NoError(t, err)
				f.states[key] = string(state)
			}
			turn++
		}
		before := s.Stats()
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(func() {
				_, err := l.Take(t.Context(), "k", 1)
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		stats := s.Stats()
		assert.EqualValues(t, 3, stats.Calls-before.Calls, "it met two other limits")
		assert.EqualValues(t, 59, stats.Coalesced)
	})
}

// A state of another kind is replaced by a fresh one in the same way. One whose limit
// cannot be read is replaced once, and reported.
func TestOtherKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := append(hours(2, 1), ratelimit.SlidingLog{Limit: 1, Window: time.Hour}, ratelimit.All{hours(1, 1)[0]})
		f := newFakeServer(t, limits[0])
		progs := f.know(t, limits...)
		assert.Equal(t, foreign{tag: progs[1].tag}, progs[0].foreign(progs[1]))
		assert.Equal(t, foreign{tag: progs[2].tag}, progs[0].foreign(progs[2]))
		s, l := f.varying(t, pointerTo(limits[0]))
		require.True(t, l.Allow("k"))
		for key := range f.states {
			f.states[key] = "\x7fwritten by a later version"
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
