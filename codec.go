package ratelimit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
)

// States as bytes are in this file: what a database keeps for a key.
//
//	state  = header words
//	header = version form limit
//	limit  = kind fields | allKind count limit...
//	fields = mask number...
//	words  = 8 bytes each, little-endian
//
// All numbers are varints (encoding/binary). The form is twice the ticks of a
// nanosecond, plus 1 if the words are portable. Kinds are the places in
// storedKinds. Bit i of the mask says that field i is not zero and that its
// number follows. So a field that is added later, at the end, changes no state
// of an algorithm that does not set it, and a reader that does not know the
// field finds a bit that it does not know.
//
// There is only one header for an algorithm and a form, so headers can be
// compared as bytes.

// stateVersion is the version of the format. A reader refuses any other.
const stateVersion = 1

// storedKinds are the algorithms by their kind in a header, which begins at 1.
// Their places never change.
var storedKinds = []Algorithm{
	TokenBucket{}, LeakyBucket{}, FixedWindow{}, SlidingWindow{},
	SlidingLog{}, RollingWindow{}, WarmingUp{}, All{},
}

// allKind is the kind of an All, whose limit is the list of its parts.
const allKind = 8

// storedFields returns pointers to the fields of the algorithm that p points
// at. Their places never change.
func storedFields(p any) []any {
	switch a := p.(type) {
	case *TokenBucket:
		return []any{&a.Rate.Events, &a.Rate.Per, &a.Burst, &a.Refill}
	case *LeakyBucket:
		return []any{&a.Rate.Events, &a.Rate.Per, &a.Capacity}
	case *FixedWindow:
		return []any{&a.Limit, &a.Window, &a.Start}
	case *SlidingWindow:
		return []any{&a.Limit, &a.Window, &a.Segments}
	case *SlidingLog:
		return []any{&a.Limit, &a.Window, &a.CountDenied}
	case *RollingWindow:
		return []any{&a.Quota, &a.Window, &a.Period, &a.PeriodLimit}
	case *WarmingUp:
		return []any{&a.Rate.Events, &a.Rate.Per, &a.Warmup, &a.ColdFactor}
	}
	return nil
}

// number returns the number that stands for the field at p.
func number(p any) uint64 {
	switch v := reflect.ValueOf(p).Elem(); v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return 1
		}
		return 0
	case reflect.Float64:
		return math.Float64bits(v.Float())
	default:
		return uint64(v.Int())
	}
}

// setNumber sets the field at p to what n stands for, and reports whether it
// stands for anything.
func setNumber(p any, n uint64) bool {
	switch v := reflect.ValueOf(p).Elem(); v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
		return n == 1
	case reflect.Float64:
		v.SetFloat(math.Float64frombits(n))
		return true
	default:
		if n > math.MaxInt64 || v.OverflowInt(int64(n)) {
			return false
		}
		v.SetInt(int64(n))
		return true
	}
}

// appendHeader appends the header of the states that alg, which compile has
// returned, leaves in form f.
func appendHeader(b []byte, alg Algorithm, f form) []byte {
	code := f.tick << 1
	if f.portable {
		code |= 1
	}
	b = binary.AppendUvarint(append(b, stateVersion), code)
	return appendLimit(b, alg)
}

func appendLimit(b []byte, alg Algorithm) []byte {
	if parts, ok := alg.(All); ok {
		b = binary.AppendUvarint(append(b, allKind), uint64(len(parts)))
		for _, part := range parts {
			b = appendLimit(b, part)
		}
		return b
	}
	v := reflect.New(reflect.TypeOf(alg))
	v.Elem().Set(reflect.ValueOf(alg))
	for i, kind := range storedKinds {
		if reflect.TypeOf(kind) == v.Elem().Type() {
			b = append(b, byte(i+1))
		}
	}
	var mask uint64
	var numbers []byte
	for i, field := range storedFields(v.Interface()) {
		if n := number(field); n != 0 {
			mask |= 1 << i
			numbers = binary.AppendUvarint(numbers, n)
		}
	}
	return append(binary.AppendUvarint(b, mask), numbers...)
}

// errCut says that a state ends within its header.
var errCut = errors.New("it ends too early")

// A headerReader reads a header.
type headerReader struct{ rest []byte }

func (r *headerReader) number() (uint64, error) {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		return 0, errCut
	}
	r.rest = r.rest[size:]
	return n, nil
}

// limit reads an algorithm. Within an All, which was taken apart before it was
// stored, there is no other.
func (r *headerReader) limit(within bool) (Algorithm, error) {
	kind, err := r.number()
	switch {
	case err != nil:
		return nil, err
	case kind == allKind && !within:
		return r.parts()
	case kind == 0 || kind >= allKind:
		return nil, fmt.Errorf("kind %d of limit is unknown", kind)
	}
	mask, err := r.number()
	if err != nil {
		return nil, err
	}
	v := reflect.New(reflect.TypeOf(storedKinds[kind-1]))
	fields := storedFields(v.Interface())
	if mask>>len(fields) != 0 {
		return nil, fmt.Errorf("a %s has an unknown parameter", v.Elem().Type().Name())
	}
	for i, field := range fields {
		if mask&(1<<i) == 0 {
			continue
		}
		n, err := r.number()
		if err != nil {
			return nil, err
		}
		if !setNumber(field, n) {
			return nil, fmt.Errorf("parameter %d of a %s is %d", i, v.Elem().Type().Name(), n)
		}
	}
	return v.Elem().Interface().(Algorithm), nil
}

