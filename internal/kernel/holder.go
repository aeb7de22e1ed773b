package kernel

// This file is what the list of open holds asks of a kernel.

// A Holder is what a kernel does for open holds: it takes their unused events back, as all kernels
// with states do. A mark is what it needs for that, for one hold. A mark whose words are 0 gives
// nothing back.
type Holder interface {
	// Marks returns the number of words of a mark.
	Marks() int

	// Mark sets a mark to that of n events that are about to be spent at an instant.
	Mark(st []uint64, at Instant, n int, mark []uint64)

	// Lower lowers the mark of the youngest hold, before events are spent at an instant, to what is
	// missing then. Only the marks of buckets say what was least missing since a hold.
	Lower(mark, st []uint64, at Instant)

	// LowerTo lowers a mark to another one, that of the next younger hold, which has ended.
	LowerTo(mark, ended []uint64)

	// Settle takes the unused events of a hold back, and changes the marks accordingly.
	Settle(st []uint64, now Instant, r Refund, m Marks) []uint64

	// Carry converts a mark of another kernel of the same type, one of the state was, to one of st,
	// which Adopt has made of that at now.
	Carry(from Kernel, was, st []uint64, now Instant, old, mark []uint64)

	// ValidMark is Valid for a mark.
	ValidMark(mark []uint64) bool

	// Releases reports whether events are over once their hold has ended, whatever happened, and
	// count until then. Then these methods do so; those of others leave a state as it is.
	Releases() bool

	// Lasts lets n events that have just been spent count until an instant.
	Lasts(st []uint64, n int, end Instant) []uint64

	// Extend lets the events of a hold count until another instant.
	Extend(st []uint64, h Hold, end Instant) []uint64

	// CarryHolds lets the events of holds, which Adopt has taken from a state of another kernel of
	// the same type, go on to count until the holds end.
	CarryHolds(from Kernel, st []uint64, holds []Hold) []uint64
}

// A BatchHolder is a kernel whose Settle takes time in proportion to its state or to the open
// holds, or depends on the order in which holds end. So it has a SettleAll for many holds, at least
// one and in the order of their indexes, which takes no longer.
type BatchHolder interface {
	SettleAll(st []uint64, now Instant, refunds []Refund, m Marks) []uint64
}

// A Resumer is a kernel whose earlier events count again, and for longer than Fresh says, if a hold
// gives its events back by itself.
type Resumer interface {
	// FreshAfterRefund is Fresh if events may be taken back from st.
	FreshAfterRefund(st []uint64) Instant
}

// A Hold is an entry without its marks.
type Hold struct {
	End  Instant
	N    int
	Back bool // whether its events are given back when it ends by itself
}

// A Refund is a hold that ends, and how many of its events are unused.
type Refund struct {
	Hold
	Index  int // of the hold
	Unused int
}

// Marks are those of one part in all holds.
type Marks struct {
	Entries  []uint64 // each begins with the ID of the hold, or 0 once that has ended
	Size     int      // of an entry
	From, To int      // of the mark in an entry
	Count    int
}

func (m Marks) Of(i int) []uint64 { return m.Entries[i*m.Size+m.From : i*m.Size+m.To] }
