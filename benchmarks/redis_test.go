package benchmarks

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/benchmarks/peers"
	"github.com/ratelimit-go/ratelimit/benchmarks/server"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// Command redis, in the folder of that name, compares limiters in Redis.

// BenchmarkRedisTakeEach decides on 100 keys by one caller, in a loop of Take and in one call. Its time
// is that of a key.
func BenchmarkRedisTakeEach(b *testing.B) {
	s, err := server.Start(context.Background())
	if errors.Is(err, server.ErrMissing) {
		b.Skip(err)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Stop)
	k := newKeys(100)
	var all []string
	for i := range k.len() {
		all = append(all, k.at(i))
	}
	for _, away := range []struct{ name, addr string }{{"0ms", s.Addr}, {"0.5ms", startWire(b, s.Addr, 500*time.Microsecond)}} {
		for _, p := range []struct {
			name string
			open func(peers.Address, peers.Limit, ...redisstore.Option) (ratelimit.Limiter, func(), error)
		}{{"lib-goredis", peers.OpenGoRedis}, {"lib-rueidis", peers.OpenRueidis}} {
			for _, call := range []struct {
				name string
				take func(ctx context.Context, l ratelimit.Limiter) ([]ratelimit.Decision, error)
			}{
				{"Loop", func(ctx context.Context, l ratelimit.Limiter) (out []ratelimit.Decision, _ error) {
					for _, key := range all {
						d, err := l.Take(ctx, key, 1)
						if err != nil {
							return nil, err
						}
						out = append(out, d)
					}
					return out, nil
				}},
				{"TakeEach", func(ctx context.Context, l ratelimit.Limiter) ([]ratelimit.Decision, error) {
					return l.TakeEach(ctx, all, 1, nil)
				}},
			} {
				b.Run(call.name+"/away="+away.name+"/peer="+p.name, func(b *testing.B) {
					l, end, err := p.open(peers.Address{Addr: away.addr}, peers.Plenty)
					if err != nil {
						b.Fatal(err)
					}
					defer end()
					for b.Loop() {
						out, err := call.take(b.Context(), l)
						if err != nil || slices.ContainsFunc(out, func(d ratelimit.Decision) bool { return !d.Allowed }) {
							b.Fatal("wrong answer:", err)
						}
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(all)), "ns/key")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}

// startWire returns an address from which each way to the server takes a delay.
func startWire(b *testing.B, to string, delay time.Duration) string {
	w, err := server.NewWire(to, delay)
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- w.Run() }()
	b.Cleanup(func() {
		w.Stop()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	return w.Addr
}
