package script

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// This file reads the values that the scripts keep, as states.

// FirstEnd returns an instant before which none of the open holds in a state ends by itself, nor
// any of those whose turns are ahead, or the zero Time if there is none.
func (p *Program) FirstEnd(state []byte) (at time.Time) {
	word := func(words []byte, i uint64) (w uint64) {
		if i < uint64(len(words))/8 { // else the value is damaged
			w = binary.LittleEndian.Uint64(words[8*i:])
		}
		return w
	}
	ends := func(instant uint64) {
		if end := time.UnixMicro(int64(instant)); at.IsZero() || end.Before(at) {
			at = end
		}
	}
	if list, open := bytes.CutPrefix(state, []byte(p.OpenTag)); open {
		ends(word(list, 1))
	}
	if ahead, has := bytes.CutPrefix(state, []byte(p.AheadTag)); has {
		turns, form := min(word(ahead, 0), uint64(len(ahead))/32), word(ahead, 1)
		for i := range turns {
			if word(ahead, 2+4*i)%2 == 1 { // an even one is of no hold
				ends(word(ahead, 2+4*i+2))
			}
		}
		if form%2 == 1 {
			ends(word(ahead, 2+4*turns+form/4+1))
		}
	}
	return at
}

// These begin the states with open holds, and with turns ahead: the versions of their form.
const (
	openVersion  = "\x02"
	aheadVersion = "\x03"
)

// IsOpen reports whether holds are open in a state, or turns ahead.
func (p *Program) IsOpen(state []byte) bool { return len(state) > 0 && state[0] != p.Tag[0] }

// State returns the state for a value in a reply, which has no prefix.
func (p *Program) State(value string) []byte {
	if value == "" {
		return nil
	}
	if p.code >= 0 && len(value) == shortLength {
		return p.long(value)
	}
	return append(append(make([]byte, 0, len(p.Tag)+len(value)), p.Tag...), value...)
}

// shortLength is the length of the short form of a value, which lua/parts.lua describes.
const shortLength = 19

// long returns the state for a value in the short form, or the value if it has another form.
func (p *Program) long(value string) []byte {
	number, err := strconv.ParseUint(value, 10, 63)
	if err != nil || !p.short {
		return []byte(value)
	}
	state := []byte(p.Tag)
	if code := int(number % 1e4); code != p.code {
		of, err := p.paced(code)
		if err != nil {
			return []byte(value)
		}
		state = slices.Clone(of.Tag())
	}
	for _, word := range []uint64{number/1e4 + 15e14, 0, 0} {
		state = binary.LittleEndian.AppendUint64(state, word)
	}
	return state
}

// codeOf returns what ends the short form of the values of a bucket: the first digits of the cost
// of an event, and the number of zeros behind them. It is -1 if there are other digits.
func codeOf(c cost) int {
	digits, zeros := c.units, 0
	for ; digits > 999 && digits%10 == 0 && zeros < 9; zeros++ {
		digits /= 10
	}
	if c.unit > 1 || digits > 999 {
		return -1
	}
	return int(digits)*10 + zeros
}

// paced returns the limit of a bucket like that of p, with the cost of an event that a code
// stands for.
func (p *Program) paced(code int) (*limit.Limit, error) {
	per := time.Duration(code/10) * Tick
	for range code % 10 {
		per *= 10
	}
	spec := p.Limit.Spec
	spec.Numbers[0], spec.Numbers[1] = 1, uint64(per)
	return limit.New(spec, p.Limit.Encoding, nil)
}

// StateOf returns the state that is stored as value.
func (p *Program) StateOf(value string) []byte {
	if len(value) == shortLength {
		return p.long(value)
	}
	return []byte(value)
}

// IsShort reports whether a value is in the short form, of a key whose kind has one letter.
func IsShort(letter byte, value string) bool {
	return kernels[kindOf(letter)].isShort && len(value) == shortLength
}
