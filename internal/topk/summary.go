// Package topk finds the most frequent of many items in bounded memory.
package topk

// A Summary counts items by the algorithm SpaceSaving of Metwally, Agrawal and El Abbadi
// ("Efficient Computation of Frequent and Top-k Elements in Data Streams", 2005), with weights.
// It has room for a number of items. When it is full, a new item replaces the one that has the
// least count, and starts with that count. So, with room for k items and a total weight of W:
//
//  1. The counts of a full Summary add up to W. The least of them, Floor, is at most W/k.
//  2. The weight of an item in the Summary is at most its Count, and at least Count − Error.
//     Error is at most Floor.
//  3. The weight of any other item is at most Floor. So each item that has more than W/k is in
//     the Summary.
//
// Several Summaries of parts of a stream can be combined: the bounds of the sums are the sums
// of the bounds.
//
// A Summary is not safe for concurrent use. T is what its user keeps for each item.
type Summary[T any] struct {
	room    int
	entries []Entry[T]
	index   map[uint64]int32 // of an item in entries, by its ID
	heap    []node           // the entry of the least count comes first; empty until it is needed
}

// An Entry is an item of a Summary.
type Entry[T any] struct {
	ID    uint64
	Count float64 // the most that the item's weight can be
	Error float64 // by how much less it may be
	Value T
}

// A node is the place of an entry in the heap. Counts only grow, and the heap is put in order
// only when the least count is needed. So an item that is in the Summary is counted without
// touching the heap.
type node struct {
	count float64 // of the entry, when the node was last put in order: its count or less
	entry int32
}

// New returns a Summary with room for k items, at least one.
func New[T any](k int) *Summary[T] {
	return &Summary[T]{room: max(k, 1), index: make(map[uint64]int32)}
}

// Add adds weight, which is positive, to the item id. It returns the item's entry, valid until
// the next call, and whether the item was added to the Summary. If it was, the entry's Value is
// that of the item that it replaces, or the zero value.
func (s *Summary[T]) Add(id uint64, weight float64) (e *Entry[T], added bool) {
	if i, ok := s.index[id]; ok {
		e = &s.entries[i]
		e.Count += weight
		return e, false
	}
	if i := len(s.entries); i < s.room {
		s.entries = append(s.entries, Entry[T]{ID: id, Count: weight})
		s.index[id] = int32(i)
		return &s.entries[i], true
	}
	i := s.least()
	e = &s.entries[i]
	delete(s.index, e.ID)
	s.index[id] = i
	e.ID, e.Error = id, e.Count
	e.Count += weight
	return e, true
}

// Floor returns the greatest possible weight of an item that is not in the Summary.
func (s *Summary[T]) Floor() float64 {
	if len(s.entries) < s.room {
		return 0
	}
	return s.entries[s.least()].Count
}

// Entries returns the items in no order. They are valid until the next call of Add or Scale.
func (s *Summary[T]) Entries() []Entry[T] { return s.entries }

// Scale multiplies all weights by factor, which is not negative.
func (s *Summary[T]) Scale(factor float64) {
	for i := range s.entries {
		s.entries[i].Count *= factor
		s.entries[i].Error *= factor
	}
	for i := range s.heap { // rounding keeps the order
		s.heap[i].count *= factor
	}
}

// least returns the index of the entry with the least count. The Summary must be full.
func (s *Summary[T]) least() int32 {
	if len(s.heap) == 0 {
		s.heap = make([]node, len(s.entries))
		for i := range s.heap {
			s.heap[i] = node{s.entries[i].Count, int32(i)}
		}
		for i := len(s.heap)/2 - 1; i >= 0; i-- {
			s.sink(i)
		}
	}
	for {
		first := &s.heap[0]
		count := s.entries[first.entry].Count
		if first.count == count { // the others have at least the counts of their nodes
			return first.entry
		}
		first.count = count
		s.sink(0)
	}
}

// sink moves node i down to its place in the heap.
func (s *Summary[T]) sink(i int) {
	n := s.heap[i]
	for {
		child := 2*i + 1
		if child >= len(s.heap) {
			break
		}
		if other := child + 1; other < len(s.heap) && s.heap[other].count < s.heap[child].count {
			child = other
		}
		if n.count <= s.heap[child].count {
			break
		}
		s.heap[i] = s.heap[child]
		i = child
	}
	s.heap[i] = n
}
