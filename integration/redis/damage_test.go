package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/step"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A value that another program wrote is reported once, and the limit holds from then on,
// even with FailOpen. The script detects that it cannot be read, or fails on it, or package
// ratelimit detects it.
func TestUnreadableValue(t *testing.T) {
	words := func(words ...uint64) (value string) {
		for _, w := range words {
			value += string(binary.LittleEndian.AppendUint64(nil, w))
		}
		return value
	}
	now := uint64(time.Now().UnixMicro())
	ones := ^uint64(0)
	limits := map[string]ratelimit.Algorithm{
		"window": hourly(2),
		"log":    ratelimit.SlidingLog{Limit: 2, Window: time.Hour},
		"ring":   ratelimit.RollingWindow{Quota: 2, Window: time.Hour, Period: time.Minute},
		"bucket": ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)},
		"all":    ratelimit.All{hourly(2), ratelimit.SlidingLog{Limit: 3, Window: time.Hour}},
	}
	values := map[string]string{
		"short":       "damaged",
		"ones":        words(ones, ones),
		"wide":        strings.Repeat("\xff", 8*31),
		"no number":   "1763791234567x90",
		"signed":      "+763791234567890123",
		"no entries":  words(2, 3, now),
		"long":        strings.Repeat("x", 5000),
		"first byte":  "\x01",
		"with a part": words(3) + words(now, 1) + words(3, 3, now),
	}
	withEach(t, func(t *testing.T, create maker) {
		addr := startServer(t).addr()
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		for kind, limit := range limits {
			for _, own := range []bool{false, true} {
				prefix := prefixes()
				s := create(t, addr, redisstore.WithTimeout(patient), redisstore.WithPrefix(prefix), redisstore.WithDenialCache(0))
				var opts []ratelimit.Option
				if own {
					opts = append(opts, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return limit, nil }))
				}
				l := limiter(t, s, limit, opts...)
				require.True(t, l.Allow("k"))
				keys, err := c.Keys(t.Context(), prefix+"*").Result()
				require.NoError(t, err)
				require.Len(t, keys, 1)
				header := ""
				if own {
					header = string(tag(t, limit))
					value, err := c.Get(t.Context(), keys[0]).Result()
					require.NoError(t, err)
					require.True(t, strings.HasPrefix(value, header))
				}
				for name, value := range values {
					for _, value := range []string{value, header + value} {
						require.NoError(t, c.Set(t.Context(), keys[0], value, 0).Err())
						failures, granted := 0, 0
						for range 4 {
							d, err := l.Take(t.Context(), "k", 1)
							if err != nil {
								require.ErrorIs(t, err, ratelimit.ErrState)
								failures++
							}
							if d.Allowed {
								granted++
							}
						}
						assert.LessOrEqual(t, failures, 1, "%s %s %v", kind, name, own)
						assert.LessOrEqual(t, granted, 2, "%s %s %v", kind, name, own)
					}
				}
				assert.Positive(t, s.Stats().Unreadable)
			}
		}
	})
}

// callsOnDamaged are calls that meet a damaged value of key k, on which held may be a hold.
var callsOnDamaged = map[string]func(ctx context.Context, l ratelimit.Limiter, held *ratelimit.Reservation) error{
	"Take": func(ctx context.Context, l ratelimit.Limiter, _ *ratelimit.Reservation) error {
		_, err := l.Take(ctx, "k", 7)
		return err
	},
	"Reserve": func(ctx context.Context, l ratelimit.Limiter, _ *ratelimit.Reservation) error {
		_, _, err := l.Reserve(ctx, "k", 7)
		return err
	},
	"Hold": func(ctx context.Context, l ratelimit.Limiter, _ *ratelimit.Reservation) error {
		_, _, err := l.Hold(ctx, "k", 1)
		return err
	},
	"Charge": func(ctx context.Context, l ratelimit.Limiter, _ *ratelimit.Reservation) error {
		_, err := l.Charge(ctx, "k", 1)
		return err
	},
	"Settle": func(ctx context.Context, _ ratelimit.Limiter, held *ratelimit.Reservation) error {
		_, err := held.Settle(ctx, 0)
		return err
	},
	"TakeUpTo": func(ctx context.Context, l ratelimit.Limiter, _ *ratelimit.Reservation) error {
		_, _, err := l.TakeUpTo(ctx, "k", 5)
		return err
	},
	"TakeAll": func(ctx context.Context, l ratelimit.Limiter, _ *ratelimit.Reservation) error {
		_, err := ratelimit.TakeAll(ctx, 7, ratelimit.For(l, "k"), ratelimit.For(l, "other"))
		return err
	},
}

