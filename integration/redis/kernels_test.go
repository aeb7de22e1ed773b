package redis_test

import (
	"bufio"
	"encoding/binary"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// The tests in this file reach what the random traces seldom do.

// take takes events of key k.
func (tr *trace) take(n int) {
	tr.Helper()
	tr.note("Take(%d)", n)
	tr.compare("k", func(l ratelimit.Limiter) (ratelimit.Decision, error) { return l.Take(tr.Context(), "k", n) })
}

// A monitor records the commands that a server executes.
type monitor struct {
	of *server
	r  *bufio.Reader
}

func startMonitor(t *testing.T, s *server) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	m := &monitor{s, bufio.NewReader(conn)}
	_, err = m.r.ReadString('\n')
	require.NoError(t, err)
	return m
}

// written returns the time to live of the last key that was written since the last call.
func (m *monitor) written(t *testing.T) (ttl time.Duration) {
	t.Helper()
	m.of.do("ECHO", "the end")
	for {
		line, err := m.r.ReadString('\n')
		require.NoError(t, err)
		words := strings.Split(line, `" "`)
		switch {
		case strings.HasSuffix(words[0], `"PSETEX`):
			ms, err := strconv.Atoi(words[2])
			require.NoError(t, err)
			ttl = time.Duration(ms) * time.Millisecond
		case strings.Contains(line, "the end"):
			return ttl
		}
	}
}

// kept returns how long a key is kept by the clock of a limiter after a decision: until nothing
// counts any more, in whole milliseconds, rounded up or one more, and an hour.
func kept(d ratelimit.Decision) time.Duration {
	return d.ResetAfter.Truncate(time.Millisecond) + time.Millisecond + time.Hour
}

// A key is kept as long as what was granted counts.
func TestTimeToLive(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	conn := connectors["rueidis"](t, s.addr())
	m := startMonitor(t, s)
	for name, alg := range algorithms(10) {
		tr := newTraceOf(t, conn, prefixes(), alg, uncached)
		for _, n := range []int{1, 3, 1} {
			tr.clk.Advance(1234567 * time.Microsecond)
			if tr.take(n); tr.last.Allowed {
				assert.Equal(t, kept(tr.last), m.written(t), name)
			}
		}
	}
}

// A denial in the cache knows the events of a log that one number of events waits for. It does not tell
// when another number may be granted.
func TestCachedDenialOfALog(t *testing.T) {
	t.Parallel()
	const limit = 40
	tr := newTraceOf(t, connectors["rueidis"](t, startServer(t).addr()), prefixes(), ratelimit.SlidingLog{Limit: limit, Window: time.Hour}, cached)
	for range limit {
		tr.take(1)
		tr.clk.Advance(time.Second)
	}
	for _, n := range []int{1, 1, 20, 20, 5, limit, 1} {
		tr.take(n)
		assert.False(t, tr.last.Allowed)
		assert.Equal(t, time.Hour-time.Duration(limit-n+1)*time.Second, tr.last.RetryAfter, "of %d events", n)
	}
}

// A log in which events were reserved without a turn, as earlier releases did, grants no other before
// them, and counts those that are in its window then.
func TestLogWithEventsAhead(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	of := ratelimit.SlidingLog{Limit: 3, Window: 10 * time.Second}
	tr := newTraceOf(t, connectors["rueidis"](t, s.addr()), prefixes(), of, uncached)
	tr.take(1)
	at := func(second uint64) uint64 { return uint64(tr.clk.Now().UnixMicro()) + second*1_000_000 }
	state := slices.Clone(tag(t, of))
	for _, word := range []uint64{5, 3, at(11), at(0), at(1), at(2), at(10), at(11)} {
		state = binary.LittleEndian.AppendUint64(state, word)
	}
	tr.store.states["k"] = slices.Clone(state)
	s.do("SET", tr.conn.key, state)
	tr.clk.Advance(3 * time.Second)
	tr.take(1)
	for range 4 {
		tr.reserve("k", 1)
	}
	assert.Equal(t, 9*time.Second, tr.held[0].here.Delay(), "when the event of the second 2 is not in the window")
}

