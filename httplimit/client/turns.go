package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// Turns make the requests of a client wait for their turn of a limiter, and for as long as a server
// asks. They are for clients of protocols that [Transport] does not know:
//
//	turn, err := turns.Wait(ctx, key, 1)
//	if err != nil {
//		return err
//	}
//	defer turn.End()
//	err = send(ctx)
//	switch {
//	case err == nil:
//		turn.Granted()
//	case errors.Is(err, errRefused):
//		turn.Refused(time.Minute)
//	}
//	return err
//
// After a rest that a server has asked for, one request goes first. Once it is granted, the others
// follow by twos and fours, as those of a Transport do.
//
// All times are by the limiter's clock. Any number of goroutines may use Turns at once.
type Turns struct {
	limiter ratelimit.Limiter
	holds   bool // whether what the limiter grants is released
	heeds   bool // whether responses say what is left, so that each key in use has a record
	clk     clock.Clock

	mu      sync.Mutex // protects what follows, and the records
	records map[string]*record
}

// mostRecords is how many keys have a record at a time. Requests with further keys are neither held
// back nor spread.
const mostRecords = 4096

// NewTurns returns Turns as l grants them. With a [ratelimit.InFlight], alone or in a
// [ratelimit.All], or if inFlight is true, requests are in flight until their turn ends. It is true
// for a limiter whose algorithm is not known (see [ratelimit.Describe]). If l is nil, the error
// matches [ratelimit.ErrInvalid].
func NewTurns(l ratelimit.Limiter, inFlight bool) (*Turns, error) {
	if param.IsNil(l) {
		return nil, param.InvalidIn("client", "the limiter", nil,
			"must be a Limiter, such as ratelimit.New returns")
	}
	t := &Turns{
		limiter: l,
		holds:   inFlight || hasInFlight(l),
		clk:     l.Describe().Clock,
		records: make(map[string]*record),
	}
	if t.clk == nil {
		t.clk = clock.New()
	}
	return t, nil
}

// hasInFlight reports whether l is known to have an InFlight.
func hasInFlight(l ratelimit.Limiter) bool {
	alg := l.Describe().Algorithm
	parts, isAll := alg.(ratelimit.All)
	if !isAll {
		parts = ratelimit.All{alg}
	}
	return slices.ContainsFunc(parts, func(part ratelimit.Algorithm) bool {
		_, ok := part.(ratelimit.InFlight)
		return ok
	})
}

// Wait waits until n events of key are granted, and key is not held back. The error is that of
// [ratelimit.Limiter.WaitN]. If the deadline of ctx is before the end of a rest, the error matches
// [context.DeadlineExceeded] and Wait fails at once. If HoldBack is called while a request waits
// for its turn, the request waits for another one afterwards.
//
// The caller calls [Turn.End] when the request has ended.
func (t *Turns) Wait(ctx context.Context, key string, n int) (*Turn, error) {
	p, held, err := t.wait(ctx, key, n)
	if err != nil {
		return nil, err
	}
	return &Turn{turns: t, ctx: ctx, key: key, pass: p, held: held}, nil
}

// HoldBack holds key back for d, at most for a day, unless it is already held back for longer. At
// most 4,096 keys are held back at a time.
func (t *Turns) HoldBack(key string, d time.Duration) {
	if d <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.recordOf(key); r != nil {
		r.hold(d, t.clk.Now())
	}
}

// A Turn is that of a request which may be sent. The methods of a nil Turn, which is that of a
// request that needs none, do nothing. Any number of goroutines may use a Turn at once.
type Turn struct {
	turns    *Turns
	ctx      context.Context // that of the request
	key      string
	pass     pass
	held     *ratelimit.Reservation // what is in flight, or nil
	answered atomic.Bool
}

// Granted notes that the server has granted the request: it has not refused it, and the request has
// not failed otherwise. After a rest, others follow. Of a stream, it is called with the first
// message that the server sends, because others would wait for the end. After End, it does nothing.
func (t *Turn) Granted() { t.answer(answer{granted: true}) }

// Refused notes that the server has refused the request because of a limit, and has asked to hold
// the key back for d. If d is not positive, because the server has not said it, the key is held
// back as after a 429 without Retry-After: see [Transport]. It can be called after Granted, for a
// stream that the server ends.
func (t *Turn) Refused(d time.Duration) {
	if t == nil {
		return
	}
	refusal, p := answer{refused: true, rest: d}, t.pass
	if t.answered.Swap(true) {
		p.record = nil // it is no longer under way
	}
	t.turns.answered(t.key, p, refusal)
}

// HoldBack is [Turns.HoldBack] for the key of the request.
func (t *Turn) HoldBack(d time.Duration) {
	if t != nil {
		t.turns.HoldBack(t.key, d)
	}
}

// End notes that the request has ended, and releases what is in flight. If Granted was not called,
// the server has not granted the request. Further calls do nothing.
func (t *Turn) End() {
	if t != nil {
		t.answer(answer{})
		release(t.ctx, t.held)
	}
}

// answer notes the first answer.
func (t *Turn) answer(a answer) {
	if t != nil && !t.answered.Swap(true) {
		t.turns.answered(t.key, t.pass, a)
	}
}

// A pass says what was known of a key when a request with the key went past.
type pass struct {
	record *record // nil if nothing was known
	rest   int     // the number of the latest rest

	// Of a request that was sent.
	sent  time.Time // when it was sent
	heard int       // how many responses had said what is left then
}

