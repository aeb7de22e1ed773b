package redisstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakeredis"
	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// A fake has the name Server in its package, which a Conn has as a method.
type fake = fakeredis.Server

// A fakeServer is a Redis server in this process, which knows the plain scripts of one limit.
type fakeServer struct {
	*fake
	plainConn
	prog *program // of its one limiter
}

func newFakeServer(t testing.TB, alg ratelimit.Algorithm) *fakeServer {
	of, err := fakes.NewLimit(alg)
	require.NoError(t, err)
	prog, err := newProgram(of)
	require.NoError(t, err)
	f := &fakeServer{fake: fakeredis.New(), prog: prog}
	known := []*script.Script{replace}
	if prog.HasScript() {
		known = append(known, prog.For(script.Plain), prog.For(script.Longer))
	}
	for _, known := range known {
		f.Load(known.Text)
	}
	return f
}

func (f *fakeServer) Do(ctx context.Context, commands []Command) []Reply {
	asked := make([]fakeredis.Command, len(commands))
	for i, c := range commands {
		asked[i] = fakeredis.Command(c)
	}
	replies := make([]Reply, len(commands))
	for i, reply := range f.fake.Do(ctx, asked) {
		replies[i] = Reply(reply)
	}
	return replies
}

// A plainConn has the methods of a Conn besides Do: there is one server, of whose connections
// nothing is known.
type plainConn struct{}

func (plainConn) Server(string) (name string, known bool) { return "", true }
func (plainConn) OneServer() bool                         { return false }
func (plainConn) NoAnswer(string) error                   { return nil }
func (plainConn) Redial(context.Context, string)          {}

// errorsOf returns replies that have an error.
func errorsOf(commands []Command, err error) []Reply {
	replies := make([]Reply, len(commands))
	for i := range replies {
		replies[i].Err = err
	}
	return replies
}

// store returns another store on the server, and a limiter on that store.
func (f *fakeServer) store(t testing.TB, opts ...Option) (*Store, ratelimit.Limiter) {
	t.Helper()
	return f.storeThrough(t, f, opts...)
}

// storeThrough returns another store that asks the server through conn, and a limiter on that store.
func (f *fakeServer) storeThrough(
	t testing.TB, conn Conn, opts ...Option,
) (*Store, ratelimit.Limiter) {
	t.Helper()
	patient := WithBreaker(100, 500*time.Millisecond) // so that tests can fail more often
	s, err := New(conn, append([]Option{patient}, opts...)...)
	require.NoError(t, err)
	s.backlog = func() bool { return false } // bubbles' clocks stand still while anything runs
	l, err := ratelimit.New(f.prog.Limit.Known.(ratelimit.Algorithm), ratelimit.WithStore(s),
		ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	require.NoError(t, err)
	return s, l
}

// settle waits until everything in progress has ended.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}
