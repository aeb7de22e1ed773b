//go:build unix

package benchmarks

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"golang.org/x/time/rate"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/iolimit"
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
						if l.busy {
							stop := useProcessors()
							defer stop()
						}
						clk := lateClock{clock.New(), l.late}
						ours := ratelimit.Must(ratelimit.New(alg, append(opts(), ratelimit.WithClock(clk))...))
						compareServed(b, perSecond, clk, func(ctx context.Context) error { return ours.Wait(ctx, "key") })
					})
				}
			}
		}
	}
}

// BenchmarkBusyCallers is BenchmarkBusyLine for what waits by a limiter, while all processors are busy: readers and writers
// of package iolimit, handlers with WithShaping, and clients with a Transport.
func BenchmarkBusyCallers(b *testing.B) {
	callers := map[string]func(l ratelimit.Limiter) func(ctx context.Context) error{
		"Reader": func(l ratelimit.Limiter) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				_, err := iolimit.Reader(ctx, endless{}, ratelimit.For(l, "key")).Read(make([]byte, 1))
				return err
			}
		},
		"Writer": func(l ratelimit.Limiter) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				_, err := iolimit.Writer(ctx, io.Discard, ratelimit.For(l, "key")).Write(make([]byte, 1))
				return err
			}
		},
		"WithShaping": func(l ratelimit.Limiter) func(ctx context.Context) error {
			nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			handler := httplimit.Middleware(l, httplimit.WithShaping(time.Minute))(nothing)
			return func(ctx context.Context) error {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
				if w.Code != http.StatusOK {
					return fmt.Errorf("status %d", w.Code)
				}
				return ctx.Err()
			}
		},
		"Transport": func(l ratelimit.Limiter) func(ctx context.Context) error {
			transport := &client.Transport{Limiter: l, Base: answers{}}
			return func(ctx context.Context) error {
				resp, err := transport.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, "http://server/", nil))
				if err != nil {
					return err
				}
				return resp.Body.Close()
			}
		},
	}
	for _, perSecond := range []int{100, 1000} {
		for name, caller := range callers {
			b.Run(fmt.Sprintf("%d/%s", perSecond, name), func(b *testing.B) {
				stop := useProcessors()
				defer stop()
				ours := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(perSecond), Burst: 1}))
				compareServed(b, perSecond, clock.New(), caller(ours))
			})
		}
	}
}

// An endless reader never waits.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// answers is a server that answers at once.
type answers struct{}

func (answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

// useProcessors has goroutines that only compute use all processors until they are stopped.
func useProcessors() (stop func()) {
	ctx, stop := context.WithCancel(context.Background())
	for range runtime.GOMAXPROCS(0) + 1 {
		go func() {
			for ctx.Err() == nil {
			}
		}()
	}
	return stop
}

// compareServed reports how many are served in the time of b.N events, of the rate and of what x/time/rate serves in as
// much time.
func compareServed(b *testing.B, perSecond int, clk clock.Clock, wait func(ctx context.Context) error) {
	own := served(b.N, perSecond, wait)
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
