package httplimit_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
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

// tardy returns a store that is well, and whose answers come late: what it is asked happens all the
// same.
func tardy(away time.Duration) ratelimit.Store {
	db := &answersLate{fakes.NewMapDB(), away}
	db.Repeats = true
	return ratelimit.NewStore(db)
}

type answersLate struct {
	*fakes.MapDB
	away time.Duration
}

func (db *answersLate) CompareAndSwap(ctx context.Context, key string, old, state []byte, expires time.Time) (bool, error) {
	swapped, err := db.MapDB.CompareAndSwap(context.WithoutCancel(ctx), key, old, state, expires)
	time.Sleep(db.away)
	return swapped, errors.Join(err, ctx.Err())
}

// A client may choose the deadline of its request. A request whose deadline passes while a store is
// asked is over: it is not handled, spends nothing, and says nothing about the store, whatever the
// policy is.
func TestDeadline_PassesWhileAStoreIsAsked(t *testing.T) {
	const away, deadline = 60 * time.Millisecond, 20 * time.Millisecond
	two := ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour}
	settles := httplimit.WithSettleAtEnd(httplimit.ByCost)
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
			"open":     func(ratelimit.Limiter) ratelimit.FailurePolicy { return ratelimit.FailOpen() },
			"closed":   func(ratelimit.Limiter) ratelimit.FailurePolicy { return ratelimit.FailClosed() },
			"fallback": ratelimit.Fallback,
		} {
			for place, store := range map[string]func(time.Duration) ratelimit.Store{"far": far, "tardy": tardy} {
				name := name + ", " + place
				synctest.Test(t, func(t *testing.T) {
					var logged logText
					fallback := ratelimit.Must(ratelimit.New(two))
					l := ratelimit.Must(ratelimit.New(two, ratelimit.WithStore(store(away)), ratelimit.WithName("far"),
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
}

// A handler answers requests whose deadline has passed, and reads that from the Admission. Fields
// for another body are gone.
func TestWithRefusal_Deadline(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	h := httplimit.Middleware(l, httplimit.WithRefusal(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, _ := httplimit.VerdictOf(r.Context())
		assert.ErrorIs(t, a.Err, context.DeadlineExceeded)
		assert.False(t, a.Passed)
		assert.Equal(t, 503, a.Status())
		w.WriteHeader(504)
	})))(ok)
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	w := httptest.NewRecorder()
	w.Header().Set("ETag", `"1"`)
	h.ServeHTTP(w, from("192.0.2.1:1").WithContext(ctx))
	assert.Equal(t, 504, w.Code)
	assert.Empty(t, w.Header().Get("ETag"))
	assert.Equal(t, 1, remaining(t, l))
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
		}, httplimit.WithSettleAtEnd(httplimit.ByCost))
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

// Of a Gate in shadow, a request whose deadline passes meanwhile is handled, and settled like any other.
func TestDeadline_SettlesInShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour}
		measured := ratelimit.Must(ratelimit.New(two))
		tried := ratelimit.Must(ratelimit.New(two, ratelimit.WithStore(far(time.Second)), ratelimit.WithName("far")))
		ignore := func(ratelimit.Decision) {}
		gate, err := httplimit.NewGateOf(func(_ *http.Request, key string) ([]httplimit.Limit, error) {
			return []httplimit.Limit{
				{Name: "measured", Limiter: measured, Key: key},
				{Name: "tried", Limiter: tried, Key: key, Shadow: ignore},
			}, nil
		}, httplimit.WithSettleAtEnd(httplimit.ByCost), httplimit.WithShadow(1, func(_ *http.Request, d ratelimit.Decision) { ignore(d) }))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		a := gate.Admit(from("192.0.2.1:1").WithContext(ctx))
		require.Error(t, ctx.Err())
		require.True(t, a.Passed)
		assert.Equal(t, 1, remaining(t, measured))
		httplimit.Cost(a.Context(), 2)
		a.Done(200, 0)
		assert.Equal(t, 0, remaining(t, measured))
		time.Sleep(time.Minute) // until the store is not asked any more
	})
}

// A client that has sent all that it has to send, and waits for the answer, looks as if it had
// left. In memory its request is decided on all the same, without waiting. In a store it is
// refused.
func TestHalfClosed(t *testing.T) {
	two := ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour}
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		opts []httplimit.Option
		want []int // the statuses
	}{
		"take":   {two, nil, []int{200, 200, 429}},
		"settle": {two, []httplimit.Option{httplimit.WithSettleAtEnd(httplimit.ByCost)}, []int{200, 200, 429}},
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

// A client that closes its side of the connection while its request stands in line does not wait
// any more: perhaps it has left. Its place is free, and it reads that it is refused, and when to
// retry.
func TestHalfClosed_WhileItWaits(t *testing.T) {
	settles := httplimit.WithSettleAtEnd(httplimit.ByCost)
	for name, tt := range map[string]struct {
		alg        ratelimit.Algorithm
		opts       []httplimit.Option
		retryAfter string // behind the second request, if its turn is known
	}{
		"leaky bucket":    {ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 6}, nil, "60"},
		"token bucket":    {ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1), Burst: 1}, nil, "120"},
		"window":          {ratelimit.SlidingLog{Limit: 1, Window: time.Minute}, nil, "120"},
		"window, settled": {ratelimit.SlidingLog{Limit: 1, Window: time.Minute}, []httplimit.Option{settles}, "60"},
		"flight":          {ratelimit.InFlight{Limit: 1, Timeout: time.Minute}, nil, "1"},
		"flight, settled": {ratelimit.InFlight{Limit: 1, Timeout: time.Minute}, []httplimit.Option{settles}, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(tt.alg))
				var handled atomic.Int64
				h := httplimit.Middleware(l, append(tt.opts, httplimit.WithShaping(time.Hour))...)(
					http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled.Add(1); time.Sleep(time.Minute) }))
				go serve(h, from("192.0.2.1:1"))
				synctest.Wait()
				ctx, closeSide := context.WithCancel(t.Context())
				first, second := make(chan *http.Response, 1), make(chan *http.Response, 1)
				go func() { first <- serve(h, from("192.0.2.1:1").WithContext(ctx)) }()
				synctest.Wait()
				go func() { second <- serve(h, from("192.0.2.1:1")) }()
				synctest.Wait()
				closeSide()
				synctest.Wait()
				refused := <-first
				assert.Equal(t, 429, refused.StatusCode)
				assert.Equal(t, tt.retryAfter, refused.Header.Get("Retry-After"))
				assert.Contains(t, refused.Header.Get("RateLimit"), `"default";r=0;t=`)
				assert.Contains(t, body(t, refused), "Not enough of the limit is left for now.")
				time.Sleep(time.Minute + time.Second)
				assert.EqualValues(t, 2, handled.Load(), "the second has moved up")
				assert.Equal(t, 200, (<-second).StatusCode)
			})
		})
	}
}

