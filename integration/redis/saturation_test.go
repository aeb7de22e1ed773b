package redis_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// The tests in this file saturate a key from several processes, and compare what was granted
// with what the limit grants.

// The task of a process that saturates a key, and its report.
type (
	saturation struct {
		Addr     string
		Client   string // a name in makers
		Limit    string // a name in steadies
		Callers  int
		How      string // "take": each caller retries after RetryAfter; "wait"; or "leave": one in five who wait leaves
		Lease    int
		LeaseAge time.Duration
		For      time.Duration
	}
	saturated struct {
		Granted      []span // in order of their beginnings
		Leased, Lost int
	}
	// A span is the time of a call, in microseconds since 1970.
	span [2]int64
)

// A steady is a limit, and what it grants.
type steady struct {
	alg   ratelimit.Algorithm
	burst int // the most events in a short time: of two windows or refills
	rate  int // a second
}

// most is the most that the limit grants in a span of time.
func (s steady) most(d time.Duration) float64 { return float64(s.burst) + float64(s.rate)*d.Seconds() }

var steadies = map[string]steady{
	"TokenBucket":          {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2000), Burst: 500}, 500, 2000},
	"TokenBucket/interval": {ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 500, Per: time.Second / 4}, Refill: ratelimit.RefillInterval}, 1000, 2000},
	"FixedWindow":          {ratelimit.FixedWindow{Limit: 500, Window: time.Second / 4}, 1000, 2000},
	"SlidingWindow":        {ratelimit.SlidingWindow{Limit: 500, Window: time.Second / 4, Segments: 5}, 1000, 2000},
	"TokenBucket/burst 1":  {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Burst: 1}, 1, 100},
	"TokenBucket/burst 2":  {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Burst: 2}, 2, 100},
	"WarmingUp":            {ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: time.Second}, 1, 100},
	"hourly":               {hourly(20_000), 20_000, 0},
	"TokenBucket/400":      {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(400)}, 400, 400},
	"All/400":              {ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(400)}, hourly(1e6)}, 400, 400},
}

// The processes of the other tests run TestSaturationWorker.
func TestSaturationWorker(t *testing.T) {
	do, ok := taskOf[saturation](t)
	if !ok {
		return
	}
	opts := []redisstore.Option{redisstore.WithTimeout(patient)}
	if do.Lease > 0 {
		opts = append(opts, redisstore.WithLease(do.Lease, do.LeaseAge))
	}
	store := makers[do.Client](t, do.Addr, opts...)
	l := limiter(t, store, steadies[do.Limit].alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	require.NoError(t, l.Reset(t.Context(), "other")) // it connects
	ready()
	var out saturated
	var mu sync.Mutex
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), do.For)
	if do.How == "leave" { // clients that leave say nothing before
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(do.For, cancel)
	}
	defer cancel()
	for range do.Callers {
		wg.Go(func() {
			var granted []span
			for ctx.Err() == nil {
				begin := time.Now()
				var d ratelimit.Decision
				var err error
				switch do.How {
				case "wait":
					err = l.Wait(ctx, "k")
					d.Allowed = err == nil
				case "leave":
					err = waitOrLeave(ctx, t, l)
					d.Allowed = err == nil
				default:
					d, err = l.Take(context.Background(), "k", 1)
					require.NoError(t, err)
				}
				switch {
				case d.Allowed:
					granted = append(granted, span{begin.UnixMicro(), time.Now().UnixMicro() + 1})
				case err == nil:
					time.Sleep(min(d.RetryAfter, do.For))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			out.Granted = append(out.Granted, granted...)
		})
	}
	wg.Wait()
	require.NoError(t, store.Close(context.Background()))
	stats := store.Stats()
	out.Leased, out.Lost = int(stats.Leased), int(stats.Lost)
	require.NoError(t, json.NewEncoder(os.Stdout).Encode(out))
}

// waitOrLeave waits, perhaps until it has had enough. Only that, or the end of ctx, may end the Wait.
func waitOrLeave(ctx context.Context, t *testing.T, l ratelimit.Limiter) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	if rand.N(5) == 0 {
		time.AfterFunc(rand.N(1500*time.Millisecond), leave)
	}
	err := l.Wait(ctx, "k")
	if err != nil {
		assert.ErrorIs(t, err, context.Canceled)
	}
	return err
}

// saturate runs processes with the same task, and returns the sum of their reports.
func saturate(t testing.TB, processes int, do saturation) (all saturated) {
	t.Helper()
	for _, told := range inProcesses[saturated](t, processes, "TestSaturationWorker", do) {
		all.Granted = append(all.Granted, told.Granted...)
		all.Leased += told.Leased
		all.Lost += told.Lost
	}
	slices.SortFunc(all.Granted, func(a, b span) int { return int(a[0] - b[0]) })
	return all
}

// within counts the calls that were granted in a span: all of a call's time is in it.
func (all saturated) within(s span) (n int) {
	from, _ := slices.BinarySearchFunc(all.Granted, s[0], func(g span, t int64) int { return int(g[0] - t) })
	for _, g := range all.Granted[from:] {
		if g[0] > s[1] {
			break
		}
		if g[1] <= s[1] {
			n++
		}
	}
	return n
}