// damagedLimits are limits whose values tests damage.
var damagedLimits = map[string]ratelimit.Algorithm{
	"SlidingWindow":       ratelimit.SlidingWindow{Limit: 8, Window: time.Hour, Segments: 4},
	"SlidingWindow, wide": ratelimit.SlidingWindow{Limit: 1 << 40, Window: time.Hour, Segments: 4},
	"RollingWindow":       ratelimit.RollingWindow{Quota: 8, Window: time.Hour, Period: 20 * time.Minute},
	// A damaged instant is that of a period whose number a float64 cannot add 1 to.
	"RollingWindow, short": ratelimit.RollingWindow{Quota: 8, Window: 4 * time.Microsecond, Period: time.Microsecond},
	"SlidingLog":           ratelimit.SlidingLog{Limit: 8, Window: time.Hour},
	"InFlight":             ratelimit.InFlight{Limit: 8, Timeout: time.Hour},
	"Lockout":              ratelimit.Lockout{Limit: 8, Window: time.Hour, First: time.Hour},
	"TokenBucket":          ratelimit.TokenBucket{Rate: ratelimit.PerHour(8)},
}

// A value whose sum is not that of its counts, and one in which another word is damaged, keeps no
// script running: each call is answered, and a value that contradicts itself is reported.
func TestContradictoryValue(t *testing.T) {
	addr := startServer(t).addr()
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { c.Close() })
	conn := connectors["goredis"](t, addr)
	for name, alg := range damagedLimits {
		for _, alg := range []ratelimit.Algorithm{alg, ratelimit.All{alg, hourly(9)}} {
			prefix := prefixes()
			store, err := redisstore.New(conn, redisstore.WithTimeout(patient), redisstore.WithPrefix(prefix), redisstore.WithDenialCache(0),
				redisstore.WithLimiterClock()) // so that the values of short windows stay, for an hour
			require.NoError(t, err)
			l := limiter(t, store, alg)
			require.True(t, l.Allow("k"))
			key := c.Keys(t.Context(), prefix+"*k").Val()[0]
			for what, call := range callsOnDamaged {
				for _, holds := range []bool{false, true} {
					words := 1
					for at := 0; at < words; at++ {
						for _, to := range []uint64{0, 5, 1 << 32, 1 << 51, 1<<64 - 1} {
							require.NoError(t, l.Reset(t.Context(), "k"))
							require.True(t, l.AllowN("k", 2))
							var held *ratelimit.Reservation
							if holds || what == "Settle" {
								held, _, err = l.Hold(t.Context(), "k", 1)
								require.NoError(t, err)
							}
							value := damageWord(t, c, key, at, to)
							words = len(value) / 8
							damage := readable(t, alg, value)
							err = call(t.Context(), l, held)
							// A Settle need not look at the mark that a bucket has left with a hold, and a TakeAll
							// may be denied by the other key.
							mustTell := (what != "Settle" || name != "TokenBucket") && what != "TakeAll"
							if damage != nil && mustTell {
								assert.ErrorIs(t, err, ratelimit.ErrState, "%s, %s, word %d is %d, %v: %v", name, what, at, to, holds, damage)
							}
							if err != nil {
								known := errors.Is(err, ratelimit.ErrState) || errors.Is(err, ratelimit.ErrDebt)
								require.True(t, known, "%s, %s, word %d is %d: %v", name, what, at, to, err)
							}
						}
					}
				}
			}
			assert.Positive(t, store.Stats().Unreadable, name)
		}
	}
}

