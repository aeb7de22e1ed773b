package observe_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakeredis"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// crossings are the observations that Crossed has passed on.
type crossings struct {
	mu  sync.Mutex
	all []ratelimit.Observation
}

func (c *crossings) observe(_ context.Context, o ratelimit.Observation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, o)
}

// take returns the keys of the observations since the last call.
func (c *crossings) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := make([]string, 0, len(c.all))
	for _, o := range c.all {
		keys = append(keys, o.Key)
	}
	c.all = nil
	return keys
}

// crossing returns a limiter, and what Crossed tells of the limiter.
func crossing(fraction float64, alg ratelimit.Algorithm, opts ...ratelimit.Option) (ratelimit.Limiter, *crossings) {
	c := &crossings{}
	opts = append(opts, ratelimit.WithName("api"), ratelimit.WithObserver(observe.Crossed(fraction, c.observe)))
	return ratelimit.Must(ratelimit.New(alg, opts...)), c
}

func TestCrossed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := crossing(0.8, ratelimit.FixedWindow{Limit: 10, Window: time.Minute})
		told := func(want int, key string, n int) {
			t.Helper()
			assert.Len(t, c.take(), want, "%d of %s", n, key)
		}
		take := func(want int, key string, n int) {
			t.Helper()
			l.AllowN(key, n)
			told(want, key, n)
		}
		take(0, "steps", 7)
		take(1, "steps", 1)
		take(0, "steps", 1)
		take(0, "steps", 2) // denied
		take(0, "steps", 1)
		take(0, "steps", 1)
		take(1, "at once", 10)
		take(0, "over it", 7)
		take(1, "over it", 3)
		take(0, "denied", 11)
		take(0, "nothing", 0)
		time.Sleep(time.Minute)
		take(1, "steps", 8)
		require.True(t, l.Allow("steps"))

		o := ratelimit.Observation{Key: "k", N: 1, Granted: 1, Decision: ratelimit.Decision{Allowed: true, Limit: 10, Remaining: 2}}
		observe.Crossed(0.8, c.observe)(t.Context(), o)
		assert.Equal(t, []ratelimit.Observation{o}, c.all, "the observation is passed on as it is")
	})
}

// TestCrossedSeesEachCall: by whichever call events come into use, Crossed tells of the one that
// reaches the fraction, and not of calls that use nothing or come later.
func TestCrossedSeesEachCall(t *testing.T) {
	alg := ratelimit.FixedWindow{Limit: 10, Window: time.Minute}
	held := func(settle int) func(*testing.T, ratelimit.Limiter) {
		return func(t *testing.T, l ratelimit.Limiter) {
			r, _, err := l.Hold(t.Context(), "k", 1)
			require.NoError(t, err)
			_, err = r.Settle(t.Context(), settle)
			require.NoError(t, err)
		}
	}
	charged := func(n int) func(*testing.T, ratelimit.Limiter) {
		return func(t *testing.T, l ratelimit.Limiter) {
			_, err := l.Charge(t.Context(), "k", n)
			require.NoError(t, err)
		}
	}
	for name, tt := range map[string]struct {
		call func(t *testing.T, l ratelimit.Limiter)
		want int
	}{
		"Charge":       {charged(2), 1},
		"Charge one":   {charged(1), 0},
		"Settle":       {held(2), 1},
		"Settle equal": {held(1), 0},
		"Settle less":  {held(0), 0},
		"Hold": {func(t *testing.T, l ratelimit.Limiter) {
			_, _, err := l.Hold(t.Context(), "k", 2)
			require.NoError(t, err)
		}, 1},
		"Reserve": {func(t *testing.T, l ratelimit.Limiter) {
			_, _, err := l.Reserve(t.Context(), "k", 2)
			require.NoError(t, err)
		}, 1},
		"Wait at once":  {func(t *testing.T, l ratelimit.Limiter) { require.NoError(t, l.WaitN(t.Context(), "k", 2)) }, 1},
		"Wait for turn": {func(t *testing.T, l ratelimit.Limiter) { require.NoError(t, l.WaitN(t.Context(), "k", 9)) }, 0},
		"Reserve for later": {func(t *testing.T, l ratelimit.Limiter) {
			r, _, err := l.Reserve(t.Context(), "k", 9)
			require.NoError(t, err)
			require.Positive(t, r.Delay())
		}, 0},
		"TakeAll": {func(t *testing.T, l ratelimit.Limiter) {
			_, err := ratelimit.TakeAll(t.Context(), 2, ratelimit.For(l, "k"), ratelimit.For(l, "other"))
			require.NoError(t, err)
		}, 1},
		"TakeAll, withheld": {func(t *testing.T, l ratelimit.Limiter) {
			full := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}))
			_, err := ratelimit.TakeAll(t.Context(), 2, ratelimit.For(l, "k"), ratelimit.For(full, "k"))
			require.NoError(t, err)
		}, 0},
		"TakeEach": {func(t *testing.T, l ratelimit.Limiter) {
			_, err := l.TakeEach(t.Context(), []string{"k", "other"}, 2, nil)
			require.NoError(t, err)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, c := crossing(0.8, alg)
				require.True(t, l.AllowN("k", 6))
				tt.call(t, l)
				assert.Len(t, c.take(), tt.want)
			})
		})
	}
}

