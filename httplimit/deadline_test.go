package httplimit_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// far returns a store that is well, and a round trip away.
func far(away time.Duration) ratelimit.Store {
	db := &fakes.Strange{MapDB: fakes.NewMapDB(), Call: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-time.After(away):
		}
		return ctx.Err()
	}}
	db.Repeats = true
	return db.Store()
}

// A client may choose the deadline of its request. A request whose deadline passes while a store is asked
// is over: it is not handled, spends nothing, and says nothing about the store, whatever the policy is.
func TestDeadline_PassesWhileAStoreIsAsked(t *testing.T) {
	const away, deadline = 60 * time.Millisecond, 20 * time.Millisecond
	two := ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour}
	settles := httplimit.WithSettle(httplimit.ByCost)
	also := func() httplimit.Option {
		return httplimit.WithAlso(ratelimit.Must(ratelimit.New(two)), key.Everybody(), "also")
	}
	for name, opts := range map[string]func() []httplimit.Option{
		"take":            func() []httplimit.Option { return nil },
		"hold":            func() []httplimit.Option { return []httplimit.Option{settles} },
		"in flight":       func() []httplimit.Option { return []httplimit.Option{httplimit.WithInFlight()} },
		"shaped":          func() []httplimit.Option { return []httplimit.Option{httplimit.WithShaping(time.Second)} },
		"shaped and held": func() []httplimit.Option { return []httplimit.Option{httplimit.WithShaping(time.Second), settles} },
		"also":            func() []httplimit.Option { return []httplimit.Option{also()} },
		"held, also":      func() []httplimit.Option { return []httplimit.Option{also(), settles} },
	} {
		for policy, of := range map[string]func(ratelimit.Limiter) ratelimit.FailurePolicy{
			"open":     func(ratelimit.Limiter) ratelimit.FailurePolicy { return ratelimit.FailOpen },
			"closed":   func(ratelimit.Limiter) ratelimit.FailurePolicy { return ratelimit.FailClosed },
			"fallback": ratelimit.Fallback,
		} {
			synctest.Test(t, func(t *testing.T) {
				var logged logText
				fallback := ratelimit.Must(ratelimit.New(two))
				l := ratelimit.Must(ratelimit.New(two, ratelimit.WithStore(far(away)), ratelimit.WithName("far"),
					ratelimit.WithFailurePolicy(of(fallback)), ratelimit.WithFailureLog(slog.New(slog.NewTextHandler(&logged, nil)))))
				handled := 0
				report := httplimit.WithStoreError(func(_ *http.Request, err error) { assert.NoError(t, err, "%s, %s", name, policy) })
				h := httplimit.Middleware(l, append(opts(), report)...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ }))
				ask := func(deadline time.Duration) int {
					ctx, cancel := context.WithTimeout(t.Context(), deadline)
					defer cancel()
					return serve(h, from("192.0.2.1:1").WithContext(ctx)).StatusCode
				}
				for range 5 {
					assert.Equal(t, 503, ask(deadline), "%s, %s", name, policy)
				}
				time.Sleep(time.Minute) // until nothing is under way
				assert.Zero(t, handled, "%s, %s", name, policy)
				assert.Equal(t, 2, remaining(t, l), "%s, %s", name, policy)
				assert.Equal(t, 2, remaining(t, fallback), "%s, %s", name, policy)
				assert.Empty(t, logged.String(), "%s, %s", name, policy)

				assert.Equal(t, 200, ask(time.Hour), "%s, %s", name, policy)
			})
		}
	}
}

// A limit that refuses nobody is asked after the others. The deadline may pass meanwhile.
func TestDeadline_PassesInShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour}
		enforced := ratelimit.Must(ratelimit.New(two))
		tried := ratelimit.Must(ratelimit.New(two, ratelimit.WithStore(far(time.Second)), ratelimit.WithName("far")))
		gate, err := httplimit.NewGateOf(func(_ *http.Request, key string) ([]httplimit.Limit, error) {
			return []httplimit.Limit{
				{Name: "enforced", Limiter: enforced, Key: key},
				{Name: "tried", Limiter: tried, Key: key, Shadow: func(ratelimit.Decision) { t.Error("it would not refuse") }},
			}, nil
		}, httplimit.WithSettle(httplimit.ByCost))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		a := gate.Admit(from("192.0.2.1:1").WithContext(ctx))
		assert.False(t, a.Passed)
		assert.ErrorIs(t, a.Err, context.DeadlineExceeded)
		assert.Equal(t, 2, remaining(t, enforced))
		time.Sleep(time.Minute) // until the store is not asked any more
	})
}

// A client that has sent all that it has to send, and waits for the answer, looks as if it had left. In
// memory its request is decided on all the same. In a store it is refused.
func TestHalfClosed(t *testing.T) {
	two := ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour}
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		opts []httplimit.Option
		want []int // the statuses
	}{
		"take":   {two, nil, []int{200, 200, 429}},
		"settle": {two, []httplimit.Option{httplimit.WithSettle(httplimit.ByCost)}, []int{200, 200, 429}},
		"shaped": {two, []httplimit.Option{httplimit.WithShaping(48 * time.Hour)}, []int{200, 200, 429}},
		"flight": {ratelimit.InFlight{Limit: 1, Timeout: time.Hour}, nil, []int{200, 200, 200}},
		"also": {two, []httplimit.Option{
			httplimit.WithAlso(ratelimit.Must(ratelimit.New(two)), key.Everybody(), "also")}, []int{200, 200, 429}},
		"far": {two, []httplimit.Option{httplimit.WithAlso(ratelimit.Must(ratelimit.New(two, ratelimit.WithStore(far(0)), ratelimit.WithName("far"))),
			key.Everybody(), "also")}, []int{503, 503, 503}},
	} {
		l, _ := limiter(t, tt.alg)
		h := httplimit.Middleware(l, tt.opts...)(ok)
		ctx, leave := context.WithCancel(t.Context())
		leave()
		for i, want := range tt.want {
			assert.Equal(t, want, serve(h, from("192.0.2.1:1").WithContext(ctx)).StatusCode, "%s, request %d", name, i)
		}
	}
}
