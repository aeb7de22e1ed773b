package limit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file encodes states as bytes, for stores that keep them in a database.
//
//	state  = header words
//	header = version encoding (limit | 0 limit limit)
//
// The version is 1; 2 while holds are open; or 3 while turns are ahead. What the words say of these
// is in internal/step/holds.go and turns.go. Packages that are older than these do not read it.
//
//	limit  = kind fields | All count limit...
//	fields = mask number... text?
//	text   = length byte...
//	words  = 8 bytes each, little-endian
//
// In the portable encoding, a log is written without its unused words.
//
// In Redis, the words are those of the portable encoding: docs/design.md has those of each
// algorithm.
//
// Once the limit of a key has changed, the words are those of two limits
// (internal/step/former.go).
//
// All numbers are varints (encoding/binary). The encoding is twice the tick in nanoseconds, plus 1
// if the words are portable. Bit i of the mask says that field i is not zero and that its number
// follows. So a field added later, at the end, changes no state of an algorithm that does not set
// it, and a reader that does not know the field finds an unknown bit.
//
// Each algorithm and encoding has exactly one header, so headers can be compared as bytes.

// The versions of the format, one for each [step.Form]. A reader refuses any other.
const (
	stateVersion = 1
	lastVersion  = stateVersion + byte(step.InTurn)
)

// newHeader returns the header of the states of k without holds and turns.
func newHeader(k *step.Machine) []byte {
	code := k.Tick << 1
	if k.Portable {
		code |= 1
	}
	b := binary.AppendUvarint([]byte{stateVersion}, code)
	limits := k.Limits()
	if len(limits) > 1 {
		b = append(b, byte(two))
	}
	for _, limit := range limits {
		b = appendLimit(b, &of(limit).Spec)
	}
	return b
}

func appendLimit(b []byte, s *Spec) []byte {
	b = binary.AppendUvarint(b, uint64(s.Kind))
	if s.Kind == All {
		b = binary.AppendUvarint(b, uint64(len(s.Parts)))
		for i := range s.Parts {
			b = appendLimit(b, &s.Parts[i])
		}
		return b
	}
	var mask uint64
	var numbers []byte
	for i, n := range s.Numbers {
		if n != 0 {
			mask |= 1 << i
			numbers = binary.AppendUvarint(numbers, n)
		}
	}
	if s.Text != "" {
		mask |= 1 << (len(kinds[s.Kind].has) - 1)
		numbers = binary.AppendUvarint(numbers, uint64(len(s.Text)))
		numbers = append(numbers, s.Text...)
	}
	return append(binary.AppendUvarint(b, mask), numbers...)
}

// MostParts bounds the parts of an All, so that a mistake takes no memory.
const MostParts = 1024

// A headerReader reads a header: rest is what follows. Numbers are 0 once it has ended. That need
// not be noticed, because the header of what was read is a longer one then.
type headerReader struct{ rest []byte }

func (r *headerReader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	r.rest = r.rest[max(0, size):]
	return n
}

// limit reads an algorithm. Stored Alls are flattened, so an All is invalid within
// another.
func (r *headerReader) limit(within bool) (s Spec, ok bool) {
	s.Kind = Kind(r.number())
	switch {
	case s.Kind == All && !within:
		return r.all()
	case s.Kind == two || s.Kind == All || s.Kind >= Kind(len(kinds)):
		return s, false
	}
	mask := r.number()
	for i, p := range kinds[s.Kind].has {
		switch {
		case mask&(1<<i) == 0:
		case p.is == aText:
			s.Text = r.text()
		case !s.set(i, r.number()):
			return s, false
		}
	}
	return s, true
}

// text reads a text. It is shorter than its length says if the header has ended.
func (r *headerReader) text() string {
	n := min(r.number(), uint64(len(r.rest)))
	text := string(r.rest[:n])
	r.rest = r.rest[n:]
	return text
}

func (r *headerReader) all() (s Spec, ok bool) {
	s.Kind = All
	n := r.number()
	for ok = 0 < n && n <= MostParts; ok && len(s.Parts) < int(n); {
		var part Spec
		part, ok = r.limit(true)
		s.Parts = append(s.Parts, part)
	}
	return s, ok
}

func (r *headerReader) one(enc kernel.Encoding) *step.Machine {
	s, ok := r.limit(false)
	if !ok {
		return nil
	}
	l, err := New(s, enc, nil)
	if err != nil {
		return nil
	}
	return l.Machine
}

func (r *headerReader) kernel(enc kernel.Encoding) *step.Machine {
	rest, changed := bytes.CutPrefix(r.rest, []byte{byte(two)})
	r.rest = rest
	first := r.one(enc)
	if !changed || first == nil {
		return first
	}
	second := r.one(enc)
	if second == nil || first.Stateless() || !second.SameKind(first) {
		return nil
	}
	return step.JoinLimits(first, second)
}

