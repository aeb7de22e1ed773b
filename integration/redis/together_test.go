package redis_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// boundAll returns a key of a limiter for each of the algorithms, by their names.
func boundAll(t testing.TB, store ratelimit.Store, algorithms map[string]ratelimit.Algorithm) map[string]ratelimit.Bound {
	bounds := map[string]ratelimit.Bound{}
	for name, alg := range algorithms {
		bounds[name] = ratelimit.For(limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed())), "k")
	}
	return bounds
}

// A decision on any keys of a server is one call, whether it grants or denies, and none after a
// denial that is still known.
func TestTakeAllIsOneCall(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		store := create(t, startServer(t).addr(), redisstore.WithTimeout(patient))
		of := boundAll(t, store, algorithms(10))
		of["own limits"] = ratelimit.For(limiter(t, store, hourly(10), ratelimit.WithName("own"),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return hourly(3), nil })), "k")
		delete(of, "WarmingUp") // grants once
		bounds := slices.Collect(maps.Values(of))
		calls := func(want int, ask func() (ratelimit.Decision, error)) ratelimit.Decision {
			t.Helper()
			before := store.Stats().Calls
			d, err := ask()
			require.NoError(t, err)
			assert.Equal(t, want, int(store.Stats().Calls-before))
			return d
		}
		take := func() (ratelimit.Decision, error) { return ratelimit.TakeAll(t.Context(), 1, bounds...) }
		assert.True(t, calls(2, take).Allowed, "the script is loaded as well")
		assert.True(t, calls(1, take).Allowed)
		var r *ratelimit.Reservation
		assert.True(t, calls(2, func() (d ratelimit.Decision, err error) {
			r, d, err = ratelimit.HoldAll(t.Context(), 1, bounds...)
			return d, err
		}).Allowed, "that for holds is loaded")
		d := calls(1, take) // the store knows that holds are open
		assert.False(t, d.Allowed)
		assert.Equal(t, "own limits", nameOf(of, bounds[d.Part]))
		assert.False(t, calls(1, take).Allowed, "one of the keys counts denials")
		delete(of, "SlidingLog/count denied")
		bounds = slices.Collect(maps.Values(of))
		assert.False(t, calls(0, take).Allowed, "that is known")
		_, err := r.Settle(t.Context(), 0)
		require.NoError(t, err)
		assert.True(t, calls(1, take).Allowed)
		assert.False(t, calls(1, take).Allowed)
		assert.False(t, calls(0, take).Allowed)
	})
}

func nameOf(of map[string]ratelimit.Bound, b ratelimit.Bound) string {
	for name, other := range of {
		if other == b {
			return name
		}
	}
	return ""
}

// The keys of limiters with the same name and algorithm are the same ones, which one command does
// not have twice: they are taken in order.
func TestTakeAllOfLimitersThatShareStates(t *testing.T) {
	store := makers["goredis"](t, startServer(t).addr(), redisstore.WithTimeout(patient))
	one, other := ratelimit.For(limiter(t, store, hourly(3)), "k"), ratelimit.For(limiter(t, store, hourly(3)), "k")
	d, err := ratelimit.TakeAll(t.Context(), 1, one, other)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 1, d.Remaining)
	d, err = ratelimit.TakeAll(t.Context(), 1, one, other)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	d, err = one.Limiter().Peek(t.Context(), one.Key())
	require.NoError(t, err)
	assert.Equal(t, 1, d.Remaining, "what was held is given back")
}

// A jointTask says where a process takes of several keys.
type jointTask struct{ Addr, Client string }

