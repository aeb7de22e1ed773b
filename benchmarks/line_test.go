//go:build unix

package benchmarks

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"golang.org/x/time/rate"

	"github.com/ratelimit-go/ratelimit"
)

// BenchmarkBusyLine has 64 goroutines wait for one key while all processors are busy, or while timers fire late. The
// figures are how many are served, in per cent of the rate and of what x/time/rate serves in the same run. A run lasts as
// long as the rate needs for b.N events: give it a few seconds (-benchtime 2000x).
func BenchmarkBusyLine(b *testing.B) {
	stores := map[string]func() []ratelimit.Option{
		"memory": func() []ratelimit.Option { return nil },
		"bytes": func() []ratelimit.Option {
			return []ratelimit.Option{ratelimit.WithStore(ratelimit.NewStore(new(oneKey))), ratelimit.WithName("test")}
		},
	}
	type load struct {
		name string
		busy bool          // whether goroutines that only compute use all processors
		late time.Duration // by which timers fire late
	}
	for _, l := range []load{{"busy", true, 0}, {"late", false, 10 * time.Millisecond}} {
		for _, perSecond := range []int{100, 1000, 2000} {
			for name, alg := range map[string]ratelimit.Algorithm{
				"LeakyBucket": ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(perSecond), Capacity: 100},
				"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(perSecond), Burst: 1},
			} {
				for kept, opts := range stores {
					b.Run(fmt.Sprintf("%s/%d/%s/%s", l.name, perSecond, name, kept), func(b *testing.B) {
						busy, stop := context.WithCancel(context.Background())
						defer stop()
						for i := 0; l.busy && i <= runtime.GOMAXPROCS(0); i++ {
							go func() {
								for busy.Err() == nil {
								}
							}()
						}
						clk := lateClock{clock.New(), l.late}
						ours := ratelimit.Must(ratelimit.New(alg, append(opts(), ratelimit.WithClock(clk))...))
						own := served(b.N, perSecond, func(ctx context.Context) error { return ours.Wait(ctx, "key") })
						theirs := rate.NewLimiter(rate.Limit(perSecond), 1)
						other := served(b.N, perSecond, func(ctx context.Context) error {
							select {
							case <-clk.Timer(theirs.Reserve().Delay()).C:
							case <-ctx.Done():
							}
							return ctx.Err()
						})
						b.ReportMetric(100*float64(own)/float64(other), "%ofXTime")
						b.ReportMetric(100*float64(own)/float64(b.N), "%ofRate")
					})
				}
			}
		}
	}
}

// A oneKey is a database of one key.
type oneKey struct {
	mu    sync.Mutex // protects state
	state []byte
}

func (db *oneKey) Get(context.Context, string) ([]byte, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.state, nil
}

func (db *oneKey) CompareAndSwap(_ context.Context, _ string, old, state []byte, _ time.Time) (swapped bool, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if !bytes.Equal(old, db.state) {
		return false, nil
	}
	db.state = bytes.Clone(state)
	return true, nil
}

func (db *oneKey) Delete(context.Context, string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.state = nil
	return nil
}

// served returns how many of 64 goroutines that wait again and again are served in the time in which a rate has n events.
func served(n, perSecond int, wait func(ctx context.Context) error) int64 {
	ctx, cancel := context.WithCancel(context.Background()) // without a deadline, before which they would be refused
	defer time.AfterFunc(time.Duration(n)*time.Second/time.Duration(perSecond), cancel).Stop()
	var count atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for ctx.Err() == nil {
				if wait(ctx) == nil {
					count.Add(1)
				}
			}
		})
	}
	all.Wait()
	return count.Load()
}

// A lateClock is one whose timers fire late.
type lateClock struct {
	clock.Clock
	by time.Duration
}

func (c lateClock) Timer(d time.Duration) *clock.Timer { return c.Clock.Timer(d + c.by) }

// BenchmarkLongLine has the figure of a grant to one of many who wait.
func BenchmarkLongLine(b *testing.B) {
	for _, waiters := range []int{100, 10_000} {
		b.Run(fmt.Sprint("waiters=", waiters), func(b *testing.B) {
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5000), Burst: 1}))
			ctx, cancel := context.WithCancel(context.Background())
			var count atomic.Int64
			var all sync.WaitGroup
			for range waiters {
				all.Go(func() {
					for l.Wait(ctx, "key") == nil {
						count.Add(1)
					}
				})
			}
			for count.Load() < 1000 {
				time.Sleep(10 * time.Millisecond)
			}
			first, used := count.Load(), processorTime(b)
			for count.Load() < first+int64(b.N) {
				time.Sleep(10 * time.Millisecond)
			}
			used = processorTime(b) - used
			b.ReportMetric(float64(used)/float64(count.Load()-first), "cpu-ns/grant")
			cancel()
			all.Wait()
		})
	}
}

// processorTime returns how long the process has used a processor.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
