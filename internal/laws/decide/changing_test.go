package decide_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/model"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestChangingLimits: while the limit of a key changes and changes back, the library decides as the
// model does, in memory and in bytes.
func TestChangingLimits(t *testing.T) {
	rate := func(events, seconds int) ratelimit.Rate {
		return ratelimit.Rate{Events: events, Per: time.Duration(seconds) * time.Second}
	}
	for name, algs := range map[string][]ratelimit.Algorithm{
		"token": {
			ratelimit.TokenBucket{Rate: rate(4, 10), Burst: 1}, ratelimit.TokenBucket{Rate: rate(2, 20), Burst: 2},
			ratelimit.TokenBucket{Rate: rate(3, 10), Burst: 1}, ratelimit.TokenBucket{Rate: rate(2, 5), Burst: 7},
		},
		"leaky": {
			ratelimit.LeakyBucket{Rate: rate(4, 1), Capacity: 5}, ratelimit.LeakyBucket{Rate: rate(7, 2), Capacity: 2},
			ratelimit.LeakyBucket{Rate: rate(4, 1), Capacity: 3}, ratelimit.LeakyBucket{Rate: rate(1, 3), Capacity: 4},
		},
		"interval": {
			ratelimit.TokenBucket{Rate: rate(4, 10), Burst: 8, Refill: ratelimit.RefillInterval},
			ratelimit.TokenBucket{Rate: rate(1, 1), Burst: 5, Refill: ratelimit.RefillInterval},
			ratelimit.TokenBucket{Rate: rate(4, 10), Burst: 6, Refill: ratelimit.RefillInterval},
			ratelimit.TokenBucket{Rate: rate(9, 30), Burst: 9, Refill: ratelimit.RefillInterval},
		},
		"log": {
			ratelimit.SlidingLog{Limit: 8, Window: 10 * time.Second}, ratelimit.SlidingLog{Limit: 20, Window: 30 * time.Second},
			ratelimit.SlidingLog{Limit: 9, Window: 10 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range budget.Seeds(t, budget.Histories(60, 600)) {
				c := history.NewRandom(seed, 4)
				history.Run(t, changing(algs), history.AtMost(120, func(history.Player) (history.Op, bool) {
					o := history.Op{Verb: pick(c, history.Peek, history.Charge, history.Take, history.Take, history.Take), N: 1 + c.Below(3)}
					switch c.Below(4) {
					case 0:
						o = history.Op{Verb: history.Limit, N: c.Below(len(algs))}
					case 1, 2:
						o = history.Op{Verb: history.Pass, For: c.Within(4 * time.Second)}
					}
					return o, true
				}))
			}
		})
	}
}

// changing returns what histories of a key are played on whose limit changes: memory, bytes and the
// model.
func changing(algs []ratelimit.Algorithm) *history.Twins {
	s := &history.Twins{Limits: algs, Start: fakes.Midnight, Kept: "memory, bytes and the model"}
	s.Open = func(of func(key string) ratelimit.Algorithm) (on history.OpenTwins) {
		clk := storetest.NewClock(s.Start)
		for _, store := range []ratelimit.Store{new(ratelimit.MemoryStore), fakes.MapStates{}} {
			l := ratelimit.Must(ratelimit.New(of(""), ratelimit.WithStore(store), ratelimit.WithName("test"),
				ratelimit.WithClock(clk), fakes.Patient, limitsOf(of)))
			on.Stores = append(on.Stores, history.Store{Limiters: []ratelimit.Limiter{l}})
		}
		l := changingModel{of: of, key: model.NewChanging(1), clk: clk}
		on.Clock, on.Stores = clk, append(on.Stores, history.Store{Limiters: []ratelimit.Limiter{l}})
		return on
	}
	return s
}

// limitsOf gives each key the limit of(key).
func limitsOf(of func(key string) ratelimit.Algorithm) ratelimit.Option {
	return ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) { return of(key), nil })
}

// A changingModel is the model of a key whose limit changes, as a limiter.
type changingModel struct {
	ratelimit.Limiter // nil; it has the methods that follow
	of                func(key string) ratelimit.Algorithm
	key               *model.Changing
	clk               *storetest.Clock
}

func (m changingModel) Take(_ context.Context, _ string, n int) (ratelimit.Decision, error) {
	return m.key.Take(m.clk.Now().UnixNano(), m.of(""), n), nil
}