// The processes of TestTakeAllOfProcesses run TestJointWorker.
func TestJointWorker(t *testing.T) {
	do, ok := taskOf[jointTask](t)
	if !ok {
		return
	}
	of := boundAll(t, makers[do.Client](t, do.Addr, redisstore.WithTimeout(patient)), jointAlgorithms())
	names := slices.Sorted(maps.Keys(of))
	ready()
	told, granted := outcome{}, map[string]*atomic.Int64{}
	for _, name := range names {
		granted[name] = new(atomic.Int64)
	}
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			for range 100 {
				var bounds []ratelimit.Bound
				chosen := rng.Perm(len(names))[:1+rng.IntN(4)]
				for _, i := range chosen {
					bounds = append(bounds, of[names[i]])
				}
				n, spent := 1+rng.IntN(2), 0
				r, d, err := ratelimit.HoldAll(t.Context(), n, bounds...)
				if !assert.NoError(t, err) || !d.Allowed {
					continue
				}
				spent = n
				if rng.IntN(4) == 0 {
					_, err = r.Settle(t.Context(), 0)
					assert.NoError(t, err)
					spent = 0
				}
				for _, i := range chosen {
					granted[names[i]].Add(int64(spent))
				}
			}
		})
	}
	wg.Wait()
	for name := range granted {
		told[name] = int(granted[name].Load())
	}
	require.NoError(t, json.NewEncoder(os.Stdout).Encode(told))
}

// jointAlgorithms are those of which a Settle always gives back what did not happen, with
// different limits.
func jointAlgorithms() map[string]ratelimit.Algorithm {
	chosen := map[string]ratelimit.Algorithm{}
	for i, name := range []string{"FixedWindow", "FixedWindow/first event", "SlidingWindow", "SlidingLog", "RollingWindow", "InFlight"} {
		chosen[name] = algorithms(100 + 40*i)[name]
	}
	chosen["All"] = ratelimit.All{hourly(150), ratelimit.SlidingLog{Limit: 130, Window: time.Hour}}
	return chosen
}

// Processes that take from overlapping sets of keys in any order get no more than each limit, and
// no event is lost: a key has spent what was granted, and not settled.
func TestTakeAllOfProcesses(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		_, client, _ := strings.Cut(t.Name(), "/")
		total := outcome{}
		for _, told := range inProcesses[outcome](t, 3, "TestJointWorker", jointTask{s.addr(), client}) {
			for name, granted := range told {
				total[name] += granted
			}
		}
		full := 0
		for name, b := range boundAll(t, create(t, s.addr(), redisstore.WithTimeout(patient)), jointAlgorithms()) {
			d, err := b.Limiter().Peek(t.Context(), b.Key())
			require.NoError(t, err)
			assert.Equal(t, d.Limit-d.Remaining, total[name], name)
			if d.Remaining == 0 {
				full++
			}
		}
		assert.Positive(t, full, "callers contend")
	})
}

// Nobody sees events spent in one key and not in the other, or spent by a request that is denied:
// at each instant, two keys that are always taken together have the same count.
func TestTakeAllIsSeenAtOnce(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
		key := func(name string, limit int) ratelimit.Bound {
			return ratelimit.For(limiter(t, store, hourly(limit), ratelimit.WithName(name)), "k")
		}
		one, other, spent := key("one", 400), key("other", 1000), key("spent", 1)
		require.True(t, spent.Limiter().Allow(spent.Key()))
		_, err := ratelimit.TakeAll(t.Context(), 1, one, other)
		require.NoError(t, err)
		names := make([]any, 1, 3)
		for _, pattern := range []string{"rl:one@*", "rl:other@*"} {
			names = append(names, s.do("KEYS", pattern).([]any)...)
		}
		names[0] = "MGET"
		require.Len(t, names, 3)

		var granted, asked atomic.Int64
		granted.Add(1)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for range 150 {
					bounds := []ratelimit.Bound{one, other}
					if i%2 == 0 {
						bounds = []ratelimit.Bound{other, one, spent}
					}
					d, err := ratelimit.TakeAll(t.Context(), 1, bounds...)
					assert.NoError(t, err)
					assert.False(t, d.Allowed && len(bounds) == 3)
					if d.Allowed {
						granted.Add(1)
					}
					asked.Add(1)
				}
			})
		}
		count := func(value any) uint64 { return binary.LittleEndian.Uint64([]byte(value.(string))[8:]) }
		for asked.Load() < callers*150 && !t.Failed() {
			values := s.do(names...).([]any)
			assert.Equal(t, count(values[0]), count(values[1]))
		}
		wg.Wait()
		assert.Equal(t, int64(400), granted.Load())
	})
}

