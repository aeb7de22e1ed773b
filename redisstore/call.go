package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A call is one request and its answer, or a raw command and its reply.
type call struct {
	name   name         // of the key in Redis
	prog   *program     // nil for a raw command
	req    step.Request // if prog is not nil
	res    step.Answer  // the answer
	unread error        // says that the state could not be read

	cmd      Command       // the raw command
	script   *script       // that it runs, if any, and if the server may not know it
	reply    string        // to the raw command
	sent     time.Duration // when the raw command was sent, by the store's clock
	received time.Duration // when its reply was received

	ctx   context.Context // of the caller if it may send the command itself, or nil
	batch *batch          // that the caller is to send, or nil

	forLease bool        // whether it takes or settles a lease, and no caller waits
	born     int         // outbox.waited when it was queued; protected by the outbox's lock
	inGroup  atomic.Bool // whether it is in a group, so that the server may execute it
	claimed  atomic.Bool // whether the right to answer it was claimed
	isLeft   atomic.Bool // whether the deadline of its caller has passed before it was answered
	done     chan error  // receives the outcome; buffered
}

func (s *Store) newCall() *call {
	if c, ok := s.calls.Get().(*call); ok {
		return c
	}
	return &call{done: make(chan error, 1)}
}

// free makes an answered call available to newCall.
func (s *Store) free(c *call) {
	*c = call{done: c.done}
	s.calls.Put(c)
}

// claim reports whether the caller still waits and no other goroutine has claimed the call. The
// goroutine that gets true must answer it.
func (c *call) claim() bool { return !c.forLease && c.claimed.CompareAndSwap(false, true) }

// answer sends the outcome to the caller if it still waits.
func (c *call) answer(err error) {
	if c.claim() {
		c.done <- err
	}
}

// The operations, by their numbers in the script.
const (
	opPeek = iota
	opTake
	opReserve
	opHold
	opCharge
	opSettle
	opExtend
	opNothing // a peek, except that holds which have ended leave the state, and turns come
	opUpTo    // a take of as many events as remain, or else of one
)

// op returns the operation that the script executes for c. A request that can never be
// granted only peeks, and so does one that changes nothing.
func (c *call) op() byte {
	if op := c.operation(); op != opPeek || c.req.Op == step.OpPeek {
		return op
	}
	return opNothing
}

func (c *call) operation() byte {
	n := c.req.N
	switch c.req.Op {
	case step.OpSettle:
		return opSettle
	case step.OpExtend:
		return opExtend
	case step.OpCharge:
		if n > 0 {
			return opCharge
		}
		return opPeek
	}
	switch {
	case c.req.UpTo:
		return opUpTo
	case n == 0 || n > c.prog.limit || c.req.Op == step.OpPeek:
		return opPeek
	case c.req.Op == step.OpReserve:
		return opReserve
	case c.req.Op == step.OpHold:
		return opHold
	}
	return opTake
}

// takesOne reports whether c is the most usual call.
func (c *call) takesOne() bool { return c.req.N == 1 && c.op() == opTake }

// spends reports whether c spends events if it is granted.
func (c *call) spends() bool {
	switch c.op() {
	case opTake, opReserve, opHold, opUpTo:
		return true
	}
	return false
}

// upToUnit divides what an opUpTo has granted; account.lua adds the remainder likewise.
const upToUnit = 32

// counted returns by how much the script has increased the number of requests granted for c, which
// it has granted. For as many events as remain, that depends on their number, so that the store
// notices if the script and the kernels grant different numbers.
func (c *call) counted() float64 {
	if c.op() == opUpTo {
		return float64(1 + c.res.Granted%upToUnit)
	}
	return 1
}

// mostEvents is the most events that a script is told: more than any state can count.
const mostEvents = 1 << 52

// events returns the numbers of events of c for the script: n, and those whose cost in a
// bucket it needs.
func (c *call) events() (n, cost int) {
	switch c.op() {
	case opCharge:
		n = c.req.N
		return int(min(int64(n), mostEvents)), n
	case opSettle:
		n = c.req.N - c.req.Of
		return int(min(int64(n), mostEvents)), max(0, n)
	}
	n = max(1, min(c.req.N, c.prog.limit))
	return n, n
}

