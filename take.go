package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/memory"
)

func (l *limiter) Allow(key string) bool { return l.AllowN(key, 1) }

func (l *limiter) AllowN(key string, n int) bool {
	if l.fast != nil && !l.waiters.Any() && (n == 1 || n > 0 && n <= l.t.Limit()) { // limits are at least 1, except of a plan, for which fast is nil
		granted := l.fast.Allow(l.timeline, key, n)
		l.keepStates()
		return granted
	}
	ctx := context.Background()
	switch {
	case n < 0:
		return false
	case l.local != nil && l.limits != nil && l.observers == nil && n > 0 && !l.waiters.Has(key): // take sees whether it would overtake a Wait
		return l.allowOwn(ctx, key, n)
	}
	d, _ := l.take(ctx, CallAllow, key, n)
	return d.Allowed
}

// allowOwn is AllowN for n > 0, with limits of keys' own and states in memory.
func (l *limiter) allowOwn(ctx context.Context, key string, n int) bool {
	alg, err := l.limits.lookup(ctx, key)
	if err == nil {
		if granted, ok := l.local.Space.AllowAs(l.timeline, key, alg, n); ok {
			l.keepStates()
			return granted
		}
	}
	t, unknown, _ := l.limitBy(ctx, key, alg, err) // no end of ctx: AllowN has none
	if unknown != nil {
		c := newCall(ctx, kernel.OpTake, key, n)
		c.Limit, c.unknown = t, unknown
		_, _ = l.decide(&c)
		return c.Answer.Allowed
	}
	granted := n <= t.Limit() && (t.Stateless() || l.local.Space.AllowBy(l.timeline, key, l.local.LimitOf(t), n))
	l.keepStates()
	return granted
}

// keepStates is called after a call of the engine in memory. Without it, the states of a limiter without a name might be
// dropped during its last call, as soon as that has read where they are: then a key that is used up would be granted.
func (l *limiter) keepStates() { runtime.KeepAlive(l) }

func (l *limiter) Take(ctx context.Context, key string, n int) (d Decision, _ error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	if l.fast != nil && !l.waiters.Any() {
		l.decideQuick(kernel.OpTake, key, n, &d)
		return d, nil
	}
	return l.take(ctx, CallTake, key, n)
}

// take is Take without checks.
func (l *limiter) take(ctx context.Context, name Call, key string, n int) (Decision, error) {
	c := newCall(ctx, kernel.OpTake, key, n)
	_, err := l.do(&c)
	l.decided(ctx, name, &c.Call, nil, err)
	return Decision(c.Answer.Decision), err
}

// decideQuick applies an OpTake or OpPeek if l.fast is not nil. It sets d.
func (l *limiter) decideQuick(op kernel.Op, key string, n int, d *Decision) {
	req := kernel.Request{Op: op, N: n, Clock: l.timeline}
	var a kernel.Answer
	l.fast.Apply(key, l.fast.Base(), &req, &a)
	l.keepStates()
	d.set(&a.Decision)
}

func (l *limiter) Peek(ctx context.Context, key string) (d Decision, _ error) {
	if err := l.check(ctx, 1); err != nil {
		return Decision{}, err
	}
	if l.fast != nil && !l.waiters.Any() {
		l.decideQuick(kernel.OpPeek, key, 1, &d)
		return d, nil
	}
	c := newCall(ctx, kernel.OpPeek, key, 1)
	_, err := l.do(&c)
	return Decision(c.Answer.Decision), err
}

func (l *limiter) Reset(ctx context.Context, key string) error {
	if err := l.check(ctx, 0); err != nil {
		return err
	}
	l.timeline.Now() // so that no decision after the reset is made at a time before it
	defer l.wake(key)
	if err := l.states.Reset(ctx, key); err != nil {
		return l.failed(err)
	}
	l.waiters.Renew(key)
	return nil
}

// Charge implements [Limiter].
func (l *limiter) Charge(ctx context.Context, key string, n int) (Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	d, err := l.charge(ctx, key, n)
	if l.observers != nil {
		l.observe(ctx, Observation{Key: key, Call: CallCharge, N: n, Outcome: counted(ctx, d, err), Decision: d, Err: err})
	}
	return d, err
}

