package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// keyLength is the length of a key in bytes. It divides a cache line, so that
// a key that is touched is in the cache as a whole.
const keyLength = 16

// keys are the callers' keys, made before anything is measured. They lie in
// one text, and are cut out of it when they are used: slices of strings would
// be memory for the collector to scan, and its time would count against every
// contender.
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

// touch brings the bytes of the i-th key into the cache. The result is to be
// used, lest the compiler drop the load.
func (k keys) touch(i int) byte {
	return k.text[i*keyLength]
}

// shuffled returns the numbers below n in an order that no prefetcher follows.
// It is the same in every run.
func shuffled(n int) []uint32 {
	order := make([]uint32, n)
	for i := range order {
		order[i] = uint32(i)
	}
	r := rand.New(rand.NewPCG(1, uint64(n)))
	r.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}