// A client that closes its side of the connection when its turn has come is served, in memory.
func TestHalfClosed_WhenItsTurnComes(t *testing.T) {
	for name, opts := range map[string][]httplimit.Option{
		"taken": nil, "held": {httplimit.WithSettleAtEnd(httplimit.ByCost)},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, closeSide := context.WithCancel(t.Context())
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1), Burst: 1},
				ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
					if o.Waited > 0 {
						closeSide()
					}
				})))
			h := httplimit.Middleware(l, append(opts, httplimit.WithShaping(time.Hour))...)(ok)
			require.True(t, l.Allow("192.0.2.1"))
			resp := serve(h, from("192.0.2.1:1").WithContext(ctx))
			assert.Equal(t, 200, resp.StatusCode, name)
			assert.Equal(t, `"default";r=0;t=60`, resp.Header.Get("RateLimit"), name)
			require.Error(t, ctx.Err())
		})
	}
}

// A request that cannot end while its limits are asked is not held: that would take two calls of a
// store.
func TestDeadline_HoldsOnlyWhatMayEnd(t *testing.T) {
	one := ratelimit.FixedWindow{Limit: 100, Window: time.Hour}
	remote := func(opts ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(one, append(opts, ratelimit.WithName("far"), ratelimit.WithStore(fakes.NewMapDB().Store()))...))
	}
	for name, tt := range map[string]struct {
		limiter  ratelimit.Limiter
		deadline time.Duration // 0 for none
		opts     []httplimit.Option
		holds    bool
	}{
		"no deadline":         {limiter: remote()},
		"a second to answer":  {limiter: remote(), deadline: 1900 * time.Millisecond, holds: true},
		"more than that":      {limiter: remote(), deadline: 2100 * time.Millisecond},
		"less time to answer": {limiter: remote(ratelimit.WithStoreTimeout(10 * time.Millisecond)), deadline: 100 * time.Millisecond},
		"for ever to answer":  {limiter: remote(ratelimit.WithStoreTimeout(math.MaxInt64)), deadline: time.Minute, holds: true},
		"waits for ever":      {limiter: remote(), deadline: time.Minute, opts: []httplimit.Option{httplimit.WithShaping(math.MaxInt64)}, holds: true},
		"asked again after a delay": {
			limiter: remote(), deadline: 16900 * time.Millisecond,
			opts: []httplimit.Option{httplimit.WithShaping(9 * time.Second)}, holds: true,
		},
		"more than that, delayed": {limiter: remote(), deadline: 17100 * time.Millisecond, opts: []httplimit.Option{httplimit.WithShaping(9 * time.Second)}},
		"in memory":               {limiter: ratelimit.Must(ratelimit.New(one)), deadline: time.Second},
		"may wait until then": {
			limiter: remote(), deadline: 10 * time.Second,
			opts: []httplimit.Option{httplimit.WithShaping(9 * time.Second)}, holds: true,
		},
		"of a limiter not from here": {limiter: fakes.Hidden{Limiter: remote()}, deadline: time.Minute, holds: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := &noted{Limiter: tt.limiter}
			gate, err := httplimit.NewGate(calls, tt.opts...)
			require.NoError(t, err, name)
			ctx := t.Context()
			if tt.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.deadline)
				defer cancel()
			}
			a := gate.Admit(from("192.0.2.1:1").WithContext(ctx))
			require.True(t, a.Passed, name)
			assert.Equal(t, tt.holds, calls.held != nil, name)
			a.Done(200, 0)
			if calls.held != nil {
				_, err := calls.held.Settle(t.Context(), 0)
				assert.ErrorIs(t, err, ratelimit.ErrEnded, "%s: it is spent once the request is done", name)
			}
			assert.Equal(t, 99, remaining(t, tt.limiter), name)
		})
	}
}

// A noted limiter notes what it holds.
type noted struct {
	ratelimit.Limiter
	held *ratelimit.Reservation
}

func (l *noted) Hold(ctx context.Context, key string, n int, opts ...ratelimit.HoldOption) (r *ratelimit.Reservation, d ratelimit.Decision, err error) {
	l.held, d, err = l.Limiter.Hold(ctx, key, n, opts...)
	return l.held, d, err
}