// readHeader returns the kernel that left a state in encoding enc, and the bytes of the state's
// words.
func readHeader(
	state []byte,
	enc kernel.Encoding,
) (by *step.Machine, form step.Form, words []byte, err error) {
	r := headerReader{state}
	if version := r.number(); version < stateVersion ||
		version > uint64(lastVersion) {
		return nil, 0, nil, fmt.Errorf("version %d of the format is unknown", version)
	}
	r.number() // the encoding, which is compared below
	by = r.kernel(enc.Varying())
	header := state[:len(state)-len(r.rest)]
	if by == nil || !tags(header, newHeader(by)) {
		return nil, 0, nil, errors.New("its header is not one that this store writes")
	}
	return by, formOf(header), r.rest, nil
}

// tags reports whether header is tag, whatever its version.
func tags(header, tag []byte) bool {
	return len(header) == len(tag) && bytes.Equal(header[1:], tag[1:]) &&
		stateVersion <= header[0] &&
		header[0] <= lastVersion
}

// formOf returns the form of states with a header.
func formOf(header []byte) step.Form { return step.Form(header[0] - stateVersion) }

// read returns the kernel that left a state, and the state. l is loose.
func (l *Limit) read(state []byte) (by *step.Machine, st step.State, err error) {
	if len(state) == 0 {
		return l.Machine, step.PlainState(make([]uint64, l.Width())), nil
	}
	if size := len(l.Tag()); len(state) >= size && tags(state[:size], l.Tag()) {
		st, err = decode(l.Machine, formOf(state), state[size:])
		return l.Machine, st, err
	}
	return readState(state, l.Encoding)
}

// readState returns the kernel that left a state in encoding enc, and the state.
func readState(
	state []byte,
	enc kernel.Encoding,
) (by *step.Machine, st step.State, err error) {
	by, form, encoded, err := readHeader(state, enc)
	if err != nil {
		return nil, st, err
	}
	st, err = decode(by, form, encoded)
	return by, st, err
}

// decode returns a state that by left.
func decode(by *step.Machine, form step.Form, encoded []byte) (st step.State, err error) {
	width := by.Width()
	if len(encoded)%8 != 0 || form == step.Plain && width > 0 && len(encoded) != 8*width {
		return st, fmt.Errorf("%d bytes are no state of %s", len(encoded), describe(by))
	}
	words := make([]uint64, len(encoded)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(encoded[8*i:])
	}
	st = step.State{Words: words, Form: form}
	if !by.ValidIn(st) {
		return st, fmt.Errorf("its words are no state of %s", describe(by))
	}
	return st, nil
}

// describe returns the one or two limits of k in words.
func describe(k *step.Machine) string {
	var limits []string
	for _, limit := range k.Limits() {
		limits = append(limits, strconv.Quote(of(limit).Spec.String()))
	}
	return strings.Join(limits, " and ")
}

// write returns a state that by left as bytes, and may change it.
func write(by *step.Machine, st step.State) []byte {
	st = by.PackIn(st)
	var header []byte
	if limits := by.Limits(); len(limits) == 1 {
		header = of(limits[0]).Tag()
	} else {
		header = newHeader(by)
	}
	state := append(make([]byte, 0, len(header)+8*len(st.Words)), header...)
	state[0] += byte(st.Form)
	for _, w := range st.Words {
		state = binary.LittleEndian.AppendUint64(state, w)
	}
	return state
}

// Header returns what comes before the words of states in a form that by left.
func Header(by *step.Machine, form step.Form) []byte {
	header := newHeader(by)
	header[0] += byte(form)
	return header
}

// Has reports whether the states with a header are of l, and of no other limit.
func (l *Limit) Has(header []byte) bool { return tags(header, l.Tag()) }

// MachineOf returns what left the states in memory that have a header, and their form.
func MachineOf(header []byte) (*step.Machine, step.Form, error) {
	by, form, rest, err := readHeader(header, kernel.InMemory)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes follow its header", len(rest))
	}
	return by, form, err
}

// WordsOf returns by for states of one word that equal those of by, or nil if there are none.
func WordsOf(by *step.Machine) *step.Machine {
	if len(by.Limits()) > 1 {
		return nil
	}
	single := of(by).Single()
	if single.Word() == nil {
		return nil
	}
	return single.Machine
}

// ErrState is matched by the error of a state that cannot be read.
var ErrState = errors.New("ratelimit: unreadable state")

// mostShown is the most bytes of a state that an error shows.
const mostShown = 32

// unreadable returns an error that matches [ErrState], of a state that cannot be read because of
// err.
func unreadable(state []byte, err error) error {
	const text = "%w: %w; the %d bytes begin with %x; was it damaged, or stored by something else? " +
		"The key has begun afresh"
	return fmt.Errorf(text, ErrState, err, len(state), state[:min(len(state), mostShown)])
}
