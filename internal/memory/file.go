package memory

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file has the form of a file with the states of a store.
//
//	file    = magic version secrets record... end hash
//	record  = limiter | header | states
//	limiter = 1 length name           whose states follow
//	header  = 2 length bytes          of states: the next number, from 0 (package limit, codec.go)
//	states  = 3 header form count state...
//	end     = 0 clock instant         at which the last state was read
//	state   = identity words          12 bytes; 8 bytes for each word
//
// The form of states is 1 if they are a word of the limit, and else 0. The words of states that
// grow come after their number. The clock is 1 if it was the system's. The hash is the SHA-256 of
// all before it, so that parts of two files do not make a file.

const (
	magic       = "ratelimit states"
	fileVersion = 1

	recordEnd     = 0
	recordLimiter = 1
	recordHeader  = 2
	recordStates  = 3

	formWide = 0
	formWord = 1

	idBytes = 12
)

// A fileWriter writes a file. Its first error is that of close.
type fileWriter struct {
	to      io.Writer
	hash    hash.Hash
	headers map[string]int // the numbers of those that were written
	err     error
}

func newFileWriter(to io.Writer, of *identifier) *fileWriter {
	w := &fileWriter{to: to, hash: sha256.New(), headers: map[string]int{}}
	head := append([]byte(magic), fileVersion)
	for _, word := range of.words() {
		head = binary.LittleEndian.AppendUint64(head, *word)
	}
	w.write(head)
	return w
}

func (w *fileWriter) write(b []byte) {
	if w.err != nil {
		return
	}
	w.hash.Write(b)
	_, w.err = w.to.Write(b)
}

func (w *fileWriter) text(record byte, text []byte) {
	w.write(append(binary.AppendUvarint([]byte{record}, uint64(len(text))), text...))
}

// states writes states that have one header and one form.
func (w *fileWriter) states(s savedStates) {
	number, known := w.headers[string(s.header)]
	if !known {
		number = len(w.headers)
		w.headers[string(s.header)] = number
		w.text(recordHeader, s.header)
	}
	head := binary.AppendUvarint([]byte{recordStates}, uint64(number))
	w.write(binary.AppendUvarint(append(head, s.form), uint64(s.count)))
	w.write(s.states)
}

func (w *fileWriter) close(isSystem bool, at kernel.Instant) error {
	end := []byte{recordEnd, 0}
	if isSystem {
		end[1] = 1
	}
	w.write(binary.LittleEndian.AppendUint64(end, at))
	w.write(w.hash.Sum(nil))
	return w.err
}

// A Saved is what a file has.
type Saved struct {
	At       kernel.Instant // of saving
	IsSystem bool           // whether At is an instant of the system's clock
	secrets  identifier
	limiters map[string][]savedStates
}

// savedStates are states with one header and one form.
type savedStates struct {
	*savedHeader
	form   byte
	count  int
	states []byte
}

var (
	errCut     = errors.New("it is cut off")
	errDamaged = errors.New("it is damaged")
)

// ReadSaved returns what a file has, or an error if any part of it cannot be used. The Saved keeps
// the bytes.
func ReadSaved(file []byte) (*Saved, error) {
	records, err := unwrap(file)
	if err != nil {
		return nil, err
	}
	r := fileReader{rest: records}
	s := &Saved{limiters: map[string][]savedStates{}, secrets: r.secrets()}
	for name, more := "", true; more && !r.isBad; {
		switch r.byte() {
		case recordLimiter:
			name = string(r.text())
		case recordHeader:
			r.header()
		case recordStates:
			s.limiters[name] = append(s.limiters[name], r.states())
		case recordEnd:
			s.IsSystem, s.At, more = r.byte() == 1, r.word(), false
		default:
			r.isBad = true
		}
	}
	switch {
	case r.unknown != nil:
		return nil, fmt.Errorf("a limit in it is not known here: %w", r.unknown)
	case r.isBad || len(r.rest) > 0 || s.At > kernel.MaxInstant:
		return nil, errDamaged
	}
	return s, nil
}

// unwrap returns what is between the version and the hash of a file, if both are right.
func unwrap(file []byte) ([]byte, error) {
	rest, is := bytes.CutPrefix(file, []byte(magic))
	switch {
	case len(file) <= len(magic) && bytes.HasPrefix([]byte(magic), file):
		return nil, errCut
	case !is:
		return nil, errors.New("it is not one that Save has written")
	case rest[0] > fileVersion:
		return nil, fmt.Errorf("it is of version %d, and this package knows version %d: "+
			"a later one has written it", rest[0], fileVersion)
	case rest[0] < fileVersion:
		return nil, errDamaged
	case len(rest) <= sha256.Size:
		return nil, errCut
	}
	body := file[:len(file)-sha256.Size]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], file[len(body):]) {
		return nil, fmt.Errorf("%w or %w", errCut, errDamaged)
	}
	return body[len(magic)+1:], nil
}