// TestCrossedAgain: a bucket fills again, and what is given back can be used again. Each time that
// the fraction is reached, Crossed tells of it.
func TestCrossedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := crossing(1, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 3})
		require.True(t, l.AllowN("k", 3))
		assert.Len(t, c.take(), 1)
		time.Sleep(time.Second)
		require.True(t, l.Allow("k"))
		assert.Len(t, c.take(), 1)

		l, c = crossing(0.5, ratelimit.InFlight{Limit: 2, Timeout: time.Hour})
		for range 3 {
			r, _, err := l.Hold(t.Context(), "k", 1)
			require.NoError(t, err)
			assert.Len(t, c.take(), 1)
			r.Cancel()
		}
	})
}

// TestCrossedOfALeakyBucket: events that leave later are in use at once. Waits that wait, and a
// Reserve that fills the bucket, do not tell of them.
func TestCrossedOfALeakyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := crossing(1, ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 3})
		for key, call := range map[string]func(){
			"taken": func() { l.Allow("taken") },
			"held": func() {
				_, _, err := l.Hold(t.Context(), "held", 1)
				require.NoError(t, err)
			},
			"reserved": func() {
				_, _, err := l.Reserve(t.Context(), "reserved", 1)
				require.NoError(t, err)
			},
			"waited": func() { require.NoError(t, l.Wait(t.Context(), "waited")) },
		} {
			require.True(t, l.AllowN(key, 2))
			call()
			tells := key == "taken" || key == "held"
			assert.Len(t, c.take(), map[bool]int{true: 1}[tells], key)
		}
		_, _, err := l.Reserve(t.Context(), "at once", 3)
		require.NoError(t, err)
		assert.Len(t, c.take(), 1)

		l, c = crossing(0.5, ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 4})
		require.True(t, l.Allow("room is left"))
		_, _, err = l.Reserve(t.Context(), "room is left", 1)
		require.NoError(t, err)
		assert.Len(t, c.take(), 1)
	})
}

// TestCrossedWithoutLimit: no fraction is reached where nothing is limited, where nothing is granted,
// and where no limit was checked.
func TestCrossedWithoutLimit(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{"unlimited": ratelimit.Unlimited{}, "blocked": ratelimit.Blocked{}} {
		l, c := crossing(1e-300, alg)
		l.AllowN("k", 1000)
		l.AllowN("k", math.MaxInt)
		_, err := l.Charge(t.Context(), "k", 5)
		require.NoError(t, err)
		assert.Empty(t, c.take(), name)
	}
	for name, policy := range map[string]ratelimit.FailurePolicy{"open": ratelimit.FailOpen(), "closed": ratelimit.FailClosed()} {
		l, c := crossing(0.5, ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
			ratelimit.WithStore(fakes.Down(context.DeadlineExceeded)), ratelimit.WithFailureLog(nil),
			ratelimit.WithFailurePolicy(policy))
		l.Allow("k")
		assert.Empty(t, c.take(), name)
	}
}

// TestCrossedFractions: the fraction is that of decimal numbers, and at least one event.
func TestCrossedFractions(t *testing.T) {
	for _, tt := range []struct {
		fraction float64
		limit    int
		want     int
	}{
		{0.8, 10, 8}, {0.07, 100, 7}, {0.29, 100, 29}, {0.57, 100, 57}, {0.1, 3, 1}, {1.0 / 3, 3, 1}, {0.5, 5, 3},
		{1e-300, 5, 1}, {1, 1, 1}, {1, 1 << 40, 1 << 40}, {0.999, 10, 10},
	} {
		l, c := crossing(tt.fraction, ratelimit.FixedWindow{Limit: tt.limit, Window: time.Hour, Start: ratelimit.StartOnFirstEvent})
		require.True(t, l.AllowN("k", tt.want-1))
		assert.Empty(t, c.take(), "%v of %d, one fewer", tt.fraction, tt.limit)
		require.True(t, l.Allow("k"))
		assert.Len(t, c.take(), 1, "%v of %d", tt.fraction, tt.limit)
	}
}

func TestCrossedBadArguments(t *testing.T) {
	for _, fraction := range []float64{0, -0.1, 1.01, math.NaN(), math.Inf(1)} {
		want := fmt.Sprintf("observe: Crossed's fraction is %v: it must be above 0 and at most 1", fraction)
		assert.PanicsWithError(t, want, func() { observe.Crossed(fraction, (&crossings{}).observe) })
	}
	assert.PanicsWithError(t, "observe: Crossed's f is nil: it must be a function", func() { observe.Crossed(1, nil) })
}

// A redisConn is the connection of a store to a fake Redis.
type redisConn struct{ fake *fakeredis.Server }