// charge is Charge without checks.
func (l *limiter) charge(ctx context.Context, key string, n int) (Decision, error) {
	c := newCall(ctx, kernel.OpCharge, key, n)
	_, err := l.do(&c)
	return Decision(c.Answer.Decision), c.counted(n, err)
}

// counted returns err, the error of do, and that of n events that the store could not count.
func (c *call) counted(n int, err error) error {
	if c.Err != nil { // the FailurePolicy has decided
		return err
	}
	missing := uncounted(&c.Answer, n)
	if err == nil {
		return missing
	}
	return errors.Join(err, missing)
}

// uncounted returns the error of n events that could not be counted.
func uncounted(res *kernel.Answer, n int) error {
	switch {
	case res.Excess:
		return fmt.Errorf("%w: %d more, and the state of the key can hold %d more", ErrDebt, n, res.Most)
	case res.Full:
		return fmt.Errorf("%w: no room for a new key", ErrFull)
	}
	return nil
}

// TakeEach takes n events of each key, each for itself, and appends the decisions to out, in the order of the
// keys. The results are those of a loop that calls [Limiter.Take], but TakeEach takes less time. A key that occurs
// several times is decided on as often, in order.
//
// TakeEach appends one decision for each key, even if it returns an error. If n is negative or ctx has ended, all
// of them are zero, which is a denial, and the error is that of Take. If Take would fail only for some keys, the
// error has one for each of them, which names keys[i]. The decisions on these keys are those of the
// [FailurePolicy] or, if their lookups failed, of the limit of New, as with Take: they are Degraded.
//
// In a [MemoryStore], TakeEach loads the states of 64 keys at once, and does not allocate if out has room. It
// checks ctx once, before the first key. Package redisstore sends the requests of all keys at once, so that they
// share round trips. With any other store, and with [WithLimits] in memory, TakeEach is a loop.
//
// If l was not made by [New], TakeEach calls its method TakeEach(ctx, keys, n, out) ([]Decision, error) if it has
// one, and otherwise its Take for each key.
func TakeEach(ctx context.Context, l Limiter, keys []string, n int, out []Decision) ([]Decision, error) {
	if each, ok := l.(interface {
		TakeEach(ctx context.Context, keys []string, n int, out []Decision) ([]Decision, error)
	}); ok {
		return each.TakeEach(ctx, keys, n, out)
	}
	return takeInTurn(ctx, l, keys, n, out)
}

// takeInTurn is TakeEach as a loop.
func takeInTurn(ctx context.Context, l Limiter, keys []string, n int, out []Decision) ([]Decision, error) {
	var errs []error
	for i, key := range keys {
		d, err := l.Take(ctx, key, n)
		out = append(out, d)
		if err != nil {
			errs = append(errs, fmt.Errorf("keys[%d]: %w", i, err))
		}
	}
	return out, errors.Join(errs...)
}

// TakeEach is what the function TakeEach calls.
func (l *limiter) TakeEach(ctx context.Context, keys []string, n int, out []Decision) ([]Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return append(out, make([]Decision, len(keys))...), err
	}
	if !l.waiters.Any() { // else a loop overtakes no Wait
		if l.fast != nil {
			return l.takeFast(keys, n, out), nil
		}
		if each, ok := l.states.(limit.EachStates); ok {
			return l.takeTogether(ctx, each, keys, n, out)
		}
	}
	return takeInTurn(ctx, l, keys, n, out)
}

// takeTogether is TakeEach for states that decide on many keys faster than in a loop.
func (l *limiter) takeTogether(ctx context.Context, states limit.EachStates, keys []string, n int, out []Decision) ([]Decision, error) {
	calls := make([]call, len(keys))
	var asked []limit.Call // those that need the store
	for i, key := range keys {
		c := &calls[i]
		*c = newCall(ctx, kernel.OpTake, key, n)
		c.Request.Clock = l.timeline
		c.Limit, c.unknown, c.Err = l.limitFor(ctx, key)
		if c.Err == nil && !c.Limit.Stateless() {
			asked = append(asked, c.Call)
		}
	}
	if len(asked) > 0 {
		states.ApplyEach(ctx, asked)
	}
	var errs []error
	for i := range calls {
		c := &calls[i]
		switch {
		case c.Err != nil:
		case c.Limit.Stateless():
			c.Limit.Decide(&c.Request, &c.Answer)
		default:
			c.Call, asked = asked[0], asked[1:]
		}
		_, err := l.answered(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("keys[%d]: %w", i, err))
		}
		l.decided(ctx, CallTake, &c.Call, nil, err)
		out = append(out, Decision(c.Answer.Decision))
	}
	return out, errors.Join(errs...)
}

