package step

import (
	"slices"
)

// A State is what is kept of a key: words, and what they are. The Form says which parts there are,
// and the Machine that left it says of which limits they are, of one or of two. In their order:
//
//   - if turns are ahead (turns.go): a list of them, and the words of the algorithm after the
//     turns, on which requests are decided;
//   - if holds are open (holds.go): a list of them;
//   - the words of the algorithm as of now, without the turns, which its file in internal/kernel
//     explains: of an All, those of its parts (all.go); of a key whose limit has changed, a header
//     and those of two limits (former.go).
type State struct {
	Words []uint64
	Form  Form
}

// A Form says which lists a state has besides the words of the algorithm.
type Form uint8

const (
	Plain  Form = iota // none
	Opened             // open holds: see holds.go
	InTurn             // turns ahead; their second word says if holds are open, too: see turns.go
)

// PlainState returns the state that has only the words of the algorithm.
func PlainState(words []uint64) State { return State{Words: words} }

// IsPlain reports whether st has only the words of the algorithm.
func (st State) IsPlain() bool { return st.Form == Plain }

// HasTurns reports whether turns are ahead. Such a state is not changed in place.
func (st State) HasTurns() bool { return st.Form == InTurn }

// Clone returns a copy of st, which can be changed in place.
func (st State) Clone() State { return State{slices.Clone(st.Words), st.Form} }