// damageWord sets a word of the value of a key, counted from its end, and returns the value.
func damageWord(t testing.TB, c *redis.Client, key string, at int, to uint64) []byte {
	t.Helper()
	value, err := c.Get(t.Context(), key).Bytes()
	require.NoError(t, err)
	binary.LittleEndian.PutUint64(value[len(value)-8*(at+1):], to)
	require.NoError(t, c.Set(t.Context(), key, value, 0).Err())
	return value
}

// A TakeAll spends the events of the healthy key once, whether the script can use the damaged one or
// not.
func TestTakeAllOnDamagedValue(t *testing.T) {
	addr := startServer(t).addr()
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { c.Close() })
	conn := connectors["goredis"](t, addr)
	const plenty = 1_000_000
	reported := 0
	for name, alg := range damagedLimits {
		for _, holds := range []bool{false, true} {
			prefix := prefixes()
			store, err := redisstore.New(conn, redisstore.WithTimeout(patient), redisstore.WithPrefix(prefix), redisstore.WithDenialCache(0),
				redisstore.WithLimiterClock())
			require.NoError(t, err)
			l, healthy := limiter(t, store, alg), limiter(t, store, hourly(plenty), ratelimit.WithName("healthy"))
			spent := 0
			words := 1
			for at := 0; at < words; at++ {
				for _, to := range []uint64{0, 5, 1 << 32, 1 << 51, 1<<64 - 1} {
					require.NoError(t, l.Reset(t.Context(), "k"))
					require.True(t, l.AllowN("k", 2))
					if holds {
						_, _, err = l.Hold(t.Context(), "k", 1)
						require.NoError(t, err)
					}
					key := c.Keys(t.Context(), prefix+"*k").Val()[0]
					value := damageWord(t, c, key, at, to)
					words = len(value) / 8
					damage := readable(t, alg, value)
					d, err := ratelimit.TakeAll(t.Context(), 3, ratelimit.For(l, "k"), ratelimit.For(healthy, "other"))
					if d.Allowed {
						spent += 3
					}
					if err != nil {
						reported++
					}
					what := []any{"%s, word %d is %d, %v: %v; %v", name, at, to, holds, damage, err}
					if damage != nil {
						require.ErrorIs(t, err, ratelimit.ErrState, what...)
					}
					d, err = healthy.Peek(t.Context(), "other")
					require.NoError(t, err)
					require.Equal(t, plenty-spent, d.Remaining, what...)
				}
			}
		}
	}
	assert.Positive(t, reported)
}

// A leavingConn calls leave before the server is told to put a damaged value back.
type leavingConn struct {
	redisstore.Conn
	leave func()
}

func (c *leavingConn) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	for _, command := range commands {
		if command.Words[0] == "PSETEX" {
			c.leave()
		}
	}
	return c.Conn.Do(ctx, commands)
}