// In a cluster, keys whose names have the same tag are decided on in one call, and others in
// order, without ever sending keys of several slots together.
func TestTakeAllInCluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for name, conn := range clusterConns(t, c) {
		for kind, tt := range map[string]struct {
			opt  redisstore.Option
			keys [2]string
			one  bool
		}{
			"tags in keys":        {redisstore.WithKeyTags(), [2]string{"{acme}:alice", "{acme}"}, true},
			"different tags":      {redisstore.WithKeyTags(), [2]string{"{acme}:alice", "{other}"}, false},
			"tags not for slots":  {redisstore.WithDenialCache(0), [2]string{"{acme}:alice", "{acme}"}, false},
			"a tag in the prefix": {redisstore.WithPrefix("{" + name + "}:"), [2]string{"alice", "acme"}, true},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				store, err := redisstore.New(conn, redisstore.WithTimeout(patient), redisstore.WithPrefix(name+kind), tt.opt)
				require.NoError(t, err)
				users := limiter(t, store, hourly(3), ratelimit.WithName("users"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
				orgs := limiter(t, store, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)},
					ratelimit.WithName("orgs"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
				bounds := []ratelimit.Bound{ratelimit.For(users, tt.keys[0]), ratelimit.For(orgs, tt.keys[1])}
				take := func() ratelimit.Decision {
					d, err := ratelimit.TakeAll(t.Context(), 1, bounds...)
					require.NoError(t, err)
					return d
				}
				require.True(t, take().Allowed)
				before := store.Stats().Calls
				require.True(t, take().Allowed)
				if calls := store.Stats().Calls - before; tt.one {
					assert.Equal(t, 1, int(calls))
				} else {
					assert.Equal(t, 3, int(calls), "the first is held until the second has granted")
				}
				require.True(t, take().Allowed)
				require.False(t, take().Allowed)
				d, err := bounds[1].Limiter().Peek(t.Context(), bounds[1].Key())
				require.NoError(t, err)
				assert.Equal(t, 7, d.Remaining)
			})
		}
	}
	for _, n := range c.nodes {
		assert.Empty(t, n.info("errorstats", "errorstat_CROSSSLOT"))
	}
}

// With any client, keys with the same tag are decided on in one call.
func TestTakeAllWithEachClient(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for name, connect := range connectors {
		t.Run(name, func(t *testing.T) {
			store, err := redisstore.New(connect(t, s.addr()), redisstore.WithTimeout(patient), redisstore.WithPrefix("{"+name+"}"))
			require.NoError(t, err)
			bounds := slices.Collect(maps.Values(boundAll(t, store, jointAlgorithms())))
			for i := range 3 {
				before := store.Stats().Calls
				d, err := ratelimit.TakeAll(t.Context(), 1, bounds...)
				require.NoError(t, err)
				assert.True(t, d.Allowed)
				assert.Equal(t, 99-i, d.Remaining)
				if i > 0 {
					assert.Equal(t, 1, int(store.Stats().Calls-before))
				}
			}
		})
	}
}

