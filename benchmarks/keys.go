package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// keyLength is the length of a key in bytes. It divides a cache line, so that touching a key
// brings all of it into the cache.
const keyLength = 16

// keys are the callers' keys, made before the measurement. They are substrings of one
// string, because the garbage collector would have to scan a slice of strings, and its time
// would be added to that of every contender.
type keys struct {
	text string
}

func newKeys(n int) keys {
	var b strings.Builder
	b.Grow(n * keyLength)
	for i := range n {
		fmt.Fprintf(&b, "key-%0*d", keyLength-len("key-"), i)
	}
	return keys{b.String()}
}

// at returns the i-th key.
func (k keys) at(i int) string {
	return k.text[i*keyLength : (i+1)*keyLength]
}

// touch brings the bytes of the i-th key into the cache. The caller must use the result, or
// the compiler removes the load.
func (k keys) touch(i int) byte {
	return k.text[i*keyLength]
}

// shuffled returns the numbers below n in a random order, which defeats prefetchers. The
// order is the same in every run.
func shuffled(n int) []uint32 {
	order := make([]uint32, n)
	for i := range order {
		order[i] = uint32(i)
	}
	r := rand.New(rand.NewPCG(1, uint64(n)))
	r.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}
