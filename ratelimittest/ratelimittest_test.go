package ratelimittest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

var ctx = context.Background()

// told records what a limiter is asked, and decides.
type told struct {
	calls []string
	d     ratelimit.Decision
}

func (f *told) limiter() ratelimit.Limiter {
	return ratelimittest.New(func(call ratelimit.Call, key string, n int) ratelimit.Decision {
		f.calls = append(f.calls, fmt.Sprint(call, " ", key, " ", n))
		return f.d
	})
}

// The function is asked on every path.
func TestNew(t *testing.T) {
	granted := ratelimit.Decision{Allowed: true, Limit: 5, Remaining: 3}
	refused := ratelimit.Decision{Limit: 5, RetryAfter: time.Minute}
	open := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: 24 * time.Hour}))
	key := func(*http.Request) (string, error) { return "k", nil }
	serve := func(l ratelimit.Limiter, opts ...httplimit.Option) bool {
		w := httptest.NewRecorder()
		opts = append(opts, httplimit.WithKey(key))
		h := httplimit.Middleware(l, opts...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w.Code == http.StatusOK
	}
	for name, tt := range map[string]struct {
		do   func(l ratelimit.Limiter) bool
		want []string // the calls if they are granted; if not, only the first
	}{
		"Allow": {func(l ratelimit.Limiter) bool { return l.Allow("k") }, []string{"allow k 1"}},
		"Take":  {func(l ratelimit.Limiter) bool { d, _ := l.Take(ctx, "k", 2); return d.Allowed }, []string{"take k 2"}},
		"Peek":  {func(l ratelimit.Limiter) bool { d, _ := l.Peek(ctx, "k"); return d.Allowed }, []string{"take k 1"}},
		"TakeEach": {func(l ratelimit.Limiter) bool {
			ds, _ := l.TakeEach(ctx, []string{"k"}, 1, nil)
			return ds[0].Allowed
		}, []string{"take k 1"}},
		"TakeUpTo": {func(l ratelimit.Limiter) bool {
			granted, _, _ := l.TakeUpTo(ctx, "k", 3)
			return granted == 3
		}, []string{"take_up_to k 3"}},
		"Hold and Settle": {func(l ratelimit.Limiter) bool {
			r, _, _ := l.Hold(ctx, "k", 2)
			if r != nil {
				_, _ = r.Settle(ctx, 7)
			}
			return r != nil
		}, []string{"hold k 2", "settle k 7"}},
		"Wait":          {func(l ratelimit.Limiter) bool { return l.Wait(ctx, "k") == nil }, []string{"wait k 1"}},
		"Hold, waiting": {func(l ratelimit.Limiter) bool { r, _, _ := l.Hold(ctx, "k", 3, ratelimit.Waiting()); return r != nil }, []string{"wait k 3"}},
		"Reserve and Cancel": {func(l ratelimit.Limiter) bool {
			r, _, _ := l.Reserve(ctx, "k", 3, ratelimit.HoldFor(time.Minute))
			if r != nil {
				r.Cancel()
			}
			return r != nil
		}, []string{"reserve k 3", "settle k 0"}},
		"Reserve, within": {func(l ratelimit.Limiter) bool {
			r, _, _ := l.Reserve(ctx, "k", 3, ratelimit.Within(0))
			return r != nil
		}, []string{"reserve k 3"}},
		"Charge": {func(l ratelimit.Limiter) bool { d, _ := l.Charge(ctx, "k", 3); return d.Allowed }, []string{"charge k 3"}},
		"Bound": {func(l ratelimit.Limiter) bool {
			return ratelimit.For(l, "k").Limiter().Allow(ratelimit.For(l, "k").Key())
		}, []string{"allow k 1"}},
		"TakeAll": {func(l ratelimit.Limiter) bool {
			d, _ := ratelimit.TakeAll(ctx, 1, ratelimit.For(open, "o"), ratelimit.For(l, "k"))
			return d.Allowed
		}, []string{"take k 1"}},
		"HoldAll that another refuses": {func(l ratelimit.Limiter) bool {
			other := ratelimittest.New(func(ratelimit.Call, string, int) ratelimit.Decision { return ratelimit.Decision{} })
			_, d, _ := ratelimit.HoldAll(ctx, 9, ratelimit.For(l, "k"), ratelimit.For(other, "p"))
			return !d.Allowed
		}, []string{"hold k 9", "settle k 0"}},
		"HoldAll": {func(l ratelimit.Limiter) bool {
			r, _, _ := ratelimit.HoldAll(ctx, 1, ratelimit.For(open, "o"), ratelimit.For(l, "k"))
			return r != nil
		}, []string{"hold k 1"}},
		"Middleware":  {func(l ratelimit.Limiter) bool { return serve(l) }, []string{"take k 1"}},
		"WithShaping": {func(l ratelimit.Limiter) bool { return serve(l, httplimit.WithShaping(time.Second)) }, []string{"wait k 1"}},
		"WithSettleAtEnd": {func(l ratelimit.Limiter) bool {
			return serve(l, httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 4 }))
		}, []string{"hold k 1", "settle k 4"}},
		"WithAlso": {func(l ratelimit.Limiter) bool {
			return serve(open, httplimit.WithAlso(l, key, "also"))
		}, []string{"take k 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &told{d: granted}
			assert.True(t, tt.do(f.limiter()))
			assert.Equal(t, tt.want, f.calls[:min(len(f.calls), len(tt.want))])
			f = &told{d: refused}
			if got := tt.do(f.limiter()); name != "HoldAll that another refuses" {
				assert.False(t, got)
			}
			assert.Equal(t, tt.want[0], f.calls[0])
		})
	}
}

