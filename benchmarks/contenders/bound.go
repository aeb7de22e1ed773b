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
		New: func(l Limit) (Allow, error) {
			seed, base := maphash.MakeSeed(), time.Now()
			words := make([]uint64, 1<<22)
			return func(key string) Answer {
				word := &words[maphash.String(seed, key)%uint64(len(words))]
				old := atomic.LoadUint64(word)
				now := uint64(time.Since(base)) | 1
				if old != 0 && (l == Spent || l == Once) {
					return Denied
				}
				atomic.CompareAndSwapUint64(word, old, now)
				return Allowed
			}, nil
		},
	}
}