// wait waits until a request with the key may be sent. What it returns as held is to be released,
// unless it is nil.
func (t *Turns) wait(
	ctx context.Context,
	key string,
	n int,
) (p pass, held *ratelimit.Reservation, err error) {
	for {
		p, err = t.enter(ctx, key)
		if err != nil {
			return pass{}, nil, err
		}
		held, err = t.take(ctx, key, n)
		if err == nil && t.depart(key, &p) {
			return p, held, nil
		}
		t.forgo(key, p)
		if err != nil {
			return pass{}, nil, err
		}
		if held != nil {
			// If the store fails, the limiter logs it.
			_, _ = held.Settle(context.WithoutCancel(ctx), 0)
		}
	}
}

// take waits for n events of the limiter.
func (t *Turns) take(
	ctx context.Context,
	key string,
	n int,
) (held *ratelimit.Reservation, err error) {
	if !t.holds {
		return nil, t.limiter.WaitN(ctx, key, n)
	}
	held, d, err := t.limiter.Hold(ctx, key, n, ratelimit.Waiting())
	if err == nil && !d.Allowed { // of a limiter that New has not made
		err = fmt.Errorf("httplimit/client: the limiter refuses the request, for %v", d.RetryAfter)
	}
	return held, err
}

// release releases held, unless it is nil or has been released. Nobody can use an error: the
// request is over, and a limiter logs that its store has failed.
func release(ctx context.Context, held *ratelimit.Reservation) {
	if held != nil {
		_ = held.Release(context.WithoutCancel(ctx))
	}
}

// enter waits until a request with the key may go, and fails at once if that is known to be after
// the deadline of ctx. If it succeeds, the caller calls depart or forgo.
func (t *Turns) enter(ctx context.Context, key string) (pass, error) {
	r, p, wait := t.arrive(key)
	if wait == 0 {
		return p, nil
	}
	defer t.leave(r)
	if err := t.tooLate(ctx, r, false); err != nil {
		return pass{}, err
	}
	select {
	case r.first <- struct{}{}:
	case <-ctx.Done():
		return pass{}, ctx.Err()
	}
	defer func() { <-r.first }()
	for {
		p, wait = t.advance(r)
		if wait == 0 {
			return p, nil
		}
		if err := t.tooLate(ctx, r, true); err != nil {
			return pass{}, err
		}
		timer := t.clk.Timer(wait)
		p, wait = t.advance(r)
		if wait == 0 {
			// A mock clock was moved just before the timer was set.
			timer.Stop()
			return p, nil
		}
		select {
		case <-timer.C:
		case <-r.changed:
		case <-ctx.Done():
			timer.Stop()
			return pass{}, ctx.Err()
		}
		timer.Stop()
	}
}

// arrive lets a request with the key go if nobody waits before it and it need not wait, and
// otherwise counts it among those that wait. Then wait is not 0, and the caller calls leave.
func (t *Turns) arrive(key string) (r *record, p pass, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clk.Now()
	r = t.records[key]
	if r != nil && r.isIdle(now, memory) {
		delete(t.records, key)
		r = nil
	}
	if r == nil && t.heeds {
		r = t.recordOf(key)
	}
	if r == nil {
		return nil, pass{}, 0
	}
	if r.waiting == 0 {
		p, wait = r.pass(now, false)
		if wait == 0 {
			return r, p, 0
		}
	}
	r.waiting++
	return r, pass{}, max(1, wait)
}

// advance lets the first of those that wait go, unless it has to wait longer.
func (t *Turns) advance(r *record) (p pass, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return r.pass(t.clk.Now(), true)
}

// leave counts a request less that waits.
func (t *Turns) leave(r *record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.waiting--
}

// tooLate returns an error if the deadline of ctx is before the first, or else the last, of those
// that wait may go, as far as the server has said it.
func (t *Turns) tooLate(ctx context.Context, r *record, isFirst bool) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now, n := t.clk.Now(), 1
	if !isFirst {
		n = r.waiting
	}
	if wait := r.said(now, n).Sub(now); wait > 0 && t.clk.Until(deadline) < wait {
		return tooLong(wait)
	}
	return nil
}

// depart reports whether a request which entered may be sent: whether the server has not asked for
// a rest, and not used up its quota, while the request waited for the limiter. If so, the caller
// calls answered when the server has answered, or the request has failed.
func (t *Turns) depart(key string, p *pass) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.sent = t.clk.Now()
	if p.record != nil {
		return p.record.depart(p)
	}
	r := t.records[key] // made while the request waited
	return r == nil || r.way.number == 0
}

// forgo notes that a request which entered is not sent.
func (t *Turns) forgo(key string, p pass) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := p.record; r != nil {
		r.forgo(p)
		t.forget(key, r)
	}
}

// answered notes the answer to a request that was sent, or that there is none.
func (t *Turns) answered(key string, p pass, a answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := p.record
	if r == nil && a.says() {
		r = t.recordOf(key)
	}
	if r != nil {
		r.answer(p, a, t.clk.Now())
		t.forget(key, r)
	}
}

// forget removes the record of key if nobody needs it any more.
func (t *Turns) forget(key string, r *record) {
	if r.isIdle(t.clk.Now(), memory) && t.records[key] == r {
		delete(t.records, key)
	}
}

// recordOf returns the record of key, and makes one if there is none. If there is no room for it,
// it returns nil.
func (t *Turns) recordOf(key string) *record {
	if r := t.records[key]; r != nil {
		return r
	}
	now := t.clk.Now()
	if len(t.records) >= mostRecords {
		for other, r := range t.records {
			if r.isIdle(now, 0) {
				delete(t.records, other)
			}
		}
	}
	if len(t.records) >= mostRecords {
		return nil
	}
	r := newRecord()
	t.records[key] = r
	return r
}
