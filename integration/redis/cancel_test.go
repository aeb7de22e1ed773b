package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A plainConn is a connection without goroutines, for use in bubbles.
type plainConn struct {
	loneServer
	mu sync.Mutex
	c  net.Conn
	r  *bufio.Reader
}

func dial(t testing.TB, addr string) *plainConn {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return &plainConn{c: c, r: bufio.NewReader(c)}
}

func (p *plainConn) Do(_ context.Context, commands []redisstore.Command) []redisstore.Reply {
	return oneByOne(commands, p.do)
}

func (p *plainConn) do(c redisstore.Command) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(c.Words))
	for _, w := range c.Words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.c.Write([]byte(b.String())); err != nil {
		return "", err
	}
	value, err := readValue(p.r)
	if err != nil {
		return "", err
	}
	line, rest, _ := strings.Cut(string(value), "\r\n")
	switch n, _ := strconv.Atoi(line[1:]); {
	case line[0] == '-':
		return "", errors.New(line[1:])
	case line[0] == '$' && n >= 0:
		return rest[:n], nil
	case line[0] == '$':
		return "", nil
	}
	return line[1:], nil
}

// Whatever is charged, taken and cancelled while turns are ahead, Redis has the state that the kernel has, also if
// turns come too early then, or are needed by later ones.
func TestTurns(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	window := ratelimit.FixedWindow{Limit: 3, Window: time.Minute, Start: ratelimit.StartOnFirstEvent}
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(7), Burst: 3}
	interval := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(3), Refill: ratelimit.RefillInterval}
	queue := ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(6), Capacity: 4}
	for _, alg := range []ratelimit.Algorithm{
		window, bucket, interval, queue,
		ratelimit.SlidingLog{Limit: 3, Window: time.Minute},
		ratelimit.SlidingWindow{Limit: 3, Window: time.Minute, Segments: 4},
		ratelimit.RollingWindow{Quota: 5, Window: time.Minute, Period: 10 * time.Second, PeriodLimit: 2},
		ratelimit.InFlight{Limit: 3, Timeout: time.Minute},
		ratelimit.WarmingUp{Rate: ratelimit.PerMinute(6), Warmup: time.Minute},
		ratelimit.All{window, bucket},
		ratelimit.All{interval, queue, ratelimit.SlidingLog{Limit: 4, Window: time.Minute}},
	} {
		for seed := range budget.Seeds(t, budget.Histories(6, 40)) {
			tr := newTraceOf(t, conn, prefixes(), alg, uncached)
			tr.rng = rand.New(rand.NewPCG(seed, 3))
			_, err := tr.here.Peek(t.Context(), "k") // sets the request
			require.NoError(t, err)
			ask := func(req step.Request) step.Answer {
				tr.note("%+v", req)
				return tr.ask("k", req)
			}
			var held []openHold
			for id := range uint64(60) {
				n := 1 + tr.rng.IntN(2)
				switch tr.rng.IntN(9) {
				default:
					req := step.Request{Op: step.OpReserve, N: n, MaxWait: time.Hour, Hold: step.Handle{ID: 2*id + 2}}
					if tr.rng.IntN(4) == 0 {
						req.Hold = step.Handle{ID: 2*id + 1, For: time.Minute, Back: n == 1}
					}
					req.Yields = tr.rng.IntN(4) == 0 // as that of a caller who waits
					if ask(req).Held {
						held = append(held, openHold{"k", req.Hold.ID, n})
					}
				case 0:
					ask(step.Request{Op: step.OpCharge, N: n})
				case 1, 2:
					if len(held) > 0 {
						i := tr.rng.IntN(len(held))
						ask(step.Request{Op: step.OpSettle, Of: held[i].n, Hold: step.Handle{ID: held[i].id}})
						held = slices.Delete(held, i, i+1)
					}
				case 3:
					ask(step.Request{Op: step.OpTake, N: n})
				case 4, 5:
					tr.clk.Advance(time.Duration(tr.rng.Int64N(int64(20 * time.Second))).Truncate(time.Microsecond))
					tr.note("at %d", tr.clk.Now().UnixMicro())
				}
			}
		}
	}
}
