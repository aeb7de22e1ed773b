package redis_test

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// wrongBorders sends commands with the borders of other days, as a process does that does not know
// the server's time.
type wrongBorders struct {
	redisstore.Conn
	limit int       // of the CalendarWindow
	first time.Time // the first border
	found int       // commands with borders
}

func (c *wrongBorders) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	const kind = 10
	part := string(binary.LittleEndian.AppendUint64([]byte{kind}, math.Float64bits(float64(c.limit))))
	borders := make([]byte, 0, 4*8)
	for day := range 4 {
		border := c.first.AddDate(0, 0, day).UnixMicro()
		borders = binary.LittleEndian.AppendUint64(borders, math.Float64bits(float64(border)))
	}
	for i := range commands {
		for j, word := range commands[i].Words {
			at := strings.Index(word, part)
			if at < 0 {
				continue
			}
			c.found++
			at += len(part)
			commands[i].Words[j] = word[:at] + string(borders) + word[at+len(borders):]
		}
	}
	return c.Conn.Do(ctx, commands)
}

// A script that lacks the window of the server's time changes nothing, and the process decides: for
// each operation, alone, in an All and on several keys.
func TestWrongBorders(t *testing.T) {
	t.Parallel()
	addr := startServer(t).addr()
	window := ratelimit.CalendarWindow{Limit: 977, Every: ratelimit.Year, Zone: "Asia/Tokyo"}
	for name, alg := range map[string]ratelimit.Algorithm{
		"alone":     window,
		"in an All": ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)}, window},
	} {
		t.Run(name, func(t *testing.T) {
			conn := &wrongBorders{Conn: connectors["goredis"](t, addr), limit: window.Limit, first: time.Unix(0, 0)}
			s, err := redisstore.New(conn, redisstore.WithTimeout(patient), redisstore.WithPrefix(prefixes()))
			require.NoError(t, err)
			l := limiter(t, s, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			ctx, left := t.Context(), window.Limit
			spends := func(n int, d ratelimit.Decision, err error) {
				t.Helper()
				require.NoError(t, err)
				assert.True(t, d.Allowed)
				left -= n
				again, err := l.Peek(ctx, "k")
				require.NoError(t, err)
				assert.Equal(t, left, again.Remaining)
			}
			d, err := l.Take(ctx, "k", 10)
			spends(10, d, err)
			d, err = l.Charge(ctx, "k", 20)
			spends(20, d, err)
			h, d, err := l.Hold(ctx, "k", 30)
			spends(30, d, err)
			d, err = l.Take(ctx, "k", 5)
			spends(5, d, err)
			require.NoError(t, h.Extend(ctx, time.Hour))
			_, err = h.Settle(ctx, 10)
			require.NoError(t, err)
			left += 20
			d, err = ratelimit.TakeAll(ctx, 7, ratelimit.For(l, "k"), ratelimit.For(l, "other"))
			spends(7, d, err)
			r, d, err := l.Reserve(ctx, "k", 40)
			require.NoError(t, err)
			require.NotNil(t, r)
			spends(40, ratelimit.Decision{Allowed: d.Allowed}, err)

			d, err = l.Take(ctx, "k", left+1)
			require.NoError(t, err)
			assert.False(t, d.Allowed)
			d, err = l.Take(ctx, "k", left)
			spends(left, d, err)
			d, err = l.Take(ctx, "k", 1)
			require.NoError(t, err)
			late, _, err := l.Reserve(ctx, "k", 1)
			require.NoError(t, err)
			require.NotNil(t, late)
			assert.InDelta(t, d.RetryAfter, late.Delay(), float64(time.Minute))
			late.Cancel()
			assert.Greater(t, conn.found, 10)
		})
	}
}

// Nor does a script whose windows are all later than the server's time count the events of an earlier
// window in the present one.
func TestBordersAhead(t *testing.T) {
	t.Parallel()
	const limit = 977
	conn := &wrongBorders{Conn: connectors["goredis"](t, startServer(t).addr()), limit: limit}
	tr := newTraceOf(t, conn, prefixes(), ratelimit.CalendarWindow{Limit: limit, Every: ratelimit.Day}, uncached)
	take := func(n int) ratelimit.Decision {
		today := tr.clk.Now().Truncate(24 * time.Hour)
		conn.first = today.AddDate(0, 0, 5)
		tr.compare("k", func(l ratelimit.Limiter) (ratelimit.Decision, error) { return l.Take(t.Context(), "k", n) })
		return tr.last
	}
	assert.True(t, take(900).Allowed)
	tr.clk.Advance(24 * time.Hour)
	assert.True(t, take(100).Allowed)
	assert.Positive(t, conn.found)
}

// A script counts in each of the three windows that it knows, also in the first one, which is the
// present one if the process is ahead of the server.
func TestBordersFromTheFirstWindowOn(t *testing.T) {
	t.Parallel()
	const limit = 977
	conn := &wrongBorders{Conn: connectors["goredis"](t, startServer(t).addr()), limit: limit}
	tr := newTraceOf(t, conn, prefixes(), ratelimit.CalendarWindow{Limit: limit, Every: ratelimit.Day}, uncached)
	for day := range 3 {
		conn.first = tr.clk.Now().Truncate(24*time.Hour).AddDate(0, 0, -day)
		for _, allowed := range []bool{true, false} {
			tr.compare("k", func(l ratelimit.Limiter) (ratelimit.Decision, error) { return l.Take(t.Context(), "k", 900) })
			assert.Equal(t, allowed, tr.last.Allowed)
		}
		tr.clk.Advance(24 * time.Hour)
	}
	assert.Positive(t, conn.found)
}

// A turn that came in a window before the three that a script knows is spent in that window, and not
// in the one of the state.
func TestTurnBeforeKnownWindows(t *testing.T) {
	t.Parallel()
	conn := connectors["goredis"](t, startServer(t).addr())
	const day = 24 * time.Hour
	tr := newTraceOf(t, conn, prefixes(), ratelimit.All{
		ratelimit.FixedWindow{Limit: 1, Window: 12 * time.Hour}, // for which the reservation waits
		ratelimit.CalendarWindow{Limit: 2, Every: ratelimit.Day},
	}, uncached)
	require.Equal(t, 12, tr.clk.Now().Hour(), "the second half of a day")

	tr.ask("k", step.Request{Op: step.OpTake, N: 1})
	hold := step.Handle{ID: 1, For: 100 * day}
	tomorrow := tr.ask("k", step.Request{Op: step.OpReserve, N: 1, MaxWait: day, Hold: hold})
	require.True(t, tomorrow.Held)
	tr.clk.Advance(5 * day)
	tr.ask("k", step.Request{Op: step.OpTake, N: 1})
}
