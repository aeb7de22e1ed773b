package linear_test

import (
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A recorder records a history: the calls of several goroutines, and when they began and ended.
type recorder struct {
	began   time.Time
	mu      sync.Mutex // protects history
	history []porcupine.Operation
}

func newRecorder() *recorder { return &recorder{began: time.Now()} }

// now returns the nanoseconds since the recorder was made.
func (r *recorder) now() int64 { return time.Since(r.began).Nanoseconds() }

func (r *recorder) add(ops ...porcupine.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, ops...)
}

// check fails the test, and shows the history, unless some sequential order of its calls has the same
// results.
func (r *recorder) check(t *testing.T, seed uint64, model porcupine.Model) {
	t.Helper()
	if porcupine.CheckOperations(model, r.history) {
		return
	}
	t.Errorf("seed %d: no sequential order of these calls has these results:", seed)
	for _, op := range r.history {
		t.Errorf("%d..%d caller %d: %+v → %+v", op.Call, op.Return, op.ClientId, op.Input, op.Output)
	}
	t.FailNow()
}
