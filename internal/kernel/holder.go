package kernel

// This file is what the list of open holds asks of a kernel.

// A holder is a kernel that takes unused events of a hold back, as all kernels with states do. A
// mark whose words are 0 gives nothing back.
type holder interface {
	// marks returns the number of words of a mark.
	marks() int

	// mark sets a mark to that of n events that are about to be spent at an instant.
	mark(st []uint64, at Instant, n int, mark []uint64)

	// settle takes the unused events of a hold back, and changes the marks accordingly.
	settle(st []uint64, now Instant, r refund, m marks) []uint64

	// carry converts a mark of another kernel of the same type, one of the state was, to one of st,
	// which Adopt has made of that at now.
	carry(from Kernel, was, st []uint64, now Instant, old, mark []uint64)

	// sound is Valid for a mark.
	sound(mark []uint64) bool
}

// A batchHolder is a holder whose settle takes time in proportion to its state or to the open
// holds. So it has a settle for many holds, at least one and in the order of their indexes, which
// takes no longer.
type batchHolder interface {
	settleAll(st []uint64, now Instant, refunds []refund, m marks) []uint64
}

// A hold is an entry without its marks.
type hold struct {
	end  Instant
	n    int
	back bool // whether its events are given back when it ends by itself
}

// holdOf returns what an entry, or a turn, says from the word with its end on.
func holdOf(words []uint64) hold { return hold{words[0], int(words[1] / 2), words[1]%2 == 1} }

// events returns the word after that.
func (h hold) events() (word uint64) {
	word = uint64(h.n) * 2
	if h.back {
		word++
	}
	return word
}

// endsAtTurn reports whether an ID is that of a reservation that ends at its turn. Those of holds
// are odd.
func endsAtTurn(id uint64) bool { return id%2 == 0 }

// turnOnly is the ID of a hold of no events, whose mark says that a turn is ahead which cannot be
// settled any more. Callers choose IDs below 2⁵³.
const turnOnly = 1 << 53

// A refund is a hold that ends, and how many of its events are unused.
type refund struct {
	hold
	index  int // of the hold
	unused int
}

// marks are those of one part in all holds.
type marks struct {
	entries  []uint64
	size     int // of an entry
	from, to int // of the mark in an entry
	count    int
}

func (m marks) of(i int) []uint64 { return m.entries[i*m.size+m.from : i*m.size+m.to] }
