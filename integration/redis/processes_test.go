package redis_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

const year = 365 * 24 * time.Hour

// algorithms grant a key this many events, one by one, and no more while a test runs,
// except WarmingUp, which grants one.
func algorithms(limit int) map[string]ratelimit.Algorithm {
	rate := ratelimit.Rate{Events: limit, Per: year}
	return map[string]ratelimit.Algorithm{
		"TokenBucket":             ratelimit.TokenBucket{Rate: rate},
		"TokenBucket/interval":    ratelimit.TokenBucket{Rate: rate, Refill: ratelimit.RefillInterval},
		"LeakyBucket":             ratelimit.LeakyBucket{Rate: rate, Capacity: limit},
		"FixedWindow":             ratelimit.FixedWindow{Limit: limit, Window: year},
		"FixedWindow/first event": hourly(limit),
		"CalendarWindow":          ratelimit.CalendarWindow{Limit: limit, Every: ratelimit.Year, Zone: "Asia/Tokyo"},
		"SlidingWindow":           ratelimit.SlidingWindow{Limit: limit, Window: year, Segments: 5},
		"SlidingLog":              ratelimit.SlidingLog{Limit: limit, Window: time.Hour},
		"SlidingLog/count denied": ratelimit.SlidingLog{Limit: limit, Window: time.Hour, CountDenied: true},
		"RollingWindow":           ratelimit.RollingWindow{Quota: limit, Window: 10 * year, Period: year},
		"Lockout":                 ratelimit.Lockout{Limit: limit, Window: time.Hour, First: time.Hour},
		"InFlight":                ratelimit.InFlight{Limit: limit, Timeout: time.Hour},
		"WarmingUp":               ratelimit.WarmingUp{Rate: ratelimit.PerHour(1), Warmup: time.Hour},
		"All": ratelimit.All{
			hourly(limit + 5), ratelimit.TokenBucket{Rate: rate}, ratelimit.SlidingLog{Limit: limit + 1, Window: time.Hour}},
	}
}

// The task of a process, and its report.
type (
	task struct {
		Addr     string
		Client   string
		Callers  int
		Busy     int // goroutines that keep two processors busy
		Tries    int
		Lease    int
		LeaseAge time.Duration
	}
	outcome map[string]int // events allowed, by the name of an algorithm
)

// The processes of the other tests run TestWorker.
func TestWorker(t *testing.T) {
	do, ok := taskOf[task](t)
	if !ok {
		return
	}
	if do.Busy > 0 {
		runtime.GOMAXPROCS(2)
	}
	for range do.Busy {
		go burn(t.Context())
	}
	opts := []redisstore.Option{redisstore.WithTimeout(patient)}
	if do.Lease > 0 {
		opts = append(opts, redisstore.WithLease(do.Lease, do.LeaseAge))
	}
	store := makers[do.Client](t, do.Addr, opts...)
	ready()
	told := outcome{}
	for name, alg := range algorithms(100) {
		l := limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		var allowed atomic.Int64
		var wg sync.WaitGroup
		for range do.Callers {
			wg.Go(func() {
				for range do.Tries {
					d, err := l.Take(t.Context(), "k", 1)
					require.NoError(t, err)
					if d.Allowed {
						allowed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		told[name] = int(allowed.Load())
	}
	require.NoError(t, store.Close(t.Context()))
	if do.Lease > 0 {
		told["leased"] = int(store.Stats().Leased)
	}
	require.NoError(t, json.NewEncoder(os.Stdout).Encode(told))
}

// runProcesses runs n processes with the same task, and returns the sums of what they were
// granted.
func runProcesses(t *testing.T, n int, do task) outcome {
	total := outcome{}
	for _, told := range inProcesses[outcome](t, n, "TestWorker", do) {
		for name, allowed := range told {
			total[name] += allowed
		}
	}
	return total
}

// taskVariable is the environment variable that has the task of a process.
const taskVariable = "REDISSTORE_TASK"

// workerProcess returns a process that runs one test with a task. It has not been started.
func workerProcess(t testing.TB, test string, task any) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(task)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	return cmd
}

// taskOf returns the task of this process. ok is false if workerProcess did not make it: then
// the test has nothing to do.
func taskOf[Task any](t *testing.T) (task Task, ok bool) {
	t.Helper()
	text := os.Getenv(taskVariable)
	if text == "" {
		return task, false
	}
	require.NoError(t, json.Unmarshal([]byte(text), &task))
	return task, true
}

// inProcesses runs a test in n processes, which have the same task, and returns their reports.
// A process prints a line when it is ready, reads one when all are, and prints its report as
// another.
func inProcesses[Report any](t testing.TB, n int, test string, task any) (reports []Report) {
	type worker struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out *bufio.Reader
	}
	var workers []worker
	for range n {
		cmd := workerProcess(t, test, task)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		workers = append(workers, worker{cmd, in, bufio.NewReader(out)})
	}
	line := func(w worker) string {
		s, err := w.out.ReadString('\n')
		require.NoError(t, err)
		return s
	}
	for _, w := range workers {
		require.Equal(t, "ready\n", line(w))
	}
	for _, w := range workers {
		_, err := io.WriteString(w.in, "go\n")
		require.NoError(t, err)
	}
	for _, w := range workers {
		var told Report
		require.NoError(t, json.Unmarshal([]byte(line(w)), &told))
		reports = append(reports, told)
		_, _ = io.Copy(io.Discard, w.out)
		require.NoError(t, w.cmd.Wait())
	}
	return reports
}

// ready is called by a test in such a process. It returns when the process that started it writes
// a line, or has closed its standard input.
func ready() {
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// burn uses a processor all the time.
func burn(ctx context.Context) {
	for ctx.Err() == nil {
		work()
		runtime.Gosched()
	}
}

// work uses a processor as a handler would.
func work() {
	for begin := time.Now(); time.Since(begin) < 2*time.Millisecond; {
	}
}

// Eight processes with eight goroutines each get exactly the limit of a key, no matter how
// far away the server is or how busy they are.
func TestProcesses(t *testing.T) {
	long(t)
	for name, w := range distances() {
		for client := range clients(t) {
			t.Run(client+"/"+name, func(t *testing.T) {
				exactly(t, 8, task{Addr: startWire(t, startServer(t).addr(), w).addr(), Client: client, Callers: 8, Tries: 10})
			})
		}
	}
	for client := range clients(t) {
		t.Run(client+"/busy", func(t *testing.T) {
			addr := startWire(t, startServer(t).addr(), wires["0.5 ms"]).addr()
			exactly(t, 2, task{Addr: addr, Client: client, Callers: 32, Tries: 4, Busy: 8})
		})
	}
}

// exactly checks that processes get the limits of all algorithms.
func exactly(t *testing.T, processes int, do task) {
	t.Helper()
	total := runProcesses(t, processes, do)
	require.Len(t, total, len(algorithms(1)))
	for name, allowed := range total {
		want := 100
		if name == "WarmingUp" {
			want = 1
		}
		assert.Equal(t, want, allowed, name)
	}
}
