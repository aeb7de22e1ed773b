package ratelimit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file encodes states as bytes, for stores that keep them in a database.
//
//	state  = header words
//	header = version encoding (limit | 0 limit limit)
//
// The version is 1, or 2 while holds are open: then the words begin with these
// (internal/kernel/holds.go). Packages that are older than holds do not read it.
//
//	limit  = kind fields | allKind count limit...
//	fields = mask number...
//	words  = 8 bytes each, little-endian
//
// In the portable encoding, a log is written without its unused words.
//
// In Redis, the words are those of the portable encoding. Those of a TokenBucket have 24 bytes, which
// are three numbers (redisstore/lua/bucket.lua). Bytes 0–7 are the instant at which it will be full, in whole
// microseconds; bytes 8–15 the rest of that instant, in units, of which a microsecond has as
// many as the time per event needs to be a whole number of them: 1, or 3 at three events a
// second; bytes 16–23 the latest instant at which events were spent, in microseconds. With
// RefillInterval it has 16 (interval.lua). docs/design.md has the words of each algorithm.
//
// Once the limit of a key has changed, the words are those of two limits (internal/kernel/former.go).
//
// All numbers are varints (encoding/binary). The encoding is twice the tick in
// nanoseconds, plus 1 if the words are portable. A kind is a place in storedKinds,
// counted from 1. Bit i of the mask says that field i is not zero and that its number
// follows. So a field added later, at the end, changes no state of an algorithm that
// does not set it, and a reader that does not know the field finds an unknown bit.
//
// Each algorithm and encoding has exactly one header, so headers can be compared as bytes.

// The versions of the format. A reader refuses any other.
const (
	stateVersion = 1
	openVersion  = 2 // of a state with open holds
)

// storedKinds are the algorithms in the order of their kinds, which begin at 1. The
// order never changes.
var storedKinds = []Algorithm{
	TokenBucket{}, LeakyBucket{}, FixedWindow{}, SlidingWindow{},
	SlidingLog{}, RollingWindow{}, WarmingUp{}, All{},
	Unlimited{}, Blocked{}, InFlight{},
}

const (
	allKind = 8 // of an All, whose limit is the list of its parts
	twoKind = 0 // of the two limits of a key whose limit has changed
)

// number encodes the field at p as a number.
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

// setNumber decodes n into the field at p, and reports whether n is valid for it.
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

// appendHeader appends the header of the states of k.
func appendHeader(b []byte, k *kernel.Compiled) []byte {
	code := k.Tick << 1
	if k.Portable {
		code |= 1
	}
	b = binary.AppendUvarint(append(b, stateVersion), code)
	limits := k.Limits()
	if len(limits) > 1 {
		b = append(b, twoKind)
	}
	for _, limit := range limits {
		b = appendLimit(b, transitionOf(limit).alg)
	}
	return b
}

func appendLimit(b []byte, alg Algorithm) []byte {
	if parts, ok := alg.(All); ok {
		b = binary.AppendUvarint(append(b, allKind), uint64(len(parts)))
		for _, part := range parts {
			b = appendLimit(b, part)
		}
		return b
	}
	var mask uint64
	var numbers []byte
	alg.fields(func(fields ...any) {
		for i, field := range fields {
			if n := number(field); n != 0 {
				mask |= 1 << i
				numbers = binary.AppendUvarint(numbers, n)
			}
		}
	})
	b = binary.AppendUvarint(b, alg.kind())
	return append(binary.AppendUvarint(b, mask), numbers...)
}

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

// limit reads an algorithm. Stored Alls are flattened, so an All is invalid within
// another.
func (r *headerReader) limit(within bool) (Algorithm, error) {
	kind, err := r.number()
	switch {
	case err != nil:
		return nil, err
	case kind == allKind && !within:
		return r.parts()
	case kind == twoKind || kind == allKind || kind > uint64(len(storedKinds)):
		return nil, fmt.Errorf("kind %d of limit is unknown", kind)
	}
	mask, err := r.number()
	if err != nil {
		return nil, err
	}
	return storedKinds[kind-1].fields(func(fields ...any) { err = r.fields(kind, mask, fields) }), err
}

// fields reads the fields whose bits are set in mask.
func (r *headerReader) fields(kind, mask uint64, fields []any) error {
	name := reflect.TypeOf(storedKinds[kind-1]).Name()
	if mask>>len(fields) != 0 {
		return fmt.Errorf("a %s has an unknown parameter", name)
	}
	for i, field := range fields {
		if mask&(1<<i) == 0 {
			continue
		}
		n, err := r.number()
		if err != nil {
			return err
		}
		if !setNumber(field, n) {
			return fmt.Errorf("parameter %d of a %s is %d", i, name, n)
		}
	}
	return nil
}