func (m changingModel) Peek(context.Context, string) (ratelimit.Decision, error) {
	return m.key.Peek(m.clk.Now().UnixNano(), m.of("")), nil
}

func (m changingModel) Charge(_ context.Context, _ string, n int) (ratelimit.Decision, error) {
	return m.key.Charge(m.clk.Now().UnixNano(), m.of(""), n), nil
}

// TestThirdLimit: a limit is edited twice, by one process. Each edit adopts the level of the limit
// before it.
func TestThirdLimit(t *testing.T) {
	bucket := func(events, seconds, burst int) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: events, Per: time.Duration(seconds) * time.Second}, Burst: burst}
	}
	l, own, _, clk := fakes.Varying(t, bucket(4, 10, 1))
	require.True(t, l.Allow("key"))
	own.Set("key", bucket(2, 20, 2))
	require.True(t, l.Allow("key"))
	clk.Advance(5 * time.Second)
	own.Set("key", bucket(3, 10, 1))
	d, err := l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: 1, RetryAfter: 5 * time.Second, ResetAfter: 5 * time.Second}, d, "1.5 events are missing")
}

// TestFormerLimitCountsAll: two versions of a program take turns. One has a window of 10 a second,
// the other one of 20 in two seconds. Each counts the events that both have granted, and grants no
// more than its own window allows.
func TestFormerLimitCountsAll(t *testing.T) {
	short, long := ratelimit.FixedWindow{Limit: 10, Window: time.Second}, ratelimit.FixedWindow{Limit: 20, Window: 2 * time.Second}
	l, own, _, clk := fakes.Varying(t, short)
	take := func(alg ratelimit.Algorithm) (n int) {
		own.Set("key", alg)
		for l.Allow("key") {
			n++
		}
		return n
	}
	clk.Set(time.Unix(1_700_000_000, 0))
	assert.Equal(t, 10, take(short))
	assert.Equal(t, 10, take(long))
	assert.Equal(t, 0, take(short))
	clk.Advance(time.Second)
	assert.Equal(t, 0, take(long))
	assert.Equal(t, 10, take(short), "30 in two seconds")
	clk.Advance(time.Second)
	assert.Equal(t, 20, take(long))
	assert.Equal(t, 0, take(short))
}

// TestRolledBackLimit: a limit is raised for ten minutes and used up, while one process still has
// the lower limit. When the limit is rolled back, the key waits for no longer than a burst and an
// event of the lower limit take.
func TestRolledBackLimit(t *testing.T) {
	low, high := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)}
	for name, store := range fakes.Stores {
		own := &fakes.OwnLimits{}
		l, clk := fakes.At(t, low, ratelimit.WithStore(store()), ratelimit.WithName("test"), ratelimit.WithLimits(own.Lookup))
		require.True(t, l.Allow("key"))
		granted := 0
		for range 1200 {
			own.Set("key", high)
			for l.Allow("key") {
				granted++
			}
			own.Set("key", low)
			require.False(t, l.Allow("key"))
			clk.Advance(time.Second / 2)
		}
		assert.Greater(t, granted, 59_000, name)
		d, err := l.Take(t.Context(), "key", 1)
		require.NoError(t, err)
		assert.Equal(t, 600*time.Millisecond, d.RetryAfter, "%s: 1.1 s after the last one", name)
		clk.Advance(d.RetryAfter)
		assert.True(t, l.Allow("key"), name)
	}
}

// While a limit of a long window is not asked, another limit of the key grants events. When the
// first limit is asked again, it counts these events.
func TestFormerLimitStaysWhileIdle(t *testing.T) {
	short, long := ratelimit.FixedWindow{Limit: 10, Window: time.Second}, ratelimit.FixedWindow{Limit: 20, Window: time.Minute}
	for name, store := range fakes.Stores {
		own := &fakes.OwnLimits{}
		l, clk := fakes.At(t, short, ratelimit.WithStore(store()), ratelimit.WithName("test"), ratelimit.WithLimits(own.Lookup))
		clk.Set(fakes.Midnight.Add(-time.Second))
		require.True(t, l.Allow("key"))
		own.Set("key", long)
		require.True(t, l.Allow("key"))
		own.Set("key", short)
		for i := range 50 { // nothing of the first two counts in either window any more
			clk.Set(fakes.Midnight.Add(time.Duration(1+i) * time.Second))
			require.True(t, l.AllowN("key", 10), name)
		}
		own.Set("key", long)
		assert.False(t, l.Allow("key"), "%s: 500 were granted in this minute", name)
	}
}

