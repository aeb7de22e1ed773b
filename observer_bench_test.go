package ratelimit_test

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// BenchmarkObserver compares Allow on one hot key, allowed and denied, with an observer, with one
// that does nothing, and without, from one goroutine and from all cores. Rounds of the three take
// turns, so that they meet the same machine. It reports the time of a decision with the observer,
// and how many times that is the time with the one that does nothing (x-empty), and without (x).
// observer=none shows how far x is from 1 by chance.
func BenchmarkObserver(b *testing.B) {
	coarse, err := ratelimit.NewCoarseClock(time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	defer coarse.Stop()
	var counts [8]atomic.Int64
	empty := ratelimit.ObserverFunc(func(context.Context, ratelimit.Observation) {})
	for _, o := range []struct {
		name string
		of   ratelimit.Observer
	}{
		{"none", nil},
		{"empty", empty},
		{"counter", ratelimit.ObserverFunc(func(_ context.Context, o ratelimit.Observation) { counts[o.Outcome].Add(1) })},
		{"TopDenied", ratelimit.TopDenied(100)},
		{"TopDenied-coarse", ratelimit.TopDenied(100, ratelimit.WithTopClock(coarse))},
		{"Slog-disabled", ratelimit.SlogObserver(slog.New(slog.DiscardHandler), time.Second)},
		{"Slog", ratelimit.SlogObserver(slog.New(slog.NewTextHandler(io.Discard, nil)), time.Second)},
	} {
		for _, answer := range []struct {
			name    string
			limit   int
			allowed bool
		}{{"allowed", plenty, true}, {"denied", 1, false}} {
			for _, from := range []struct {
				name  string
				cores int
			}{{"alone", 1}, {"all-cores", runtime.GOMAXPROCS(0)}} {
				b.Run("observer="+o.name+"/"+answer.name+"/"+from.name, func(b *testing.B) {
					var opts []ratelimit.Option
					if o.of != nil {
						opts = append(opts, ratelimit.WithObserver(o.of))
					}
					alg := algorithms(answer.limit, time.Millisecond)[0].alg
					took := inTurn(b, from.cores, answer.allowed,
						ratelimit.Must(ratelimit.New(alg)),
						ratelimit.Must(ratelimit.New(alg, ratelimit.WithObserver(empty))),
						ratelimit.Must(ratelimit.New(alg, opts...)))
					b.ReportMetric(took[2], "ns/decision")
					b.ReportMetric(took[2]/took[0], "x")
					b.ReportMetric(took[2]/took[1], "x-empty")
					b.ReportMetric(0, "ns/op") // it would be that of a round of each
				})
			}
		}
	}
}

// inTurn lets as many goroutines as there are cores call Allow of each limiter in turn, on one
// hot key, and returns how many nanoseconds a call of each took.
func inTurn(b *testing.B, cores int, allowed bool, limiters ...ratelimit.Limiter) (took []float64) {
	const key, round = "hot key 12345678", 10_000
	for _, l := range limiters {
		l.Allow(key)
	}
	spent, rounds := make([]time.Duration, len(limiters)), 0
	for b.Loop() {
		for i, l := range limiters {
			var all sync.WaitGroup
			began := time.Now()
			for range cores {
				all.Go(func() {
					for range round {
						if l.Allow(key) != allowed {
							b.Error("wrong answer")
							return
						}
					}
				})
			}
			all.Wait()
			spent[i] += time.Since(began)
		}
		rounds++
	}
	for _, d := range spent {
		took = append(took, float64(d.Nanoseconds())/float64(rounds*cores*round))
	}
	return took
}

// BenchmarkTopDenied tells a list of 100 of denials of one key, and of so many that almost each
// takes the place of another one.
func BenchmarkTopDenied(b *testing.B) {
	ctx := context.Background()
	for _, n := range []int{1, 100_000} {
		all := keys(n)
		denied := func(i int) ratelimit.Observation {
			return ratelimit.Observation{Limiter: "api", Key: all[shuffled(i%n, n)], N: 1, Outcome: ratelimit.Denied}
		}
		b.Run("keys="+strconv.Itoa(n)+"/alone", func(b *testing.B) {
			b.ReportAllocs()
			top, i := ratelimit.TopDenied(100), 0
			for b.Loop() {
				top.Observe(ctx, denied(i))
				i++
			}
			if len(top.Top(100)) == 0 {
				b.Fatal("nothing is listed")
			}
		})
		b.Run("keys="+strconv.Itoa(n)+"/all-cores", func(b *testing.B) {
			b.ReportAllocs()
			top := ratelimit.TopDenied(100)
			var callers atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				i := int(callers.Add(1)) * 7919
				for pb.Next() {
					top.Observe(ctx, denied(i))
					i++
				}
			})
			if len(top.Top(100)) == 0 {
				b.Fatal("nothing is listed")
			}
		})
	}
}
