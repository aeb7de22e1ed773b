package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// askEach calls TakeEach for keys, some of them several times, and adds the decisions to the
// loads, which are by the number that is the key.
func askEach(t *testing.T, l ratelimit.Limiter, of []load) {
	keys := make([]string, 1+rand.IntN(2*len(of)))
	for i := range keys {
		keys[i] = strconv.Itoa(rand.IntN(len(of)))
	}
	out, err := l.TakeEach(context.Background(), keys, 1, nil)
	assert.NoError(t, err)
	for i, key := range keys {
		k, err := strconv.Atoi(key)
		assert.NoError(t, err)
		switch d := out[i]; {
		case d.Degraded:
			of[k].degraded.Add(1)
		case d.Allowed:
			of[k].allowed.Add(1)
		default:
			of[k].denied.Add(1)
		}
	}
}

// assertLimit asserts that each key was granted what the limit grants, and that Redis decided.
func assertLimit(t *testing.T, limit int, of []load) {
	t.Helper()
	for k := range of {
		assert.Equal(t, int64(limit), of[k].allowed.Load(), "key %d", k)
		assert.Zero(t, of[k].degraded.Load(), "key %d: %v", k, of[k].why.Load())
	}
}

// TakeEach decides on keys of several nodes, which do not know the script at first, while
// others take from the same keys: each key is granted its limit, and no more.
func TestEachInCluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for name, conn := range clusterConns(t, c) {
		for kind, alg := range map[string]ratelimit.Algorithm{
			"window":  hourly(40),
			"bucket":  ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 40, Per: year}},
			"sliding": ratelimit.SlidingWindow{Limit: 40, Window: 1000 * time.Hour},
			"log":     ratelimit.SlidingLog{Limit: 40, Window: time.Hour},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				store, err := redisstore.New(conn, redisstore.WithPrefix(name+kind), redisstore.WithTimeout(patient))
				require.NoError(t, err)
				l := limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
				of := make([]load, 30)
				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						for range 20 {
							if i%2 == 0 {
								askEach(t, l, of)
								continue
							}
							for k := range of {
								of[k].ask(l, strconv.Itoa(k))
							}
						}
					})
				}
				wg.Wait()
				assertLimit(t, 40, of)
			})
		}
	}
}

// The same while the slot of all keys moves between nodes.
func TestEachInMovingSlot(t *testing.T) {
	t.Parallel()
	askWhileMoving(t, 300, func(t *testing.T, caller int, l ratelimit.Limiter, of []load) {
		if caller%2 == 0 {
			askEach(t, l, of)
		} else {
			k := rand.IntN(len(of))
			of[k].ask(l, strconv.Itoa(k))
		}
	})
}

// Keys in which another process has holds open, or leases, are asked for once more, together.
func TestEachBesideHolds(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		holder := limiter(t, create(t, s.addr(), redisstore.WithTimeout(patient)), hourly(10))
		store := create(t, s.addr(), redisstore.WithTimeout(patient))
		l := limiter(t, store, hourly(10))
		var keys []string
		for i := range 10 {
			keys = append(keys, fmt.Sprint(i))
			_, _, err := holder.Hold(t.Context(), keys[i], 3)
			require.NoError(t, err)
		}
		require.True(t, l.Allow("another"))
		calls := store.Stats().Calls
		out, err := l.TakeEach(t.Context(), keys, 1, nil)
		require.NoError(t, err)
		for _, d := range out {
			assert.Equal(t, 6, d.Remaining)
		}
		assert.LessOrEqual(t, store.Stats().Calls-calls, uint64(2*len(keys)))
	})
}

// BenchmarkEach compares a loop with TakeEach, on 100 keys at a time, in turns: with a server
// on this machine, and with one at a distance of half a millisecond.
func BenchmarkEach(b *testing.B) {
	for _, distance := range []time.Duration{0, 500 * time.Microsecond} {
		for client, create := range makers {
			b.Run(fmt.Sprintf("rtt=%v/%s", distance, client), func(b *testing.B) {
				s := startServer(b)
				addr := s.addr()
				if distance > 0 {
					addr = startWire(b, addr, wire{delay: distance / 2}).addr()
				}
				l := limiter(b, create(b, addr, redisstore.WithTimeout(patient)), ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e6)})
				keys := make([]string, 100)
				for i := range keys {
					keys[i] = "key number " + strconv.Itoa(i)
				}
				out, err := l.TakeEach(context.Background(), keys, 1, nil) // warm
				require.NoError(b, err)
				var loop, each time.Duration
				for b.Loop() {
					begin := time.Now()
					for _, key := range keys {
						if _, err := l.Take(context.Background(), key, 1); err != nil {
							b.Fatal(err)
						}
					}
					loop += time.Since(begin)
					begin = time.Now()
					if out, err = l.TakeEach(context.Background(), keys, 1, out[:0]); err != nil {
						b.Fatal(err)
					}
					each += time.Since(begin)
				}
				perKey := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(b.N*len(keys)) }
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(perKey(loop), "loop-µs/key")
				b.ReportMetric(perKey(each), "each-µs/key")
				b.ReportMetric(float64(each)/float64(loop), "each/loop")
				b.ReportMetric(scriptTime(b, s), "server-µs/key")
			})
		}
	}
}
