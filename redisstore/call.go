package redisstore

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A call is one request and its answer, or a raw command and its reply.
type call struct {
	name name              // of the key in Redis
	prog *program          // nil for a raw command
	req  ratelimit.Request // if prog is not nil
	res  ratelimit.Result  // the answer

	cmd      Command       // the raw command
	script   *script       // that it runs, if any, and if the server may not know it
	reply    string        // to the raw command
	sent     time.Duration // when the raw command was sent, by the store's clock
	received time.Duration // when its reply was received

	more       int    // of an OpSettle: how many events it charges or, if negative, takes back
	settlement []byte // of an OpSettle that is not a charge of more events: what the script needs

	kept     bool        // whether events to return could not be given back
	forLease bool        // whether it takes a lease; then no caller waits
	again    int         // how often it was sent again because the key was reset
	age      int         // the weight of the ticks since it was queued; protected by the lock of its queue's shard
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
	*c = call{done: c.done, settlement: c.settlement[:0]}
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
	opUpTo
	opCharge
	opSettle
	opHold
)

// op returns the operation that the script executes for c. A request that can never be
// granted only peeks, and so does one that changes nothing.
func (c *call) op() byte {
	n := c.req.N
	switch c.req.Op {
	case ratelimit.OpCancel:
		return opCancel
	case ratelimit.OpSettle:
		switch {
		case len(c.settlement) > 0:
			return opSettle
		case c.more > 0:
			return opCharge
		}
		return opPeek
	case ratelimit.OpCharge:
		if n > 0 {
			return opCharge
		}
		return opPeek
	case ratelimit.OpTakeUpTo:
		if n > 0 {
			return opUpTo
		}
		return opPeek
	}
	switch {
	case n == 0 || n > c.prog.limit || c.req.Op == ratelimit.OpPeek:
		return opPeek
	case c.req.Op == ratelimit.OpReserve:
		return opReserve
	case c.req.Op == ratelimit.OpReturn:
		return opReturn
	case c.req.Op == ratelimit.OpHold:
		return opHold
	}
	return opTake
}

// spends reports whether c spends events if it is granted.
func (c *call) spends() bool {
	switch c.op() {
	case opTake, opReserve, opUpTo, opHold:
		return true
	}
	return false
}

// mostEvents is the most events that a script is told: more than any state can count.
const mostEvents = 1 << 52

// events returns the numbers of events of c for the script: n, and those whose cost in a
// bucket it needs.
func (c *call) events() (n, cost int) {
	switch c.op() {
	case opCharge:
		n = c.req.N
		if c.req.Op == ratelimit.OpSettle {
			n = c.more
		}
		return int(min(int64(n), mostEvents)), n
	case opSettle:
		n = max(c.more, -c.more)
		return int(min(int64(n), mostEvents)), n
	case opUpTo:
		return min(c.req.N, c.prog.limit), 1
	}
	n = max(1, min(c.req.N, c.prog.limit))
	return n, n
}

// appendRun appends a run of equal requests, times of c's, in the script's encoding.
func (c *call) appendRun(b []byte, times int) []byte {
	n, costed := c.events()
	b = append(b, c.op())
	more := c.settlement
	if c.op() == opCancel {
		more = c.prog.t.AppendCancellation(nil, c.req.Grant)
		n = len(more)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(times))
	b = appendDouble(b, float64(n))
	b = appendDouble(b, c.wait())
	for _, cost := range c.prog.costs {
		ticks, units := cost.times(costed)
		b = appendDouble(appendDouble(b, ticks), units)
	}
	return append(b, more...)
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
	n, costed := c.events()
	m, other := d.events()
	return c.op() == d.op() && c.op() != opCancel && c.op() != opSettle && n == m && costed == other && c.wait() == d.wait()
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
