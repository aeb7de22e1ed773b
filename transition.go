package ratelimit

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Transition is an algorithm ready to be applied: its parameters, checked,
// and its arithmetic. It holds no state of any key, and any number of
// goroutines may use it.
//
// A [Store] is given one, and applies it to states that it keeps as bytes
// ([Transition.Apply]).
//
// # For stores with scripts
//
// The other methods are for stores that do the same arithmetic elsewhere, such as
// in a script in a database. Tag and Varies also tell algorithms apart when a limiter
// is opened. See [Store].
type Transition struct {
	alg    Algorithm
	kernel *kernel.Compiled

	header atomic.Pointer[[]byte]     // what states begin with among bytes, once needed
	other  atomic.Pointer[Transition] // t that varies, once needed, if t does not
}

// NewTransition checks the parameters of alg. Its error is the one that [New]
// would return.
func NewTransition(alg Algorithm) (*Transition, error) {
	return newTransition(alg, kernel.InMemory)
}

func newTransition(alg Algorithm, f kernel.Form) (*Transition, error) {
	alg, k, err := compile(alg, f)
	if err != nil {
		return nil, err
	}
	return &Transition{alg: alg, kernel: k}, nil
}

// Portable returns t for a store whose clock counts in ticks, of whole
// microseconds for one, and whose states are also read and written elsewhere, such
// as in a script whose numbers are doubles: what is told is rounded up to ticks,
// reservations are for whole ticks, and states are [Transition.Tag] and the words
// that docs/design.md describes. Windows and periods must be multiples of tick; nothing may count
// beyond 2⁵¹ or last longer than 2⁵¹ ticks; the error says what does.
func (t *Transition) Portable(tick time.Duration) (*Transition, error) {
	if tick < 1 {
		return nil, param.Invalid("tick", tick, "must be at least 1ns")
	}
	return newTransition(t.alg, kernel.Form{Tick: uint64(tick), Portable: true, Varies: t.Varies()})
}

// Algorithm returns the algorithm with the parameters that it was made with.
func (t *Transition) Algorithm() Algorithm {
	if parts, ok := t.alg.(All); ok {
		return slices.Clone(parts)
	}
	return t.alg
}

// Apply applies req to a key's state, which a store keeps as bytes. A key that
// was never seen has the state nil. If changed is true, next must be stored in
// the place of state, provided that nobody stored another in between; then
// Apply must be called again with that one. The key's state may be forgotten
// once the ResetAfter of the Decision has passed by the limiter's clock. As an
// instant, that is the time of [Request.Read] plus ResetAfter.
//
// A state tells which algorithm left it. If that had other parameters, the
// state is adopted as [WithLimits] describes, and an algorithm of another kind
// begins afresh. A state that cannot be read (damaged, or of a later version of
// this package) is replaced by a fresh one, to which req is applied, and
// [Result.StateErr] says so; that is no err, so that the caller stores next and
// the next call finds a state that can be read.
//
// The error is for a request that a limiter would not make, and matches
// [ErrInvalid]. Neither state nor next is kept or changed by Apply: the caller
// may use their memory again. If changed is false, next is state.
func (t *Transition) Apply(state []byte, req Request) (next []byte, changed bool, res Result, err error) {
	if err := req.check(); err != nil {
		return nil, false, Result{}, err
	}
	t = t.loose()
	from, words, unread := t.read(state)
	if unread != nil {
		from, words = t, make([]uint64, t.kernel.Width())
	}
	asked, a := req.toKernel(), kernel.Answer{}
	by, words, changed := t.kernel.StepFrom(from.kernel, words, &asked, &a)
	res = result(&a)
	if !changed && unread == nil {
		return state, false, res, nil
	}
	if by == t.kernel {
		from = t
	}
	if unread != nil {
		// In the place of a grant, which nobody is given along with an error: a
		// field of its own would slow down each Take in memory.
		res.Grant = &stateError{bytes.Clone(state[:min(len(state), mostShown)]), len(state), unread}
	}
	return from.write(words), true, res, nil
}

// toKernel returns the request as kernels read it.
func (r *Request) toKernel() kernel.Request {
	req := kernel.Request{Op: kernel.Op(r.Op), N: r.N, MaxWait: r.MaxWait, Grant: r.Grant, Clock: r.timeline, Fixed: r.fixed, AtOnce: r.atOnce}
	if r.Op == OpReturn {
		req.Taken = kernel.InstantOf(r.Taken)
	}
	return req
}

// decision returns an answer as users read it.
func decision(a *kernel.Answer) Decision {
	return Decision{
		Allowed:    a.Allowed,
		Limit:      a.Limit,
		Remaining:  a.Remaining,
		RetryAfter: a.RetryAfter,
		ResetAfter: a.ResetAfter,
		Delay:      a.Delay,
		Part:       a.Part,
	}
}

// result returns an answer as limiters read it.
func result(a *kernel.Answer) Result {
	return Result{Decision: decision(a), Wait: a.Wait, QueueFull: a.QueueFull, Full: a.Full, Grant: a.Grant, due: a.Due}
}

// loose returns t with a kernel whose counts may lie above the limit, as those
// of a limit that was lowered do. All states among bytes are of such kernels, so
// that they are the same with WithLimits and without.
func (t *Transition) loose() *Transition {
	if t.Varies() {
		return t
	}
	if t.other.Load() == nil {
		loose, err := newTransition(t.alg, t.kernel.Varying())
		if err != nil {
			panic(err) // it was compiled before
		}
		t.other.CompareAndSwap(nil, loose)
	}
	return t.other.Load()
}

// Varies reports whether t comes from a limiter with [WithLimits]: then requests
// on one key may come with different transitions.
func (t *Transition) Varies() bool { return t.kernel.Varies }

// Tag returns what the states that t leaves begin with in [Transition.Apply]:
// the version of the format, the kind of the algorithm and its parameters. Two
// transitions have the same Tag if their algorithms have the same parameters.
// What it returns must not be changed.
func (t *Transition) Tag() []byte {
	if h := t.header.Load(); h != nil {
		return *h
	}
	h := appendHeader(nil, t.alg, t.kernel.Form)
	t.header.Store(&h)
	return h
}

// shares returns why limiters called name with t and other cannot share states.
func (t *Transition) shares(name string, other *Transition) error {
	if reflect.DeepEqual(t.alg, other.alg) && t.Varies() == other.Varies() {
		return nil
	}
	describe := func(t *Transition) string {
		if t.Varies() {
			return fmt.Sprintf("%+v and limits per key", t.alg)
		}
		return fmt.Sprintf("%+v", t.alg)
	}
	return fmt.Errorf("ratelimit: the store already has a limiter named %q, with %s: give the one with %s another name with WithName: %w",
		name, describe(t), describe(other), ErrInvalid)
}
