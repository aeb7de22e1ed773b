package decide_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// The tests in this file check what TakeEach promises beyond a loop of Take. TestEachIsALoop compares
// it with a loop.

func TestEachAppends(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithClock(stepclock.New())))
	out := []ratelimit.Decision{{Limit: 77}}
	out, err := l.TakeEach(t.Context(), []string{"a", "b", "a", "a"}, 1, out)
	require.NoError(t, err)
	var allowed []bool
	for _, d := range out[1:] {
		allowed = append(allowed, d.Allowed)
	}
	assert.Equal(t, 77, out[0].Limit)
	assert.Equal(t, []bool{true, true, true, false}, allowed)

	out, err = l.TakeEach(t.Context(), nil, 1, out[:1])
	require.NoError(t, err)
	assert.Len(t, out, 1)
}

// If n is negative or the context has ended, TakeEach asks for no key, whatever the limiter is.
func TestEachOfNothing(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	limit := ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}
	for name, l := range map[string]ratelimit.Limiter{
		"memory":  ratelimit.Must(ratelimit.New(limit)),
		"log":     ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 2, Window: time.Hour})),
		"each":    ratelimit.Must(ratelimit.New(limit, ratelimit.WithStore(&fakes.EachStore{}), ratelimit.WithName("test"))),
		"loop":    ratelimit.Must(ratelimit.New(limit, ratelimit.WithStore(fakes.NewMapDB().Store()), ratelimit.WithName("test"))),
		"wrapped": struct{ ratelimit.Limiter }{ratelimit.Must(ratelimit.New(limit))},
	} {
		for _, tt := range []struct {
			ctx  context.Context
			n    int
			want error
		}{{t.Context(), -1, ratelimit.ErrInvalid}, {ended, 1, context.Canceled}, {nil, 1, ratelimit.ErrInvalid}} {
			out, err := l.TakeEach(tt.ctx, []string{"a", "b"}, tt.n, nil)
			assert.ErrorIs(t, err, tt.want, name)
			assert.Equal(t, make([]ratelimit.Decision, 2), out, name)
		}
		out, err := l.TakeEach(t.Context(), []string{"a", "b"}, 2, nil)
		require.NoError(t, err)
		assert.True(t, out[0].Allowed && out[1].Allowed, name)
	}
}

var errEach = errors.New("this key is down")

// If the store fails for some keys, the policy decides on those, and if a lookup fails, the limit
// of New; the store decides on the others, as in a loop.
func TestEachFailures(t *testing.T) {
	errLookup := errors.New("no such plan")
	down := func(key string) error {
		if strings.HasPrefix(key, "down") {
			return errEach
		}
		return nil
	}
	lookup := func(_ context.Context, key string) (ratelimit.Algorithm, error) {
		switch {
		case strings.HasPrefix(key, "unknown"):
			return nil, errLookup
		case strings.HasPrefix(key, "gold"):
			return ratelimit.FixedWindow{Limit: 9, Window: time.Hour}, nil
		}
		return nil, nil
	}
	keys := []string{"unknown 1", "a", "down 1", "gold", "down 1", "down 2", "unknown 1", "a", "a", "gold"}
	for name, policy := range map[string]func() ratelimit.FailurePolicy{
		"open":   ratelimit.FailOpen,
		"closed": ratelimit.FailClosed,
		"fallback": func() ratelimit.FailurePolicy {
			return ratelimit.Fallback(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithClock(stepclock.New()))))
		},
	} {
		limiter := func(s ratelimit.Store) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)},
				ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithLimits(lookup), ratelimit.WithFailureLog(nil),
				ratelimit.WithFailurePolicy(policy()), ratelimit.WithClock(stepclock.New())))
		}
		s := &fakes.EachStore{Down: down}
		each, loop := limiter(s), limiter(&fakes.EachStore{Down: down})
		out, err := each.TakeEach(t.Context(), keys, 1, nil)
		require.ErrorIs(t, err, errEach)
		require.ErrorIs(t, err, errLookup)
		var failed []error
		for i, key := range keys {
			want, err := loop.Take(t.Context(), key, 1)
			assert.Equal(t, want, out[i], "%s, keys[%d]", name, i)
			if err != nil {
				failed = append(failed, fmt.Errorf("keys[%d]: %w", i, err))
			}
		}
		assert.Len(t, failed, 5)
		assert.EqualError(t, err, errors.Join(failed...).Error())
		assert.Equal(t, len(keys), s.Together)
	}
}