// appendRun appends a run of equal requests, times of c's, in the encoding of a variant of the
// script.
func (c *call) appendRun(b []byte, times int, v variant) []byte {
	n, costed := c.events()
	op := c.op()
	if op == opNothing && v&holding == 0 {
		op = opPeek
	}
	b = append(b, op)
	b = binary.LittleEndian.AppendUint32(b, uint32(times))
	b = appendDouble(b, float64(n))
	b = appendDouble(b, c.wait())
	b = c.prog.appendCosts(b, costed)
	switch op {
	case opSettle:
		b = append(appendDouble(appendDouble(b, float64(c.req.Hold.ID)), float64(c.req.Of)), 0)
	case opExtend, opHold, opReserve:
		b = appendDouble(appendDouble(b, float64(c.req.Hold.ID)), c.lasts())
		b = append(b, c.flags())
	}
	return b
}

// lasts returns how long a hold lasts, in ticks.
func (c *call) lasts() float64 {
	d := max(0, c.req.Hold.For)
	lasts := d / tick
	if d%tick > 0 {
		lasts++
	}
	return float64(lasts)
}

// flags returns what else the script needs to know about a hold: 1 says that its events are given
// back when it ends by itself, and 2 that its reservation is denied if it has to wait while others
// are open.
func (c *call) flags() (flags byte) {
	if c.req.Hold.Back {
		flags = 1
	}
	if c.req.Yields {
		flags |= 2
	}
	return flags
}

// holds reports whether c can only be carried out by the script that knows holds and reservations,
// which also knows the cost of a single event.
func (c *call) holds() bool {
	switch c.op() {
	case opSettle, opExtend, opHold, opReserve, opUpTo:
		return true
	}
	return false
}

// stays reports whether the state that c finds stays that of the limit that left it.
func (c *call) stays() bool { return c.req.Op == step.OpSettle || c.req.Op == step.OpExtend }

// wait returns the longest wait for a reservation, in ticks.
func (c *call) wait() float64 {
	wait := c.req.MaxWait / tick
	if c.req.MaxWait%tick < 0 {
		wait-- // a deadline that has just passed
	}
	return float64(wait)
}

func (c *call) equals(d *call) bool {
	n, costed := c.events()
	m, other := d.events()
	switch c.op() {
	case opSettle, opReserve, opUpTo:
		return false
	}
	return c.op() == d.op() &&
		c.req.Hold == d.req.Hold && c.req.Of == d.req.Of && c.flags() == d.flags() &&
		n == m && costed == other && c.wait() == d.wait()
}

// await waits for the outcome of a call, or until ctx ends. The caller first sends the command
// itself if nobody else does.
func (c *call) await(ctx context.Context) error {
	if c.batch != nil {
		c.batch.outbox.sendLone(c.batch)
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		if c.claim() {
			// The cause, because Err of a front end's context says that it was cancelled.
			c.isLeft.Store(isDecided(ctx, &c.req) &&
				errors.Is(context.Cause(ctx), context.DeadlineExceeded))
			if !c.inGroup.Load() { // nor will it be: see nextGroup
				return limit.NotExecuted(ctx.Err())
			}
			return ctx.Err()
		}
		return <-c.done // another goroutine is about to answer
	}
}

// A rawReply is the reply to a raw command.
type rawReply struct {
	text           string
	sent, received time.Duration // when the command was, by the store's clock
}

// run sends a raw command, and returns the reply. The script is the one that the command runs, if
// any, and if the server may not know it.
func (s *Store) run(ctx context.Context, name name, cmd Command, script *script) (rawReply, error) {
	c := s.newCall()
	c.name, c.cmd, c.script = name, cmd, script
	c.ctx = s.loneContext(ctx, nil)
	s.enqueue(c)
	err := c.await(ctx)
	if err != nil {
		return rawReply{}, err
	}
	reply := rawReply{c.reply, c.sent, c.received}
	s.free(c)
	return reply, nil
}