// takeFast is TakeEach if l.fast is not nil.
func (l *limiter) takeFast(keys []string, n int, out []Decision) []Decision {
	req := kernel.Request{Op: kernel.OpTake, N: n, Clock: l.timeline}
	var a kernel.Answer
	var b memory.Batch
	out = slices.Grow(out, len(keys))
	for len(keys) > 0 {
		count := l.fast.Touch(keys, &b)
		for i := range count {
			l.fast.TakeOf(&b, i, &req, &a)
			out = out[:len(out)+1]
			out[len(out)-1].set(&a.Decision)
		}
		keys = keys[count:]
	}
	l.keepStates()
	return out
}

// degraded has the FailurePolicy decide on a call that failed, and returns an error that says so.
func (l *limiter) degraded(c *call) (r *Reservation, err error) {
	if c.Limit == nil || errors.Is(c.ctx.Err(), context.Canceled) {
		c.Answer = kernel.Answer{}
		return nil, c.ctx.Err() // the caller left; the store may be well
	}
	err = l.failing(c.ctx, c.Err)
	if c.unknown != nil {
		err = errors.Join(err, c.unknown)
	}
	d := closed(c.Limit)
	switch l.policy.kind {
	case fallback:
		var also error
		r, d, also = c.ask(l.policy.limiter)
		err = errors.Join(err, also)
		d.StandIn = d.Checked() && d != Decision{} // which is no decision
		d.Degraded = true
		if n, _ := c.decidesOn(); d.RetryAfter == Never && c.mayGrant(n) {
			d.RetryAfter, d.StandIn = closedRetry, false
		}
	case failOpen:
		d = Decision{Allowed: true, Limit: d.Limit, Degraded: true}
		if c.holds() {
			r = &Reservation{l: l, key: c.Key}
		}
	}
	c.Answer = kernel.Answer{Decision: kernel.Decision(d)}
	return r, err
}

// closed returns the decision of FailClosed on a key of limit t.
func closed(t *limit.Limit) Decision {
	return Decision{Limit: t.Limit(), RetryAfter: closedRetry, Degraded: true}
}

// ask makes the call to a fallback. That does not know what a Settle is about, and denies.
func (c *call) ask(fallback Limiter) (r *Reservation, d Decision, err error) {
	ctx := context.WithoutCancel(c.ctx)
	switch c.Request.Op {
	case kernel.OpTake:
		d, err = fallback.Take(ctx, c.Key, c.Request.N)
	case kernel.OpPeek:
		d, err = fallback.Peek(ctx, c.Key)
	case kernel.OpCharge:
		d, err = fallback.Charge(ctx, c.Key, c.Request.N)
	case kernel.OpReserve:
		r, d, err = fallback.Reserve(ctx, c.Key, c.Request.N, c.opts...)
	case kernel.OpHold:
		r, d, err = fallback.Hold(ctx, c.Key, c.Request.N, c.opts...)
	}
	if !d.Allowed {
		r = nil
	}
	return r, d, err
}

// closedRetry is the RetryAfter of FailClosed. Nobody knows when the store will answer again, and with 0 callers
// would retry at once.
const closedRetry = time.Second

func (l *limiter) failed(err error) error {
	return fmt.Errorf("ratelimit: limiter %q: the store failed: %w", l.name, err)
}

// mayGrant reports whether the limit of the key may ever grant n events at once, whatever a limit that stands in for
// it says. An unknown limit may.
func (c *call) mayGrant(n int) bool { return c.unknown != nil || n <= c.Limit.Limit() }