// A TakeAll whose caller leaves while a damaged value is put back is not allowed by what was made of
// that value.
func TestTakeAllOnDamagedValue_CallerLeaves(t *testing.T) {
	addr := startServer(t).addr()
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { c.Close() })
	conn := &leavingConn{Conn: connectors["goredis"](t, addr)}
	left := 0
	for name, alg := range damagedLimits {
		prefix := prefixes() // with no key "k" of another limit
		store, err := redisstore.New(conn, redisstore.WithTimeout(patient), redisstore.WithPrefix(prefix), redisstore.WithDenialCache(0),
			redisstore.WithLimiterClock()) // or keys of short windows expire before they are damaged
		require.NoError(t, err)
		l, healthy := limiter(t, store, alg), limiter(t, store, hourly(1000), ratelimit.WithName("healthy"))
		words := 1
		for at := 0; at < words; at++ {
			for _, to := range []uint64{0, 5, 1 << 32, 1<<64 - 1} {
				require.NoError(t, l.Reset(t.Context(), "k"))
				require.True(t, l.AllowN("k", 2))
				value := damageWord(t, c, c.Keys(t.Context(), prefix+"*k").Val()[0], at, to)
				words = len(value) / 8
				ctx, leave := context.WithCancel(t.Context())
				conn.leave = leave
				d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "k"), ratelimit.For(healthy, "other"))
				if ctx.Err() != nil {
					left++
					assert.False(t, d.Allowed, "%s, word %d is %d: %v", name, at, to, d)
					assert.ErrorIs(t, err, context.Canceled, "%s, word %d is %d", name, at, to)
				}
				leave()
			}
		}
	}
	assert.Positive(t, left)
}

// Of a value in which several words are damaged, whatever the value has (holds, turns, short
// windows), the first call reports the damage or does not notice it, and the next one finds a key
// that has begun afresh: no call fails otherwise, and none reports what the one before has mended.
func TestSeveralDamagedWords(t *testing.T) {
	addr := startServer(t).addr()
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { c.Close() })
	conn := connectors["goredis"](t, addr)
	limits := []ratelimit.Algorithm{
		ratelimit.SlidingWindow{Limit: 8, Window: 8 * time.Microsecond, Segments: 4},
		ratelimit.SlidingWindow{Limit: 8, Window: time.Hour, Segments: 4},
		ratelimit.SlidingWindow{Limit: 1 << 40, Window: 8 * time.Microsecond, Segments: 4},
		ratelimit.SlidingWindow{Limit: 8, Window: time.Microsecond},
		ratelimit.RollingWindow{Quota: 8, Window: 4 * time.Microsecond, Period: time.Microsecond},
		ratelimit.RollingWindow{Quota: 8, PeriodLimit: 7, Window: time.Hour, Period: 20 * time.Minute},
		ratelimit.FixedWindow{Limit: 8, Window: 8 * time.Microsecond},
		ratelimit.SlidingLog{Limit: 8, Window: 8 * time.Microsecond},
		ratelimit.InFlight{Limit: 8, Timeout: time.Hour},
		ratelimit.Lockout{Limit: 8, Window: 8 * time.Microsecond, First: time.Hour},
		ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 8, Per: 8 * time.Microsecond}, Burst: 8},
	}
	random := budget.Rand(t)
	calls := slices.Sorted(maps.Keys(callsOnDamaged))
	reported := 0
	for range budget.Histories(4000, 100_000) {
		alg := limits[random.IntN(len(limits))]
		if random.IntN(3) == 0 {
			alg = ratelimit.All{alg, limits[random.IntN(len(limits))]}
		}
		prefix := prefixes()
		store, err := redisstore.New(conn, redisstore.WithTimeout(patient), redisstore.WithPrefix(prefix),
			redisstore.WithDenialCache(0), redisstore.WithLimiterClock())
		require.NoError(t, err)
		clk := storetest.NewClock(began)
		l := limiter(t, store, alg, ratelimit.WithClock(clk))
		var held *ratelimit.Reservation
		for range 1 + random.IntN(5) {
			switch random.IntN(4) {
			case 0:
				held, _, err = l.Hold(t.Context(), "k", 1+random.IntN(2))
			case 1:
				held, _, err = l.Reserve(t.Context(), "k", 1+random.IntN(7), ratelimit.HoldFor(time.Minute), ratelimit.GiveBack())
			case 2:
				held, _, err = l.Reserve(t.Context(), "k", 1+random.IntN(7))
			case 3:
				_, err = l.Take(t.Context(), "k", 1+random.IntN(2))
				clk.Advance(time.Duration(random.IntN(3)) * time.Microsecond)
			}
			require.NoError(t, err)
		}
		if held == nil {
			held, _, err = l.Hold(t.Context(), "k", 1)
			require.NoError(t, err)
		}
		key := c.Keys(t.Context(), prefix+"*k").Val()[0]
		value, err := c.Get(t.Context(), key).Bytes()
		require.NoError(t, err)
		words := len(value) / 8
		word := func(at int) []byte { return value[len(value)-8*(at+1):] }
		now := uint64(clk.Now().UnixMicro())
		for range 1 + random.IntN(4) {
			to := []uint64{0, 1, 5, 1 << 32, 1 << 51, 1<<56 - 1, 1<<64 - 1, now, now + 1<<random.IntN(52),
				now - uint64(random.IntN(20)), random.Uint64() >> random.IntN(64),
				binary.LittleEndian.Uint64(word(random.IntN(words)))}[random.IntN(12)]
			binary.LittleEndian.PutUint64(word(random.IntN(words)), to)
		}
		require.NoError(t, c.Set(t.Context(), key, value, 0).Err())
		before := false
		for range 4 {
			what := calls[random.IntN(len(calls))]
			value := c.Get(t.Context(), key).Val()
			err := callsOnDamaged[what](t.Context(), l, held)
			is := errors.Is(err, ratelimit.ErrState)
			known := err == nil || is || errors.Is(err, ratelimit.ErrDebt) || errors.Is(err, ratelimit.ErrEnded)
			if !known || is && before {
				t.Errorf("%#v, %s of %x: %v", alg, what, value, err)
			}
			before = is
			if is {
				reported++
			}
			clk.Advance(time.Duration(random.IntN(3)) * time.Microsecond)
		}
	}
	assert.Positive(t, reported)
}

