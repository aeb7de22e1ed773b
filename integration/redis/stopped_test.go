package redis_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A stoppedTask says where a process takes, and how.
type stoppedTask struct {
	Addr, Client string
	Callers      int
	Timeout      time.Duration
}

// The process of the next test runs TestStoppedWorker: callers that take until standard
// input ends. It prints the number of decisions, and the number that Redis did not make.
func TestStoppedWorker(t *testing.T) {
	do, ok := taskOf[stoppedTask](t)
	if !ok {
		return
	}
	store := makers[do.Client](t, do.Addr, redisstore.WithTimeout(do.Timeout))
	l := limiter(t, store, hourly(1_000_000_000))
	require.True(t, l.Allow("k"))
	var stop atomic.Bool
	var made, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range do.Callers {
		wg.Go(func() {
			for !stop.Load() {
				if _, err := l.Take(t.Context(), fmt.Sprint(i/2), 1); err != nil {
					lost.Add(1)
				}
				made.Add(1)
			}
		})
	}
	ready()
	stop.Store(true)
	wg.Wait()
	require.NoError(t, json.NewEncoder(os.Stdout).Encode([]int64{made.Load(), lost.Load()}))
}

// A process that was stopped for longer than the timeout does not count that as a failure of
// the server.
func TestStoppedProcess(t *testing.T) {
	for client := range clients(t) {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			testStopped(t, stoppedTask{Client: client, Callers: 16, Timeout: 2 * time.Second}, 1, 3*time.Second)
		})
	}
}

// Neither does a caller that reads the connection itself, and finds that the deadline has passed.
func TestStoppedLoneCaller(t *testing.T) {
	t.Parallel()
	testStopped(t, stoppedTask{Client: "goredis", Callers: 1, Timeout: 250 * time.Millisecond}, 8, 500*time.Millisecond)
}

// testStopped stops a process several times, for a while each.
func testStopped(t *testing.T, do stoppedTask, times int, d time.Duration) {
	s := startServer(t)
	do.Addr = startWire(t, s.addr(), wires["0.5 ms"]).addr()
	cmd := workerProcess(t, "TestStoppedWorker", do)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := bufio.NewReader(out)
	line, err := said.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)

	calls := func() string { return s.info("commandstats", "cmdstat_evalsha") }
	before := calls()
	eventually(t, "it asks", func() bool { return calls() != before })
	for range times {
		require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
		require.Error(t, s.admin.BLPop(t.Context(), d, "nobody").Err(), "the server waits for that time")
		require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
		before = calls()
		eventually(t, "it asks again", func() bool { return calls() != before })
	}
	require.NoError(t, in.Close())
	var got []int64
	require.NoError(t, json.NewDecoder(said).Decode(&got))
	assert.Positive(t, got[0])
	assert.Zero(t, got[1], "decisions of the policy among %d", got[0])
}
