package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// The lengths of keys in bytes. keyLength divides a cache line, so that touching a key brings
// all of it into the cache. uuidLength is that of a UUID.
const (
	keyLength  = 16
	uuidLength = 36
)

// keys are the callers' keys, made before the measurement. They are substrings of one
// string, because the garbage collector would have to scan a slice of strings, and its time
// would be added to that of every contender. The last character of a key is a digit.
type keys struct {
	text   string
	length int
}

func newKeys(n int) keys {
	var b strings.Builder
	b.Grow(n * keyLength)
	for i := range n {
		fmt.Fprintf(&b, "key-%0*d", keyLength-len("key-"), i)
	}
	return keys{b.String(), keyLength}
}

// newUUIDs returns keys in the form of random UUIDs, except that the last part is a number.
func newUUIDs(n int) keys {
	var b strings.Builder
	b.Grow(n * uuidLength)
	random := rand.New(rand.NewPCG(4, 4))
	for i := range n {
		r := random.Uint64()
		fmt.Fprintf(&b, "%08x-%04x-4%03x-8%03x-%012d", uint32(r), uint16(r>>32), r>>48&0xfff, random.Uint32()&0xfff, i)
	}
	return keys{b.String(), uuidLength}
}

// at returns the i-th key.
func (k keys) at(i int) string {
	return k.text[i*k.length : (i+1)*k.length]
}

// touch brings the first byte of the i-th key into the cache, and with it all of a key of
// keyLength. The caller must use the result, or the compiler removes the load.
func (k keys) touch(i int) byte {
	return k.text[i*k.length]
}

// shuffled returns the numbers below n in a random order, which defeats prefetchers. The
// order is the same in every run.
func shuffled(n int) []uint32 { return shuffledFor(0, n) }

// shuffledFor is like shuffled, with an order for each worker.
func shuffledFor(worker, n int) []uint32 {
	order := make([]uint32, n)
	for i := range order {
		order[i] = uint32(i)
	}
	r := rand.New(rand.NewPCG(uint64(worker+1), uint64(n)))
	r.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// orders remembers the orders of all workers, by the number of keys: making them takes longer
// than a batch.
type orders map[int][][]uint32

func (o orders) of(workers, n int) [][]uint32 {
	for len(o[n]) < workers {
		o[n] = append(o[n], shuffledFor(len(o[n]), n))
	}
	return o[n]
}

// A tour visits keys in a fixed order, again and again.
type tour struct {
	order []uint32
	at    int // the next one
}

// visit passes the next n positions to f, in parts of the order, and returns the sum of its
// results.
func (t *tour) visit(n int, f func(part []uint32) int) (sum int) {
	for n > 0 {
		part := t.order[t.at:min(t.at+n, len(t.order))]
		sum += f(part)
		n -= len(part)
		t.at = (t.at + len(part)) % len(t.order)
	}
	return sum
}
