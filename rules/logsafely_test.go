package rules

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A frailHandler panics.
type frailHandler struct{ slog.Handler }

func (frailHandler) Enabled(context.Context, slog.Level) bool { return true }

func (frailHandler) Handle(context.Context, slog.Record) error { panic("a bug in a log handler") }

// logFrailly makes slog's handler a frailHandler until the test ends.
func logFrailly(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(frailHandler{}))
	t.Cleanup(func() { slog.SetDefault(before) })
}

// TestLoadWhoseLogPanics: a log handler that panics does not end the process from the goroutine that
// reports a failed load. The error is reported to the program, and returned.
func TestLoadWhoseLogPanics(t *testing.T) {
	logFrailly(t)
	src := new(table)
	reported := 0
	s, _ := newSet(t, src, WithOnError(func(error) { reported++ }))
	bad := Rule{ID: "a", Call: "/a"}
	for want, load := range map[string]func(){
		"no route to the database": func() { src.put(errors.New("no route to the database")) },
		"Limit is 0":               func() { src.put(nil, bad) },
	} {
		reported = 0
		load()
		assert.ErrorContains(t, s.Reload(t.Context()), want)
		assert.Equal(t, 1, reported, want)
	}
}

// TestLookupWhoseLogPanics: a log handler that panics does not end the process from the goroutine of
// a lookup.
func TestLookupWhoseLogPanics(t *testing.T) {
	logFrailly(t)
	synctest.Test(t, func(t *testing.T) {
		lookups := 0
		c, err := Cached(LookupFunc(func(context.Context, string) (ratelimit.Algorithm, error) {
			lookups++
			return ratelimit.FixedWindow{Limit: 0, Window: time.Second}, nil
		}))
		require.NoError(t, err)
		for i := range 3 {
			_, err = c.Limit(t.Context(), "key")
			assert.NoError(t, err, "the limiter's own limit is in force")
			synctest.Wait()
			assert.Equal(t, i+1, lookups)
			time.Sleep(time.Hour)
		}
	})
}
