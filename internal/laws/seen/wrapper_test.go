package seen_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/iolimit"
)

// A denier wraps a limiter that grants, and denies in every method that grants events: those that
// the documentation of Limiter lists.
type denier struct {
	ratelimit.Limiter
	decision ratelimit.Decision
	err      error // with the decision
	waitErr  error // of Wait; nil to wait until the context ends
}

func (denier) Allow(string) bool       { return false }
func (denier) AllowN(string, int) bool { return false }

func (l denier) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return l.decision, l.err
}

func (l denier) TakeUpTo(context.Context, string, int) (int, ratelimit.Decision, error) {
	return 0, l.decision, l.err
}

func (l denier) TakeEach(_ context.Context, keys []string, _ int, out []ratelimit.Decision) ([]ratelimit.Decision, error) {
	return append(out, slices.Repeat([]ratelimit.Decision{l.decision}, len(keys))...), l.err
}

func (l denier) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

func (l denier) WaitN(ctx context.Context, _ string, _ int) error {
	if l.waitErr != nil {
		return l.waitErr
	}
	<-ctx.Done()
	return ctx.Err()
}

func (l denier) Reserve(context.Context, string, int, ...ratelimit.ReserveOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return nil, l.decision, l.err
}

func (l denier) Hold(context.Context, string, int, ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return nil, l.decision, l.err
}

// methodsThatGrant are called for one event of "k", and report whether it was granted.
var methodsThatGrant = map[string]func(ctx context.Context, l ratelimit.Limiter) bool{
	"Allow":  func(_ context.Context, l ratelimit.Limiter) bool { return l.Allow("k") },
	"AllowN": func(_ context.Context, l ratelimit.Limiter) bool { return l.AllowN("k", 1) },
	"Take": func(ctx context.Context, l ratelimit.Limiter) bool {
		d, _ := l.Take(ctx, "k", 1)
		return d.Allowed
	},
	"TakeUpTo": func(ctx context.Context, l ratelimit.Limiter) bool {
		granted, d, _ := l.TakeUpTo(ctx, "k", 3)
		return granted > 0 || d.Allowed
	},
	"TakeEach": func(ctx context.Context, l ratelimit.Limiter) bool {
		ds, _ := l.TakeEach(ctx, []string{"k"}, 1, nil)
		return ds[0].Allowed
	},
	"Wait":  func(ctx context.Context, l ratelimit.Limiter) bool { return l.Wait(ctx, "k") == nil },
	"WaitN": func(ctx context.Context, l ratelimit.Limiter) bool { return l.WaitN(ctx, "k", 1) == nil },
	"Reserve": func(ctx context.Context, l ratelimit.Limiter) bool {
		_, d, _ := l.Reserve(ctx, "k", 1)
		return d.Allowed
	},
	"Hold": func(ctx context.Context, l ratelimit.Limiter) bool {
		_, d, _ := l.Hold(ctx, "k", 1)
		return d.Allowed
	},
}

// methodsThatDoNotGrant need not be overridden by a limiter that refuses.
var methodsThatDoNotGrant = []string{"Charge", "Peek", "Reset", "Resume", "Describe"}

// TestWrapperOverridesAllThatGrants: the documentation of Limiter, which lists the methods that a
// limiter which refuses overrides, lists all of them.
func TestWrapperOverridesAllThatGrants(t *testing.T) {
	var all []string
	for m := range reflect.TypeFor[ratelimit.Limiter]().Methods() {
		all = append(all, m.Name)
	}
	grant := slices.Collect(maps.Keys(methodsThatGrant))
	assert.ElementsMatch(t, all, append(grant, methodsThatDoNotGrant...))
}

