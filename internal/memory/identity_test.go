package memory

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// definition returns the two words of each block of a key, and their number.
func definition(key string) (words [longKey / nhBlock][2]uint64, n int) {
	word := func(s string) uint64 { return binary.LittleEndian.Uint64(append([]byte(s), make([]byte, 8)...)) }
	switch {
	case len(key) < 8:
		words[0][0] = word(key)
	case len(key) <= nhBlock:
		words[0] = [2]uint64{word(key), word(key[len(key)-8:])}
	default:
		words[0] = [2]uint64{word(key[len(key)-16:]), word(key[len(key)-8:])}
		for n = 1; n*nhBlock < len(key); n++ {
			words[n] = [2]uint64{word(key[(n-1)*nhBlock:]), word(key[(n-1)*nhBlock+8:])}
		}
		return words, n
	}
	return words, 1
}

// definedAs computes a part of a key's identity as identifier's comment says, in integers
// of any size. of returns the part's secrets.
func (h *identifier) definedAs(key string, of func(secrets) [2]uint64) uint64 {
	mul := func(x, y uint64) *big.Int {
		return new(big.Int).Mul(new(big.Int).SetUint64(x), new(big.Int).SetUint64(y))
	}
	halves := func(x *big.Int) (hi, lo uint64) {
		var raw [16]byte
		new(big.Int).And(x, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 128), big.NewInt(1))).FillBytes(raw[:])
		return binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])
	}
	nh := big.NewInt(int64(len(key)))
	words, n := definition(key)
	for i, w := range words[:n] {
		k := of(h.blocks[i])
		nh.Add(nh, mul(w[0]+k[0], w[1]+k[1]))
	}
	hi, lo := halves(nh)
	k := of(h.fold)
	hi, lo = halves(mul(hi+k[0], lo+k[1]))
	return hi ^ lo
}

func TestIdentityIsNH(t *testing.T) {
	h := drawn()
	random := rand.New(rand.NewPCG(20260301, 1))
	for n := range longKey + 1 {
		for range 20 {
			key := randomKey(random, n)
			want := identity{
				h.definedAs(key, func(k secrets) [2]uint64 { return k.hi }) | 1,
				uint32(h.definedAs(key, func(k secrets) [2]uint64 { return k.lo })>>32) | 1,
			}
			require.Equal(t, want, h.identify(key), "%q", key)
		}
	}
}

func randomKey(random *rand.Rand, n int) string {
	raw := make([]byte, n)
	for i := range raw {
		raw[i] = byte(random.Uint32())
	}
	return string(raw)
}

// TestFewSecretsCollide checks the proof in identifier's comment, for words of four bits
// instead of 64: for two blocks with different first words, and any difference between the
// second words, each constant is reached for at most one value of the last secret.
func TestFewSecretsCollide(t *testing.T) {
	const size = 1 << 4
	for x := range size {
		for other := range size {
			for d := range size {
				var reached [size * size]int
				for y := range size {
					c := (x*y - other*((y+d)%size)) & (size*size - 1)
					reached[c]++
					if x != other {
						require.Equal(t, 1, reached[c], "%d·%d − %d·(%d + %d)", x, y, other, y, d)
					}
				}
			}
		}
	}
}

func drawn() *identifier {
	h := &identifier{}
	h.draw()
	return h
}

// fixed returns an identifier with secrets from random.
func fixed(random *rand.Rand) *identifier {
	h := &identifier{}
	for _, word := range h.words() {
		*word = random.Uint64()
	}
	h.points, h.saves = [2]uint64{h.points[0] % modulus, h.points[1] % modulus}, true
	return h
}

// families are keys that look alike, as callers' keys do.
var families = map[string]func(i int) string{
	"numbers":    func(i int) string { return fmt.Sprint(i) },
	"padded":     func(i int) string { return fmt.Sprintf("key-%012d", i) },
	"one word":   func(i int) string { return fmt.Sprintf("%08d", i) },
	"IPv4":       func(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255) },
	"IPv6":       func(i int) string { return fmt.Sprintf("2001:db8:%x:%x::/64", i>>16, i&0xffff) },
	"UUID":       func(i int) string { return fmt.Sprintf("%08x-0000-4000-8000-000000000000", i) },
	"suffix":     func(i int) string { return strings.Repeat("tenant/", 8) + fmt.Sprintf("%08x", i) },
	"long":       func(i int) string { return strings.Repeat("x", 100) + fmt.Sprint(i) },
	"zeros":      func(i int) string { return strings.Repeat("\x00", i%20) + fmt.Sprint(i) },
	"one bit":    func(i int) string { return string(binary.LittleEndian.AppendUint64(nil, 1<<(i%64)|uint64(i/64))) },
	"high bytes": func(i int) string { return string(binary.BigEndian.AppendUint64(nil, uint64(i))) + "\xff\xff\xff\xff" },
	"path":       func(i int) string { return fmt.Sprintf("GET /v1/accounts/%d/orders user-%d", i&255, i>>8) },
	"lengths":    func(i int) string { return strings.Repeat("\x00", i%131) + string(rune('a'+i/131%26)) },
	"one byte": func(i int) string { // of a key of 17 to 130 bytes is another
		n := 17 + i%114
		raw := make([]byte, n)
		raw[i/114%n] = byte(i / 114 / n)
		return string(raw)
	},
	"exchanged blocks": func(i int) string {
		a, b := fmt.Sprintf("tenant/%09d", i>>2), "user/00000000001"
		return []string{a + b, b + a, a + b + b, b + a + b}[i&3]
	},
	"exchanged words": func(i int) string {
		a, b := fmt.Sprintf("%08d", i>>1), "abcdefgh"
		return []string{a + b + a + b, b + a + b + a}[i&1]
	},
}

