package memory

import (
	"iter"
	"sync/atomic"
)

// stripes is the number of stripes, a power of two.
const stripes = 32

// A striped has a T for each stripe of the keys of a space, or none at all until one is needed.
type striped[T any] struct{ all atomic.Pointer[[stripes]T] }

// of returns the stripe of id, or nil if there are none yet.
func (s *striped[T]) of(id identity) *T {
	if all := s.all.Load(); all != nil {
		return &all[id.lo%stripes]
	}
	return nil
}

// made is of, and makes the stripes if there are none.
func (s *striped[T]) made(id identity) *T {
	if s.all.Load() == nil {
		s.all.CompareAndSwap(nil, new([stripes]T))
	}
	return s.of(id)
}

// each iterates over all stripes.
func (s *striped[T]) each() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		if all := s.all.Load(); all != nil {
			for i := 0; i < stripes && yield(&all[i]); i++ {
			}
		}
	}
}
