package redisstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A redialedServer is a fakeServer whose clients have connected again for the keys in redials.
type redialedServer struct {
	*fakeServer
	takes time.Duration // to connect again

	redialing sync.Mutex // protects redials
	redials   []string
}

func (s *redialedServer) Redial(_ context.Context, key string) {
	time.Sleep(s.takes)
	s.redialing.Lock()
	defer s.redialing.Unlock()
	s.redials = append(s.redials, key)
}

// redialed returns how many times the clients have connected again.
func (s *redialedServer) redialed() int {
	s.redialing.Lock()
	defer s.redialing.Unlock()
	return len(s.redials)
}

// onRedialed runs a test with a limiter on a redialedServer.
func onRedialed(t *testing.T, test func(t *testing.T, s *redialedServer, store *Store, l ratelimit.Limiter)) {
	synctest.Test(t, func(t *testing.T) {
		s := &redialedServer{fakeServer: newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})}
		store, err := New(s)
		require.NoError(t, err)
		store.backlog = func() bool { return false }
		l, err := ratelimit.New(s.prog.Limit.Known.(ratelimit.Algorithm), ratelimit.WithStore(store), ratelimit.WithName("test"))
		require.NoError(t, err)
		test(t, s, store, l)
		settle()
	})
}

// If a server replies that it carries out no command, the client connects again before the caller
// is answered. Other errors are no reason.
func TestRedial(t *testing.T) {
	onRedialed(t, func(t *testing.T, s *redialedServer, _ *Store, l ratelimit.Limiter) {
		for text, redials := range map[string]int{
			"READONLY You can't write against a read only replica.":     1,
			"ERR READONLY You can't write against a read only replica.": 1,
			"LOADING Redis is loading the dataset in memory":            1,
			"OOM command not allowed when used memory > 'maxmemory'":    0,
			"NOPERM this user has no permissions":                       0,
			"EOF":                                                       0,
		} {
			before := s.redialed()
			s.Set(func() { s.Fail = errors.New(text) })
			_, err := l.Take(t.Context(), "k", 1)
			require.ErrorContains(t, err, text)
			assert.Equal(t, redials, s.redialed()-before, text)
		}
		assert.Equal(t, []string{"rl:test@f4:k"}, slices.Compact(slices.Clone(s.redials)))
	})
}

// Commands that were under way together may have used one connection, so that they are one reason
// to connect again.
func TestRedialOnce(t *testing.T) {
	onRedialed(t, func(t *testing.T, s *redialedServer, _ *Store, l ratelimit.Limiter) {
		s.Fail = errors.New("READONLY You can't write against a read only replica.")
		s.Delay, s.takes = 4*time.Millisecond, time.Millisecond
		go l.Allow("a")
		time.Sleep(2 * time.Millisecond)
		go l.Allow("b") // its reply comes 2 ms after that of a, when there is a new connection
		time.Sleep(2500 * time.Microsecond)
		go l.Allow("c") // sent while the client connects, so that its reply, too, may be of the old connection
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 1, s.redialed())
		l.Allow("d")
		require.Equal(t, 2, s.redialed())
	})
}

// Callers do not wait for longer than the timeout while the client connects.
func TestRedialHangs(t *testing.T) {
	onRedialed(t, func(t *testing.T, s *redialedServer, store *Store, l ratelimit.Limiter) {
		s.Fail, s.takes = errors.New("READONLY You can't write against a read only replica."), 10*time.Second
		begin := time.Now()
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, ErrTimeout)
		assert.Equal(t, 50*time.Millisecond, time.Since(begin))
		_, err = l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, s.Fail, "it does not wait for the connection again")
		assert.Equal(t, 50*time.Millisecond, time.Since(begin))

		time.Sleep(time.Minute)
		s.Fail = errors.New("LOADING Redis is loading the dataset in memory")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		require.ErrorIs(t, store.Check(ctx), s.Fail)
		assert.Equal(t, time.Second, time.Since(begin))
	})
}

// Check is a reason as well, and so is the command that replaces the value of another limit.
func TestRedialElsewhere(t *testing.T) {
	onRedialed(t, func(t *testing.T, s *redialedServer, store *Store, l ratelimit.Limiter) {
		s.Fail = errors.New("NOAUTH Authentication required.")
		require.ErrorIs(t, store.Check(t.Context()), s.Fail)
		require.Equal(t, 1, s.redialed())

		s.Fail = nil
		require.True(t, l.Allow("k"))
		s.Damage()
		s.Meddle = func() { // the script is answered, and what comes after it is not
			if s.Trips == 3 {
				s.Fail = errors.New("READONLY You can't write against a read only replica.")
			}
		}
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorContains(t, err, "READONLY")
		require.Equal(t, 2, s.redialed())
	})
}