// TestIdentitiesSpread hashes keys that look alike. No two may share an identity,
// nor more than random ones the half of its bits, nor may any bits that the
// engine uses, for the shard and for the place in a table, prefer some values.
//
// The secrets are fixed, because some are worse than others: if keys of up to longKey bytes differ
// in one byte, χ² of the places is above 380 for 1 % of all secrets, where random places reach that
// once in 10⁶ times. The worst of 5,000 draws was 1153: places had 19 % more or fewer keys than on
// average. What is still random are the keys that are longer, in three families.
func TestIdentitiesSpread(t *testing.T) {
	budget.Alone(t)
	const n = 1 << 16
	for name, key := range families {
		h := fixed(rand.New(rand.NewPCG(20261122, 1)))
		whole := make(map[identity]string, n)
		var shards, places [256]int
		upper, lower, second := make(map[uint32]bool, n), make(map[uint32]bool, n), make(map[uint32]bool, n)
		keys := make(map[string]bool, n)
		for i := range n {
			k := key(i)
			if keys[k] {
				continue
			}
			keys[k] = true
			id := h.identify(k)
			other, taken := whole[id]
			require.False(t, taken, "%s: %q and %q", name, k, other)
			whole[id] = k
			shards[id.hi>>1&255]++
			places[id.hi>>56]++
			upper[uint32(id.hi>>32)] = true
			lower[uint32(id.hi>>1)] = true
			second[id.lo] = true
		}
		// Of random values of 32 bits, n²/2³³ = ½ are taken twice; of 31 bits, 1. It is more than
		// 12 once in 10¹⁰ times.
		for part, distinct := range map[string]int{"upper": len(upper), "lower": len(lower), "second": len(second)} {
			assert.GreaterOrEqual(t, distinct, len(keys)-12, "%s: %s half", name, part)
		}
		// χ² with 255 degrees of freedom is beyond 440 once in 10¹¹ times.
		for what, counts := range map[string][256]int{"shards": shards, "places": places} {
			want := float64(len(keys)) / 256
			chi2 := 0.0
			for _, c := range counts {
				chi2 += (float64(c) - want) * (float64(c) - want) / want
			}
			assert.Less(t, chi2, 440.0, "%s: %s", name, what)
		}
	}
}

// TestEveryBitChangesIdentity flips each bit of keys of each length: on average,
// half of the bits of the identity change.
func TestEveryBitChangesIdentity(t *testing.T) {
	random := rand.New(rand.NewPCG(20260301, 1))
	for n := 1; n <= 130; n++ {
		changed, flips := 0, 0
		for range budget.Histories(4, 16) {
			h := fixed(random)
			raw := []byte(randomKey(random, n))
			before := h.identify(string(raw))
			for bit := range 8 * n {
				raw[bit/8] ^= 1 << (bit % 8)
				after := h.identify(string(raw))
				raw[bit/8] ^= 1 << (bit % 8)
				d := bits.OnesCount64(before.hi^after.hi) + bits.OnesCount32(before.lo^after.lo)
				require.Greater(t, d, 9, "%d bytes, bit %d", n, bit) // one of the 10⁶ flips is less once in 10¹⁰ times
				changed += d
				flips++
			}
		}
		assert.InDelta(t, 47, float64(changed)/float64(flips), 3, "%d bytes: of 94 bits", n)
	}
}

// TestIdentitiesAreSecret checks that no two stores agree.
func TestIdentitiesAreSecret(t *testing.T) {
	for _, key := range []string{"", "a", "key-000000000001", strings.Repeat("x", 20), strings.Repeat("x", 64), strings.Repeat("x", 200)} {
		one, other := drawn(), drawn()
		assert.NotEqual(t, one.identify(key), other.identify(key))
	}
}

func BenchmarkIdentify(b *testing.B) {
	h := drawn()
	for _, n := range []int{3, 8, 16, 17, 36, 64, 65, 200} {
		b.Run(fmt.Sprintf("bytes=%d", n), func(b *testing.B) {
			key := strings.Repeat("x", n)
			sum := uint64(0)
			for b.Loop() {
				id := h.identify(key)
				sum += id.hi + uint64(id.lo)
			}
		})
	}
}
