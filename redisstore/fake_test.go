package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A fakeServer answers as Redis does, one call after another, but with this library's own
// arithmetic in place of the scripts, which integration/redis tests on real servers. It
// serves to test everything around a call.
type fakeServer struct {
	prog  *program      // of its one limiter
	skew  time.Duration // by how much its clock is ahead
	delay time.Duration // the round-trip time

	mu       sync.Mutex
	states   map[string]string
	known    map[string]bool     // scripts, by their hash
	evals    int                 // scripts received in full
	batch    []int               // the number of requests in each call
	fail     error               // the error to reply with
	failures int                 // how many times to reply with it; no limit if it was negative
	hangs    bool                // whether it does not reply
	stuck    chan struct{}       // if not nil, calls that hang return when it is closed
	hanging  string              // the hash or text of a script that is not answered
	trips    int                 // commands received
	limits   map[string]*program // of a limiter with limits per key, by tag
	replaced int                 // values that a process has computed
	meddle   func()              // if not nil, is called before each command is executed
}

func newFakeServer(t testing.TB, alg ratelimit.Algorithm) *fakeServer {
	of, err := fakes.NewLimit(alg)
	require.NoError(t, err)
	prog, err := newProgram(of)
	require.NoError(t, err)
	known := map[string]bool{prog.variantOf(plain).sha: true, prog.variantOf(longer).sha: true, replace.sha: true}
	return &fakeServer{failures: -1, prog: prog, states: map[string]string{}, known: known}
}

func (f *fakeServer) Do(ctx context.Context, c Command) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := wait(ctx, f.delay/2); err != nil {
		return "", err
	}
	f.mu.Lock()
	f.trips++
	hangs := f.hangs || f.hanging != "" && c.Words[1] == f.hanging
	var reply string
	var err error
	if !hangs {
		reply, err = f.do(c)
	}
	f.mu.Unlock()
	switch {
	case hangs && f.stuck != nil:
		<-f.stuck
		return "", errors.New("i/o timeout")
	case hangs:
		<-ctx.Done()
		return "", errors.New("i/o timeout")
	}
	if err := wait(ctx, f.delay/2); err != nil {
		return "", err
	}
	return reply, err
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d): // the bubble's clock
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeServer) do(c Command) (string, error) {
	sha, key, args := "", c.Words[c.Key], c.Words[c.Key+1:]
	switch c.Words[0] {
	case "EVAL":
		sha = newScript(c.Words[1]).sha
		if c.Words[1] == getText {
			break
		}
		f.known[sha] = true
		f.evals++
	case "EVALSHA":
		if sha = c.Words[1]; !f.known[sha] {
			return "", errors.New("NOSCRIPT No matching script. Please use EVAL.")
		}
	}
	now := time.Now().Add(f.skew).Truncate(tick)
	at := string(appendDouble(nil, float64(now.UnixMicro())))
	switch {
	case f.fail != nil && f.failures != 0:
		f.failures--
		return "", f.fail
	case sha == "":
		delete(f.states, key)
		return "", nil
	case c.Words[1] == getText:
		return at + "\x01" + f.states[key], nil
	}
	if f.meddle != nil {
		f.meddle()
	}
	if n, _ := strconv.Atoi(c.Words[2]); n > 1 {
		return f.doJoint(c.Words[c.Key:c.Key+n], c.Words[c.Key+n:], now, sha == scriptFor(true, together|holding, f.prog.kinds).sha)
	}
	if c.Words[1] == replace.sha || c.Words[1] == replace.text {
		if f.states[key] != args[0] {
			return at + "\x01" + f.states[key], nil
		}
		f.states[key] = args[1]
		f.replaced++
		return at + "\x00", nil
	}
	prog, request, before := f.prog, args[0], f.states[key]
	if f.limits != nil {
		prog = f.limits[args[1]]
	}
	knows := sha == prog.variantOf(holding).sha
	value, ok, outcome := "", before == "", byte(0)
	for reply, tag := range map[byte]string{replyOpen: prog.openTag, replyAhead: prog.aheadTag} {
		if rest, has := strings.CutPrefix(before, tag); has {
			if !knows {
				return at + string(rune(replyHolds)), nil
			}
			value, ok, outcome = rest, true, reply
		}
	}
	for _, tag := range args[1:] {
		if rest, has := strings.CutPrefix(before, tag); has && before != "" {
			value, ok = rest, true
		}
	}
	if !ok {
		return at + "\x01" + before, nil
	}
	state, granted, requests := prog.state(value), 0.0, 0
	if outcome > 0 {
		state = []byte(before)
	}
	run := request[len(prog.params)+8:]
	if knows {
		run = run[16*len(prog.costs):]
	}
	header := 21 + 16*len(prog.costs)
	number := func(i int) float64 { return double(run[i:]) }
	for len(run) > 0 {
		size, longest := header, ratelimit.Never
		if ticks := number(13); ticks < 1<<53 {
			longest = time.Duration(ticks) * tick
		}
		req := kernel.Request{Op: kernel.OpTake, N: int(number(5)), MaxWait: longest}.At(now)
		switch run[0] {
		case opPeek:
			req.Op = kernel.OpPeek
		case opNothing:
			req.Op = kernel.OpPeek
		case opCharge:
			req.Op = kernel.OpCharge
		case opHold, opSettle, opExtend, opReserve:
			req.Op = map[byte]kernel.Op{opHold: kernel.OpHold, opSettle: kernel.OpSettle, opExtend: kernel.OpExtend, opReserve: kernel.OpReserve}[run[0]]
			req.Hold.ID, req.Hold.For = uint64(number(header)), time.Duration(number(header+8))*tick
			if run[0] == opSettle {
				req.Of = int(number(header + 8))
				req.N += req.Of
			}
			size += 17
		}
		for range binary.LittleEndian.Uint32([]byte(run[1:5])) {
			next, _, res, unread := prog.l.Apply(state, req)
			if unread != nil {
				return at + "\x01" + before, nil
			}
			state = next
			requests++
			if c := (&call{prog: prog, req: req}); res.Allowed && c.spends() {
				granted++
			}
		}
		run = run[size:]
	}
	f.states[key] = string(state)
	f.batch = append(f.batch, requests)
	return at + string(rune(outcome)) + string(appendDouble(nil, granted)) + value, nil
}