func (r redisConn) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	asked := make([]fakeredis.Command, len(commands))
	for i, c := range commands {
		asked[i] = fakeredis.Command(c)
	}
	replies := make([]redisstore.Reply, len(commands))
	for i, reply := range r.fake.Do(ctx, asked) {
		replies[i] = redisstore.Reply(reply)
	}
	return replies
}

func (redisConn) Server(string) (name string, known bool) { return "", true }
func (redisConn) OneServer() bool                         { return true }
func (redisConn) NoAnswer(string) error                   { return nil }
func (redisConn) Redial(context.Context, string)          {}

// TestCrossedOnceInAFleet: in each window in which the fraction is reached, exactly one of four
// limiters on one store tells of it, whatever they ask at the same time.
func TestCrossedOnceInAFleet(t *testing.T) {
	const limit = 20
	for window, alg := range map[time.Duration]ratelimit.Algorithm{
		time.Minute:    ratelimit.FixedWindow{Limit: limit, Window: time.Minute},
		24 * time.Hour: ratelimit.CalendarWindow{Limit: limit, Every: ratelimit.Day},
	} {
		t.Run(alg.String(), func(t *testing.T) { crossOnceInAFleet(t, alg, limit, window) })
	}
}

// crossOnceInAFleet checks that limiters tell once of each window in which 0.8 of the limit are used.
// Windows begin at multiples of their length.
func crossOnceInAFleet(t *testing.T, alg ratelimit.Algorithm, limit int, window time.Duration) {
	reached := limit * 8 / 10
	memory, states, server := new(ratelimit.MemoryStore), fakes.NewMapDB(), fakeredis.New()
	for name, tt := range map[string]struct {
		store    func() ratelimit.Store
		together bool // whether it decides on several keys at once, and so gives nothing back
	}{
		"memory": {func() ratelimit.Store { return memory }, true},
		"bytes":  {states.Store, false},
		"redis": {func() ratelimit.Store {
			s, err := redisstore.New(redisConn{server})
			require.NoError(t, err)
			return s
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := budget.Rand(t)
				told := &crossings{}
				var used [3]int
				var mu sync.Mutex
				fleet := make([]ratelimit.Limiter, 4)
				for i := range fleet {
					fleet[i] = ratelimit.Must(ratelimit.New(alg, ratelimit.WithName("api"), ratelimit.WithStore(tt.store()),
						ratelimit.WithObserver(observe.Crossed(0.8, told.observe)),
						ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
							mu.Lock()
							defer mu.Unlock()
							used[o.Key[0]-'a'] += o.Granted
						})))
				}
				windows := 0
				for range 1000 {
					time.Sleep(time.Until(time.Now().Truncate(window).Add(window + time.Second)))
					used = [3]int{}
					var all sync.WaitGroup
					for _, l := range fleet {
						seed := random.Uint64()
						all.Go(func() { ask(t, l, tt.together, rand.New(rand.NewPCG(seed, 0))) })
					}
					all.Wait()
					want := []string{}
					for i, n := range used {
						require.LessOrEqual(t, n, limit)
						if n >= reached {
							want = append(want, string(rune('a'+i)))
						}
					}
					require.ElementsMatch(t, want, told.take())
					windows += len(want)
				}
				assert.Greater(t, windows, 500)
				assert.Less(t, windows, 2500)
			})
		})
	}
}

// ask makes calls for the keys a, b and c that grant or deny at once, and give nothing back.
func ask(t *testing.T, l ratelimit.Limiter, together bool, random *rand.Rand) {
	key := func() string { return string(rune('a' + random.IntN(3))) }
	keys := []ratelimit.Bound{ratelimit.For(l, "a")}
	if together {
		keys = append(keys, ratelimit.For(l, "b"))
	}
	for range random.IntN(16) {
		n := random.IntN(3)
		var err error
		switch random.IntN(4) {
		case 0:
			l.AllowN(key(), n)
		case 1:
			_, err = l.Take(t.Context(), key(), n)
		case 2:
			_, _, err = l.Hold(t.Context(), key(), n)
		case 3:
			_, err = ratelimit.TakeAll(t.Context(), n, keys...)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// TestCrossedWhenTheLimitChanges: within a window, Crossed tells of each limit whose fraction a call
// reaches, and not of one whose fraction was in use before the change.
func TestCrossedWhenTheLimitChanges(t *testing.T) {
	limit := 10
	l, c := crossing(0.8, ratelimit.Blocked{}, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
		return ratelimit.FixedWindow{Limit: limit, Window: time.Hour}, nil
	}))
	take := func(n, want int) {
		t.Helper()
		require.True(t, l.AllowN("k", n))
		assert.Len(t, c.take(), want)
	}
	take(8, 1)
	limit = 20
	take(7, 0)
	take(1, 1)
	limit = 18 // 80 % are 15, which were in use
	take(1, 0)
	limit = 30
	take(6, 0)
	take(1, 1)
}
