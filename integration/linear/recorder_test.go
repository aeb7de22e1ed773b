package linear_test

import (
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ratelimit-go/ratelimit/storetest"
)

// A recorder records a history: the calls of several goroutines, when they began and ended, and
// the readings of the limiter's clock.
type recorder struct {
	began time.Time
	clk   *storetest.Clock
	times times
	mu    sync.Mutex // protects ops
	ops   []porcupine.Operation
}

func newRecorder(clk *storetest.Clock) *recorder {
	return &recorder{began: time.Now(), clk: clk, times: times{now(clk)}}
}

// now returns the nanoseconds since the recorder was made.
func (r *recorder) now() int64 { return time.Since(r.began).Nanoseconds() }

// run makes a call of a goroutine. It returns an operation that lacks only what was called and what
// came of it, and what the clock showed meanwhile.
func (r *recorder) run(goroutine int, call func()) (op porcupine.Operation, d during) {
	op = porcupine.Operation{ClientId: goroutine, Call: r.now()}
	d.from = now(r.clk)
	call()
	d.to = now(r.clk)
	op.Return = r.now()
	return op, d
}

func (r *recorder) add(ops ...porcupine.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, ops...)
}

// advance moves the clock. Only one goroutine may do it.
func (r *recorder) advance(d time.Duration) {
	r.clk.Advance(d)
	if d > 0 {
		r.times = append(r.times, now(r.clk))
	}
}

// check fails the test, and shows the history, unless some sequential order of its calls has the same
// results.
func (r *recorder) check(t *testing.T, seed uint64, model porcupine.Model) {
	t.Helper()
	if porcupine.CheckOperations(model, r.ops) {
		return
	}
	t.Errorf("seed %d: no sequential order of these calls has these results:", seed)
	for _, op := range r.ops {
		t.Errorf("%d..%d caller %d: %+v → %+v", op.Call, op.Return, op.ClientId, op.Input, op.Output)
	}
	t.FailNow()
}