func (r *headerReader) parts() (Algorithm, error) {
	n, err := r.number()
	if err != nil {
		return nil, err
	}
	if n > maxParts {
		return nil, fmt.Errorf("an All has %d parts", n)
	}
	var parts All
	for range n {
		part, err := r.limit(true)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// kernel reads one limit or two.
func (r *headerReader) kernel(enc kernel.Encoding) (*kernel.Compiled, error) {
	two, changed := bytes.CutPrefix(r.rest, []byte{twoKind})
	r.rest = two
	first, err := r.one(enc)
	if err != nil || !changed {
		return first, err
	}
	second, err := r.one(enc)
	if err != nil {
		return nil, err
	}
	if first.Stateless() || !second.Alike(first) {
		return nil, fmt.Errorf("%+v and %+v are not of one kind", transitionOf(first).alg, transitionOf(second).alg)
	}
	return kernel.Join(first, second), nil
}

func (r *headerReader) one(enc kernel.Encoding) (*kernel.Compiled, error) {
	alg, err := r.limit(false)
	if err != nil {
		return nil, err
	}
	t, err := newTransition(alg, enc)
	if err != nil {
		return nil, err
	}
	return t.kernel, nil
}

// readHeader returns the kernel that left a state in encoding enc, and the bytes of the state's words.
func readHeader(state []byte, enc kernel.Encoding) (by *kernel.Compiled, words []byte, err error) {
	r := headerReader{state}
	version, err := r.number()
	if err != nil {
		return nil, nil, err
	}
	if version != stateVersion && version != openVersion {
		return nil, nil, fmt.Errorf("version %d of the format is unknown", version)
	}
	if _, err := r.number(); err != nil { // the encoding, which is compared below
		return nil, nil, err
	}
	if by, err = r.kernel(enc.Varying()); err != nil {
		return nil, nil, err
	}
	header, words := state[:len(state)-len(r.rest)], r.rest
	if !tags(header, appendHeader(nil, by)) {
		return nil, nil, errors.New("its header is not one that this store writes")
	}
	return opened(by, header), words, nil
}

// tags reports whether header is tag, or that with open holds.
func tags(header, tag []byte) bool {
	return len(header) == len(tag) && bytes.Equal(header[1:], tag[1:]) && (header[0] == stateVersion || header[0] == openVersion)
}

// opened returns the kernel of the states of k with a header.
func opened(k *kernel.Compiled, header []byte) *kernel.Compiled {
	if header[0] == openVersion {
		return k.Opened()
	}
	return k
}

// read returns the kernel that left a state, and the state's words. t is loose.
func (t *Transition) read(state []byte) (by *kernel.Compiled, words []uint64, err error) {
	if len(state) == 0 {
		return t.kernel, make([]uint64, t.kernel.Width()), nil
	}
	var encoded []byte
	if size := len(t.Tag()); len(state) >= size && tags(state[:size], t.Tag()) {
		by, encoded = opened(t.kernel, state), state[size:]
	} else if by, encoded, err = readHeader(state, t.kernel.Encoding); err != nil {
		return nil, nil, err
	}
	width := by.Width()
	if len(encoded)%8 != 0 || width > 0 && len(encoded) != 8*width {
		return nil, nil, fmt.Errorf("%d bytes are no state of %s", len(encoded), describeLimits(by))
	}
	words = make([]uint64, len(encoded)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(encoded[8*i:])
	}
	if !by.Valid(words) {
		return nil, nil, fmt.Errorf("its words are no state of %s", describeLimits(by))
	}
	return by, words, nil
}

// describeLimits returns the limits of states of k for an error.
func describeLimits(k *kernel.Compiled) string {
	var algs []Algorithm
	for _, limit := range k.Limits() {
		algs = append(algs, transitionOf(limit).alg)
	}
	return fmt.Sprintf("%+v", algs)
}

// write returns a state that by left as bytes, and may change words.
func write(by *kernel.Compiled, words []uint64) []byte {
	words = by.Pack(words)
	var header []byte
	if limits := by.Limits(); len(limits) == 1 {
		header = transitionOf(limits[0]).Tag()
	} else {
		header = appendHeader(nil, by)
	}
	state := append(make([]byte, 0, len(header)+8*len(words)), header...)
	if by != by.Base() {
		state[0] = openVersion
	}
	for _, w := range words {
		state = binary.LittleEndian.AppendUint64(state, w)
	}
	return state
}
