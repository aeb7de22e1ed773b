package redisstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A dialingServer is a server that clients cannot connect to if it hangs.
type dialingServer struct {
	*fakeServer
	dialed error
}

func (s *dialingServer) Server(string) (name string, known bool) { return "redis:6379", true }

func (s *dialingServer) NoAnswer(server string) error {
	if server == "redis:6379" || server == "" {
		return s.dialed
	}
	return nil
}

// TestOutages: Stats has an outage from the first failure to the next success, with its latest
// cause, and so have the errors of commands that are not sent.
func TestOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		s, l := f.storeThrough(t, &dialingServer{fakeServer: f}, WithBreaker(2, time.Second))
		take := func() error {
			defer synctest.Wait()
			_, err := l.Take(t.Context(), "k", 1)
			return errors.Unwrap(err) // which does not name the limiter
		}
		require.NoError(t, take())
		assert.Empty(t, s.Stats().Outages)

		f.Fail = errors.New("EOF")
		require.ErrorIs(t, take(), f.Fail)
		f.Fail = errors.New("NOPERM this user has no permissions")
		require.ErrorIs(t, take(), f.Fail)
		assert.Empty(t, s.Stats().Outages, "the server answers")

		begin := time.Now()
		f.Fail = errors.New("EOF")
		require.ErrorIs(t, take(), f.Fail)
		time.Sleep(time.Second)
		f.Hangs, f.Stuck = true, make(chan struct{})
		err := take()
		require.ErrorIs(t, err, ErrTimeout)
		require.EqualError(t, err, "redisstore: no answer in time from redis:6379: 50ms passed")
		assert.Equal(t, map[string]Outage{"redis:6379": {begin, err}}, s.Stats().Outages)
		err = take()
		require.ErrorIs(t, err, ErrOpen)
		require.NotErrorIs(t, err, ErrTimeout)
		require.EqualError(t, err, "redisstore: the circuit breaker is open, because of: "+
			"redisstore: no answer in time from redis:6379: 50ms passed")

		close(f.Stuck) // the client says why, late
		synctest.Wait()
		assert.Equal(t, map[string]Outage{"redis:6379": {begin, errors.New("i/o timeout")}}, s.Stats().Outages)

		time.Sleep(time.Second)
		f.Hangs, f.Fail = false, nil
		require.NoError(t, take())
		assert.Empty(t, s.Stats().Outages)
		settle()
	})
}

// TestNoAnswer: if the client does not connect in time and says why, that is the error.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		refused := errors.New("dial tcp 127.0.0.1:6379: connect: connection refused")
		s, err := New(&dialingServer{f, refused})
		require.NoError(t, err)
		s.backlog = func() bool { return false }
		l, err := ratelimit.New(f.prog.Limit.Known.(ratelimit.Algorithm), ratelimit.WithStore(s), ratelimit.WithName("test"))
		require.NoError(t, err)
		f.Hangs = true
		_, err = l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, refused)
		require.NotErrorIs(t, err, ErrTimeout)
		assert.EqualValues(t, 1, s.Stats().OtherErrors)
		assert.ErrorIs(t, s.Stats().Outages["redis:6379"].Cause, refused)
		settle()
	})
}

// TestCheck: Check waits for its context and not for the timeout, and says why there is no reply.
func TestCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		conn := &dialingServer{fakeServer: f}
		s, err := New(conn)
		require.NoError(t, err)
		trip(s)
		f.Delay = time.Minute
		require.NoError(t, s.Check(t.Context()))
		assert.Empty(t, f.Values)

		f.Fail = errors.New("NOAUTH Authentication required.")
		require.ErrorIs(t, s.Check(t.Context()), f.Fail)

		f.Hangs, f.Stuck = true, make(chan struct{}) // it ignores contexts
		conn.dialed = errors.New("lookup redis: no such host")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		err = s.Check(ctx)
		assert.Equal(t, time.Second, time.Since(begin))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, conn.dialed)
		close(f.Stuck)
		require.ErrorIs(t, s.Check(nil), ratelimit.ErrInvalid) //nolint:staticcheck // it is refused
	})
}