// While the slot of the keys moves between nodes, nothing is lost, and nothing granted twice.
func TestTakeAllInMovingSlot(t *testing.T) {
	t.Parallel()
	withMovingSlot(t, func(t *testing.T, m movingSlot) {
		l := limiter(t, m.store, hourly(1e6), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		var granted [20]atomic.Int64
		m.while(t, func(int) {
			var bounds []ratelimit.Bound
			keys := rand.Perm(len(granted))[:3]
			for _, k := range keys {
				bounds = append(bounds, ratelimit.For(l, strconv.Itoa(k)))
			}
			d, err := ratelimit.TakeAll(context.Background(), 1, bounds...)
			assert.NoError(t, err)
			assert.True(t, d.Allowed)
			for _, k := range keys {
				granted[k].Add(1)
			}
		}, func() bool { return true })
		for k := range granted {
			d, err := l.Peek(t.Context(), strconv.Itoa(k))
			require.NoError(t, err)
			assert.Equal(t, int(granted[k].Load()), d.Limit-d.Remaining, "key %d", k)
		}
	})
}

// The command for a key whose state another limit has left is sent once more, if the limits differ
// only in how much they grant. Otherwise the keys are taken in order. Then its state is of its present
// limit.
func TestTakeAllAdopts(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		store := create(t, startServer(t).addr(), redisstore.WithTimeout(patient))
		var limit atomic.Pointer[ratelimit.FixedWindow]
		limit.Store(&ratelimit.FixedWindow{Limit: 10, Window: time.Hour})
		changes := ratelimit.For(limiter(t, store, hourly(1), ratelimit.WithName("changes"),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return *limit.Load(), nil })), "k")
		stays := ratelimit.For(limiter(t, store, hourly(100)), "k")
		take := func() (ratelimit.Decision, int) {
			before := store.Stats().Calls
			d, err := ratelimit.TakeAll(t.Context(), 2, changes, stays)
			require.NoError(t, err)
			return d, int(store.Stats().Calls - before)
		}
		_, _ = take()
		d, calls := take()
		assert.Equal(t, 6, d.Remaining)
		assert.Equal(t, 1, calls)
		limit.Store(&ratelimit.FixedWindow{Limit: 8, Window: time.Hour})
		d, calls = take()
		assert.Equal(t, 2, d.Remaining)
		assert.Equal(t, 2, calls)
		d, calls = take()
		assert.Equal(t, 0, d.Remaining)
		assert.Equal(t, 1, calls)
		limit.Store(&ratelimit.FixedWindow{Limit: 20, Window: 2 * time.Hour})
		d, calls = take()
		assert.True(t, d.Allowed)
		assert.Greater(t, calls, 2)
		d, err := stays.Limiter().Peek(t.Context(), stays.Key())
		require.NoError(t, err)
		assert.Equal(t, 90, d.Remaining)
	})
}

// The keys of a server are held first, and given back if one in memory refuses.
func TestTakeAllWithMemory(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		store := create(t, startServer(t).addr(), redisstore.WithTimeout(patient))
		window := ratelimit.For(limiter(t, store, hourly(10)), "k")
		bucket := ratelimit.For(limiter(t, store, ratelimit.TokenBucket{Rate: ratelimit.PerHour(5)}), "k")
		local := ratelimit.For(ratelimit.Must(ratelimit.New(hourly(2))), "k")
		for i := range 4 {
			d, err := ratelimit.TakeAll(t.Context(), 1, local, window, bucket)
			require.NoError(t, err)
			assert.Equal(t, i < 2, d.Allowed)
			assert.Equal(t, 0, d.Part)
		}
		for b, want := range map[ratelimit.Bound]int{window: 8, bucket: 3} {
			d, err := b.Limiter().Peek(t.Context(), b.Key())
			require.NoError(t, err)
			assert.Equal(t, want, d.Remaining)
		}
	})
}