func (r *headerReader) parts() (Algorithm, error) {
	n, err := r.number()
	if err != nil {
		return nil, err
	}
	if n > maxParts {
		return nil, fmt.Errorf("an All has %d parts", n)
	}
	parts := make(All, 0, min(n, 8))
	for range n {
		part, err := r.limit(true)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// readHeader returns the transition that left a state in form f, and the bytes
// of its words.
func readHeader(state []byte, f form) (from *Transition, words []byte, err error) {
	r := headerReader{state}
	version, err := r.number()
	if err != nil {
		return nil, nil, err
	}
	if version != stateVersion {
		return nil, nil, fmt.Errorf("version %d of the format is unknown", version)
	}
	if _, err := r.number(); err != nil { // the form, which is compared below
		return nil, nil, err
	}
	alg, err := r.limit(false)
	if err != nil {
		return nil, nil, err
	}
	if from, err = newVarying(alg, f); err != nil {
		return nil, nil, err
	}
	header, words := state[:len(state)-len(r.rest)], r.rest
	if !bytes.Equal(header, from.Tag()) {
		return nil, nil, errors.New("its header is not one that this store writes")
	}
	return from, words, nil
}

// read splits a state into the transition that left it and its words. t is loose.
func (t *Transition) read(state []byte) (from *Transition, words []uint64, err error) {
	if len(state) == 0 {
		return t, make([]uint64, t.kernel.width()), nil
	}
	from = t
	encoded, ok := bytes.CutPrefix(state, t.Tag())
	if !ok {
		if from, encoded, err = readHeader(state, t.form); err != nil {
			return nil, nil, err
		}
	}
	width := from.kernel.width()
	if len(encoded)%8 != 0 || width > 0 && len(encoded) != 8*width {
		return nil, nil, fmt.Errorf("%d bytes are no state of %+v", len(encoded), from.alg)
	}
	words = make([]uint64, len(encoded)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(encoded[8*i:])
	}
	if !(lenient{from.kernel}).valid(words) {
		return nil, nil, fmt.Errorf("its words are no state of %+v", from.alg)
	}
	return from, words, nil
}

// write returns a state as bytes. t is loose.
func (t *Transition) write(words []uint64) []byte {
	header := t.Tag()
	state := append(make([]byte, 0, len(header)+8*len(words)), header...)
	for _, w := range words {
		state = binary.LittleEndian.AppendUint64(state, w)
	}
	return state
}

// A stateError says that a state cannot be read, and why.
type stateError struct {
	state []byte // how it begins
	size  int
	why   error
}

// mostShown is how much of a state an error shows.
const mostShown = 32

func (e *stateError) Error() string {
	return fmt.Sprintf("%v: %v; the %d bytes begin with %x; was it damaged, or stored by something else? The key has begun afresh", ErrState, e.why, e.size, e.state)
}

func (e *stateError) Is(target error) bool { return target == ErrState }

// StateErr returns an error that matches [ErrState] if the state that
// [Transition.Apply] was given could not be read, and the key has begun afresh. The
// limiter reports it as it does an error of the store; a store need not look at it,
// but must return this Result.
func (r *Result) StateErr() error {
	if err, ok := r.Grant.(*stateError); ok {
		return err
	}
	return nil
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
		from, words = t, make([]uint64, t.kernel.width())
	}
	by, words, changed, res := t.stepFrom(from, words, &req)
	if !changed && unread == nil {
		return state, false, res, nil
	}
	if unread != nil {
		// In the place of a grant, which nobody is given along with an error: a
		// field of its own would slow down each Take in memory.
		res.Grant = &stateError{bytes.Clone(state[:min(len(state), mostShown)]), len(state), unread}
	}
	return by.write(words), true, res, nil
}

// loose returns t with a kernel whose counts may lie above the limit, as those
// of a limit that was lowered do. All states among bytes are of such kernels, so
// that they are the same with WithLimits and without.
func (t *Transition) loose() *Transition {
	if t.varies {
		return t
	}
	if t.other.Load() == nil {
		loose, err := newVarying(t.alg, t.form)
		if err != nil {
			panic(err) // it was compiled before
		}
		t.other.CompareAndSwap(nil, loose)
	}
	return t.other.Load()
}

// newVarying is newTransition for states that other parameters may have left.
func newVarying(alg Algorithm, f form) (*Transition, error) {
	t, err := newTransition(alg, f)
	if err != nil {
		return nil, err
	}
	t.kernel, t.varies = unpacked(t.kernel), true
	return t, nil
}

// Varies reports whether t comes from a limiter with [WithLimits]: then requests
// on one key may come with different transitions.
func (t *Transition) Varies() bool { return t.varies }

// Tag returns what the states that t leaves begin with in [Transition.Apply]:
// the version of the format, the kind of the algorithm and its parameters. Two
// transitions have the same Tag if their algorithms have the same parameters.
// What it returns must not be changed.
func (t *Transition) Tag() []byte {
	if h := t.header.Load(); h != nil {
		return *h
	}
	h := appendHeader(nil, t.alg, t.form)
	t.header.Store(&h)
	return h
}
