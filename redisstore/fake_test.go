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
)

// A fakeServer is a Redis server in this process, which knows the plain scripts of one limit.
type fakeServer struct {
	*fakeredis.Server
	prog *program // of its one limiter
}

func newFakeServer(t testing.TB, alg ratelimit.Algorithm) *fakeServer {
	of, err := fakes.NewLimit(alg)
	require.NoError(t, err)
	prog, err := newProgram(of)
	require.NoError(t, err)
	f := &fakeServer{fakeredis.New(), prog}
	for _, known := range []*script{prog.variantOf(plain), prog.variantOf(longer), replace} {
		f.Load(known.text)
	}
	return f
}

func (f *fakeServer) Do(ctx context.Context, c Command) (string, error) {
	return f.Server.Do(ctx, c.Words, c.Key)
}

// store returns another store on the server, and a limiter on that store.
func (f *fakeServer) store(t testing.TB, opts ...Option) (*Store, ratelimit.Limiter) {
	t.Helper()
	s, err := New(f, opts...)
	require.NoError(t, err)
	s.backlog = func() bool { return false } // bubbles' clocks stand still while anything runs
	l, err := ratelimit.New(f.prog.l.Known.(ratelimit.Algorithm), ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed))
	require.NoError(t, err)
	return s, l
}

// settle waits until everything in progress has ended.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}