// TestNothingPassesAWrapper: whoever asks a limiter that refuses gets nothing.
func TestNothingPassesAWrapper(t *testing.T) {
	failure := errors.New("refused")
	for how, refuses := range map[string]denier{
		"for ever":      {decision: ratelimit.Decision{RetryAfter: ratelimit.Never}, waitErr: ratelimit.ErrNever},
		"for a minute":  {decision: ratelimit.Decision{RetryAfter: time.Minute}},
		"with an error": {err: failure, waitErr: failure},
	} {
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}))
		refuses.Limiter = l
		stillFull := func(t *testing.T, what string) {
			t.Helper()
			for _, k := range []string{"k", "192.0.2.1"} {
				d, err := l.Peek(t.Context(), k)
				require.NoError(t, err)
				assert.Equal(t, 1000, d.Remaining, "%s, refused %s", what, how)
			}
		}
		for name, passes := range waysIn(refuses) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				assert.False(t, passes(ctx), "%s, refused %s", name, how)
				stillFull(t, name)
			})
		}
	}
}

// waysIn are ways to ask l. They report whether anything passes.
func waysIn(l ratelimit.Limiter) map[string]func(ctx context.Context) bool {
	ways := make(map[string]func(ctx context.Context) bool)
	for name, method := range methodsThatGrant {
		ways[name] = func(ctx context.Context) bool { return method(ctx, l) }
		ways["Fallback: "+name] = func(ctx context.Context) bool {
			return method(ctx, ratelimit.Must(ratelimit.New(ratelimit.Unlimited{},
				ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
					return ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}, nil
				}),
				ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithName("test"),
				ratelimit.WithFailurePolicy(ratelimit.Fallback(l)), ratelimit.WithFailureLog(nil))))
		}
	}
	ways["Fallback: Hold, Waiting"] = func(ctx context.Context) bool {
		down := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1000, Window: time.Hour},
			ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithName("test"),
			ratelimit.WithFailurePolicy(ratelimit.Fallback(l)), ratelimit.WithFailureLog(nil)))
		_, d, _ := down.Hold(ctx, "k", 1, ratelimit.Waiting())
		return d.Allowed
	}
	open := func() ratelimit.Limiter { return ratelimit.Must(ratelimit.New(ratelimit.Unlimited{})) }
	bound := ratelimit.For(l, "k")
	for name, of := range map[string][]ratelimit.Bound{
		"alone": {bound}, "twice": {bound, bound},
		"before": {bound, ratelimit.For(open(), "k")}, "after": {ratelimit.For(fakes.Wrapped{Limiter: open()}, "k"), bound},
		"before another": {bound, ratelimit.For(fakes.Wrapped{Limiter: open()}, "k")},
	} {
		ways["TakeAll "+name] = func(ctx context.Context) bool {
			d, _ := ratelimit.TakeAll(ctx, 1, of...)
			return d.Allowed
		}
		ways["HoldAll "+name] = func(ctx context.Context) bool {
			r, d, _ := ratelimit.HoldAll(ctx, 1, of...)
			return r != nil || d.Allowed
		}
	}
	settles := httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 1 })
	for name, opts := range map[string][]httplimit.Option{
		"": nil, "WithSettleAtEnd": {settles}, "WithInFlight": {httplimit.WithInFlight()},
		"WithShaping":                  {httplimit.WithShaping(time.Second)},
		"WithShaping, WithSettleAtEnd": {httplimit.WithShaping(time.Second), settles},
		"WithShaping,WithInFlight":     {httplimit.WithShaping(time.Second), httplimit.WithInFlight()},
		"WithAlso":                     {httplimit.WithAlso(open(), func(*http.Request) (string, error) { return "k", nil }, "also")},
	} {
		ways["Middleware "+name] = func(ctx context.Context) bool {
			passed := false
			h := httplimit.Middleware(l, opts...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true }))
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			return passed
		}
	}
	ways["Transport"] = func(ctx context.Context) bool {
		base := roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://example.com", nil)
		r.RequestURI = ""
		t := &client.Transport{Limiter: l, Base: base, Key: func(*http.Request) (string, error) { return "k", nil }}
		resp, err := t.RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil
	}
	ways["Reader"] = func(ctx context.Context) bool {
		n, _ := iolimit.Reader(ctx, strings.NewReader("text"), bound).Read(make([]byte, 4))
		return n > 0
	}
	ways["Writer"] = func(ctx context.Context) bool {
		n, _ := iolimit.Writer(ctx, io.Discard, bound).Write([]byte("text"))
		return n > 0
	}
	return ways
}

// A roundTripper is a function that sends requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
