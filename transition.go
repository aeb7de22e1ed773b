package ratelimit

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Transition is an algorithm with checked parameters, ready to be applied to the
// states of keys. It holds no state itself, and any number of goroutines may use it.
//
// A [Store] gets a Transition from the limiter, and applies it to the states that it
// keeps as bytes ([Transition.Apply]).
//
// # For stores with scripts
//
// The other methods are for stores that do the same arithmetic elsewhere, such as in
// a script in a database. Tag and Origin show which limit left a state. In Open, Tag and
// Varies also serve to compare algorithms. See [Store].
type Transition struct {
	alg    Algorithm
	kernel *kernel.Compiled
	flies  bool // whether an [InFlight] is in it

	holdFor time.Duration // how long a hold lasts by default

	asked any                          // with WithLimits: the algorithm as the lookup returned it, or nil
	limit atomic.Pointer[memory.Limit] // with WithLimits: that of states in memory; nil until needed

	header atomic.Pointer[[]byte]     // the result of Tag; nil until needed
	other  atomic.Pointer[Transition] // the result of loose; nil until needed
}

// NewTransition returns a Transition for alg, or the error that [New] would return
// for it.
func NewTransition(alg Algorithm) (*Transition, error) {
	return newTransition(alg, kernel.InMemory)
}

func newTransition(alg Algorithm, enc kernel.Encoding) (*Transition, error) {
	alg, k, err := compile(alg, enc)
	if err != nil {
		return nil, err
	}
	t := &Transition{alg: alg, kernel: k, flies: k.Flies(), holdFor: holdFor(alg)}
	k.Of = t
	return t, nil
}

// Portable returns t for a store whose clock has a coarser tick (Redis: 1 µs) and
// whose states are also read and written by other code, such as a Lua script with
// float64 numbers. Durations in Decisions are rounded up to ticks, and reservations
// are for whole ticks. A state is [Transition.Tag] followed by the words that
// docs/design.md describes. Windows and periods must be multiples of tick. No count
// may exceed 2⁵¹, and no duration 2⁵¹ ticks; the error names the parameter that does.
func (t *Transition) Portable(tick time.Duration) (*Transition, error) {
	if tick < 1 {
		return nil, param.Invalid("tick", tick, "must be at least 1ns")
	}
	return newTransition(t.alg, kernel.Encoding{Tick: uint64(tick), Portable: true, Varies: true})
}

// Algorithm returns the algorithm, with defaults filled in and nested Alls flattened.
func (t *Transition) Algorithm() Algorithm {
	if parts, ok := t.alg.(All); ok {
		return slices.Clone(parts)
	}
	return t.alg
}

// Apply applies req to a key's state, which a store keeps as bytes. The state of a key
// never seen is nil. If changed is true, the store must replace state by next, unless
// another state was stored in between: then it must call Apply again with that state.
// It may delete the state once IdleAfter has passed by the limiter's clock: at the time of
// [Request.Read] plus IdleAfter.
//
// Each state names its algorithm and parameters. A state of other parameters is
// adopted as [WithLimits] describes; with an algorithm of another kind, the key starts
// afresh. If a state cannot be read (because it is damaged, or was written by a later
// version of this package), Apply applies req to a fresh state, and [Result.StateErr]
// returns an error. err is nil in this case, so that the caller stores next and the
// next call finds a readable state.
//
// If no limiter would make req, err matches [ErrInvalid]. Apply neither keeps nor
// changes state and next: the caller may reuse their memory. If changed is false, next
// is state.
func (t *Transition) Apply(state []byte, req Request) (next []byte, changed bool, res Result, err error) {
	if err := req.check(); err != nil {
		return nil, false, Result{}, err
	}
	if t.Stateless() {
		return state, false, t.decide(&req), nil
	}
	t = t.loose()
	left, words, unread := t.read(state)
	if unread != nil {
		left, words = t.kernel, make([]uint64, t.kernel.Width())
	}
	var asked kernel.Request
	var a kernel.Answer
	req.toKernel(&asked)
	var by *kernel.Compiled
	if req.refused {
		by, words, changed = t.kernel.RefuseFrom(left, words, &asked, req.notes, &a)
	} else {
		by, words, changed = t.kernel.StepFrom(left, words, &asked, &a)
	}
	res.set(&a)
	res.IdleAfter = max(a.ResetAfter, a.Idle)
	if !changed && unread == nil {
		return state, false, res, nil
	}
	if unread != nil {
		// Grant is not used along with an error. A separate field would slow
		// down each Take in memory.
		res.Grant = &stateError{bytes.Clone(state[:min(len(state), mostShown)]), len(state), unread}
	}
	return write(by, words), true, res, nil
}

// AppendCancellation appends grant, the Grant of an OpCancel, to b, for a store whose script
// takes the events back. It appends as little as the script needs, in the encoding of
// internal/kernel/encode.go, which may change with each version of this package. Grants that
// transitions with other parameters made are left out: there is nothing to take back
// from a state of t for them.
//
// Such a store returns the Result of Apply with the state that the script found.
func (t *Transition) AppendCancellation(b []byte, grant any) []byte {
	return t.loose().kernel.AppendCancellation(b, grant)
}