// Errors, and durations that a refusal and a grant have.
func TestNewWaits(t *testing.T) {
	f := &told{d: ratelimit.Decision{Allowed: true, Delay: time.Hour}}
	l := f.limiter()
	r, _, err := l.Reserve(ctx, "k", 1)
	require.NoError(t, err)
	assert.Greater(t, r.Delay(), 59*time.Minute)
	for after, want := range map[time.Duration]error{
		time.Second:     context.DeadlineExceeded,
		ratelimit.Never: ratelimit.ErrNever,
	} {
		f.d = ratelimit.Decision{RetryAfter: after}
		assert.ErrorIs(t, l.Wait(ctx, "k"), want)
		r, d, err := l.Reserve(ctx, "k", 1)
		assert.NoError(t, err, "a denial is not an error")
		assert.Nil(t, r)
		assert.Equal(t, f.d, d)
	}
	asked := len(f.calls)
	_, err = l.Take(ctx, "k", -1)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.Nil(t, l.Describe().Algorithm)
	assert.Len(t, f.calls, asked, "a negative n is not asked for")
}

// TakeUpTo asks once more for what remains, if anything does.
func TestNewOfWhatRemains(t *testing.T) {
	for remaining, want := range map[int][]string{
		3: {"take_up_to k 9", "take_up_to k 3"},
		0: {"take_up_to k 9"},
	} {
		var calls []string
		l := ratelimittest.New(func(call ratelimit.Call, key string, n int) ratelimit.Decision {
			calls = append(calls, fmt.Sprint(call, " ", key, " ", n))
			return ratelimit.Decision{Allowed: n <= remaining, Remaining: remaining}
		})
		granted, d, err := l.TakeUpTo(ctx, "k", 9)
		require.NoError(t, err)
		assert.Equal(t, remaining > 0, d.Allowed)
		assert.Equal(t, remaining, granted)
		assert.Equal(t, want, calls)
	}
}

// Which calls of no events ask the function.
func TestNewOfNoEvents(t *testing.T) {
	f := &told{d: ratelimit.Decision{Allowed: true}}
	l := f.limiter()
	require.NoError(t, l.WaitN(ctx, "k", 0))
	require.Empty(t, f.calls)
	_, _, err := l.Reserve(ctx, "k", 0)
	require.NoError(t, err)
	_, err = l.Charge(ctx, "k", 0)
	require.NoError(t, err)
	require.Equal(t, []string{"hold k 0", "charge k 0"}, f.calls)
}

func TestNewWithoutFunction(t *testing.T) {
	assert.PanicsWithError(t, "ratelimittest: New's decide is nil: it must be a function", func() { ratelimittest.New(nil) })
}
