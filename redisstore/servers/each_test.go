package servers

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

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
				out, err := ratelimit.TakeEach(context.Background(), l, keys, 1, nil) // warm
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
					if out, err = ratelimit.TakeEach(context.Background(), l, keys, 1, out[:0]); err != nil {
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
