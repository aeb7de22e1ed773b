package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A breaker is the circuit breaker of a server: it lets calls fail at once while the server does
// not answer, so that callers need not wait for their timeout each time. It is
//
//	closed     until a number of incidents in a row
//	open       from then on for a while, in which nothing is sent
//	half-open  after that: one batch is sent to test the server, and its outcome decides
//
// An incident is one failure, however many batches it concerns: when a server stalls or a
// connection is lost, all batches in progress fail. So a breaker counts a failure only of a batch
// that was sent after the failure that it has counted before.
type breaker struct {
	limit    int           // the incidents in a row that open it, or 0 if it stays closed
	cooldown time.Duration // how long it stays open
	soon     time.Duration // a test that fails within this time is repeated soon: see testAgain

	mu        sync.Mutex    // protects the fields below
	incidents int           // in a row
	failed    time.Duration // when the latest incident was counted, by the store's clock
	opens     time.Duration // until when it stays open, if there were enough incidents
	testing   bool          // whether a batch tests the server
	outage    *Outage       // from the first failure to the next success; else nil
}

// testAgain is how soon a server is tested again if the client fails at once. The client's error
// may be older than the return of the server, if it is that of a connection from before, or one
// that the client gives without trying to connect again. If a test gets no answer, the breaker
// opens for the cooldown.
const testAgain = 50 * time.Millisecond

// allow reports whether a batch may be sent now, and whether it tests the server. In that case,
// report must be called with its outcome.
func (b *breaker) allow(now time.Duration) (tests bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.stateAt(now) {
	case "open":
		return false, &openError{b.outage}
	case "half-open":
		if b.testing {
			return false, &openError{b.outage}
		}
		b.testing = true
		return true, nil
	}
	return false, nil
}

// report tells the breaker what became of a batch that was sent at the given time. The outcome
// context.Canceled says nothing about the server.
func (b *breaker) report(tests bool, sent, now time.Duration, outcome error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if tests {
		b.testing = false
	}
	switch {
	case outcome == nil:
		b.incidents, b.opens, b.outage = 0, 0, nil
	case errors.Is(outcome, context.Canceled):
	case sent >= b.failed: // it is not of the incident before
		b.incidents++
		b.failed = now
		b.opens = now + b.cooldown
		if tests && now-sent < b.soon {
			b.opens = now + testAgain
		}
		b.blame(outcome)
	}
}

// explain replaces the cause of an outage, if it is only that there was no answer in time, by what
// the client has returned about a batch that was abandoned before.
func (b *breaker) explain(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.outage
	if known == nil || !errors.Is(known.Cause, ErrTimeout) {
		return
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		b.blame(err)
	}
}

// blame makes err the cause of the outage, which may begin with it. The caller holds b.mu.
func (b *breaker) blame(err error) {
	since := time.Now()
	if b.outage != nil {
		since = b.outage.Since
	}
	b.outage = &Outage{Since: since, Cause: err}
}

// stateAt returns "closed", "open" or "half-open". The caller holds b.mu.
func (b *breaker) stateAt(now time.Duration) string {
	switch {
	case b.limit == 0 || b.incidents < b.limit:
		return "closed"
	case now < b.opens:
		return "open"
	}
	return "half-open"
}

// look returns the state, or "" if the breaker never opens, and the outage, or nil.
func (b *breaker) look(now time.Duration) (state string, outage *Outage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit > 0 {
		state = b.stateAt(now)
	}
	return state, b.outage
}
