package redisstore

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// A denial is repeated without a call, and is correct until the instant at which it ends.
func TestDenialCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 3})
		f.Skew = 77 * time.Hour
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t, WithDenialCache(time.Hour))
		ctx := t.Context()
		require.True(t, l.AllowN("k", 3))
		d, err := l.Take(ctx, "k", 1)
		require.NoError(t, err)
		require.Equal(t, 495*time.Millisecond-5*time.Millisecond, d.RetryAfter, "counted from the server's reading")
		asked := f.Calls()
		for range 100 {
			time.Sleep(4 * time.Millisecond)
			d, err = l.Take(ctx, "k", 1)
			require.NoError(t, err)
			require.False(t, d.Allowed)
		}
		assert.Equal(t, asked, f.Calls())
		assert.EqualValues(t, 100, s.Stats().Cached)
		// A caller that retries after RetryAfter is admitted.
		time.Sleep(d.RetryAfter)
		assert.True(t, l.Allow("k"))
	})
}

// If the store decides by the limiter's clock, a round trip leaves no doubt of the time: a denial
// is repeated until the instant at which it ends.
func TestDenialCacheByTheLimitersClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1})
		f.Delay = 10 * time.Millisecond
		_, l := f.store(t, WithLimiterClock())
		require.True(t, l.Allow("k"))
		asked := time.Now()
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		calls := f.Calls()
		time.Sleep(time.Until(asked.Add(d.RetryAfter - time.Microsecond)))
		assert.False(t, l.Allow("k"))
		assert.Equal(t, calls, f.Calls())
		time.Sleep(time.Microsecond)
		assert.True(t, l.Allow("k"))
	})
}

// A request for fewer events than were denied is answered from the same state.
func TestDenialCacheOfFewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, alg := range []ratelimit.Algorithm{
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)},
			ratelimit.SlidingLog{Limit: 10, Window: time.Hour},
		} {
			f := newFakeServer(t, alg)
			_, l := f.store(t)
			require.True(t, l.AllowN("k", 8))
			d, err := l.Take(t.Context(), "k", 5)
			require.NoError(t, err)
			require.False(t, d.Allowed)
			require.Equal(t, 2, d.Remaining)
			assert.True(t, l.AllowN("k", 2), "what remains is granted")
			d, err = l.Take(t.Context(), "k", 5)
			require.NoError(t, err)
			assert.Equal(t, 0, d.Remaining, "the cached state includes what this process has spent")
			d, err = l.Take(t.Context(), "k", 11)
			require.NoError(t, err)
			assert.Equal(t, ratelimit.Never, d.RetryAfter)
		}
	})
}

// A denial is forgotten at its maximal age, on a reset and on a cancellation.
func TestDenialCacheEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour})
		_, l := f.store(t)
		_, other := f.store(t) // another process
		ctx := t.Context()
		require.True(t, l.Allow("k"))
		require.False(t, l.Allow("k"))
		require.NoError(t, l.Reset(ctx, "k"))
		assert.True(t, l.Allow("k"), "it was reset here")

		require.False(t, l.Allow("k"))
		require.NoError(t, other.Reset(ctx, "k"))
		time.Sleep(time.Second - time.Millisecond)
		assert.False(t, l.Allow("k"), "a reset elsewhere goes unnoticed for a second, by default")
		time.Sleep(2 * time.Millisecond)
		assert.True(t, l.Allow("k"), "then it is noticed")

		r, _, err := l.Reserve(ctx, "k", 1)
		require.NoError(t, err)
		require.False(t, l.Allow("k"))
		r.Cancel()
		d, err := l.Peek(ctx, "k")
		require.NoError(t, err)
		assert.False(t, d.Allowed)
		asked := f.Calls()
		require.False(t, l.Allow("k"))
		assert.Equal(t, asked+1, f.Calls(), "after a cancellation a call is sent")
	})
}