// bounded checks that no span has more grants than the limit and the leases allow.
func (all saturated) bounded(t testing.TB, processes int, do saturation) {
	t.Helper()
	limit := steadies[do.Limit]
	extra := 0.0
	if do.Lease > 0 {
		extra = min(float64(processes*do.Lease), limit.most(do.LeaseAge))
	}
	first := all.Granted[0][0]
	last := all.Granted[len(all.Granted)-1][0]
	for _, d := range []time.Duration{do.LeaseAge, 250 * time.Millisecond, time.Second, do.For + time.Minute} {
		for from := first; from <= last; from += d.Microseconds()/4 + 1000 {
			n := all.within(span{from, from + d.Microseconds()})
			if !assert.LessOrEqual(t, float64(n), limit.most(d)+extra, "in a span of %v", d) {
				return
			}
		}
	}
}

// used returns the part of the limit's rate that was used: in whole periods of the limit, and
// from the second second on, when a bucket's burst has been spent.
func (all saturated) used(of steady) float64 {
	const period = 250_000 // microseconds; all limits' windows and refills divide it
	from := (all.Granted[0][0]/period + 5) * period
	to := all.ends()[len(all.Granted)-1] / period * period
	n := 0
	for _, g := range all.Granted {
		if from <= g[1] && g[1] < to {
			n++
		}
	}
	return float64(n) / (float64(of.rate) * float64(to-from) / 1e6)
}

// ends returns when the calls were granted, in order.
func (all saturated) ends() (ends []int64) {
	for _, g := range all.Granted {
		ends = append(ends, g[1])
	}
	slices.Sort(ends)
	return ends
}

// longest returns the longest time that a call took.
func (all saturated) longest() (most int64) {
	for _, g := range all.Granted {
		most = max(most, g[1]-g[0])
	}
	return most
}

// With leases, each event of a limit is granted to one process or remains, and none is
// lost, no matter how far away the server is and who else writes.
func TestLeasesConserve(t *testing.T) {
	long(t)
	for name, w := range distances() {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			do := saturation{
				Addr: startWire(t, s.addr(), w).addr(), Client: "rueidis", Limit: "hourly", How: "take",
				Callers: 16, Lease: 100, LeaseAge: 20 * time.Millisecond, For: time.Second / 2,
			}
			store := makers["rueidis"](t, do.Addr, redisstore.WithTimeout(patient))
			other := start(t, limiter(t, store, steadies["hourly"].alg), "k", 1)
			all := saturate(t, 3, do)
			other.end()
			d, err := limiter(t, store, steadies["hourly"].alg).Peek(t.Context(), "k")
			require.NoError(t, err)
			t.Logf("%d granted, %d of them from leases, %d remain", len(all.Granted), all.Leased, d.Remaining)
			assert.Positive(t, all.Leased)
			assert.Zero(t, all.Lost)
			assert.EqualValues(t, 20_000, int64(len(all.Granted)+d.Remaining)+other.allowed.Load())
		})
	}
}

// However many processes lease events, no span has more than the bound.
func TestLeasesBounded(t *testing.T) {
	for name, w := range distances() {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			do := saturation{
				Addr: startWire(t, s.addr(), w).addr(), Client: "rueidis", Limit: "TokenBucket/interval", How: "take",
				Callers: 8, Lease: 50, LeaseAge: 20 * time.Millisecond, For: time.Second / 2,
			}
			all := saturate(t, 3, do)
			assert.Positive(t, all.Leased)
			all.bounded(t, 3, do)
		})
	}
}

// Eight processes with 64 callers each that wait, one in five of which leaves at any time, use what the limit grants,
// and nothing beyond; nobody polls. At night, that is asserted. On a machine that is busy otherwise, less is used:
// TestSaturation_WhoLeaves of redisstore has a clock of its own.
func TestSaturation_WhoLeaves(t *testing.T) {
	long(t)
	const processes = 8
	limits, how := []string{"TokenBucket/400"}, 4*time.Second
	if budget.Nightly() {
		limits, how = append(limits, "All/400"), 10*time.Second
	}
	for client := range clients(t) {
		for name, w := range distances() {
			for _, limit := range limits {
				t.Run(client+"/"+name+"/"+limit, func(t *testing.T) {
					s, of := startServer(t), steadies[limit]
					all := saturate(t, processes, saturation{
						Addr: startWire(t, s.addr(), w).addr(), Client: client, Limit: limit, How: "leave", Callers: 64, For: how,
					})
					used, calls := all.used(of), float64(scriptsRun(t, s))/float64(len(all.Granted))
					t.Logf("%.1f %% used, %.2f calls for each", 100*used, calls)
					for i, at := range all.ends() {
						require.LessOrEqual(t, float64(i+1),
							of.most(time.Duration(at-all.Granted[0][0])*time.Microsecond),
							"after %d ms", (at-all.Granted[0][0])/1000)
					}
					assert.Positive(t, used)
					if budget.Nightly() {
						assert.GreaterOrEqual(t, used, 0.97)
						assert.LessOrEqual(t, calls, 3.0)
					}
				})
			}
		}
	}
}

