package redisstore

import "sync"

// Each flight has a goroutine. One that is done waits for the next flight as long as
// others are under way, instead of ending: its stack has grown to what the client needs,
// and growing a new one for each decision makes that a third slower. When nothing is
// under way, there is no goroutine.
type workers struct {
	mu   sync.Mutex     // protects what follows
	busy int            // goroutines that fly
	idle []chan *flight // to each of those that wait
}

// manyIdle bounds the goroutines that wait.
const manyIdle = 64

// launch lets a goroutine fly f.
func (s *Store) launch(f *flight) {
	w := &s.workers
	w.mu.Lock()
	w.busy++
	var to chan *flight
	if last := len(w.idle) - 1; last >= 0 {
		to = w.idle[last] // whose stack and whose processor's caches are warm
		w.idle = w.idle[:last]
	}
	w.mu.Unlock()
	if to != nil {
		to <- f
		return
	}
	go s.work(f)
}

// work flies f, and what comes after it.
func (s *Store) work(f *flight) {
	next := make(chan *flight, 1)
	for ok := true; ok; f, ok = <-next {
		s.fly(f)
		if !s.workers.wait(next) {
			return
		}
	}
}

// wait lets next bring another flight, or be closed, and reports false if it will not.
func (w *workers) wait(next chan *flight) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	if w.busy > 0 {
		if len(w.idle) == manyIdle {
			return false
		}
		w.idle = append(w.idle, next)
		return true
	}
	for _, other := range w.idle {
		close(other)
	}
	w.idle = nil
	return false
}