// toKernel converts a request. It sets req, which is zero, field by field, as Decision.set does.
func (r *Request) toKernel(req *kernel.Request) {
	req.Op, req.N, req.MaxWait, req.Grant, req.Of = kernel.Op(r.Op), r.N, r.MaxWait, r.Grant, r.Of
	req.Clock, req.Fixed, req.AtOnce, req.Yields, req.Near = r.timeline, r.fixed, r.atOnce, r.yields, r.near
	req.Hold = r.Hold.toKernel()
	if r.Op == OpReturn {
		req.Taken = kernel.InstantOf(r.Taken)
	}
}

// decision converts an answer for users.
func decision(a *kernel.Answer) (d Decision) {
	d.set(a)
	return d
}

// set sets d to the decision of a. It is not one assignment, because the compiler would make
// a temporary Decision and copy that at once, in larger pieces than it was written in, for
// which a core must wait until all of it is in its cache.
func (d *Decision) set(a *kernel.Answer) {
	d.Allowed = a.Allowed
	d.Limit = a.Limit
	d.Remaining = a.Remaining
	d.RetryAfter = a.RetryAfter
	d.ResetAfter = a.ResetAfter
	d.Delay = a.Delay
	d.Part = a.Part
	d.Degraded = false
}

// set sets r to the result of a, without IdleAfter.
func (r *Result) set(a *kernel.Answer) {
	r.Decision.set(a)
	r.Wait, r.QueueFull, r.Full, r.Held, r.Grant = a.Wait, a.QueueFull, a.Full, a.Held, a.Grant
	r.due, r.ends, r.excess, r.most = a.Due, a.Ends, a.Excess, a.Most
}

// loose returns t with a kernel whose counts may exceed the limit, as they do after a
// limit was lowered. All states stored as bytes are of such kernels, so that they are
// the same with and without WithLimits.
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

// Varies reports whether t comes from a limiter with [WithLimits]: requests on one
// key may then come with different transitions.
func (t *Transition) Varies() bool { return t.kernel.Varies }

// Stateless reports whether t decides without a state: the algorithm is [Unlimited], [Blocked],
// or an [All] that grants everything or nothing. A limiter does not call [States.Apply] with
// such a transition, because the states of keys stay as they are. It may pass one to Open.
func (t *Transition) Stateless() bool { return t.kernel.Stateless() }

// decide returns the answer of a transition that is Stateless.
func (t *Transition) decide(req *Request) (res Result) {
	var asked kernel.Request
	var a kernel.Answer
	req.toKernel(&asked)
	t.kernel.Decide(&asked, &a)
	res.set(&a)
	return res
}

// Tag returns the prefix that [Transition.Apply] puts before each state of t: the
// version of the format, the kind of the algorithm and its parameters. The Tags of two
// transitions are equal if their algorithms have the same parameters. The caller must
// not change the returned bytes.
func (t *Transition) Tag() []byte {
	if h := t.header.Load(); h != nil {
		return *h
	}
	h := appendHeader(nil, t.kernel)
	t.header.Store(&h)
	return h
}

// Origin returns the transition that left state, in the form of t, or nil if state is that of a key
// whose limit has changed, which keeps two. Only the beginning of state is needed: its Tag. If another
// version of this package wrote state, or if it is damaged or cut off, the error says why it cannot be read.
func (t *Transition) Origin(state []byte) (*Transition, error) {
	by, _, err := readHeader(state, t.kernel.Encoding)
	if err != nil || len(by.Limits()) > 1 {
		return nil, err
	}
	return transitionOf(by.Limits()[0]), nil
}

// transitionOf returns the transition of a limit.
func transitionOf(limit *kernel.Compiled) *Transition { return limit.Of.(*Transition) }

// Similar reports whether t and other differ only in how much they grant, so that states of both are
// the same, apart from the Tag.
func (t *Transition) Similar(other *Transition) bool { return t.kernel.Similar(other.kernel) }

// CheckSame returns an error that matches [ErrInvalid] if t and other are not of the same
// limit, so that limiters with both of them cannot have the same name. It is for [Store].Open.
func (t *Transition) CheckSame(name string, other *Transition) error {
	if reflect.DeepEqual(t.alg, other.alg) && t.Varies() == other.Varies() {
		return nil
	}
	describe := func(t *Transition) string {
		if t.Varies() {
			return fmt.Sprintf("%+v and limits per key", t.alg)
		}
		return fmt.Sprintf("%+v", t.alg)
	}
	return fmt.Errorf("ratelimit: the store already has a limiter named %q, with %s: give the one with %s another name with WithName, or use WithLimits if the limit changes: %w",
		name, describe(t), describe(other), ErrInvalid)
}
