package redisstore

import (
	"runtime"
	"sync"
)

// senders are the goroutines that send commands, one for each queue. One that has
// emptied its queue waits for another queue as long as other senders are busy, instead of
// ending: its stack has grown to what the client needs, and growing a new stack for each
// decision makes a decision slower. When no command is in progress, there is no sender.
type senders struct {
	mu   sync.Mutex    // protects the fields below
	busy int           // senders that have a queue
	idle []chan *queue // one for each sender that waits
}

// maxIdle bounds the senders that wait.
const maxIdle = 64

// startSender gives q to a waiting sender, or to a new one.
func (s *Store) startSender(q *queue) {
	p := &s.senders
	p.mu.Lock()
	p.busy++
	var to chan *queue
	if last := len(p.idle) - 1; last >= 0 {
		to = p.idle[last] // the latest: its stack is most likely still in a cache
		p.idle = p.idle[:last]
	}
	p.mu.Unlock()
	if to != nil {
		to <- q
		return
	}
	go s.runSender(q)
}

// growStack grows the stack of a new goroutine to the 8 KB that most commands need. The runtime
// would do that anyway, but in the depth of the client or of a decision, where it takes up to
// 5 µs to move the frames of all callers: a sixth of a call on the same machine.
//
//go:noinline
func growStack() {
	var room [4 << 10]byte
	runtime.KeepAlive(&room)
}

// runSender empties q, and then each queue that it is given.
func (s *Store) runSender(q *queue) {
	growStack()
	next := make(chan *queue, 1)
	for ok := true; ok; q, ok = <-next {
		s.drain(q)
		if !s.senders.wait(next) {
			return
		}
	}
}

// wait registers next to receive another queue, or to be closed. It reports false if the
// sender should end instead.
func (p *senders) wait(next chan *queue) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	if p.busy > 0 {
		if len(p.idle) == maxIdle {
			return false
		}
		p.idle = append(p.idle, next)
		return true
	}
	for _, other := range p.idle {
		close(other)
	}
	p.idle = nil
	return false
}