// A fileReader reads what comes behind the version. Once it is bad, it returns zeros.
type fileReader struct {
	rest    []byte
	headers []*savedHeader
	isBad   bool
	unknown error // why a header cannot be read
}

// A savedHeader is a header, and what left the states that have it, by their form.
type savedHeader struct {
	header []byte
	by     [formWord + 1]*step.Machine
	kind   step.Form
}

func (r *fileReader) take(n uint64) []byte {
	if r.isBad || n > uint64(len(r.rest)) {
		r.isBad = true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *fileReader) byte() (b byte) {
	if one := r.take(1); one != nil {
		b = one[0]
	}
	return b
}

func (r *fileReader) word() (word uint64) {
	if b := r.take(8); b != nil {
		word = binary.LittleEndian.Uint64(b)
	}
	return word
}

func (r *fileReader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	r.isBad = r.isBad || size <= 0
	r.take(uint64(max(0, size)))
	return n
}

// secrets reads the secrets of a store. None that was drawn is 0.
func (r *fileReader) secrets() (of identifier) {
	of.saves = true
	for _, word := range of.words() {
		*word = r.word()
		r.isBad = r.isBad || *word == 0
	}
	r.isBad = r.isBad || max(of.points[0], of.points[1]) >= modulus
	return of
}

func (r *fileReader) text() []byte { return r.take(r.number()) }

func (r *fileReader) header() {
	h := &savedHeader{header: r.text()}
	by, kind, err := limit.MachineOf(h.header)
	if err != nil {
		r.isBad, r.unknown = true, err
		return
	}
	h.by[formWide], h.kind = by, kind
	if kind == step.Plain {
		h.by[formWord] = limit.WordsOf(by)
	}
	r.headers = append(r.headers, h)
}

// states reads states, and looks at each.
func (r *fileReader) states() (s savedStates) {
	number, form, count := r.number(), r.byte(), r.number()
	if number >= uint64(len(r.headers)) || count > math.MaxInt32 {
		r.isBad = true
		return s
	}
	h := r.headers[number]
	if form > formWord || h.by[form] == nil {
		r.isBad = true
		return s
	}
	s = savedStates{savedHeader: h, form: form, count: int(count), states: r.rest}
	var room [roomWords]uint64
	for range count {
		_, st := r.state(h, form, room[:])
		r.isBad = r.isBad || !h.valid(form, st)
		if r.isBad {
			return s
		}
	}
	s.states = s.states[:len(s.states)-len(r.rest)]
	return s
}

// roomWords is the length of a room that has room for most states.
const roomWords = 16

// valid reports whether what left them can work with a state of a form.
func (h *savedHeader) valid(form byte, st step.State) bool {
	if form == formWide {
		return h.by[formWide].ValidIn(st)
	}
	if st.Words[0] >= kernel.NoWord {
		return false
	}
	wide := h.by[formWord].Word().Widen(st.Words[0])
	return h.by[formWide].Valid(wide[:])
}

// state reads a state with a header, into room if it fits.
func (r *fileReader) state(
	h *savedHeader,
	form byte,
	room []uint64,
) (id identity, st step.State) {
	b := r.take(idBytes)
	if b == nil {
		return id, st
	}
	id = identity{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])}
	width := uint64(h.by[form].Width())
	if width == 0 || h.kind != step.Plain {
		width = r.number()
	}
	r.isBad = r.isBad || id.hi&1 == 0 || id.lo&1 == 0 || width > uint64(len(r.rest))/8
	if r.isBad {
		return id, st
	}
	if width > uint64(len(room)) {
		room = make([]uint64, width)
	}
	st = step.State{Words: room[:width:width], Form: h.kind}
	for i := range st.Words {
		st.Words[i] = r.word()
	}
	return id, st
}

// appendState appends a state that by left.
func appendState(b []byte, id identity, by *step.Machine, st step.State) []byte {
	b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(b, id.hi), id.lo)
	if by.Width() == 0 || !st.IsPlain() {
		b = binary.AppendUvarint(b, uint64(len(st.Words)))
	}
	for _, word := range st.Words {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return b
}
