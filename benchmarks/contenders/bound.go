package contenders

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// bound does only what every exact limiter must do: it hashes the key, loads a word of
// state, reads the clock, and swaps the word. It does not check which key the word
// belongs to, and never grows. So a limiter with a keyed hash and an exact clock can
// hardly be much faster.
func bound() Contender {
	return Contender{
		Name: "(hash, clock, swap)",
		Role: Bound,
		// After its first event, a key is denied for good, or never.
		AtOnce: 1,
		Setup:  "`maphash.String`, one of 4 Mi words, `time.Since`, compare-and-swap: the work of every exact limiter",
		New:    func(l Limit) (Allow, error) { return newHashed().allow(l), nil },
		Each: func(l Limit) (Allow, Each, error) {
			h := newHashed()
			return h.allow(l), h.each(l), nil
		},
	}
}

// hashed are words that keys are hashed to.
type hashed struct {
	seed  maphash.Seed
	base  time.Time
	words []uint64
}

func newHashed() *hashed {
	return &hashed{maphash.MakeSeed(), time.Now(), make([]uint64, 1<<22)}
}

func (h *hashed) word(key string) *uint64 {
	return &h.words[maphash.String(h.seed, key)%uint64(len(h.words))]
}

// now is not 0, which is the word of a new key.
func (h *hashed) now() uint64 { return uint64(time.Since(h.base)) | 1 }

// swap decides on a word that has been loaded.
func (l Limit) swap(word *uint64, old, now uint64) Answer {
	if old != 0 && (l == Spent || l == Once) {
		return Denied
	}
	atomic.CompareAndSwapUint64(word, old, now)
	return Allowed
}

func (h *hashed) allow(l Limit) Allow {
	return func(key string) Answer {
		word := h.word(key)
		old := atomic.LoadUint64(word)
		return l.swap(word, old, h.now())
	}
}

// each returns a call that does each step for all keys before the next one, so that the loads
// overlap, and reads the clock once.
func (h *hashed) each(l Limit) Each {
	var at []*uint64 // reused, as is old
	var old []uint64
	return func(keys []string) (allowed int) {
		at, old = at[:0], old[:0]
		for _, key := range keys {
			at = append(at, h.word(key))
		}
		for _, word := range at {
			old = append(old, atomic.LoadUint64(word))
		}
		now := h.now()
		for i, word := range at {
			if l.swap(word, old[i], now) == Allowed {
				allowed++
			}
		}
		return allowed
	}
}
