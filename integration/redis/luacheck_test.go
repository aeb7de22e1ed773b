package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A scriptCollector is a server that knows no script. It collects those that are sent in full, and
// executes none.
type scriptCollector struct {
	loneServer
	mu    sync.Mutex
	texts map[string]bool
}

func (c *scriptCollector) Do(_ context.Context, commands []redisstore.Command) []redisstore.Reply {
	return oneByOne(commands, func(cmd redisstore.Command) (string, error) {
		if cmd.Words[0] != "EVAL" {
			return "", errors.New("NOSCRIPT No matching script. Please use EVAL.")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.texts[cmd.Words[1]] = true
		return "", errors.New("ERR it is not executed")
	})
}

// An asking is a call that needs a script of its own.
type asking func(ctx context.Context, l ratelimit.Limiter) error

// The calls for one key, and for several.
var (
	asksForOne = []asking{
		func(ctx context.Context, l ratelimit.Limiter) error { _, err := l.Take(ctx, "k", 1); return err },
		func(ctx context.Context, l ratelimit.Limiter) error { _, err := l.Charge(ctx, "k", 1); return err },
		func(ctx context.Context, l ratelimit.Limiter) error { _, _, err := l.Hold(ctx, "k", 1); return err },
	}
	asksForSeveral = []asking{
		func(ctx context.Context, l ratelimit.Limiter) error {
			_, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "j"), ratelimit.For(l, "k"))
			return err
		},
		func(ctx context.Context, l ratelimit.Limiter) error {
			_, _, err := ratelimit.HoldAll(ctx, 1, ratelimit.For(l, "j"), ratelimit.For(l, "k"))
			return err
		},
	}
)

// collect makes calls with limiters of an algorithm.
func (c *scriptCollector) collect(t *testing.T, alg ratelimit.Algorithm, asks ...asking) {
	t.Helper()
	for i, ask := range asks {
		s, err := redisstore.New(c, redisstore.WithTimeout(patient))
		require.NoError(t, err)
		l, err := ratelimit.New(alg, ratelimit.WithStore(s), ratelimit.WithName("test"),
			ratelimit.WithFailurePolicy(ratelimit.FailClosed()), ratelimit.WithFailureLog(nil))
		require.NoError(t, err)
		before := len(c.texts)
		require.Error(t, ask(t.Context(), l), "no script is executed")
		assert.Greater(t, len(c.texts), before, "%#v has a script of its own for call %d", alg, i)
	}
}

// A name that is not defined is nil in Lua, which nobody notices until that line is executed. So
// luacheck reads every script that the store sends: of each kind of parts, alone, as a part, and all
// together. The globals are those that Redis has.
func TestScriptsDefineTheirNames(t *testing.T) {
	t.Parallel()
	long(t)
	luacheck := findLuacheck(t)
	c := &scriptCollector{texts: map[string]bool{}}
	var all ratelimit.All
	rate := ratelimit.PerSecond(10)
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: rate},
		ratelimit.TokenBucket{Rate: rate, Refill: ratelimit.RefillInterval},
		ratelimit.LeakyBucket{Rate: rate, Capacity: 3},
		ratelimit.FixedWindow{Limit: 10, Window: time.Second},
		ratelimit.CalendarWindow{Limit: 10, Every: ratelimit.Day},
		ratelimit.SlidingWindow{Limit: 10, Window: time.Second},
		ratelimit.RollingWindow{Quota: 10, Window: time.Minute, Period: time.Second},
		ratelimit.SlidingLog{Limit: 10, Window: time.Second},
		ratelimit.Lockout{Limit: 3, Window: time.Minute, First: time.Second, Longest: time.Hour},
		ratelimit.WarmingUp{Rate: rate, Warmup: time.Second},
		ratelimit.InFlight{Limit: 10, Timeout: time.Second},
	} {
		c.collect(t, alg, asksForOne...)
		c.collect(t, alg, asksForSeveral...)
		c.collect(t, ratelimit.All{alg}, asksForOne...)
		all = append(all, alg)
	}
	c.collect(t, all, asksForOne...)
	c.collect(t, all, asksForSeveral...)

	dir := t.TempDir()
	var files []string
	for text := range c.texts {
		file := filepath.Join(dir, fmt.Sprintf("%d.lua", len(files)))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		files = append(files, file)
	}
	args := []string{
		"--no-config", "--no-cache", "--no-color", "--formatter", "plain", "--std", "lua51",
		"--not-globals", "io", "os", "print", "require", "module", "package", "dofile", "loadfile", "debug", "coroutine",
		"--read-globals", "redis", "struct", "KEYS", "ARGV",
		"--only", "0", "1", // errors, and what concerns globals
		"--",
	}
	out, err := exec.Command(luacheck, append(args, files...)...).CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

// findLuacheck returns the path of luacheck, or skips or fails the test as find does.
func findLuacheck(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("luacheck")
	if err != nil {
		if os.Getenv("RATELIMIT_SERVERS") != "" {
			t.Fatal("luacheck is not installed: scripts/servers installs it")
		}
		t.Skip("SKIPPED: luacheck is not installed; scripts/servers installs it")
	}
	return path
}
