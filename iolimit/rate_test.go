package iolimit_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/iolimit"
)

// This file measures rates, in the virtual time of synctest bubbles.

// A flow is bytes that passed at times since its begin.
type flow struct {
	begin time.Time

	mu     sync.Mutex // protects passed
	passed []passed
}

type passed struct {
	at time.Duration
	n  int
}

func newFlow() *flow { return &flow{begin: time.Now()} }

// Write counts p.
func (f *flow) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passed = append(f.passed, passed{time.Since(f.begin), len(p)})
	return len(p), nil
}

// within returns the number of bytes in [from, to).
func (f *flow) within(from, to time.Duration) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.passed {
		if from <= p.at && p.at < to {
			n += p.n
		}
	}
	return n
}

// zeros is an endless source, whose Reads are short, of changing lengths, if it is uneven.
type zeros struct {
	uneven bool
	count  int
}

func (z *zeros) Read(p []byte) (int, error) {
	if z.uneven {
		z.count++
		p = p[:min(len(p), 1+z.count*7919%1460)]
	}
	clear(p)
	return len(p), nil
}

// kilo is the bytes per second of every limit in limits.
const kilo = 100_000

// limits have a burst of 50 KB, except windows, whose burst is the whole window.
var limits = []ratelimit.Algorithm{
	ratelimit.TokenBucket{Rate: ratelimit.PerSecond(kilo), Burst: kilo / 2},
	ratelimit.TokenBucket{Rate: ratelimit.PerSecond(kilo), Burst: 1000},
	ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: kilo / 4, Per: time.Second / 4}, Burst: kilo / 2, Refill: ratelimit.RefillInterval},
	ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(kilo), Capacity: kilo / 2},
	ratelimit.FixedWindow{Limit: kilo, Window: time.Second},
	ratelimit.FixedWindow{Limit: kilo, Window: time.Second, Start: ratelimit.StartOnFirstEvent},
	ratelimit.SlidingWindow{Limit: kilo, Window: time.Second},
	ratelimit.SlidingWindow{Limit: kilo, Window: time.Second, Segments: 5},
	ratelimit.SlidingLog{Limit: kilo / 100, Window: time.Second / 100},
	ratelimit.SlidingLog{Limit: kilo / 100, Window: time.Second / 100, CountDenied: true},
	ratelimit.RollingWindow{Quota: kilo, Window: time.Second, Period: 250 * time.Millisecond},
	ratelimit.WarmingUp{Rate: ratelimit.PerSecond(kilo), Warmup: 100 * time.Millisecond},
	ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(kilo), Burst: kilo / 2},
		ratelimit.FixedWindow{Limit: 2 * kilo, Window: time.Second},
	},
}

// burst returns the time in which as many bytes come as a limit of limits lets pass at once.
func burst(alg ratelimit.Algorithm) time.Duration {
	switch alg := alg.(type) {
	case ratelimit.TokenBucket:
		return time.Duration(alg.Burst) * time.Second / kilo
	case ratelimit.LeakyBucket:
		return time.Duration(alg.Capacity) * time.Second / kilo
	case ratelimit.SlidingLog:
		return alg.Window
	}
	return time.Second
}

// A stream that always has data gets the rate, within 2 % over any ten bursts after the first one.
func TestRate(t *testing.T) {
	for _, alg := range limits {
		for _, uneven := range []bool{false, true} {
			t.Run(fmt.Sprintf("%T %v/uneven=%v", alg, alg, uneven), func(t *testing.T) {
				streams := map[string]func(ctx context.Context, b ratelimit.Bound, f *flow){
					"Reader": func(ctx context.Context, b ratelimit.Bound, f *flow) {
						_, err := io.Copy(f, iolimit.Reader(ctx, &zeros{uneven: uneven}, b))
						assert.ErrorIs(t, err, context.DeadlineExceeded)
					},
					"Writer": func(ctx context.Context, b ratelimit.Bound, f *flow) {
						_, err := io.Copy(iolimit.Writer(ctx, f, b), &zeros{uneven: uneven})
						assert.ErrorIs(t, err, context.DeadlineExceeded)
					},
					"Conn": func(ctx context.Context, b ratelimit.Bound, f *flow) {
						out, in := pipe(ratelimit.Bound{}, b)
						defer in.Close()
						go func() {
							defer out.Close()
							_, _ = io.Copy(out, &zeros{uneven: uneven})
						}()
						until, _ := ctx.Deadline()
						require.NoError(t, in.SetReadDeadline(until))
						_, err := io.Copy(f, in)
						assert.Error(t, err)
					},
				}
				for name, stream := range streams {
					t.Run(name, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { _ = checkRate(t, alg, 1, stream) })
					})
				}
			})
		}
	}
}

