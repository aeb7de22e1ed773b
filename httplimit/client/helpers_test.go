package client_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })

// serverOf returns a server on loopback that speaks proto.
func serverOf(t *testing.T, proto string, h http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handlers that panic
	if proto == "HTTP/2.0" {
		server.EnableHTTP2 = true
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

func body(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

// remaining returns how much the key 192.0.2.1 has left.
func remaining(t *testing.T, l ratelimit.Limiter) int {
	t.Helper()
	d, err := l.Peek(context.Background(), "192.0.2.1")
	require.NoError(t, err)
	return d.Remaining
}

// A nilLimiter panics if it is nil.
type nilLimiter struct{ ratelimit.Limiter }

// A flaky store fails while it is down.
type flaky struct {
	limit.States
	down bool
}

func (f *flaky) Open(name string, t *limit.Limit, timeout time.Duration) (_ limit.States, err error) {
	f.States, err = new(ratelimit.MemoryStore).Open(name, t, timeout)
	return f, err
}

func (f *flaky) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	if f.down {
		return step.Answer{}, errors.New("no route to the store")
	}
	return f.States.Apply(ctx, key, t, req)
}

// heeding returns what reads the field RateLimit, or nil.
func heeding(heed bool) func(*http.Response) (client.Quota, bool) {
	if heed {
		return client.RateLimit
	}
	return nil
}