// doJoint does what lua/joint.lua does, for keys of its limiter.
func (f *fakeServer) doJoint(keys, args []string, now time.Time, knows bool) (string, error) {
	number := func(s string) float64 { return math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8]))) }
	at, states := string(appendDouble(nil, float64(now.UnixMicro()))), ""
	granted := args[0][8] != opPeek
	delay := time.Duration(0)
	requests := make([]kernel.Request, len(keys))
	for i, key := range keys {
		req := kernel.Request{Op: kernel.OpTake, N: int(number(args[1+2*i][1:]))}.At(now)
		if id := number(args[1+2*i][9:]); knows && id > 0 {
			req.Op, req.Hold = kernel.OpHold, kernel.Handle{ID: uint64(id), For: time.Duration(number(args[1+2*i][17:])) * tick}
		}
		requests[i] = req
		_, _, res, unread := f.prog.l.Apply([]byte(f.states[key]), req)
		if unread != nil {
			return at + "\x01", nil
		}
		granted, delay = granted && res.Allowed, max(delay, res.Delay)
		value := strings.TrimPrefix(f.states[key], f.prog.tag)
		form := uint32(0)
		for bit, tag := range map[uint32]string{1 << 31: f.prog.openTag, 1 << 30: f.prog.aheadTag} {
			if rest, has := strings.CutPrefix(value, tag); has {
				value, form = rest, bit
			}
		}
		if form > 0 && !knows {
			return at + string(rune(replyHolds)), nil
		}
		length := uint32(len(value)) | form
		states += string(binary.LittleEndian.AppendUint32(nil, length)) + value
	}
	spent := 0.0
	if granted {
		spent = 1
		for i, key := range keys {
			requests[i].Delay = delay
			next, _, _, _ := f.prog.l.Apply([]byte(f.states[key]), requests[i])
			f.states[key] = string(next)
		}
	}
	f.batch = append(f.batch, len(keys))
	return at + "\x00" + string(appendDouble(nil, spent)) + states, nil
}

// damage makes all states unreadable.
func (f *fakeServer) damage() {
	for key := range f.states {
		f.states[key] = "damaged"
	}
}

// calls returns the number of script calls that the server has executed.
func (f *fakeServer) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.batch)
}

func (f *fakeServer) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// store returns another store on the server, and a limiter on that store.
func (f *fakeServer) store(t testing.TB, opts ...Option) (*Store, ratelimit.Limiter) {
	t.Helper()
	s, err := New(f, opts...)
	require.NoError(t, err)
	s.backlog = func() bool { return false } // bubbles' clocks stand still while anything runs
	l, err := ratelimit.New(f.prog.l.Known.(ratelimit.Algorithm), ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed))
	require.NoError(t, err)
	return s, l
}

// settle waits until everything in progress has ended.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

func (f *fakeServer) String() string {
	return "fake server, asked " + strconv.Itoa(f.calls()) + " times"
}
