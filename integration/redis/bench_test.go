package redis_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// BenchmarkAlgorithms compares the algorithms with each other: 64 callers, 10,000
// keys, one server. BENCHMARKS.md compares the store with others, and BenchmarkBusy
// compares it with the bare command of its script.
func BenchmarkAlgorithms(b *testing.B) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"TokenBucket":        ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e6)},
		"FixedWindow":        ratelimit.FixedWindow{Limit: 1e6, Window: time.Hour},
		"CalendarWindow":     ratelimit.CalendarWindow{Limit: 1e6, Every: ratelimit.Month, Zone: "Europe/London"},
		"SlidingWindow/1":    ratelimit.SlidingWindow{Limit: 1e6, Window: time.Hour},
		"SlidingWindow/60":   ratelimit.SlidingWindow{Limit: 1e6, Window: time.Hour, Segments: 60},
		"RollingWindow/1440": ratelimit.RollingWindow{Quota: 1e6, Window: 24 * time.Hour, Period: time.Minute},
		"SlidingLog":         ratelimit.SlidingLog{Limit: 1000, Window: 100 * time.Millisecond},
		"WarmingUp":          ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1e6), Warmup: time.Second},
		"All":                ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e6)}, ratelimit.FixedWindow{Limit: 1e6, Window: time.Hour}},
	} {
		for client, create := range makers {
			b.Run(name+"/"+client, func(b *testing.B) {
				s := startServer(b)
				l := limiter(b, create(b, s.addr(), redisstore.WithTimeout(patient)), alg)
				keys := make([]string, 10_000)
				for i := range keys {
					keys[i] = "key number " + strconv.Itoa(i)
				}
				l.Allow("warm")
				var next atomic.Uint64
				b.SetParallelism(32)
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					i := next.Add(7919)
					for pb.Next() {
						i += 7919
						if _, err := l.Take(context.Background(), keys[i%uint64(len(keys))], 1); err != nil {
							b.Error(err)
						}
					}
				})
				b.StopTimer()
				b.ReportMetric(scriptTime(b, s), "server-µs/op")
			})
		}
	}
}

// scriptTime returns the server's average time for a script.
func scriptTime(b *testing.B, s *server) float64 {
	b.Helper()
	_, rest, ok := strings.Cut(s.info("commandstats", "cmdstat_evalsha"), "usec_per_call=")
	if !ok {
		return 0
	}
	number, _, _ := strings.Cut(rest, ",")
	us, err := strconv.ParseFloat(number, 64)
	if err != nil {
		b.Error(err)
	}
	return us
}

// BenchmarkAccounting compares a Take with what counts events afterwards, and with what takes as
// many as remain: the server's time for a script, of which Hold and Settle, and Peek and Take, take
// two.
func BenchmarkAccounting(b *testing.B) {
	ctx := context.Background()
	for name, ask := range map[string]func(l ratelimit.Limiter) error{
		"Take": func(l ratelimit.Limiter) error { _, err := l.Take(ctx, "k", 1); return err },
		"Hold and Settle": func(l ratelimit.Limiter) error {
			r, _, err := l.Hold(ctx, "k", 10)
			if err == nil && r != nil {
				_, err = r.Settle(ctx, 5)
			}
			return err
		},
		"Charge": func(l ratelimit.Limiter) error { _, err := l.Charge(ctx, "k", 1); return err },
		"Peek and Take": func(l ratelimit.Limiter) error {
			d, err := l.Peek(ctx, "k")
			if err == nil {
				_, err = l.Take(ctx, "k", min(5, d.Remaining))
			}
			return err
		},
		"TakeUpTo": func(l ratelimit.Limiter) error { _, _, err := l.TakeUpTo(ctx, "k", 5); return err },
	} {
		for kind, alg := range map[string]ratelimit.Algorithm{
			"TokenBucket":      ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e9)},
			"FixedWindow":      ratelimit.FixedWindow{Limit: 1e9, Window: time.Hour},
			"SlidingWindow/60": ratelimit.SlidingWindow{Limit: 1e9, Window: time.Hour, Segments: 60},
		} {
			b.Run(kind+"/"+name, func(b *testing.B) {
				s := startServer(b)
				l := limiter(b, makers["rueidis"](b, s.addr(), redisstore.WithTimeout(patient)), alg)
				if err := ask(l); err != nil { // which loads the script
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if err := ask(l); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(scriptTime(b, s), "server-µs/call")
			})
		}
	}
}

// BenchmarkOpenHolds compares requests on a key with many open holds: the server's time for a script, of
// which a Hold that is settled takes two.
func BenchmarkOpenHolds(b *testing.B) {
	for kind, alg := range map[string]ratelimit.Algorithm{
		"TokenBucket":      ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000), Burst: 1e9},
		"FixedWindow":      ratelimit.FixedWindow{Limit: 1e9, Window: time.Hour},
		"SlidingWindow/60": ratelimit.SlidingWindow{Limit: 1e9, Window: time.Hour, Segments: 60},
		"InFlight":         ratelimit.InFlight{Limit: 1e6, Timeout: time.Hour},
		"All": ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000), Burst: 1e9},
			ratelimit.FixedWindow{Limit: 1e9, Window: time.Hour},
		},
	} {
		for _, open := range []int{0, 10, 1000} {
			for name, ask := range map[string]func(l ratelimit.Limiter, open []*ratelimit.Reservation) error{
				"Take": func(l ratelimit.Limiter, _ []*ratelimit.Reservation) error {
					_, err := l.Take(b.Context(), "k", 1)
					return err
				},
				"Hold and Settle/youngest": func(l ratelimit.Limiter, _ []*ratelimit.Reservation) error {
					r, _, err := l.Hold(b.Context(), "k", 10)
					if err == nil {
						_, err = r.Settle(b.Context(), 5)
					}
					return err
				},
				"Hold and Settle/any": func(l ratelimit.Limiter, open []*ratelimit.Reservation) error {
					r, _, err := l.Hold(b.Context(), "k", 10)
					if len(open) > 0 {
						i := rand.IntN(len(open))
						r, open[i] = open[i], r
					}
					if err == nil {
						_, err = r.Settle(b.Context(), 5)
					}
					return err
				},
			} {
				b.Run(kind+"/open="+strconv.Itoa(open)+"/"+name, func(b *testing.B) {
					s := startServer(b)
					l := limiter(b, makers["rueidis"](b, s.addr(), redisstore.WithTimeout(patient)), alg)
					held := make([]*ratelimit.Reservation, open)
					for i := range held {
						var err error
						if held[i], _, err = l.Hold(b.Context(), "k", 10, ratelimit.HoldFor(time.Hour)); err != nil {
							b.Fatal(err)
						}
					}
					if err := ask(l, held); err != nil { // which loads the script
						b.Fatal(err)
					}
					s.do("CONFIG", "RESETSTAT")
					for b.Loop() {
						if err := ask(l, held); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(scriptTime(b, s), "server-µs/call")
				})
			}
		}
	}
}
