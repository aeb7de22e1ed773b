package redis_test

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A crash is the task of a process that is killed while it has holds open.
type crash struct {
	Addr, Client, Algorithm string
	GiveBack                bool
}

const (
	crashHolds  = 200
	crashEvents = 5 // of each hold, of which a millisecond is between two
	crashLimit  = crashHolds * crashEvents
)

// crashAlgorithms have no room for more than the holds of a crash, and gain none in a minute.
var crashAlgorithms = map[string]ratelimit.Algorithm{
	"FixedWindow": hourly(crashLimit),
	"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: crashLimit},
	"SlidingLog":  ratelimit.SlidingLog{Limit: crashLimit, Window: time.Hour},
	"InFlight":    ratelimit.InFlight{Limit: crashLimit, Timeout: time.Hour},
	"All": ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: crashLimit},
		ratelimit.FixedWindow{Limit: 2 * crashLimit, Window: 24 * time.Hour},
	},
}

// limiter returns the limiter of the processes, and its clock, which begins with the first hold.
func (c crash) limiter(t *testing.T) (ratelimit.Limiter, *storetest.Clock) {
	clk := storetest.NewClock(time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC))
	store := makers[c.Client](t, c.Addr, redisstore.WithTimeout(patient), redisstore.WithLimiterClock())
	return limiter(t, store, crashAlgorithms[c.Algorithm], ratelimit.WithClock(clk), ratelimit.WithName(c.Algorithm),
		ratelimit.WithFailurePolicy(ratelimit.FailClosed())), clk
}

// TestCrashing is the process: it holds, prints the tokens, and waits until it is killed.
func TestCrashing(t *testing.T) {
	do, ok := taskOf[crash](t)
	if !ok {
		return
	}
	l, clk := do.limiter(t)
	opts := []ratelimit.HoldOption{ratelimit.HoldFor(time.Minute)}
	if do.GiveBack {
		opts = append(opts, ratelimit.GiveBack())
	}
	var tokens []string
	for range crashHolds {
		r, _, err := l.Hold(t.Context(), "k", crashEvents, opts...)
		require.NoError(t, err)
		tokens = append(tokens, r.Token())
		clk.Advance(time.Millisecond)
	}
	require.NoError(t, json.NewEncoder(os.Stdout).Encode(tokens))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // never comes
}

// killed returns the tokens of a process that has been killed since.
func (c crash) killed(t *testing.T) (tokens []string) {
	cmd := workerProcess(t, "TestCrashing", c)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(line, &tokens))
	require.NoError(t, cmd.Process.Kill())
	require.ErrorContains(t, cmd.Wait(), "killed")
	require.Len(t, tokens, crashHolds)
	return tokens
}

// eachCrash calls test for each algorithm, with a process of either client that has been killed.
func eachCrash(t *testing.T, giveBack bool, test func(t *testing.T, name string, tokens []string, l ratelimit.Limiter, clk *storetest.Clock)) {
	for client := range clients(t) {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			addr := startServer(t).addr()
			for name := range crashAlgorithms {
				c := crash{addr, client, name, giveBack}
				tokens := c.killed(t)
				l, clk := c.limiter(t)
				test(t, name, tokens, l, clk)
			}
		})
	}
}

// remains checks how many events of a key are left.
func remains(t *testing.T, want int, l ratelimit.Limiter, name string) {
	t.Helper()
	d, err := l.Peek(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, want, d.Remaining, name)
}

// What a process held with GiveBack comes back when its holds end, and not before.
func TestCrashGivesBack(t *testing.T) {
	eachCrash(t, true, func(t *testing.T, name string, _ []string, l ratelimit.Limiter, clk *storetest.Clock) {
		remains(t, 0, l, name)
		clk.Advance(time.Minute - time.Microsecond)
		remains(t, 0, l, name)
		clk.Advance(time.Microsecond)
		remains(t, crashEvents, l, name)
		clk.Advance(99 * time.Millisecond)
		remains(t, 100*crashEvents, l, name)
		require.True(t, l.AllowN("k", crashEvents))
		clk.Advance(time.Second)
		remains(t, crashLimit-crashEvents, l, name)
	})
}

// Without GiveBack, it counts as it was held. The events of an InFlight are over.
func TestCrashCounts(t *testing.T) {
	eachCrash(t, false, func(t *testing.T, name string, tokens []string, l ratelimit.Limiter, clk *storetest.Clock) {
		clk.Advance(2 * time.Minute)
		left := 0
		if name == "InFlight" {
			left = crashLimit
		}
		remains(t, left, l, name)
		r, err := l.Resume(t.Context(), "k", tokens[0])
		require.NoError(t, err)
		_, err = r.Settle(t.Context(), 0)
		require.NoError(t, err)
		remains(t, left, l, name) // it was too late
	})
}

// Who has the tokens settles exactly what the process held, each once.
func TestCrashResumed(t *testing.T) {
	eachCrash(t, false, func(t *testing.T, name string, tokens []string, l ratelimit.Limiter, clk *storetest.Clock) {
		clk.Advance(30 * time.Second)
		happened := 0
		for i, token := range tokens {
			for range 2 {
				r, err := l.Resume(t.Context(), "k", token)
				require.NoError(t, err)
				_, err = r.Settle(t.Context(), i%crashEvents)
				require.NoError(t, err)
			}
			if name != "InFlight" {
				happened += i % crashEvents
			}
			if i%50 == 0 {
				left := (i+1)*crashEvents - happened
				remains(t, left, l, name)
			}
		}
		remains(t, crashLimit-happened, l, name)
		_, err := l.Resume(t.Context(), "another key", tokens[0])
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	})
}