// Streams that share a key share its rate.
func TestStreamsShareAKey(t *testing.T) {
	for _, alg := range limits {
		t.Run(fmt.Sprintf("%T %v", alg, alg), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				streams := checkRate(t, alg, 5, func(ctx context.Context, b ratelimit.Bound, f *flow) {
					_, err := io.Copy(f, iolimit.Reader(ctx, &zeros{uneven: true}, b))
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				})
				for i, one := range streams {
					got := one.within(2*burst(alg), 12*burst(alg))
					if refillsEvenly(alg) { // turns are whole, and a span ends between two
						assert.InEpsilon(t, int(2*burst(alg)*kilo/time.Second), got, 0.1, "stream %d", i)
					} else { // who asks first at the beginning of a window is not known
						assert.Positive(t, got, "stream %d", i)
					}
				}
			})
		})
	}
}

// Streams take turns: one with small buffers gets less than others, unless package bufio fills larger
// ones.
func TestStreamsShareByChunk(t *testing.T) {
	alg := limits[0]
	const chunk = kilo / 2 / 16
	copySmall := func(w io.Writer, r io.Reader) {
		_, _ = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, chunk/4))
	}
	synctest.Test(t, func(t *testing.T) {
		streams := []func(context.Context, ratelimit.Bound, *flow){
			func(ctx context.Context, b ratelimit.Bound, f *flow) {
				_, _ = io.Copy(f, iolimit.Reader(ctx, new(zeros), b))
			},
			func(ctx context.Context, b ratelimit.Bound, f *flow) {
				copySmall(f, bufio.NewReaderSize(iolimit.Reader(ctx, new(zeros), b), 64<<10))
			},
			func(ctx context.Context, b ratelimit.Bound, f *flow) {
				copySmall(bufio.NewWriterSize(iolimit.Writer(ctx, f, b), 64<<10), new(zeros))
			},
			func(ctx context.Context, b ratelimit.Bound, f *flow) {
				copySmall(f, iolimit.Reader(ctx, new(zeros), b))
			},
			func(ctx context.Context, b ratelimit.Bound, f *flow) {
				copySmall(iolimit.Writer(ctx, f, b), new(zeros))
			},
		}
		var next atomic.Int32
		passed := make([]int, len(streams))
		checkRate(t, alg, len(streams), func(ctx context.Context, b ratelimit.Bound, f *flow) {
			i := next.Add(1) - 1
			streams[i](ctx, b, f)
			passed[i] = f.within(2*burst(alg), 12*burst(alg))
		})
		for i, parts := range []int{4, 4, 4, 1, 1} { // turns are whole, and a span ends between two
			assert.InEpsilon(t, parts*5*kilo/14, passed[i], 0.1, "stream %d", i)
		}
	})
}

// Streams that a LeakyBucket has room for take turns. Further ones wait for room, and none
// fails.
func TestStreamsShareAQueue(t *testing.T) {
	alg := ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(kilo), Capacity: kilo / 2}
	for _, streams := range []int{15, 100} {
		synctest.Test(t, func(t *testing.T) {
			all := checkRate(t, alg, streams, func(ctx context.Context, b ratelimit.Bound, f *flow) {
				_, err := io.Copy(f, iolimit.Reader(ctx, new(zeros), b))
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
			for i, one := range all {
				if streams == 15 { // of 160 turns, each has 10 or 11
					assert.InEpsilon(t, 10*kilo/2/streams, one.within(2*burst(alg), 12*burst(alg)), 0.1, "stream %d", i)
				}
			}
		})
	}
}

// Streams that end while they wait for their turn cost the others nothing: with twice as many as the limit lets pass,
// each of which has enough after a second, the whole limit is used.
func TestStreamsThatEndTakeNothingAlong(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1},
		ratelimit.FixedWindow{Limit: 10, Window: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := ratelimit.For(ratelimit.Must(ratelimit.New(alg)), "key")
			var passed atomic.Int32
			for i := range 20 * 60 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				go func() {
					defer cancel()
					r := iolimit.Reader(ctx, new(zeros), b)
					w := iolimit.Writer(ctx, io.Discard, b)
					var n int
					var err error
					if i%2 == 0 {
						n, err = r.Read(make([]byte, 1))
					} else {
						n, err = w.Write(make([]byte, 1))
					}
					if err != nil {
						assert.ErrorIs(t, err, context.DeadlineExceeded)
						assert.Error(t, ctx.Err(), "none gives up early")
					}
					passed.Add(int32(n))
				}()
				time.Sleep(time.Second / 20)
			}
			assert.GreaterOrEqual(t, passed.Load(), int32(590))
			assert.LessOrEqual(t, passed.Load(), int32(611))
			time.Sleep(time.Second)
		})
	}
}

// A byte waits until the limit grants it, also if that is a nanosecond later.
func TestNoByteIsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, stream := range map[string]func(b ratelimit.Bound) error{
			"Reader": func(b ratelimit.Bound) error {
				_, err := iolimit.Reader(t.Context(), new(zeros), b).Read(make([]byte, 1))
				return err
			},
			"Writer": func(b ratelimit.Bound) error {
				_, err := iolimit.Writer(t.Context(), io.Discard, b).Write(make([]byte, 1))
				return err
			},
		} {
			b := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{
				Limit: 1, Window: time.Second, Start: ratelimit.StartOnFirstEvent,
			})), "key")
			begin := time.Now()
			require.True(t, b.Limiter().Allow(b.Key()))
			time.Sleep(time.Second - 1)
			require.NoError(t, stream(b), name)
			assert.Equal(t, time.Second, time.Since(begin), name)
		}
	})
}