// If a window was reserved, it need not be aligned to the windows of another limit. Then it ends
// where one of those does. The key is kept until neither limit counts anything any more.
func TestWindowReservedByAnotherLimit(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	m := startMonitor(t, s)
	tr := newTraceOf(t, connectors["rueidis"](t, s.addr()), prefixes(), ratelimit.FixedWindow{Limit: 3, Window: 10 * time.Second}, varying)
	tr.take(3)
	tr.reserve("k", 1)
	start := tr.clk.Now().Add(tr.held[0].here.Delay()).Unix()
	require.NotZero(t, start%11)
	*tr.of = ratelimit.FixedWindow{Limit: 3, Window: 11 * time.Second}
	for range 40 {
		tr.clk.Advance(time.Second)
		if tr.take(1); tr.last.Allowed {
			written := m.written(t)
			assert.GreaterOrEqual(t, written, kept(tr.last))
			assert.LessOrEqual(t, written, kept(tr.last)+11*time.Second)
		}
	}
}

// The instant from which a limiter is cold is rounded up twice, as in this process: here, the
// warmth lasts a little more than a nanosecond.
func TestLastBitOfWarmth(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	of := ratelimit.WarmingUp{Rate: ratelimit.Rate{Events: 2, Per: 3}, Warmup: time.Millisecond, ColdFactor: 1} // cools down by 1 in 1 ns
	tr := newTraceOf(t, connectors["rueidis"](t, s.addr()), prefixes(), of, uncached)
	tr.take(1)
	header := tag(t, of)
	state := slices.Clone(header)
	for _, word := range []uint64{math.Float64bits(math.Nextafter(1, 2)), uint64(tr.clk.Now().UnixMicro()), 999} {
		state = binary.LittleEndian.AppendUint64(state, word)
	}
	tr.store.states["k"] = slices.Clone(state)
	s.do("SET", tr.conn.key, state)
	tr.clk.Advance(time.Microsecond)
	tr.take(1)
	require.True(t, tr.last.Allowed)
	warmth := math.Float64frombits(binary.LittleEndian.Uint64(tr.store.states["k"][len(header):]))
	assert.Equal(t, math.Nextafter(1, 2), warmth, "the last bit is left, and one event was taken")
}

// A limit reads the states of one that differs only in how much it grants as they are, in the
// script as in this process: the time at which it does so is not in the state.
func TestStateOfLimitThatGrantsMore(t *testing.T) {
	t.Parallel()
	conn := connectors["rueidis"](t, startServer(t).addr())
	warming := ratelimit.WarmingUp{Rate: ratelimit.PerSecond(7), Warmup: 10 * time.Second}
	for name, limit := range map[string]func(n int) ratelimit.Algorithm{
		"sliding": func(n int) ratelimit.Algorithm {
			return ratelimit.SlidingWindow{Limit: n, Window: time.Minute, Segments: 6}
		},
		"rolling": func(n int) ratelimit.Algorithm {
			return ratelimit.RollingWindow{Quota: n, Window: time.Minute, Period: 10 * time.Second}
		},
		"warming": func(n int) ratelimit.Algorithm {
			return ratelimit.All{warming, ratelimit.FixedWindow{Limit: n, Window: time.Minute}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTraceOf(t, conn, prefixes(), limit(5), varying)
			tr.take(3)
			*tr.of = limit(2)
			for range 3 { // from the second time on, the script knows the other limit
				tr.clk.Advance(time.Second)
				tr.take(1)
			}
			tr.clk.Advance(time.Second)
			tr.reserve("k", 1)
			tr.clk.Advance(15 * time.Second)
			tr.take(1)
		})
	}
}
