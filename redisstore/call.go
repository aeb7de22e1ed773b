package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// The operations, by their numbers in the script.
const (
	opPeek = iota
	opTake
	opReserve
	opReturn
	opCancel
)

// The outcomes that a reply may report, besides 0.
const (
	replyOther   = 1 // the value is not a state of a limit that the command names
	replyAdopted = 2 // the state of another limit was adopted
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
		ticks, units := cost.of(min(n, c.prog.limit))
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

// now returns the time to send to the script: with WithLimiterClock that of the request's
// clock, which the returned request has read, and otherwise -1 for the server's.
func (s *Store) now(req ratelimit.Request) (_ ratelimit.Request, micros float64) {
	if !s.limiterClock {
		return req, -1
	}
	req, t := req.Read()
	return req, float64(t.UnixMicro())
}

// request returns the argument of the script for a group: the parameters, the time and
// the requests.
func (s *Store) request(g *group) (request string) {
	calls := g.calls
	prog := calls[0].prog
	usual := len(calls) == 1 && calls[0].req.N == 1 && calls[0].op() == opTake && !s.limiterClock
	if usual {
		g.base = calls[0].req
		return prog.one
	}
	var now float64
	g.base, now = s.now(calls[0].req)
	g.timeGiven = now >= 0
	params := prog.params
	b := append(make([]byte, 0, len(params)+64), params...)
	b = appendDouble(b, now)
	for i := 0; i < len(calls); {
		j := i + 1
		for j < len(calls) && calls[i].equals(calls[j]) {
			j++
		}
		b = calls[i].appendRun(b, j-i)
		i = j
	}
	return string(b)
}

// A scriptError means that the script failed, perhaps because of the state it read. A
// script that fails has changed nothing.
type scriptError struct{ error }

func (e *scriptError) Unwrap() error { return e.error }

func (e *scriptError) Is(target error) bool { return target == errOther }

var errShort = errors.New("redisstore: the answer to a script is too short")

// decide sets the results of a group's calls from the reply to its command, and returns
// the state after them, as far as the last of them needs it.
func decide(prog *program, g *group) (left left, err error) {
	reply := g.reply
	switch {
	case g.err != nil && strings.Contains(g.err.Error(), "user_script:"):
		return left, &scriptError{g.err}
	case g.err != nil:
		return left, g.err
	case len(reply) < 9:
		return left, errShort
	case reply[8] == replyOther:
		return left, errOther
	case len(reply) < 17:
		return left, errShort
	}
	left.time = time.UnixMicro(int64(double(reply)))
	granted := double(reply[9:])
	state := prog.state("", reply[17:])
	if reply[8] == replyAdopted {
		state = []byte(reply[17:])
	}
	base := g.base
	if !g.timeGiven {
		base = base.At(left.time)
	}
	for _, c := range g.calls {
		req := base
		req.Op, req.N, req.MaxWait, req.Grant, req.Taken = c.req.Op, c.req.N, c.req.MaxWait, c.req.Grant, c.req.Taken
		next, changed, res, err := prog.t.Apply(state, req)
		if err != nil {
			return left, err
		}
		if res.StateErr() != nil {
			return left, errOther // rewrite reports it, if the state is still unreadable
		}
		c.res = res
		if changed {
			state = next
		}
		// Its events may have left the window, or a reservation ahead counts on them.
		c.kept = req.Op == ratelimit.OpReturn && !changed && res.Decision.Remaining == 0
		if res.Decision.Allowed && c.op() != opPeek {
			granted--
		}
	}
	if granted != 0 {
		return left, fmt.Errorf("redisstore: the script granted %v more requests than package ratelimit would: this is a defect of the store, please report it", granted)
	}
	left.state = state
	return left, nil
}

// double returns the number in the first 8 bytes of s.
func double(s string) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8])))
}

// A left is the state that a command left on a key, as far as it is known.
type left struct {
	state []byte
	time  time.Time // by the server's clock

	// When the command was sent and its reply received, by the store's clock. The server
	// read its clock between the two.
	sent, received time.Duration
}

// rewrite applies a request in this process, to a state that the script cannot use: it reads
// the state, applies the transition, and replaces the state unless another process has
// changed it, in which case it starts over. That takes two round trips. It fails if it does not
// succeed within the timeout. If why is not nil, rewrite replaces only an unreadable state,
// and returns why for any other.
func (s *Store) rewrite(ctx context.Context, name name, prog *program, req ratelimit.Request, why error) (ratelimit.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for {
		reply, err := s.run(ctx, name, loadScript.command(name.text), loadScript)
		if err != nil {
			return ratelimit.Result{}, err
		}
		if len(reply) < 8 {
			return ratelimit.Result{}, errShort
		}
		at, micros := s.now(req)
		keep := time.Duration(0)
		if micros < 0 {
			at = req.At(time.UnixMicro(int64(double(reply))))
		} else {
			keep = time.Hour // the server's clock may be ahead of the limiter's
		}
		value := reply[8:]
		next, changed, res, err := prog.t.Apply(prog.state(prog.tag, value), at)
		if why != nil && res.StateErr() == nil {
			return ratelimit.Result{}, why
		}
		if err != nil || !changed {
			return res, err
		}
		// In milliseconds: rounded up, or one more, and so at least 1.
		ttl := strconv.FormatInt((min(res.Decision.ResetAfter, math.MaxInt64-2*time.Hour)+keep).Milliseconds()+1, 10)
		reply, err = s.run(ctx, name, swapScript.command(name.text, value, prog.value(next), ttl), swapScript)
		if err == nil && reply == "1" && res.StateErr() != nil {
			s.counts.unreadable.Add(1)
		}
		if err != nil || reply == "1" {
			return res, err
		}
	}
}