// A tardyClock is one whose timers fire late, as those of a process whose processors are busy.
type tardyClock struct{ clock.Clock }

func (c tardyClock) Timer(d time.Duration) *clock.Timer {
	return c.Clock.Timer(d + 35*time.Millisecond)
}

// Streams that share a key have its rate even if timers fire late, and the limit grants one chunk at a time.
func TestStreamsKeepTheirRateWhileTimersAreLate(t *testing.T) {
	const perSecond = 100
	for name, move := range map[string]func(ctx context.Context, b ratelimit.Bound, f *flow) error{
		"Reader": func(ctx context.Context, b ratelimit.Bound, f *flow) error {
			_, err := io.Copy(f, iolimit.Reader(ctx, new(zeros), b))
			return err
		},
		"Writer": func(ctx context.Context, b ratelimit.Bound, f *flow) error {
			_, err := io.Copy(iolimit.Writer(ctx, f, b), new(zeros))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				alg := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(perSecond), Burst: 1}
				b := ratelimit.For(ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(tardyClock{clock.New()}))), "key")
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				all := newFlow()
				var streams sync.WaitGroup
				for range 64 {
					streams.Go(func() { assert.ErrorIs(t, move(ctx, b, all), context.DeadlineExceeded) })
				}
				streams.Wait()
				// How many turns have come when a span ends, and are not taken yet, depends on when the timers fire.
				assert.InDelta(t, 2*perSecond, all.within(time.Second, 3*time.Second), 4)
			})
		})
	}
}

// checkRate runs streams with a limit, and checks what passes through all together. It returns
// what has passed through each.
func checkRate(t *testing.T, alg ratelimit.Algorithm, streams int, stream func(context.Context, ratelimit.Bound, *flow)) []*flow {
	t.Helper()
	limiter := ratelimit.Must(ratelimit.New(alg))
	span := 10 * burst(alg)
	end := 2*burst(alg) + 2*span
	ctx, cancel := context.WithTimeout(t.Context(), end)
	defer cancel()
	all := newFlow()
	shares := make([]*flow, streams)
	var wg sync.WaitGroup
	for i := range shares {
		shares[i] = newFlow()
		wg.Go(func() {
			one := &flow{begin: all.begin}
			stream(ctx, ratelimit.For(limiter, "key"), one)
			shares[i] = one
		})
	}
	wg.Wait()
	for _, one := range shares {
		all.passed = append(all.passed, one.passed...)
	}
	tenBursts := int(span * kilo / time.Second)
	if first := firstBurst(alg); first > 0 {
		got := all.within(0, span)
		assert.Greater(t, got, tenBursts+tenBursts/50)
		assert.LessOrEqual(t, got, tenBursts+tenBursts/50+first)
	}
	least := tenBursts * 98 / 100
	if streams > 1 && !refillsEvenly(alg) {
		least = tenBursts * 15 / 16 // less than a chunk is left at the end of each window
	}
	for from := burst(alg); from <= end-span; from += span / 40 {
		got := all.within(from, from+span)
		assert.GreaterOrEqual(t, got, least, "from %v", from)
		assert.LessOrEqual(t, got, tenBursts*102/100, "from %v", from)
	}
	slices.SortFunc(all.passed, func(p, q passed) int { return cmp.Compare(p.at, q.at) })
	// Every algorithm grants at most twice its burst in the time of one.
	most, sum, oldest := int(2*burst(alg)*kilo/time.Second)+1, 0, 0
	for _, p := range all.passed {
		for sum += p.n; all.passed[oldest].at <= p.at-burst(alg); oldest++ {
			sum -= all.passed[oldest].n
		}
		require.LessOrEqual(t, sum, most, "until %v", p.at)
	}
	return shares
}

// firstBurst returns how many bytes an unused key is granted in addition to the rate, at most.
func firstBurst(alg ratelimit.Algorithm) (most int) {
	switch alg := alg.(type) {
	case ratelimit.TokenBucket:
		return alg.Burst
	case ratelimit.All:
		for _, part := range alg {
			most = max(most, firstBurst(part))
		}
	}
	return most
}

// refillsEvenly reports whether room for new bytes comes evenly, so that streams wait in line
// for it.
func refillsEvenly(alg ratelimit.Algorithm) bool {
	switch alg := alg.(type) {
	case ratelimit.TokenBucket:
		return alg.Refill == ratelimit.RefillContinuous
	case ratelimit.LeakyBucket, ratelimit.WarmingUp:
		return true
	}
	return false
}

// pipe returns the ends of a connection, each with a limit for what it reads.
func pipe(a, b ratelimit.Bound) (net.Conn, net.Conn) {
	c, d := net.Pipe()
	return iolimit.Conn(c, a, ratelimit.Bound{}), iolimit.Conn(d, b, ratelimit.Bound{})
}
