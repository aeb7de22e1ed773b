package kernel

// This file is what the list of open holds asks of a kernel.

// A holder is what a kernel does for open holds: it takes their unused events back, as all kernels
// with states do. A mark is what it needs for that, for one hold. A mark whose words are 0 gives
// nothing back.
type holder interface {
	// marks returns the number of words of a mark.
	marks() int

	// mark sets a mark to that of n events that are about to be spent at an instant.
	mark(st []uint64, at Instant, n int, mark []uint64)

	// lower lowers the mark of the youngest hold, before events are spent at an instant, to what is
	// missing then. Only the marks of buckets say what was least missing since a hold.
	lower(mark, st []uint64, at Instant)

	// lowerTo lowers a mark to another one, that of the next younger hold, which has ended.
	lowerTo(mark, ended []uint64)

	// settle takes the unused events of a hold back, and changes the marks accordingly.
	settle(st []uint64, now Instant, r refund, m marks) []uint64

	// carry converts a mark of another kernel of the same type, one of the state was, to one of st,
	// which Adopt has made of that at now.
	carry(from Kernel, was, st []uint64, now Instant, old, mark []uint64)

	// sound is Valid for a mark.
	sound(mark []uint64) bool

	// releases reports whether events are over once their hold has ended, whatever happened, and
	// count until then. Then these methods do so; those of others leave a state as it is.
	releases() bool

	// lasts lets n events that have just been spent count until an instant.
	lasts(st []uint64, n int, end Instant) []uint64

	// extend lets the events of a hold count until another instant.
	extend(st []uint64, h hold, end Instant) []uint64

	// carryHolds lets the events of holds, which Adopt has taken from a state of another kernel of
	// the same type, go on to count until the holds end.
	carryHolds(from Kernel, st []uint64, holds []hold) []uint64
}

// A batchHolder is a kernel whose settle takes time in proportion to its state or to the open
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

// A refund is a hold that ends, and how many of its events are unused.
type refund struct {
	hold
	index  int // of the hold
	unused int
}

// marks are those of one part in all holds.
type marks struct {
	entries  []uint64 // each begins with the ID of the hold, or 0 once that has ended
	size     int      // of an entry
	from, to int      // of the mark in an entry
	count    int
}

func (m marks) of(i int) []uint64 { return m.entries[i*m.size+m.from : i*m.size+m.to] }

// open reports whether the i-th hold has not ended.
func (m marks) open(i int) bool { return m.entries[i*m.size] != 0 }
