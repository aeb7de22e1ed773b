package memory

import (
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// An identity stands for a key: 96 bits of hash, keyed with secrets that each store
// draws for itself. One bit of each part is set, so that neither part is 0. That leaves
// 94 bits: the chance that any two of 10⁸ keys share an identity is below 10⁻¹².
type identity struct {
	hi uint64
	lo uint32
}

// entry returns the bits that index the directory. Bit 0 of hi is always set.
func (id identity) entry() uint64 { return id.hi >> 1 }

const (
	nhBlock = 16 // bytes that NH takes at once

	// longKey is the length in bytes above which a key is first reduced to a block. Reducing all
	// keys would cost a third of a decision with a coarse clock.
	longKey = 4 * nhBlock
)

// An identifier makes identities. The two parts of an identity are hashes with secrets
// of their own. Each is
//
//	NH(key) = n + Σ (aᵢ + kᵢ)·(bᵢ + k′ᵢ) mod 2¹²⁸
//
// (Black et al., "UMAC: fast and secure message authentication", CRYPTO 1999), of which
// the two halves, with two further secrets added, are multiplied and folded. n is the
// length of the key, aᵢ and bᵢ are the two words of a block, the k are secrets, and the
// sums in parentheses are mod 2⁶⁴. Block 0 is the end of the key, and the others are
// counted from its start; they may overlap. A key of 8 to 16 bytes is a block of its
// first and its last eight bytes, and a shorter one a word and 0. So n and the blocks
// determine a key of up to longKey bytes.
//
// For two such keys with the same number of blocks, NH is equal for at most 2⁻⁶⁴ of all secrets. If
// all blocks are equal, the lengths differ, and so does NH. Otherwise, the sums have a given
// difference, here that of the lengths, for at most so many: NH with words of w bits is
// 2⁻ʷ-almost-Δ-universal, as the paper says.
//
// If one key has more blocks, fix all secrets except the two of a block that the other
// key lacks. The product of this block has to be a fixed number, and at most 2⁶⁵ of the
// 2¹²⁸ pairs of secrets give it (if it is 0; otherwise 2⁶⁴). So NH is equal for at most
// 2⁻⁶³ of all secrets. If the fold adds as much as a random function would, 2⁻⁶³ in one
// part and 2⁻³¹ in the other, the chance that two keys share an identity is 2⁻⁹³ at most.
//
// A longer key is first reduced to a block by hash/maphash, whose seeds cannot leave the process. A
// store that may be saved takes its secrets with it, and reduces such a key to the values of two
// polynomials over the integers mod 2⁶¹ − 1, at secret points, whose coefficients are the key in
// pieces of 7 bytes (Carter and Wegman, "New hash functions and their use in authentication and set
// equality", JCSS 1981). Two keys of one length have the same values if both points are zeros of
// their difference: at most (n/7)² of 2¹²² pairs of points are, which is one in 2¹¹² for 200 bytes,
// and in 2⁹⁴ for 100 kB. That takes 1.2 times as long as maphash for 65 bytes, and twice as long
// for a thousand.
type identifier struct {
	blocks [longKey / nhBlock]secrets
	fold   secrets
	seeds  [2]maphash.Seed
	points [2]uint64 // below the modulus
	saves  bool      // whether long keys are reduced by points
}

// secrets are two for each part of an identity.
type secrets struct{ hi, lo [2]uint64 }

func (h *identifier) draw() {
	h.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	for i := range h.blocks {
		h.blocks[i].draw()
	}
	h.fold.draw()
	var points secrets
	points.draw()
	h.points = [2]uint64{points.hi[0] % modulus, points.hi[1] % modulus}
}

func (k *secrets) draw() {
	var raw [32]byte
	rand.Read(raw[:]) // never fails
	for i, word := range []*uint64{&k.hi[0], &k.hi[1], &k.lo[0], &k.lo[1]} {
		*word = binary.LittleEndian.Uint64(raw[8*i:])
	}
}

func (h *identifier) identify(key string) identity {
	n := len(key)
	var a, b uint64
	switch {
	case n > longKey && h.saves:
		a, b = h.reduce(key)
	case n > longKey:
		a, b = maphash.String(h.seeds[0], key), maphash.String(h.seeds[1], key)
	case n > nhBlock:
		return h.identifyBlocks(key)
	case n >= 8:
		a, b = word64(key), word64(key[n-8:])
	default:
		a = word56(key)
	}
	start := sum{lo: uint64(n)}
	return h.folded(start.plus(a, b, &h.blocks[0].hi), start.plus(a, b, &h.blocks[0].lo))
}

// words returns all secrets that can be saved.
func (h *identifier) words() (all []*uint64) {
	for _, k := range []*secrets{&h.blocks[0], &h.blocks[1], &h.blocks[2], &h.blocks[3], &h.fold} {
		all = append(all, &k.hi[0], &k.hi[1], &k.lo[0], &k.lo[1])
	}
	return append(all, &h.points[0], &h.points[1])
}

// modulus is a prime number, which makes divisions by it additions.
const modulus = 1<<61 - 1

// reduce returns the values of the polynomials of a long key.
func (h *identifier) reduce(key string) (a, b uint64) {
	const piece = 7
	for len(key) >= 8 {
		word := word64(key) & (1<<(8*piece) - 1)
		a, b = plusProduct(word, a, h.points[0]), plusProduct(word, b, h.points[1])
		key = key[piece:]
	}
	word := word56(key)
	return plusProduct(word, a, h.points[0]), plusProduct(word, b, h.points[1])
}

// plusProduct returns a number that equals word + x·point mod modulus and is below 2⁶¹ + 2⁵⁷, if
// word is below 2⁵⁶, x below 2⁶² and point below the modulus.
func plusProduct(word, x, point uint64) uint64 {
	hi, lo := bits.Mul64(x, point)
	sum := lo&modulus + (hi<<3 | lo>>61) // below 2⁶³
	return sum&modulus + sum>>61 + word
}

// identifyBlocks returns the identity of a key of 2 to 4 blocks. It is not a loop, because
// that takes 2 to 6 ns longer.
func (h *identifier) identifyBlocks(key string) identity {
	n := len(key)
	start := sum{lo: uint64(n)}
	a, b := word64(key[n-nhBlock:]), word64(key[n-8:])
	hi, lo := start.plus(a, b, &h.blocks[0].hi), start.plus(a, b, &h.blocks[0].lo)
	a, b = word64(key), word64(key[8:])
	hi, lo = hi.plus(a, b, &h.blocks[1].hi), lo.plus(a, b, &h.blocks[1].lo)
	if n > 2*nhBlock {
		a, b = word64(key[nhBlock:]), word64(key[nhBlock+8:])
		hi, lo = hi.plus(a, b, &h.blocks[2].hi), lo.plus(a, b, &h.blocks[2].lo)
	}
	if n > 3*nhBlock {
		a, b = word64(key[2*nhBlock:]), word64(key[2*nhBlock+8:])
		hi, lo = hi.plus(a, b, &h.blocks[3].hi), lo.plus(a, b, &h.blocks[3].lo)
	}
	return h.folded(hi, lo)
}

func (h *identifier) folded(hi, lo sum) identity {
	return identity{hi.fold(&h.fold.hi) | 1, uint32(lo.fold(&h.fold.lo)>>32) | 1}
}

func word64(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// word56 returns the bytes of s, which has fewer than eight.
func word56(s string) (word uint64) {
	for i := range len(s) {
		word |= uint64(s[i]) << (8 * i)
	}
	return word
}

// A sum is a number mod 2¹²⁸.
type sum struct{ hi, lo uint64 }

// plus adds the product of a block's words and secrets.
func (x sum) plus(a, b uint64, k *[2]uint64) sum {
	hi, lo := bits.Mul64(a+k[0], b+k[1])
	lo, carry := bits.Add64(lo, x.lo, 0)
	hi, _ = bits.Add64(hi, x.hi, carry)
	return sum{hi, lo}
}

func (x sum) fold(k *[2]uint64) uint64 {
	hi, lo := bits.Mul64(x.hi+k[0], x.lo+k[1])
	return hi ^ lo
}