func TestEachAllocations(t *testing.T) {
	keys := make([]string, 150)
	for i := range keys {
		keys[i] = fmt.Sprint("key ", i%100)
	}
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(50)},
		ratelimit.SlidingWindow{Limit: 50, Window: time.Hour, Segments: 4},
		ratelimit.FixedWindow{Limit: 50, Window: time.Hour},
	} {
		l := ratelimit.Must(ratelimit.New(alg))
		out, err := l.TakeEach(t.Context(), keys, 1, nil)
		require.NoError(t, err)
		ctx := t.Context()
		assert.Zero(t, testing.AllocsPerRun(100, func() { out, _ = l.TakeEach(ctx, keys, 1, out[:0]) }), "%T", alg)
		assert.True(t, slices.ContainsFunc(out, func(d ratelimit.Decision) bool { return !d.Allowed }))
	}
}

// FuzzEach decodes calls from bytes, and compares TakeEach with a loop.
func FuzzEach(f *testing.F) {
	algs := []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7), Burst: 4},
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(3), Capacity: 4},
		ratelimit.FixedWindow{Limit: 4, Window: time.Second},
		ratelimit.SlidingWindow{Limit: 4, Window: time.Second, Segments: 2},
		ratelimit.SlidingLog{Limit: 4, Window: time.Second, CountDenied: true},
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4}, ratelimit.FixedWindow{Limit: 7, Window: time.Minute}},
	}
	for i := range algs {
		f.Add([]byte{byte(i), 3, 1, 200, 1, 1, 1, 90, 5, 0, 1, 2, 3, 4, 5, 6, 7, 0, 5, 1, 90, 0, 1, 1, 3, 7, 255, 4, 4, 1, 1, 1, 1})
		f.Add([]byte{byte(i), 18, 3, 1, 1, 2, 1, 1, 2, 30, 3, 1, 1, 2, 1, 1, 2, 29, 2, 1, 2, 1, 1, 31, 3, 1, 1, 2, 1, 1, 2, 30, 2, 1, 1, 2, 3})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		alg := algs[int(data[0])%len(algs)]
		stores, clocks := [2]*ratelimit.MemoryStore{}, [2]*stepclock.Clock{}
		var l [2]ratelimit.Limiter
		for i := range l {
			stores[i], clocks[i] = new(ratelimit.MemoryStore), stepclock.New()
			l[i] = ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(stores[i]), ratelimit.WithName("test"), ratelimit.WithClock(clocks[i])))
		}
		var out []ratelimit.Decision
		for data = data[1:min(len(data), 2000)]; len(data) > 2; {
			op, n, count := data[0], int(data[0]/16%6), 2*int(data[1])
			data = data[2:]
			keys := make([]string, min(count, 4*len(data)))
			for i := range keys {
				keys[i] = fmt.Sprint("key ", int(data[i%len(data)])+256*(i/len(data)))
			}
			data = data[min(len(data), count):]
			for i := range l {
				switch op % 16 {
				case 15:
					stores[i].Shrink()
				case 14:
					clocks[i].Advance(-3 * time.Second)
				case 13:
					clocks[i].Advance(5 * time.Second)
				default:
					clocks[i].Advance(time.Duration(op%16) * 50 * time.Millisecond)
				}
			}
			var err error
			out, err = l[0].TakeEach(t.Context(), keys, n, out[:0])
			require.NoError(t, err)
			for i, key := range keys {
				want, err := l[1].Take(t.Context(), key, n)
				require.NoError(t, err)
				require.Equal(t, want, out[i], "keys[%d] of %q, %d each", i, keys, n)
			}
		}
	})
}
