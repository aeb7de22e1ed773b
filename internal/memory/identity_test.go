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

	"github.com/ratelimit-go/ratelimit/internal/race"
)

// definition hashes a short key as hasher's comment says, in integers of any size.
func (h *hasher) definition(key string) uint64 {
	a := binary.LittleEndian.Uint64(append([]byte(key), make([]byte, 8)...))
	b := uint64(0)
	if len(key) >= 8 {
		b = binary.LittleEndian.Uint64([]byte(key[len(key)-8:]))
	}
	mul := func(x, y uint64) *big.Int {
		return new(big.Int).Mul(new(big.Int).SetUint64(x), new(big.Int).SetUint64(y))
	}
	halves := func(x *big.Int) (hi, lo uint64) {
		var raw [16]byte
		x.FillBytes(raw[:])
		return binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])
	}
	sum := mul(a+h.words[0], b+h.words[1])
	hi, lo := halves(sum.Add(sum, big.NewInt(int64(len(key)))))
	hi, lo = halves(mul(hi+h.fold[0], lo+h.fold[1]))
	return hi ^ lo
}

func TestIdentityIsNH(t *testing.T) {
	h := drawn()
	random := rand.New(rand.NewPCG(20260301, 1))
	for n := range shortKey + 1 {
		for range 20 {
			raw := make([]byte, n)
			for i := range raw {
				raw[i] = byte(random.Uint32())
			}
			key := string(raw)
			want := identity{h.hi.definition(key) | 1, uint32(h.lo.definition(key)>>32) | 1}
			require.Equal(t, want, h.identify(key), "%q", key)
		}
	}
}

func drawn() *identifier {
	h := &identifier{}
	h.draw()
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
}

// TestIdentitiesSpread hashes keys that look alike. No two may share an identity,
// nor more than random ones the half of its bits, nor may any bits that the
// engine uses, for the shard and for the place in a table, prefer some values.
func TestIdentitiesSpread(t *testing.T) {
	race.Alone(t)
	const n = 1 << 16
	for name, key := range families {
		h := drawn()
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
		// Of random values of 32 bits, n²/2³³ = ½ are taken twice; of 31 bits, 1.
		for part, distinct := range map[string]int{"upper": len(upper), "lower": len(lower), "second": len(second)} {
			assert.GreaterOrEqual(t, distinct, len(keys)-12, "%s: %s half", name, part)
		}
		// χ² with 255 degrees of freedom is beyond 400 once in 10⁸ times.
		for what, counts := range map[string][256]int{"shards": shards, "places": places} {
			want := float64(len(keys)) / 256
			chi2 := 0.0
			for _, c := range counts {
				chi2 += (float64(c) - want) * (float64(c) - want) / want
			}
			assert.Less(t, chi2, 400.0, "%s: %s", name, what)
		}
	}
}

// TestEveryBitChangesIdentity flips each bit of keys of each length: on average,
// half of the bits of the identity change.
func TestEveryBitChangesIdentity(t *testing.T) {
	random := rand.New(rand.NewPCG(20260301, 1))
	for n := 1; n <= shortKey; n++ {
		changed, flips := 0, 0
		for range 16 {
			h := drawn()
			raw := make([]byte, n)
			for i := range raw {
				raw[i] = byte(random.Uint32())
			}
			before := h.identify(string(raw))
			for bit := range 8 * n {
				raw[bit/8] ^= 1 << (bit % 8)
				after := h.identify(string(raw))
				raw[bit/8] ^= 1 << (bit % 8)
				d := bits.OnesCount64(before.hi^after.hi) + bits.OnesCount32(before.lo^after.lo)
				require.Greater(t, d, 15, "%d bytes, bit %d", n, bit) // less has a chance of 10⁻¹¹
				changed += d
				flips++
			}
		}
		assert.InDelta(t, 47, float64(changed)/float64(flips), 3, "%d bytes: of 94 bits", n)
	}
}

// TestIdentitiesAreSecret checks that no two stores agree.
func TestIdentitiesAreSecret(t *testing.T) {
	for _, key := range []string{"", "a", "key-000000000001", strings.Repeat("x", 20), strings.Repeat("x", 200)} {
		one, other := drawn(), drawn()
		assert.NotEqual(t, one.identify(key), other.identify(key))
	}
}

func BenchmarkIdentify(b *testing.B) {
	h := drawn()
	for _, n := range []int{3, 8, 16, 17, 36, 64, 200} {
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
