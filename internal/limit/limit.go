// Package limit represents a limit as data: its numbers, its kernel, and the states of its keys as
// bytes. The package also has the interfaces that a store implements.
//
// A store that keeps states as bytes applies requests with [Limit.Apply]. The other methods of
// Limit are for stores that decide elsewhere, such as in a script in a database.
package limit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A Limit is an algorithm with checked parameters, ready to be applied to the states of keys. It
// holds no state itself, and any number of goroutines may use it.
type Limit struct {
	*step.Machine
	Spec  Spec
	Known any // the algorithm as users know it; nil if it was read from a state

	// With limits of keys' own:
	Asked    any          // the algorithm as the lookup returned it, or nil
	InMemory atomic.Value // what package memory has for it

	HoldFor time.Duration // how long a hold lasts by default

	header atomic.Pointer[[]byte] // the result of Tag; nil until needed
	other  atomic.Pointer[Limit]  // the result of Loose; nil until needed
}

// New returns the limit of spec, whose states have encoding enc. known is the algorithm as users
// know it.
func New(spec Spec, enc kernel.Encoding, known any) (*Limit, error) {
	k, err := spec.Kernel(enc)
	if err != nil {
		return nil, err
	}
	l := &Limit{Machine: step.NewMachine(k, enc), Spec: spec, Known: known, HoldFor: holdFor(&spec)}
	l.Of = l
	return l, nil
}

// inEncoding returns l in another encoding, which is known to fit.
func (l *Limit) inEncoding(enc kernel.Encoding) *Limit {
	other, err := New(l.Spec, enc, l.Known)
	if err != nil {
		panic(err) // it was compiled before
	}
	return other
}

// Portable returns l for a store whose clock has a coarser tick (Redis: 1 µs) and
// whose states are also read and written by other code, such as a Lua script with
// float64 numbers. Durations in Decisions are rounded up to ticks, and reservations
// are for whole ticks. A state is [Limit.Tag] followed by the words that
// docs/design.md describes. Windows and periods must be multiples of tick. No count
// may exceed 2⁵¹, and no duration 2⁵¹ ticks; the error names the parameter that does.
func (l *Limit) Portable(tick time.Duration) (*Limit, error) {
	return New(l.Spec, portable(tick), l.Known)
}

func portable(tick time.Duration) kernel.Encoding {
	return kernel.Encoding{Tick: uint64(tick), Portable: true, Varies: true}
}

// Single returns l for keys that all have it.
func (l *Limit) Single() *Limit { return l.inEncoding(kernel.InMemory) }

// Loose returns l with a kernel whose counts may exceed the limit, as they do after a
// limit was lowered. All states stored as bytes are of such kernels, so that they are
// the same with and without limits of keys' own.
func (l *Limit) Loose() *Limit {
	if l.Varies {
		return l
	}
	if l.other.Load() == nil {
		l.other.CompareAndSwap(nil, l.inEncoding(l.Varying()))
	}
	return l.other.Load()
}

// usualHold is how long a hold lasts by default, without an InFlight.
const usualHold = 10 * time.Minute

func holdFor(s *Spec) (last time.Duration) {
	for _, part := range append(slices.Clip(s.Parts), *s) {
		if part.Kind == InFlight {
			last = max(last, part.Duration(1))
		}
	}
	return cmp.Or(last, usualHold)
}

// A Transition is what a request does to a key whose state a store keeps as bytes.
type Transition struct {
	Answer step.Answer
	// State is the state after the request. If Changed is false, it is the slice that was passed
	// to Apply.
	State   []byte
	Changed bool // whether the store must keep State in place of the state before the request
}

