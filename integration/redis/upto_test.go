package redis_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A lookCounter changes scripts so that Redis counts, at the key looks, how often they read a
// number from a string.
type lookCounter struct{ redisstore.Conn }

func (c lookCounter) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	const read = "struct.unpack"
	commands = slices.Clone(commands)
	for i, command := range commands {
		if command.Words[0] == "EVAL" {
			words := slices.Clone(command.Words)
			words[1] = strings.Replace(words[1], read, "function(...) redis.call('INCR', 'looks'); return "+read+"(...) end", 1)
			commands[i].Words = words
		}
	}
	return c.Conn.Do(ctx, commands)
}

// A key that was idle has many counts that have left the window. A TakeUpTo looks at each count
// once, and not again for each number of events that it tries.
func TestUpToLooksAtEachCountOnce(t *testing.T) {
	const counts, each = 200, 5
	for name, alg := range map[string]ratelimit.Algorithm{
		"RollingWindow": ratelimit.RollingWindow{Quota: counts * each, Window: counts * time.Minute, Period: time.Minute},
		"SlidingWindow": ratelimit.SlidingWindow{Limit: counts * each, Window: counts * time.Minute, Segments: counts},
		"All": ratelimit.All{
			ratelimit.RollingWindow{Quota: counts * each, Window: counts * time.Minute, Period: time.Minute},
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e6)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			store, err := redisstore.New(lookCounter{connectors["goredis"](t, s.addr())},
				redisstore.WithLimiterClock(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
			require.NoError(t, err)
			clk := storetest.NewClock(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
			l := limiter(t, store, alg, ratelimit.WithClock(clk), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			inMemory := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
			for range counts {
				for _, l := range []ratelimit.Limiter{l, inMemory} {
					d, err := l.Take(t.Context(), "k", each)
					require.NoError(t, err)
					require.True(t, d.Allowed)
				}
				clk.Advance(time.Minute)
			}
			const idle = counts / 2
			clk.Advance(idle * time.Minute)
			s.do("DEL", "looks")
			granted, _, err := l.TakeUpTo(t.Context(), "k", counts*each)
			require.NoError(t, err)
			want, _, err := inMemory.TakeUpTo(t.Context(), "k", counts*each)
			require.NoError(t, err)
			assert.Equal(t, want, granted)
			looks, err := strconv.Atoi(s.do("GET", "looks").(string))
			require.NoError(t, err)
			assert.Greater(t, looks, idle, "these have left the window")
			assert.Less(t, looks, 2*idle)
		})
	}
}