// If the server does not answer, the policy of each limiter decides, after one timeout.
func TestTakeAllWithoutAnswer(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(200*time.Millisecond))
		open := ratelimit.For(limiter(t, store, hourly(10)), "k")
		alone := ratelimit.For(limiter(t, store, ratelimit.TokenBucket{Rate: ratelimit.PerHour(5)},
			ratelimit.WithFailurePolicy(ratelimit.Fallback(ratelimit.Must(ratelimit.New(hourly(1)))))), "k")
		_, err := ratelimit.TakeAll(t.Context(), 1, open, alone)
		require.NoError(t, err)
		s.stop()
		failures := store.Stats().Failures
		d, err := ratelimit.TakeAll(t.Context(), 1, open, alone)
		require.ErrorIs(t, err, redisstore.ErrTimeout)
		require.ErrorContains(t, err, "bounds[0]: ")
		require.ErrorContains(t, err, "bounds[1]: ")
		assert.True(t, d.Allowed)
		assert.True(t, d.Degraded)
		assert.Equal(t, failures+2, store.Stats().Failures, "one for each key")
		s.cont()
	})
}

// BenchmarkTogether compares a Take with decisions on several keys: in turn and together.
func BenchmarkTogether(b *testing.B) {
	algs := []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e9)},
		ratelimit.FixedWindow{Limit: 1e9, Window: time.Hour},
		ratelimit.SlidingWindow{Limit: 1e9, Window: time.Hour, Segments: 60},
	}
	for _, distance := range []time.Duration{0, 500 * time.Microsecond} {
		for _, keys := range []int{1, 2, 3} {
			for client, create := range makers {
				b.Run(fmt.Sprintf("rtt=%v/keys=%d/%s", distance, keys, client), func(b *testing.B) {
					s := startServer(b)
					addr := s.addr()
					if distance > 0 {
						addr = startWire(b, addr, wire{delay: distance / 2}).addr()
					}
					store := create(b, addr, redisstore.WithTimeout(patient))
					var bounds []ratelimit.Bound
					for _, alg := range algs[:keys] {
						bounds = append(bounds, ratelimit.For(limiter(b, store, alg), "k"))
					}
					take := func() error { _, err := bounds[0].Limiter().Take(context.Background(), bounds[0].Key(), 1); return err }
					if keys > 1 {
						take = func() error { _, err := ratelimit.TakeAll(context.Background(), 1, bounds...); return err }
					}
					require.NoError(b, take()) // which loads the script
					b.ReportAllocs()
					for b.Loop() {
						if err := take(); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(scriptTime(b, s), "server-µs/call")
				})
			}
		}
	}
}

// What is in flight ends by itself a Timeout after the events of all keys may happen, by one
// command as by one for each key: in an All of both, too, it waits in the queue first.
func TestHoldAllOfAQueue(t *testing.T) {
	for name, connect := range map[string]func(redisstore.Conn) redisstore.Conn{
		"together": func(c redisstore.Conn) redisstore.Conn { return c },
		"apart":    func(c redisstore.Conn) redisstore.Conn { return struct{ redisstore.Conn }{c} },
	} {
		t.Run(name, func(t *testing.T) {
			clk := storetest.NewClock(time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC))
			store, err := redisstore.New(connect(connectors["rueidis"](t, startServer(t).addr())),
				redisstore.WithLimiterClock(), redisstore.WithTimeout(patient))
			require.NoError(t, err)
			flight := limiter(t, store, ratelimit.InFlight{Limit: 10, Timeout: time.Minute}, ratelimit.WithClock(clk))
			queue := limiter(t, store, ratelimit.LeakyBucket{Rate: ratelimit.PerHour(20), Capacity: 10}, ratelimit.WithClock(clk))
			for i := range 4 { // delayed for 0, 3, 6 and 9 minutes
				_, d, err := ratelimit.HoldAll(t.Context(), 1, ratelimit.For(flight, "k"), ratelimit.For(queue, "k"))
				require.NoError(t, err)
				require.Equal(t, time.Duration(i)*3*time.Minute, d.Delay)
			}
			for ended := range 4 {
				clk.Advance(time.Minute - time.Microsecond)
				remains(t, 6+ended, flight, name)
				clk.Advance(time.Microsecond)
				remains(t, 7+ended, flight, name)
				clk.Advance(2 * time.Minute)
			}
		})
	}
}
