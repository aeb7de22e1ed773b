package databases_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/sqlstore"
)

// The tests in this file share a key between processes, and kill some of them, or the server.

const (
	processes = 8
	callers   = 4   // goroutines of a process
	limit     = 400 // events of the key
)

// A task is what a process does: it takes events of one key until it is denied.
type task struct {
	Driver, DSN string
	Dialect     sqlstore.Dialect
}

const taskVariable = "SQLSTORE_TASK"

// TestWorker is what the processes of the other tests run. It prints a colon when it is ready, a dot for each event
// that it is granted, and then how many calls have failed.
func TestWorker(t *testing.T) {
	text := os.Getenv(taskVariable)
	if text == "" {
		return
	}
	var do task
	require.NoError(t, json.Unmarshal([]byte(text), &do))
	slog.SetDefault(slog.New(slog.DiscardHandler))
	db := connect(t, do.Driver, do.DSN)
	db.SetMaxOpenConns(callers)
	l := limiterOn(t, db, do.Dialect)
	_, _ = os.Stdout.WriteString(":")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // all processes are there
	var failed atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for {
				d, err := l.Take(context.Background(), "k", 1)
				switch {
				case err != nil:
					failed.Add(1)
					<-time.After(10 * time.Millisecond) // as a client does, before it tries again
				case d.Allowed:
					_, _ = os.Stdout.WriteString(".")
				default:
					return
				}
			}
		})
	}
	wg.Wait()
	fmt.Printf("failed %d\n", failed.Load())
}

// limiterOn returns a limiter of the tests in this file, which grants nothing while its store fails.
func limiterOn(t testing.TB, db *sql.DB, d sqlstore.Dialect) ratelimit.Limiter {
	return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: limit, Window: 24 * 365 * time.Hour},
		ratelimit.WithStore(newStore(t, db, d)), ratelimit.WithName("shared"), ratelimit.WithStoreTimeout(time.Minute),
		ratelimit.WithFailurePolicy(ratelimit.FailClosed())))
}

// A fleet is some processes with one key.
type fleet struct {
	workers []*worker
	granted atomic.Int64
	half    chan struct{} // closed when half of the limit is granted
	wg      sync.WaitGroup
}

type worker struct {
	*exec.Cmd
	ready chan struct{}
	rest  strings.Builder // of what it prints
}

// startFleet starts the processes, and lets them begin together.
func startFleet(t *testing.T, s server, d sqlstore.Dialect) *fleet {
	driver, dsn := s.source()
	text, err := json.Marshal(task{driver, dsn, d})
	require.NoError(t, err)
	f := &fleet{half: make(chan struct{})}
	var starts []io.Closer
	for range processes {
		w := &worker{Cmd: exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWorker$"), ready: make(chan struct{})}
		w.Env = append(os.Environ(), taskVariable+"="+string(text))
		in, err := w.StdinPipe()
		require.NoError(t, err)
		out, err := w.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, w.Start())
		f.workers, starts = append(f.workers, w), append(starts, in)
		f.wg.Go(func() { f.read(w, bufio.NewReader(out)) })
	}
	for _, w := range f.workers {
		<-w.ready
	}
	for _, in := range starts {
		require.NoError(t, in.Close())
	}
	return f
}

// read reads what a process prints.
func (f *fleet) read(w *worker, out *bufio.Reader) {
	isReady := false
	for {
		b, err := out.ReadByte()
		switch {
		case !isReady && (b == ':' || err != nil):
			isReady = true
			close(w.ready)
		case b == '.':
			if f.granted.Add(1) == limit/2 {
				close(f.half)
			}
		default:
			w.rest.WriteByte(b)
		}
		if err != nil {
			return
		}
	}
}

// wait waits for all processes except killed ones, and returns how many calls have failed.
func (f *fleet) wait(t *testing.T, killed ...*worker) (failed int64) {
	t.Helper()
	f.wg.Wait()
	for _, w := range f.workers {
		err := w.Wait()
		if slices.Contains(killed, w) {
			continue
		}
		assert.NoError(t, err, "%s", w.rest.String())
		var n int64
		_, _ = fmt.Sscanf(w.rest.String(), "failed %d", &n)
		failed += n
	}
	return failed
}

// TestProcesses: eight processes are granted exactly the limit.
func TestProcesses(t *testing.T) {
	onEachStore(t, func(t *testing.T, s server, _ *sql.DB, d sqlstore.Dialect) {
		f := startFleet(t, s, d)
		assert.Zero(t, f.wait(t))
		assert.EqualValues(t, limit, f.granted.Load())
	})
}

// TestProcessKilled: when a process is killed, the others are granted the rest. Only events that it was being
// granted at that moment are used and reported nowhere.
func TestProcessKilled(t *testing.T) {
	onEachStore(t, func(t *testing.T, s server, _ *sql.DB, d sqlstore.Dialect) {
		f := startFleet(t, s, d)
		<-f.half
		require.NoError(t, f.workers[0].Process.Kill())
		assert.Zero(t, f.wait(t, f.workers[0]))
		assert.LessOrEqual(t, f.granted.Load(), int64(limit))
		assert.GreaterOrEqual(t, f.granted.Load(), int64(limit-callers))
	})
}

// TestServerKilled: what was granted before a crash of the server stays used. Only calls that failed may have used
// events without being granted them.
func TestServerKilled(t *testing.T) {
	onEachStore(t, func(t *testing.T, s server, _ *sql.DB, d sqlstore.Dialect) {
		if _, ok := s.(*sqlite); ok {
			t.Skip("it has no server")
		}
		f := startFleet(t, s, d)
		<-f.half
		s.kill(t)
		s.start(t)
		failed := f.wait(t)
		assert.LessOrEqual(t, f.granted.Load(), int64(limit))
		assert.GreaterOrEqual(t, f.granted.Load()+failed, int64(limit))
		assert.Positive(t, failed, "the server was away")
	})
}
