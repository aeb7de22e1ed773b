package redisstore

import (
	"context"
	"encoding/binary"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A call is one request and its answer, or a raw command and its reply.
type call struct {
	name name              // of the key in Redis
	prog *program          // nil for a raw command
	req  ratelimit.Request // if prog is not nil
	res  ratelimit.Result  // the answer

	cmd   Command // the raw command
	reply string  // to the raw command

	kept     bool        // whether events to return could not be given back
	forLease bool        // whether it takes a lease; then no caller waits
	again    int         // how often it was sent again because of the state that the script found
	damaged  string      // a value that cannot be read, for the script to ignore
	ticks    int64       // of the store when it was made
	claimed  atomic.Bool // whether the right to answer it was claimed
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
	opReturn
	opCancel
)

// op returns the operation that the script executes for c. A request that can never be
// granted only peeks.
func (c *call) op() byte {
	switch n := c.req.N; {
	case c.req.Op == ratelimit.OpCancel:
		return opCancel
	case n == 0 || n > c.prog.limit || c.req.Op == ratelimit.OpPeek:
		return opPeek
	case c.req.Op == ratelimit.OpReserve:
		return opReserve
	case c.req.Op == ratelimit.OpReturn:
		return opReturn
	}
	return opTake
}

// appendRun appends a run of equal requests, times of c's, in the script's encoding.
func (c *call) appendRun(b []byte, times int) []byte {
	n := max(1, min(c.req.N, c.prog.limit))
	b = append(b, c.op())
	var cancellation []byte
	if c.op() == opCancel {
		cancellation = c.prog.t.AppendCancellation(nil, c.req.Grant)
		n = len(cancellation)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(times))
	b = appendDouble(b, float64(n))
	b = appendDouble(b, c.wait())
	for _, cost := range c.prog.costs {
		ticks, units := cost.times(min(n, c.prog.limit))
		b = appendDouble(appendDouble(b, ticks), units)
	}
	return append(b, cancellation...)
}

// wait returns the longest wait for a reservation or, for events to return, the instant at
// which they were granted.
func (c *call) wait() float64 {
	if c.req.Op == ratelimit.OpReturn {
		return float64(kernel.InstantOf(c.req.Taken) / uint64(tick))
	}
	wait := c.req.MaxWait / tick
	if c.req.MaxWait%tick < 0 {
		wait-- // a deadline that has just passed
	}
	return float64(wait)
}

func (c *call) equals(d *call) bool {
	return c.op() == d.op() && c.op() != opCancel && c.req.N == d.req.N && c.wait() == d.wait()
}

// run sends a raw command, and returns the reply.
func (s *Store) run(ctx context.Context, name name, cmd Command) (string, error) {
	c := s.newCall()
	c.name, c.cmd = name, cmd
	if err := s.do(ctx, c); err != nil {
		return "", err
	}
	reply := c.reply
	s.free(c)
	return reply, nil
}
