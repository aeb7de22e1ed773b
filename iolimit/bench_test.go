package iolimit_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/iolimit"
)

// BenchmarkReader measures the cost of the limiter for a MiB that is granted at once: the
// difference to the benchmark "none". The benchmark "held" shows the rate of a stream that is
// limited to 1 Gbit/s, 125 MB/s, after its first burst.
func BenchmarkReader(b *testing.B) {
	const mega = 1 << 20
	read := func(b *testing.B, r io.Reader) {
		buf := make([]byte, 32<<10) // as io.Copy has
		b.ReportAllocs()
		b.SetBytes(mega)
		for b.Loop() {
			for left := mega; left > 0; {
				n, err := r.Read(buf[:min(left, len(buf))])
				if err != nil {
					b.Fatal(err)
				}
				left -= n
			}
		}
	}
	b.Run("none", func(b *testing.B) { read(b, new(asked)) })
	for _, burst := range []int{64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("burst=%dKiB", burst>>10), func(b *testing.B) {
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1 << 30, Per: time.Microsecond}, Burst: burst}))
			read(b, iolimit.Reader(context.Background(), new(asked), ratelimit.For(l, "key")))
		})
	}
	b.Run("held", func(b *testing.B) {
		l := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(125_000_000), Burst: mega})), "key")
		_ = l.Limiter().AllowN(l.Key(), mega)
		read(b, iolimit.Reader(context.Background(), new(asked), l))
	})
}
