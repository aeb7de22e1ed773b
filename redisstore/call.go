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
)

// What is asked, in the words of the script.
const (
	askPeek = iota
	askTake
	askReserve
)

// ask returns what c asks of the script. What cannot be granted only looks.
func (c *call) ask() byte {
	switch n := c.req.N; {
	case n == 0 || n > c.prog.limit || c.req.Op == ratelimit.OpPeek:
		return askPeek
	case c.req.Op == ratelimit.OpReserve:
		return askReserve
	}
	return askTake
}

// appendRun appends what c asks for, times over.
func (c *call) appendRun(b []byte, times int) []byte {
	n := max(1, min(c.req.N, c.prog.limit))
	b = append(b, c.ask())
	b = binary.LittleEndian.AppendUint32(b, uint32(times))
	b = appendDouble(b, float64(n))
	wait := c.req.MaxWait / tick
	if c.req.MaxWait%tick < 0 {
		wait-- // a deadline that has just passed
	}
	b = appendDouble(b, float64(wait))
	for _, cost := range c.prog.costs {
		ticks, units := cost.of(n)
		b = appendDouble(appendDouble(b, ticks), units)
	}
	return b
}

func (c *call) equals(d *call) bool {
	return c.ask() == d.ask() && c.req.N == d.req.N && c.req.MaxWait == d.req.MaxWait
}

// now returns a request whose time is that of the limiter's clock, if that counts,
// and what the script is told of the time.
func (s *Store) now(req ratelimit.Request) (_ ratelimit.Request, told float64) {
	if !s.limiterClock {
		return req, -1
	}
	req, t := req.Read()
	return req, float64(t.UnixMicro())
}

// request returns what the script is told of the calls of a group.
func (s *Store) request(g *group) (request string) {
	calls := g.calls
	prog := calls[0].prog
	usual := len(calls) == 1 && calls[0].req.N == 1 && calls[0].ask() == askTake && !s.limiterClock
	if usual {
		g.base = calls[0].req
		return prog.one
	}
	var now float64
	g.base, now = s.now(calls[0].req)
	g.told = now >= 0
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

// A scriptError says that the script failed, before it has changed anything: it may
// have found what it cannot work with.
type scriptError struct{ error }

func (e *scriptError) Unwrap() error { return e.error }

func (e *scriptError) Is(target error) bool { return target == errOther }

var errShort = errors.New("redisstore: the answer to a script is too short")

// decide answers the calls of a group by what its command brought, and returns the
// state that they left, as far as the last of them needs it.
func decide(prog *program, g *group) (left left, err error) {
	reply := g.reply
	switch {
	case g.err != nil && strings.Contains(g.err.Error(), "user_script:"):
		return left, &scriptError{g.err}
	case g.err != nil:
		return left, g.err
	case len(reply) < 9:
		return left, errShort
	case reply[8] == 1:
		return left, errOther
	case len(reply) < 17:
		return left, errShort
	}
	left.time = time.UnixMicro(int64(double(reply)))
	granted := double(reply[9:])
	state := prog.state("", reply[17:])
	base := g.base
	if !g.told {
		base = base.At(left.time)
	}
	for _, c := range g.calls {
		req := base
		req.Op, req.N, req.MaxWait = c.req.Op, c.req.N, c.req.MaxWait
		next, changed, res, err := prog.t.Apply(state, req)
		if err != nil {
			return left, err
		}
		if res.StateErr() != nil {
			return left, errOther // which tells of it, if it is still so
		}
		c.res = res
		if changed {
			state = next
			if res.Decision.Allowed {
				granted--
			}
		}
	}
	if granted != 0 {
		return left, fmt.Errorf("redisstore: the script granted %v more than the arithmetic it stands for: this is a defect of the store", granted)
	}
	left.state = state
	return left, nil
}

// double returns the number that s begins with, of 8 bytes.
func double(s string) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8])))
}

// A left is a state that was left on a key, as far as it is known.
type left struct {
	state []byte
	time  time.Time // of the server then

	// When the server was asked, and when its answer came, by the store's clock:
	// its own reading lies between them.
	sent, received time.Duration
}

// rewrite applies a request where this process is: it fetches the state, and puts
// back what comes of it unless somebody else was faster; then it starts over. That
// takes two round trips, and is for what is rare. All of it must be done within the
// timeout. If why is not nil, it only replaces a state that cannot be read, and returns
// why for any other.
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
		at, told := s.now(req)
		keep := time.Duration(0)
		if told < 0 {
			at = req.At(time.UnixMicro(int64(double(reply))))
		} else {
			keep = time.Hour // the time is not the server's
		}
		value := reply[8:]
		next, changed, res, err := prog.t.Apply(prog.state(prog.tag, value), at)
		if why != nil && res.StateErr() == nil {
			return ratelimit.Result{}, why
		}
		if err != nil || !changed {
			return res, err
		}
		if res.Decision.ResetAfter == 0 {
			next = nil
		}
		// At least a millisecond, and one for a part of one.
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