// What another process gives back when its lease ends is noticed within a second as well.
func TestDenialAndOthersLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 400, Window: 24 * time.Hour})
		_, l := f.store(t)
		leasing, other := f.store(t, WithLease(40, time.Hour))
		for leasing.Stats().Leased == 0 {
			require.True(t, other.Allow("k"))
		}
		for l.Allow("k") {
			continue
		}
		require.NoError(t, leasing.Close(t.Context()))
		assert.False(t, l.Allow("k"))
		time.Sleep(time.Second + time.Millisecond)
		assert.True(t, l.Allow("k"))
	})
}

// A denial in transit when the key is reset is not kept.
func TestDenialOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
		s, l := f.store(t)
		require.True(t, l.Allow("k"))
		f.Delay = 10 * time.Millisecond
		denied := make(chan bool)
		go func() { denied <- l.Allow("k") }()
		time.Sleep(7 * time.Millisecond) // the answer is in transit
		s.denials.forget(nameOf(nameIn(f)))
		require.False(t, <-denied)
		f.Set(func() { clear(f.Values) })
		assert.True(t, l.Allow("k"))
	})
}

// nameIn returns the name of the only key.
func nameIn(f *fakeServer) (name string) {
	f.Set(func() {
		for only := range f.Values {
			name = only
		}
	})
	return name
}

// With CountDenied, or a cache of duration 0, each denial takes a call.
func TestNoDenialCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			alg  ratelimit.Algorithm
			opts []Option
		}{
			{ratelimit.SlidingLog{Limit: 1, Window: time.Hour, CountDenied: true}, nil},
			{ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, []Option{WithDenialCache(0)}},
		} {
			f := newFakeServer(t, tt.alg)
			_, l := f.store(t, tt.opts...)
			for range 10 {
				l.Allow("k")
			}
			assert.Equal(t, 10, f.Calls(), "%+v", tt.alg)
		}
	})
}

// Memory is bounded, no matter which keys are used.
func TestRecent(t *testing.T) {
	var r recent[int]
	key := func(i int) string { return string(rune(i)) }
	for i := range 10 * maxRecent {
		r.put(key(i), i, 0, time.Second)
		got, ok := r.get(key(i))
		require.True(t, ok)
		require.Equal(t, i, got)
		require.LessOrEqual(t, len(r.young)+len(r.elder), 2*maxRecent)
	}
	_, ok := r.get(key(0))
	assert.False(t, ok, "it came before many others")
	r.put("old", 1, time.Minute, time.Second)
	r.put("new", 2, time.Hour, time.Second)
	r.put("newer", 3, 2*time.Hour, time.Second)
	_, ok = r.get("old")
	assert.False(t, ok, "it came long ago")
	r.drop("new")
	_, ok = r.get("new")
	assert.False(t, ok)
}

// A denial from the cache does not show that Redis answers again: the log of the limiter says so
// only after a call.
func TestDenialCacheIsNoAnswerOfRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
		s, _ := f.store(t, WithDenialCache(time.Hour), WithKeyTags())
		logger, logged := fakes.Log()
		l, err := ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithStore(s),
			ratelimit.WithName("test"), ratelimit.WithFailureLog(logger))
		require.NoError(t, err)
		for range 2 {
			l.Allow("{t}k")
			l.Allow("{t}l")
		}
		f.Fail = errors.New("EOF")
		_, err = l.Take(ctx, "{t}m", 1)
		require.ErrorIs(t, err, f.Fail)
		require.Contains(t, logged(), "decisions=1")
		time.Sleep(time.Second)
		asked := f.Calls()
		_, err = l.Take(ctx, "{t}k", 1)
		require.NoError(t, err)
		_, err = l.TakeEach(ctx, []string{"{t}k", "{t}l"}, 1, nil)
		require.NoError(t, err)
		_, err = ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "{t}k"), ratelimit.For(l, "{t}l"))
		require.NoError(t, err)
		require.Equal(t, asked, f.Calls())
		assert.Empty(t, logged())
		f.Fail = nil
		_, err = l.TakeEach(ctx, []string{"{t}m"}, 1, nil)
		require.NoError(t, err)
		assert.Contains(t, logged(), "the store answers again\" limiter=test after=1s decisions=1")
	})
}
