package redis_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
	"github.com/ratelimit-go/ratelimit/redisstore/rueidis"
)

// The task of a measuring process, and its report.
type (
	busyTask struct {
		Addr     string
		Client   string
		Bare     bool // sends the command of a Take, without the store
		Handlers int  // goroutines that take from a key, and then use a processor for 2 ms
		Callers  int  // goroutines that take from one key after another
		For      time.Duration
	}
	busyOutcome struct {
		Calls    int
		P50, P99 time.Duration
		ByPolicy int    // decisions by the failure policy
		Why      string // the last error
	}
)

// A lastCommand records the latest command.
type lastCommand struct {
	redisstore.Conn
	c redisstore.Command
}

func (l *lastCommand) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	l.c = commands[len(commands)-1]
	return l.Conn.Do(ctx, commands)
}

// busyClients open a client and a store on it, both with default options.
var busyClients = map[string]func(t *testing.T, addr string) (redisstore.Conn, *redisstore.Store){
	"goredis": func(t *testing.T, addr string) (redisstore.Conn, *redisstore.Store) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		s, err := goredis.New(c)
		require.NoError(t, err)
		return goredis.NewConn(c), s
	},
	"goredis-AutoPipeline": func(t *testing.T, addr string) (redisstore.Conn, *redisstore.Store) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		p, err := c.AutoPipeline()
		require.NoError(t, err)
		s, err := goredis.New(p)
		require.NoError(t, err)
		return goredis.NewConn(p), s
	},
	"rueidis": func(t *testing.T, addr string) (redisstore.Conn, *redisstore.Store) {
		c := newRueidis(t, rueidisclient.ClientOption{InitAddress: []string{addr}})
		s, err := rueidis.New(c)
		require.NoError(t, err)
		return rueidis.NewConn(c), s
	},
}

// The processes of BenchmarkBusy run TestBusyWorker.
func TestBusyWorker(t *testing.T) {
	do, ok := taskOf[busyTask](t)
	if !ok {
		return
	}
	runtime.GOMAXPROCS(2)
	conn, store := busyClients[do.Client](t, do.Addr)
	alg := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e9)}
	last := &lastCommand{Conn: conn}
	probe, err := redisstore.New(last)
	require.NoError(t, err)
	for range 2 { // the first may send the script
		require.True(t, limiter(t, probe, alg).Allow(""))
	}
	l := limiter(t, store, alg)
	call := func(key string) error {
		_, err := l.Take(context.Background(), key, 1)
		return err
	}
	if do.Bare {
		call = func(key string) error {
			c := last.c
			c.Words = slices.Clone(c.Words)
			c.Words[c.Key] += key
			return conn.Do(context.Background(), []redisstore.Command{c})[0].Err
		}
	}
	var out busyOutcome
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	for i, end := 0, time.Now().Add(do.For); i < do.Handlers+do.Callers; i++ {
		wg.Go(func() {
			var took []time.Duration
			for time.Now().Before(end) {
				begin := time.Now()
				err := call(fmt.Sprint(rand.IntN(100_000)))
				took = append(took, time.Since(begin))
				if err != nil {
					mu.Lock()
					out.ByPolicy++
					out.Why = err.Error()
					mu.Unlock()
				}
				if i < do.Handlers {
					work()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	slices.Sort(all)
	out.Calls, out.P50, out.P99 = len(all), all[len(all)/2], all[len(all)*99/100]
	require.NoError(t, json.NewEncoder(os.Stdout).Encode(out))
}

// measureBusy measures in another process, because this one may be busy.
func measureBusy(b *testing.B, do busyTask) (out busyOutcome) {
	b.Helper()
	said, err := workerProcess(b, "TestBusyWorker", do).Output()
	require.NoError(b, err, "%s", said)
	require.NoError(b, json.NewDecoder(bytes.NewReader(said)).Decode(&out))
	return out
}

// BenchmarkBusy measures the latency of a decision in a process with two processors, in
// which eight goroutines use a processor for 2 ms after each decision. It compares it with
// the latency of the bare command through the same client, and counts the decisions of the
// failure policy, which should be 0 because the server works. Callers take all the time, and
// the server is 0, 1 or 4 ms away. Each measurement takes two seconds:
//
//	go test -run '^$' -bench Busy -benchtime 1x ./integration/redis
func BenchmarkBusy(b *testing.B) {
	for _, callers := range []int{0, 64, 1024} {
		for _, away := range []time.Duration{0, time.Millisecond, 4 * time.Millisecond} {
			for _, client := range slices.Sorted(maps.Keys(busyClients)) {
				for _, what := range []string{"command", "Take"} {
					b.Run(fmt.Sprintf("callers=%d/away=%v/%s/%s", callers, away, client, what), func(b *testing.B) {
						s := startServer(b)
						addr := s.addr()
						if away > 0 {
							addr = startWire(b, addr, wire{delay: away / 2}).addr()
						}
						do := busyTask{Addr: addr, Client: client, Bare: what == "command", Handlers: 8, Callers: callers, For: 2 * time.Second}
						for b.Loop() {
							out := measureBusy(b, do)
							if what == "Take" && out.ByPolicy > 0 {
								b.Log(out.Why)
							}
							b.ReportMetric(float64(out.P50)/1e6, "p50-ms")
							b.ReportMetric(float64(out.P99)/1e6, "p99-ms")
							b.ReportMetric(float64(out.ByPolicy), "by-policy")
							b.ReportMetric(float64(out.Calls)/do.For.Seconds(), "calls/s")
						}
						b.ReportMetric(0, "ns/op")
					})
				}
			}
		}
	}
}