// TestEasedClamp: a key that has used its limit gets a much lower limit for a while (a clamp). A
// limit that then replaces the clamp begins with the events that the clamp counts, even if the
// clamp has granted nothing itself.
func TestEasedClamp(t *testing.T) {
	hour := time.Hour
	for name, algs := range map[string][3]ratelimit.Algorithm{
		"token": {
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)},
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(5)},
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)},
		},
		"leaky": {
			ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(100), Capacity: 100},
			ratelimit.LeakyBucket{Rate: ratelimit.PerHour(5), Capacity: 5},
			ratelimit.LeakyBucket{Rate: ratelimit.PerHour(100), Capacity: 100},
		},
		"interval": {
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Refill: ratelimit.RefillInterval},
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(5), Refill: ratelimit.RefillInterval},
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(100), Refill: ratelimit.RefillInterval},
		},
		"fixed": {
			ratelimit.FixedWindow{Limit: 100, Window: time.Second},
			ratelimit.FixedWindow{Limit: 5, Window: 2 * hour},
			ratelimit.FixedWindow{Limit: 100, Window: hour},
		},
		"first": {
			ratelimit.FixedWindow{Limit: 100, Window: time.Second},
			ratelimit.FixedWindow{Limit: 5, Window: hour, Start: ratelimit.StartOnFirstEvent},
			ratelimit.FixedWindow{Limit: 100, Window: 2 * hour, Start: ratelimit.StartOnFirstEvent},
		},
		"sliding": {
			ratelimit.SlidingWindow{Limit: 100, Window: time.Second},
			ratelimit.SlidingWindow{Limit: 5, Window: 2 * hour},
			ratelimit.SlidingWindow{Limit: 100, Window: hour},
		},
		"rolling": {
			ratelimit.RollingWindow{Quota: 100, Window: time.Minute, Period: time.Second},
			ratelimit.RollingWindow{Quota: 5, Window: 2 * hour, Period: hour},
			ratelimit.RollingWindow{Quota: 100, Window: hour, Period: time.Minute},
		},
		"lockout": {
			ratelimit.Lockout{Limit: 100, Window: time.Second, First: time.Second},
			ratelimit.Lockout{Limit: 5, Window: hour, First: 2 * hour},
			ratelimit.Lockout{Limit: 100, Window: hour, First: hour},
		},
		"log": {
			ratelimit.SlidingLog{Limit: 100, Window: time.Second},
			ratelimit.SlidingLog{Limit: 5, Window: 2 * hour},
			ratelimit.SlidingLog{Limit: 100, Window: hour},
		},
	} {
		l, own, _, clk := fakes.Varying(t, algs[0])
		require.True(t, l.AllowN("key", 100), name)
		own.Set("key", algs[1])
		require.False(t, l.Allow("key"), name)
		clk.Advance(2 * time.Minute)
		own.Set("key", algs[2])
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Zero(t, d.Remaining, "%s: %+v", name, d)
		own.Set("key", algs[0])
		assert.True(t, l.AllowN("key", 90), "%s: the clamp is taken back", name)
	}
}

// TestEasedClamp_ComesBackAsTold: a key owes much more than the limits that clamp it, and ease the
// clamp, grant at once. A client that
// comes back no earlier than it is told is granted its request then.
func TestEasedClamp_ComesBackAsTold(t *testing.T) {
	for name, bucket := range map[string]func(rate, burst int) ratelimit.Algorithm{
		"token": func(rate, burst int) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: ratelimit.PerSecond(rate), Burst: burst}
		},
		"interval": func(rate, burst int) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: max(1, rate/10), Per: time.Second / 10}, Burst: burst, Refill: ratelimit.RefillInterval}
		},
		"leaky": func(rate, burst int) ratelimit.Algorithm {
			return ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(rate), Capacity: burst}
		},
	} {
		for seed := range budget.Seeds(t, budget.Histories(100, 5000)) {
			rng := rand.New(rand.NewPCG(seed, 8))
			l, own, _, clk := fakes.Varying(t, bucket(100, 100))
			require.True(t, l.AllowN("key", 60+rng.IntN(41)))
			if rng.IntN(2) == 0 {
				_, err := l.Charge(t.Context(), "key", rng.IntN(300))
				require.NoError(t, err)
			}
			for range 1 + rng.IntN(3) {
				clk.Advance(time.Duration(rng.Int64N(int64(time.Second))))
				own.Set("key", bucket(1+rng.IntN(60), 1+rng.IntN(6)))
				l.Allow("key")
			}
			for _, rounds := range []time.Duration{time.Second, 1, time.Second} {
				own.Set("key", bucket(1+rng.IntN(60), 1+rng.IntN(6)))
				d, err := l.Take(t.Context(), "key", 1)
				require.NoError(t, err)
				if d.Allowed {
					continue
				}
				wait := (d.RetryAfter + rounds - 1).Truncate(rounds)
				clk.Advance(wait)
				require.True(t, l.Allow("key"), "%s, seed %d: denied %v after it was told to come back in %v", name, seed, wait, d.RetryAfter)
			}
		}
	}
}

