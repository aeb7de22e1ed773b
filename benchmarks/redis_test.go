package benchmarks

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/benchmarks/peers"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// The benchmarks in Redis start a redis-server or a valkey-server from PATH on the loopback interface,
// without persistence, and use it at once and from one millisecond away.

// BenchmarkRedis has 64 callers. Its time is the inverse of the throughput, p50-ms and p99-ms are how
// long callers wait, and B/key is the MEMORY USAGE of a key.
func BenchmarkRedis(b *testing.B) {
	r := startRedis(b)
	for _, traffic := range []struct {
		name    string
		keys    int
		limit   peers.Limit
		allowed bool
	}{{"ManyKeys", 10_000, peers.Plenty, true}, {"HotKey", 1, peers.Plenty, true}, {"Denied", 1, peers.Once, false}} {
		k := newKeys(traffic.keys)
		for _, d := range r.distances {
			for _, name := range dialled {
				switch {
				case name == "floor" && traffic.keys == 1: // it denies nothing, and shares nothing
					continue
				case name == "ratelimit-hold" && !traffic.allowed: // a key that grants one has no room for two
					continue
				case name == "throttled" && traffic.keys == 1: // it swaps until no other caller comes between
					continue
				}
				var u *used // made by the first try, and used by those with more iterations
				b.Run(traffic.name+"/away="+d.name+"/peer="+name, func(b *testing.B) {
					if u == nil {
						u = r.use(b, d.addr, dials[name], traffic.limit, k)
					}
					u.call(b, k, traffic.allowed)
				})
				if u != nil {
					u.end()
				}
			}
		}
	}
}

// dials has the limiters in Redis of all peers, and dialled their names in order.
var dials, dialled = func() (map[string]peers.Dial, []string) {
	all := make(map[string]peers.Dial)
	var names []string
	for _, p := range peers.All() {
		names = append(names, slices.Sorted(maps.Keys(p.Redis))...)
		maps.Copy(all, p.Redis)
	}
	return all, names
}()

// A used limiter has met all keys.
type used struct {
	allow  peers.Allow
	end    func()
	perKey float64 // bytes in Redis
}

// use meets the keys with a new limiter in an empty Redis.
func (r *server) use(b *testing.B, addr string, dial peers.Dial, l peers.Limit, k keys) *used {
	ctx := context.Background()
	allow, end, err := dial(addr, l)
	if err != nil {
		b.Fatal(err)
	}
	visit(b, allow, newKeys(peers.Callers), "another ") // loads the script, and makes the connections
	r.admin.FlushAll(ctx)
	visit(b, allow, k, "")
	bytes, err := r.admin.MemoryUsage(ctx, r.admin.RandomKey(ctx).Val()).Result()
	if err != nil {
		b.Fatal(err)
	}
	return &used{allow, end, float64(bytes)}
}

// visit meets the keys with all callers at once.
func visit(b *testing.B, allow peers.Allow, k keys, prefix string) {
	var callers sync.WaitGroup
	for caller := range peers.Callers {
		callers.Go(func() {
			for i := caller; i < k.len(); i += peers.Callers {
				must(b, allow, prefix+k.at(i), true)
			}
		})
	}
	callers.Wait()
}

// call times calls of all callers.
func (u *used) call(b *testing.B, k keys, want bool) {
	var mu sync.Mutex // protects took
	var took []time.Duration
	var callers atomic.Int64
	b.SetParallelism(max(1, peers.Callers/runtime.GOMAXPROCS(0)))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var mine []time.Duration
		i := int(callers.Add(1)) * 7919
		for pb.Next() {
			start := time.Now()
			must(b, u.allow, k.at(i%k.len()), want)
			mine = append(mine, time.Since(start))
			i++
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, mine...)
	})
	if len(took) == 0 { // it has failed
		return
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	if k.len() > 1 {
		b.ReportMetric(u.perKey, "B/key")
	}
}

// BenchmarkRedisTakeEach decides on 100 keys by one caller, in a loop of Take and in one call. Its time
// is that of a key.
func BenchmarkRedisTakeEach(b *testing.B) {
	r, k := startRedis(b), newKeys(100)
	var all []string
	for i := range k.len() {
		all = append(all, k.at(i))
	}
	for _, d := range r.distances {
		for _, p := range []struct {
			name string
			open func(string, peers.Limit, ...redisstore.Option) (ratelimit.Limiter, func(), error)
		}{{"ratelimit", peers.OpenGoRedis}, {"ratelimit-rueidis", peers.OpenRueidis}} {
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
					return ratelimit.TakeEach(ctx, l, all, 1, nil)
				}},
			} {
				b.Run(call.name+"/away="+d.name+"/peer="+p.name, func(b *testing.B) {
					l, end, err := p.open(d.addr, peers.Plenty)
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

// A server is a process of Redis or Valkey.
type server struct {
	admin     *redis.Client
	distances []distance
}

// A distance is an address of the server, and how long an answer takes from there.
type distance struct{ name, addr string }

// startRedis starts a server, which ends with the benchmark. It skips the benchmark if there is none.
func startRedis(b *testing.B) *server {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if path, err = exec.LookPath("valkey-server"); err != nil {
			b.Skip("neither redis-server nor valkey-server is installed")
		}
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	addr := free.Addr().String()
	_ = free.Close()
	cmd := exec.Command(path, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", strings.TrimPrefix(addr, "127.0.0.1:"))
	cmd.Dir = b.TempDir()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	admin := redis.NewClient(&redis.Options{Addr: addr})
	b.Cleanup(func() {
		_ = admin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(10 * time.Second); admin.Ping(context.Background()).Err() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatal("the server does not answer")
		}
	}
	return &server{admin, []distance{{"0ms", addr}, {"1ms", startWire(b, addr, time.Millisecond)}}}
}

// startWire returns an address that passes on connections to the given one, and delays what comes back.
func startWire(b *testing.B, to string, delay time.Duration) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				defer server.Close()
				_, _ = io.Copy(server, client)
			}()
			go late(client, server, delay)
		}
	}()
	return l.Addr().String()
}

// late passes on what it reads after the delay, until either end closes.
func late(to io.WriteCloser, from io.Reader, delay time.Duration) {
	type parcel struct {
		bytes []byte
		due   time.Time
	}
	way := make(chan parcel, 1024)
	go func() {
		defer to.Close()
		for p := range way {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.bytes)
		}
	}()
	defer close(way)
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		way <- parcel{bytes.Clone(buf[:n]), time.Now().Add(delay)}
	}
}
