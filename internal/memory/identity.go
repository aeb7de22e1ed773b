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

// shortKey is the length in bytes up to which a key is hashed by hasher alone. A longer
// key is first reduced to that length by hash/maphash. Using maphash for all keys would
// cost a third of a decision with a CoarseClock (BenchmarkIdentify: 9 ns instead of 4),
// and on machines without AES it distributes similar keys unevenly for some seeds.
const shortKey = 16

// An identifier makes identities.
type identifier struct {
	hi, lo hasher
	long   [2]maphash.Seed
}

// A hasher is a keyed 64-bit hash of a key given as two words and a length. It is NH
// (Black et al., "UMAC: fast and secure message authentication", CRYPTO 1999), which is
// (a + k₀)·(b + k₁), plus the length; the two halves of the result are multiplied in
// the same way and folded. For any two keys, NH's 128 bits are equal for at most 2⁻⁶⁴
// of all secrets; the fold has secrets of its own.
type hasher struct {
	words, fold [2]uint64
}

// draw draws secrets.
func (h *identifier) draw() {
	h.long = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	var secrets [64]byte
	rand.Read(secrets[:]) // never fails
	for i, word := range []*uint64{
		&h.hi.words[0], &h.hi.words[1], &h.hi.fold[0], &h.hi.fold[1],
		&h.lo.words[0], &h.lo.words[1], &h.lo.fold[0], &h.lo.fold[1],
	} {
		*word = binary.LittleEndian.Uint64(secrets[8*i:])
	}
}

// identify returns the identity of key.
func (h *identifier) identify(key string) identity {
	n := len(key)
	var a, b uint64
	switch {
	case n > shortKey:
		a, b = maphash.String(h.long[0], key), maphash.String(h.long[1], key)
	case n >= 8:
		a, b = word64(key), word64(key[n-8:])
	default:
		a = word56(key)
	}
	return identity{h.hi.hash(a, b, uint64(n)) | 1, uint32(h.lo.hash(a, b, uint64(n))>>32) | 1}
}

// word64 returns the first eight bytes of s.
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

// hash hashes the key of n bytes given by two words.
func (h *hasher) hash(a, b, n uint64) uint64 {
	hi, lo := bits.Mul64(a+h.words[0], b+h.words[1])
	lo, carry := bits.Add64(lo, n, 0)
	hi, lo = bits.Mul64(hi+carry+h.fold[0], lo+h.fold[1])
	return hi ^ lo
}