// Apply applies req to a key's state, which a store keeps as bytes. The state of a key
// never seen is nil. If the state has changed, the store must replace it, unless another state was
// stored in between: then the store must call Apply again with that other state.
// The store may delete the new state once [step.Answer.IdleAfter] has passed by the limiter's
// clock.
//
// Each state names its algorithm and parameters. A state of other parameters is adopted; with an
// algorithm of another kind, the key starts afresh. If a state cannot be read (because it is
// damaged, or was written by a later version of this package), Apply applies req to a fresh state,
// and unread is an error that matches [ErrState]. The Transition is complete in this case too: the
// store keeps the new State, so that the next call finds a readable one.
//
// Apply does not change the bytes of state, and does not keep them. The caller may reuse the memory
// of both states.
func (l *Limit) Apply(state []byte, req step.Request) (t Transition, unread error) {
	t.State = state
	if l.Stateless() {
		l.Decide(&req, &t.Answer)
		return t, nil
	}
	l = l.Loose()
	left, st, err := l.read(state)
	if err != nil {
		return l.Afresh(req), unreadable(state, err)
	}
	by, st, changed := l.StepFrom(left, st, &req, &t.Answer)
	if changed {
		t.State, t.Changed = write(by, st), true
	}
	return t, nil
}

// Afresh applies req to the key of a damaged state, which begins afresh.
func (l *Limit) Afresh(req step.Request) (t Transition) {
	l = l.Loose()
	fresh := step.PlainState(make([]uint64, l.Width()))
	by, st, _ := l.StepFrom(l.Machine, fresh, &req, &t.Answer)
	t.State, t.Changed = write(by, st), true
	return t
}

// Check returns an error that matches [ErrState] if state cannot be read, or if it contradicts
// itself. [Limit.Apply] takes a state that can be read for what it says, because it may take long
// to find a contradiction.
func (l *Limit) Check(state []byte) error {
	by, st, err := l.Loose().read(state)
	if err == nil && by.Contradicts(st) {
		err = errors.New("its turns do not lead to what it says of the time after them")
	}
	if err != nil {
		return unreadable(state, err)
	}
	return nil
}

// Tag returns the prefix that [Limit.Apply] puts before each state of l: the
// version of the format, the kind of the algorithm and its parameters. The Tags of two
// limits are equal if their algorithms have the same parameters. The caller must
// not change the returned bytes.
func (l *Limit) Tag() []byte {
	if h := l.header.Load(); h != nil {
		return *h
	}
	h := newHeader(l.Machine)
	l.header.Store(&h)
	return h
}

// Equals reports whether l and other, of which each may be nil, are limits with the same
// parameters. A lookup may return those of a limit that is compiled anew each time.
func (l *Limit) Equals(other *Limit) bool {
	return l == other || l != nil && other != nil && bytes.Equal(l.Tag(), other.Tag())
}

// Origin returns the limit that left state, in the form of l, or nil if state is that of a key
// whose limit has changed, which keeps two. Only the beginning of state is needed: its Tag. If
// another version of this package wrote state, or if it is damaged or cut off, the error says why
// it cannot be read.
func (l *Limit) Origin(state []byte) (*Limit, error) {
	by, _, _, err := readHeader(state, l.Encoding)
	if err != nil || len(by.Limits()) > 1 {
		return nil, err
	}
	return of(by.Limits()[0]), nil
}

// Present returns the limit that granted last on the key of a state, which a limit has left that
// was Portable with this tick. If the state cannot be read, the error matches [ErrState].
func Present(state []byte, tick time.Duration) (*Limit, error) {
	by, st, err := readState(state, portable(tick))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	return of(by.Present(st)), nil
}

// AlgorithmOf returns a Spec as users know it: an algorithm of package ratelimit, which sets it.
var AlgorithmOf func(*Spec) any

func of(k *step.Machine) *Limit { return k.Of.(*Limit) }

// CheckSame returns an error that matches [param.ErrInvalid] if l and other are not the same
// limit, so that limiters with both of them cannot have the same name.
func (l *Limit) CheckSame(name string, other *Limit) error {
	if bytes.Equal(l.Tag(), other.Tag()) && l.Varies == other.Varies {
		return nil
	}
	describe := func(l *Limit) string {
		if l.Varies {
			return l.Spec.String() + ", and limits by key"
		}
		return l.Spec.String()
	}
	const text = "ratelimit: the store already has a limiter named %q, with %s: give the limiter " +
		"with %s another name with WithName, or use WithLimits if the limit changes: %w"
	return fmt.Errorf(text, name, describe(l), describe(other), param.ErrInvalid)
}
