package fakes

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A Witness is an observer that remembers all observations.
type Witness struct {
	mu   sync.Mutex // protects seen
	seen []ratelimit.Observation
}

// Observe implements ratelimit.Observer.
func (w *Witness) Observe(_ context.Context, o ratelimit.Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, o)
}

// Answered returns the observations since the last call of Answered.
func (w *Witness) Answered() []ratelimit.Observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

// One returns the only observation since the last call of Answered or One.
func (w *Witness) One(t testing.TB) ratelimit.Observation {
	t.Helper()
	seen := w.Answered()
	require.Len(t, seen, 1)
	return seen[0]
}

// Observed returns a limiter of the name "api", its observer and its clock.
func Observed(
	t testing.TB,
	alg ratelimit.Algorithm,
	opts ...ratelimit.Option,
) (ratelimit.Limiter, *Witness, *clock.Mock) {
	t.Helper()
	w, clk := &Witness{}, clock.NewMock()
	all := []ratelimit.Option{
		ratelimit.WithName("api"), ratelimit.WithClock(clk), ratelimit.WithObserver(w.Observe),
	}
	l, err := ratelimit.New(alg, append(all, opts...)...)
	require.NoError(t, err)
	return l, w, clk
}

// Log returns a logger without times, and a function that returns the text logged since its last
// call.
func Log() (*slog.Logger, func() string) {
	var text logText
	h := slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: withoutTime})
	return slog.New(h), func() string {
		text.mu.Lock()
		defer text.mu.Unlock()
		defer text.Reset()
		return text.String()
	}
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// A logText is the text of a log. It has a lock, because timers log as well.
type logText struct {
	mu sync.Mutex // protects the Builder
	strings.Builder
}

func (t *logText) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Builder.Write(p)
}