// Twice as many come as the limit serves, and all of them leave after half a second: those who stand in line are
// served at the limit all the same. At night, that is asserted, of all kinds of limits; in CI, that it does not stop.
func TestArrivals_WhoLeave(t *testing.T) {
	long(t)
	limits, seconds := map[string]ratelimit.Algorithm{"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)}}, 4
	if budget.Nightly() {
		limits["TokenBucket/strict"] = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Burst: 1}
		limits["LeakyBucket"] = ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(100), Capacity: 8}
		limits["FixedWindow"] = ratelimit.FixedWindow{Limit: 25, Window: time.Second / 4}
		limits["SlidingWindow"] = ratelimit.SlidingWindow{Limit: 25, Window: time.Second / 4}
		limits["SlidingLog"] = ratelimit.SlidingLog{Limit: 25, Window: time.Second / 4}
		limits["RollingWindow"] = ratelimit.RollingWindow{Quota: 25, Window: time.Second / 4, Period: 50 * time.Millisecond}
		limits["All"] = ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)}, ratelimit.SlidingLog{Limit: 10_000, Window: time.Minute}}
		seconds = 20
	}
	withEach(t, func(t *testing.T, create maker) {
		store := create(t, startServer(t).addr(), redisstore.WithTimeout(patient))
		for name, alg := range limits {
			t.Run(name, func(t *testing.T) {
				l := limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
				half := time.Duration(seconds) * time.Second / 2
				begin := time.Now()
				var served atomic.Int64 // in the second half
				var all sync.WaitGroup
				each := time.NewTicker(5 * time.Millisecond)
				defer each.Stop()
				for time.Since(begin) < 2*half {
					<-each.C
					all.Go(func() {
						ctx, leave := context.WithCancel(t.Context())
						defer time.AfterFunc(time.Second/2, leave).Stop()
						switch err := l.Wait(ctx, "key"); {
						case errors.Is(err, ratelimit.ErrQueueFull): // of a LeakyBucket
						case err != nil:
							assert.ErrorIs(t, err, context.Canceled)
						case time.Since(begin) >= half && time.Since(begin) < 2*half:
							served.Add(1)
						}
						leave()
					})
				}
				all.Wait()
				used := float64(served.Load()) / (100 * half.Seconds())
				t.Logf("%.1f %% used", 100*used)
				assert.Positive(t, used)
				assert.LessOrEqual(t, used, 1+25/(100*half.Seconds())+0.01)
				if budget.Nightly() {
					assert.GreaterOrEqual(t, used, 0.95)
				}
			})
		}
	})
}

// scriptsRun returns how many scripts a server has run.
func scriptsRun(t *testing.T, s *server) (n int) {
	t.Helper()
	_, err := fmt.Sscanf(s.info("commandstats", "cmdstat_evalsha"), "calls=%d,", &n)
	require.NoError(t, err)
	return n
}

var saturateFor = flag.Duration("saturate", 2*time.Second, "how long BenchmarkSaturation saturates a key")

// BenchmarkSaturation reports how much of a limit four processes use if each of their
// callers retries after RetryAfter, or waits, and checks that they get no more than the
// bound. It uses the machine's timers, which may be a millisecond late, and measures little
// on a machine that is busy otherwise: then longest-ms, of a call, is high. TestSaturation of
// redisstore does the same with a clock of its own.
//
//	go test -run '^$' -bench Saturation -benchtime 1x ./integration/redis -saturate 30s
func BenchmarkSaturation(b *testing.B) {
	const processes = 4
	for _, limit := range slices.Sorted(maps.Keys(steadies)) {
		of := steadies[limit]
		if of.rate == 0 {
			continue
		}
		for _, how := range []string{"take", "take/lease", "wait"} {
			for _, w := range slices.Sorted(maps.Keys(wires)) {
				b.Run(fmt.Sprintf("%s/%s/%s", limit, how, w), func(b *testing.B) {
					do := saturation{
						Addr: startWire(b, startServer(b).addr(), wires[w]).addr(), Client: "rueidis", Limit: limit, How: how[:4],
						Callers: 16, For: *saturateFor,
					}
					if how == "take/lease" {
						if of.burst < 100 {
							b.Skip("it is too small for leases")
						}
						do.Lease, do.LeaseAge = 50, 50*time.Millisecond
					}
					for b.Loop() {
						all := saturate(b, processes, do)
						all.bounded(b, processes, do)
						b.ReportMetric(100*all.used(of), "%used")
						b.ReportMetric(float64(all.Leased)/float64(len(all.Granted))*100, "%leased")
						b.ReportMetric(float64(all.Lost), "lost")
						b.ReportMetric(float64(all.longest())/1e3, "longest-ms")
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
