package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A call is one request on its way, and its answer.
type call struct {
	prog *program
	req  ratelimit.Request
	res  ratelimit.Result
	err  error

	extra bool // whether it is for a lease
	done  chan struct{}
	sent  bool // protected by the lock of the shard of its flight
}

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

// decide sends calls on key, which have the same program, and answers them, or
// fails all of them. It returns the state that they left, as far as the last of
// them needs it, and when that was; before is what the server was not asked before.
func (s *Store) decide(ctx context.Context, key string, calls []*call) (left left, err error) {
	prog := calls[0].prog
	base, told := s.now(calls[0].req)
	request := appendDouble(make([]byte, 0, 64), told)
	for i := 0; i < len(calls); {
		j := i + 1
		for j < len(calls) && calls[i].equals(calls[j]) {
			j++
		}
		request = calls[i].appendRun(request, j-i)
		i = j
	}
	left.sent = s.elapsed()
	reply, err := prog.script.run(ctx, s.conn, key, prog.params, string(request), prog.tag)
	if err != nil {
		return left, err
	}
	left.received = s.elapsed()
	if len(reply) < 9 {
		return left, fmt.Errorf("redisstore: the answer %q to a script is too short", reply)
	}
	left.time = micros(reply)
	if told < 0 {
		base = base.At(left.time)
	}
	if reply[8] == 1 {
		return left, errOther
	}
	if len(reply) < 17 {
		return left, fmt.Errorf("redisstore: the answer %q to a script is too short", reply)
	}
	granted := math.Float64frombits(binary.LittleEndian.Uint64([]byte(reply[9:17])))
	state := []byte(reply[17:])
	if prog.tag != "" && len(state) > 0 {
		state = append([]byte(prog.tag), state...)
	}
	for _, c := range calls {
		req := base
		req.Op, req.N, req.MaxWait = c.req.Op, c.req.N, c.req.MaxWait
		next, changed, res, err := prog.t.Apply(state, req)
		if err != nil {
			return left, err
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

// A left is a state that was left on a key, as far as it is known.
type left struct {
	state []byte
	time  time.Time // of the server then

	// When the server was asked, and when its answer came, by the store's clock:
	// its own reading lies between them.
	sent, received time.Duration
}

func micros(reply string) time.Time {
	us := math.Float64frombits(binary.LittleEndian.Uint64([]byte(reply[:8])))
	return time.UnixMicro(int64(us))
}

// rewrite applies a request where this process is: it fetches the state, and puts
// back what comes of it unless somebody else was faster; then it starts over. That
// takes two round trips, and is for what is rare.
func (s *Store) rewrite(ctx context.Context, key string, prog *program, req ratelimit.Request) (ratelimit.Result, error) {
	for {
		reply, err := loadScript.run(ctx, s.conn, key)
		if err != nil {
			return ratelimit.Result{}, err
		}
		if len(reply) < 8 {
			return ratelimit.Result{}, fmt.Errorf("redisstore: the answer %q to a script is too short", reply)
		}
		at, told := s.now(req)
		keep := time.Duration(0)
		if told < 0 {
			at = req.At(micros(reply))
		} else {
			keep = time.Hour // the time is not the server's
		}
		value := reply[8:]
		next, changed, res, err := prog.t.Apply([]byte(value), at)
		if err != nil || !changed {
			return res, err
		}
		if res.Decision.ResetAfter == 0 {
			next = nil
		}
		// At least a millisecond, and one for a part of one.
		ttl := strconv.FormatInt((min(res.Decision.ResetAfter, math.MaxInt64-2*time.Hour)+keep).Milliseconds()+1, 10)
		reply, err = swapScript.run(ctx, s.conn, key, value, string(next), ttl)
		if err != nil || reply == "1" {
			return res, err
		}
	}
}