// TestShorterTimeout: a hold that is cancelled leaves its shorter Timeout to events that nobody holds, as docs/holds.md
// says, and none to those that are held.
func TestShorterTimeout(t *testing.T) {
	flight := func(timeout time.Duration) ratelimit.Algorithm { return ratelimit.InFlight{Limit: 5, Timeout: timeout} }
	for name, tt := range map[string]struct {
		first func(l ratelimit.Limiter)
		left  int
	}{
		"taken": {func(l ratelimit.Limiter) { fakes.Take(t, l, 2) }, 5},
		"held":  {func(l ratelimit.Limiter) { fakes.Held(t, l, "key", 2) }, 3},
	} {
		l, own, _, clk := fakes.Varying(t, flight(10*time.Minute))
		tt.first(l)
		own.Set("key", flight(time.Minute))
		fakes.Held(t, l, "key", 1).Cancel()
		own.Set("key", flight(10*time.Minute))
		assert.Equal(t, 3, fakes.Remaining(t, l), name)
		clk.Advance(time.Minute)
		assert.Equal(t, tt.left, fakes.Remaining(t, l), name)
	}
}

// TestChangedPartOfAnAll: a denial keeps the window of a part that has become longer, although another
// part remembers for longer still. So a client that comes back no earlier than it is told is granted its
// request, and the longer window is not granted anew.
func TestChangedPartOfAnAll(t *testing.T) {
	window := func(limit int, of time.Duration) ratelimit.Algorithm {
		return ratelimit.FixedWindow{Limit: limit, Window: of}
	}
	calendar := func(limit int, of ratelimit.CalendarUnit) ratelimit.Algorithm {
		return ratelimit.CalendarWindow{Limit: limit, Every: of}
	}
	for name, tt := range map[string]struct {
		longer, before, after ratelimit.Algorithm
		from                  time.Time
	}{
		"windows": {window(1000, 24*time.Hour), window(100, time.Hour), window(100, 2*time.Hour), time.Date(2026, 6, 2, 12, 0, 0, 0, time.UTC)},
		"logs": {
			window(1000, 24*time.Hour),
			ratelimit.SlidingLog{Limit: 100, Window: time.Hour},
			ratelimit.SlidingLog{Limit: 100, Window: 2 * time.Hour},
			time.Date(2026, 6, 2, 12, 0, 0, 0, time.UTC),
		},
		// From a Tuesday on, so that the week ends before the month.
		"calendars": {
			calendar(1000, ratelimit.Month),
			calendar(100, ratelimit.Day),
			calendar(100, ratelimit.Week),
			time.Date(2026, 6, 2, 12, 0, 0, 0, time.UTC),
		},
	} {
		l, own, _, clk := fakes.Varying(t, ratelimit.All{tt.longer, tt.before})
		clk.Set(tt.from)
		require.True(t, l.AllowN("key", 100), name)
		own.Set("key", ratelimit.All{tt.longer, tt.after})
		d, err := l.Take(t.Context(), "key", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed, name)
		told := d.RetryAfter
		for range 3 {
			clk.Advance(told / 4)
			d, err = l.Peek(t.Context(), "key")
			require.NoError(t, err)
			assert.False(t, d.Allowed, name)
		}
		clk.Advance(told - told/4*3)
		assert.True(t, l.AllowN("key", 1), name)
	}
}
