package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// This file sends a batch, sends those commands again that the server did not execute for want of
// their script, and tells the breaker what became of the batch. Commands that another server has to
// execute are sent in a batch of their own (sendAgain, in outbox.go).

// A batch is the commands that are sent together. A sender closes it when it takes what is ready,
// up to maxBatch commands or a large one alone: at once while fewer than fewSenders are on their
// way; then commands wait until one of these returns, until they fill a batch, or until the server
// has been silent for a tick (takeBatch and startSender, in outbox.go; timeout.go).
//
// A batch ends when the client has replied, or the breaker does not let it be sent (goOn and carry,
// in outbox.go); when its timeout has passed (timeout.go); or when the caller that sends it by
// itself leaves, or panics (lone.go).
type batch struct {
	outbox *outbox
	groups []*group
	ctx    context.Context // ends when it is abandoned, or with the lone caller's
	cancel context.CancelFunc
	by     sender

	state batchState
	tests bool          // whether it tests the server for the breaker
	sent  time.Duration // when, by the store's clock
	born  int           // outbox.waited at that time
}

// A sender is who sends a batch.
type sender uint8

const (
	byOneOfFew sender = iota // of the senders of the outbox
	byItself                 // it is one command, which has a goroutine of its own
	byCaller                 // it is one command of a lone caller: see lone.go
)

// A batchState is how far a batch has come.
type batchState uint8

const (
	batchGathered batchState = iota // its sender cannot hang
	batchSent                       // the client has got it
	batchReported                   // the breaker knows that it was answered, or abandoned
)

// send sends a batch, unless the breaker does not allow it.
func (o *outbox) send(b *batch) {
	s := o.store
	o.mu.Lock()
	o.used = s.elapsed()
	o.mu.Unlock()
	tests, err := o.server.breaker.allow(s.elapsed())
	if err != nil {
		for _, g := range b.groups {
			g.err = err
		}
		return
	}
	b.tests = tests
	for _, g := range b.groups {
		if g.cmd.Words == nil {
			s.prepare(g)
		}
	}
	o.mu.Lock()
	b.state, b.sent, b.born = batchSent, s.elapsed(), o.waited
	o.mu.Unlock()
	s.transmit(b)
	o.conclude(b)
}

// maxResends bounds how often a command is sent again after a reply that says that the server did
// not execute it.
const maxResends = 3

// transmit sends the commands of a batch. It sends those again which the server did not execute
// because it does not know their script, or because their script does not know holds.
func (s *Store) transmit(b *batch) {
	groups := b.groups
	for range 1 + maxResends {
		commands := make([]Command, len(groups))
		now := s.elapsed()
		for i, g := range groups {
			commands[i], g.sent = g.cmd, now
		}
		s.counts.calls.Add(uint64(len(groups)))
		var replies []Reply
		if b.by == byCaller {
			replies = []Reply{s.doLone(b.ctx, commands[0])}
		} else {
			replies = s.do(b.ctx, commands)
		}
		received := s.elapsed()
		for i, g := range groups {
			g.reply, g.err, g.received = replies[i].Text, replies[i].Err, received
		}
		groups = s.toResend(b, groups)
		if len(groups) == 0 {
			return
		}
	}
}

// do sends commands through the Conn. If the replies are not as many, nobody knows which commands
// they belong to.
func (s *Store) do(ctx context.Context, commands []Command) []Reply {
	replies := s.conn.Do(ctx, commands)
	if len(replies) == len(commands) {
		return replies
	}
	err := fmt.Errorf("redisstore: %T.Do returned %d replies to %d commands: this is a defect of it",
		s.conn, len(replies), len(commands))
	replies = make([]Reply, len(commands))
	for i := range replies {
		replies[i].Err = err
	}
	return replies
}

// toResend returns those of groups whose commands are to be sent again, and changes the commands
// so that the server can execute them. The server learns a script from the first of them.
func (s *Store) toResend(b *batch, groups []*group) (again []*group) {
	if b.ctx.Err() != nil {
		return nil
	}
	learns := map[*script.Script]bool{}
	for _, g := range groups {
		switch {
		case isUnknownScript(g.err):
			if !learns[g.script] {
				learns[g.script] = true
				g.cmd.Words = g.script.InFull(g.cmd.Words)
			}
		case s.meetsHolds(g):
		default:
			continue
		}
		again = append(again, g)
	}
	return again
}

// conclude tells the counters, the server and its breaker what became of a batch.
func (o *outbox) conclude(b *batch) {
	s, now := o.store, o.store.elapsed()
	for _, g := range b.groups {
		s.counts.observe(g.received-g.sent, g.err)
	}
	if b.isAnswered() {
		s.answered(o.server)
		s.strays.Answered()
		o.trip.Store(int64(now - b.sent))
	}
	o.mu.Lock()
	wasReported, age := b.state == batchReported, o.waited-b.born
	b.state = batchReported
	o.mu.Unlock()
	if wasReported { // because it was abandoned
		o.server.breaker.explain(b.failure())
	} else {
		outcome := s.outcome(b.failure(), now-b.sent, age)
		b.failLeft()
		o.server.breaker.report(b.tests, b.sent, now, outcome)
	}
	for _, g := range b.groups {
		if isUnwilling(g.err) {
			s.redial(b.ctx, o.server, g.queue.id.key, b.sent)
			return
		}
	}
}

// failLeft counts the commands of b that have failed after the deadlines of their callers.
func (b *batch) failLeft() {
	for _, g := range b.groups {
		b.outbox.store.counts.failLeft(g, g.err)
	}
}

// isAnswered reports whether the server has replied to a command of b.
func (b *batch) isAnswered() bool {
	for _, g := range b.groups {
		if g.err == nil || isReply(g.err) {
			return true
		}
	}
	return false
}

// failure returns an error if no command of b shows that the server works.
func (b *batch) failure() (err error) {
	for _, g := range b.groups {
		if g.err == nil || aboutKey(g.err) {
			return nil
		}
		if err == nil {
			err = g.err
		}
	}
	return err
}
