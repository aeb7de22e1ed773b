package servers

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

const stoppedVariable = "REDISSTORE_STOPPED"

// The process of the next test runs TestStoppedWorker: callers that take until standard
// input ends. It prints the number of decisions, and the number that Redis did not make.
func TestStoppedWorker(t *testing.T) {
	addr := os.Getenv(stoppedVariable)
	if addr == "" {
		return
	}
	store := makers[os.Getenv(stoppedVariable+"_CLIENT")](t, addr, redisstore.WithTimeout(2*time.Second))
	l := limiter(t, store, hourly(1_000_000_000))
	require.True(t, l.Allow("k"))
	var stop atomic.Bool
	var made, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for !stop.Load() {
				if _, err := l.Take(t.Context(), fmt.Sprint(i/2), 1); err != nil {
					lost.Add(1)
				}
				made.Add(1)
			}
		})
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	stop.Store(true)
	wg.Wait()
	require.NoError(t, json.NewEncoder(os.Stdout).Encode([]int64{made.Load(), lost.Load()}))
}

// A process that was stopped for longer than the timeout does not count that as a failure of
// the server.
func TestStoppedProcess(t *testing.T) {
	for client := range makers {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStoppedWorker$")
			cmd.Env = append(os.Environ(), stoppedVariable+"="+startWire(t, s.addr(), wires["0.5 ms"]).addr(), stoppedVariable+"_CLIENT="+client)
			cmd.Stderr = os.Stderr
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
			require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
			require.Error(t, s.admin.BLPop(t.Context(), 3*time.Second, "nobody").Err(), "the server waits for three seconds")
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
			before = calls()
			eventually(t, "it asks again", func() bool { return calls() != before })
			require.NoError(t, in.Close())
			var got []int64
			require.NoError(t, json.NewDecoder(said).Decode(&got))
			assert.Positive(t, got[0])
			assert.Zero(t, got[1], "decisions of the policy among %d", got[0])
		})
	}
}