// A mender replaces a damaged value before the store does.
type mender struct {
	redisstore.Conn
	mend func()
}

func (m *mender) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	c := commands[0]                                                                           // the test has one caller
	if args := c.Words[c.Key+1:]; c.Words[0] == "EVALSHA" && len(args) == 3 && m.mend != nil { // that of a value
		m.mend()
		m.mend = nil
	}
	return m.Conn.Do(ctx, commands)
}

// If another process replaces the damaged value first, its state is used, even if it begins
// with the damaged one.
func TestDamageMendedMeanwhile(t *testing.T) {
	for name, connect := range connectors {
		s := startServer(t)
		client := s.client()
		m := &mender{Conn: connect(t, s.addr())}
		store, err := redisstore.New(m, redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
		require.NoError(t, err)
		c := newChangeable(t, store, hourly(2))
		require.Equal(t, 1, c.ask(t, "k", 1, 1))
		key := client.Keys(t.Context(), "*").Val()[0]
		value := client.Get(t.Context(), key).Val()
		for _, cut := range []int{1, 3, len(value) - 1} {
			require.NoError(t, client.Set(t.Context(), key, value[:cut], 0).Err())
			mended := 0
			m.mend = func() {
				mended++
				require.NoError(t, client.Set(t.Context(), key, value, time.Hour).Err())
			}
			assert.Equal(t, 1, c.ask(t, "k", 1, 5), name)
			assert.Equal(t, 1, mended)
		}
		assert.Zero(t, store.Stats().Unreadable)
	}
}

// readable returns an error if the value of a limit's key cannot be read.
func readable(t *testing.T, alg ratelimit.Algorithm, value []byte) error {
	of, err := fakes.NewLimit(alg)
	require.NoError(t, err)
	of, err = of.Portable(time.Microsecond)
	require.NoError(t, err)
	_, err = of.Apply(value, step.Request{Op: step.OpPeek}.At(time.Now()))
	return err
}

// tag returns the beginning of the states of a limit.
func tag(t *testing.T, limit ratelimit.Algorithm) []byte {
	of, err := fakes.NewLimit(limit)
	require.NoError(t, err)
	of, err = of.Portable(time.Microsecond)
	require.NoError(t, err)
	return of.Tag()
}
