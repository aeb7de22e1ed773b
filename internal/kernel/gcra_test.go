package kernel

import (
	"math"
	"math/big"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// TestScaled compares the time in which a bucket regains what another has lost with the
// exact quotient, rounded up.
func TestScaled(t *testing.T) {
	rng := budget.Rand(t)
	number := func(bits int) uint64 { return rng.Uint64()>>(64-bits)>>rng.IntN(bits) + 1 }
	portable := Encoding{Tick: 1000, Portable: true, Varies: true}
	compared := 0
	for range 100_000 {
		enc := []Encoding{InMemory.Varying(), portable}[rng.IntN(2)]
		bucket := func() *gcra {
			k, err := newGCRA(int(number(40)), time.Duration(number(62)), time.Second, 1, enc, "")
			if err != nil {
				return nil
			}
			return &k
		}
		k, old := bucket(), bucket()
		if k == nil || old == nil { // Redis has no room for such numbers
			continue
		}
		compared++
		missing := uint128.Mul(number(51), old.unit).Add(uint128.From(rng.Uint64N(old.unit)))
		x := bigOf(missing)
		events := uint64(math.MaxUint64)
		if enc.Portable {
			events = portableMost
		}
		if most := bigOf(uint128.Mul(events, old.cost)); x.Cmp(most) > 0 {
			x = most
		}
		x.Mul(x, bigOf(uint128.From(k.cost)))
		x.Add(x, bigOf(uint128.From(old.cost-1)))
		x.Quo(x, bigOf(uint128.From(old.cost)))
		if most := bigOf(uint128.Mul(portableMost, k.unit)); enc.Portable && x.Cmp(most) > 0 {
			x = most
		}
		require.Zero(t, x.Cmp(bigOf(k.scaled(missing, old))), "%v of %+v is %v of %+v", missing, old, x, k)
	}
	assert.Greater(t, compared, 75_000)
}

func bigOf(x uint128.Uint128) *big.Int {
	b := new(big.Int).SetUint64(x.Hi)
	return b.Lsh(b, 64).Or(b, new(big.Int).SetUint64(x.Lo))
}

const ms = uint64(time.Millisecond)

// TestBucketWords pins the words of a bucket from which three events were taken, and
// what is granted from them.
func TestBucketWords(t *testing.T) {
	for name, tt := range map[string]struct {
		events, burst int
		encoding      Encoding
		want          []uint64
		ready         uint64 // for as many events as the burst, after begun
	}{
		"tenths":         {10, 10, InMemory, []uint64{begun + 300*ms}, 300 * ms},
		"thirds":         {3, 3, InMemory, []uint64{3*begun + 3*second}, second},
		"thirds, more":   {3, 4, InMemory, []uint64{3*begun + 3*second}, second},
		"sevenths":       {7, 7, InMemory, []uint64{7*begun + 3*second, 0}, 428_571_429},
		"limits vary":    {10, 10, InMemory.Varying(), []uint64{begun + 300*ms, begun}, 300 * ms},
		"portable words": {7, 7, Encoding{Tick: 1, Portable: true}, []uint64{begun + 428_571_428, 4}, 428_571_429},
	} {
		k, err := newGCRA(tt.events, time.Second, time.Second, tt.burst, tt.encoding, "")
		require.NoError(t, err)
		st := k.Spend(make([]uint64, k.Width()), begun, 3)
		assert.Equal(t, tt.want, st, name)
		assert.Equal(t, tt.burst-3, k.Remaining(st, begun), name)
		assert.Equal(t, begun+tt.ready, k.Ready(st, begun, tt.burst), name)
		assert.Equal(t, begun+tt.ready, k.Fresh(st), name)
		assert.True(t, k.Valid(st, InMemory), name)
		if k.form == ticksAndUnits {
			st[1] = k.unit
			assert.False(t, k.Valid(st, InMemory), "%s: units of a tick or more", name)
		}
	}
}

// TestBucketAdopts: of 10 a second, 8 were spent. With 5 a second, the next is granted
// when 4 of the 8 are back.
func TestBucketAdopts(t *testing.T) {
	bucket := func(events int) *gcra {
		k, err := newGCRA(events, time.Second, time.Second, events, InMemory.Varying(), "")
		require.NoError(t, err)
		return &k
	}
	ten, five := bucket(10), bucket(5)
	st := ten.Spend(make([]uint64, ten.Width()), begun, 8)
	st, lasting := five.Adopt(ten, st, begun, begun)
	assert.False(t, lasting, "later, fewer are missing")
	assert.Zero(t, five.Remaining(st, begun))
	assert.Equal(t, begun+800*ms, five.Ready(st, begun, 1))
	back, _ := ten.Adopt(five, st, begun, begun)
	assert.Equal(t, begun+800*ms, ten.Fresh(back), "and back")
}

// TestBucketAdopts_FarAhead: whatever is missing in the bucket of a fast limit, a slow one adopts a
// state that it can work with.
func TestBucketAdopts_FarAhead(t *testing.T) {
	rng := budget.Rand(t)
	number := func() int { return 1 + int(rng.Uint64()>>(66-strconv.IntSize+rng.IntN(strconv.IntSize-3))) }
	portable := Encoding{Tick: 1000, Portable: true, Varies: true}
	adopted := 0
	for range 20_000 {
		enc := []Encoding{InMemory, InMemory.Varying(), portable}[rng.IntN(3)]
		leaks := rng.IntN(2) == 0
		bucket := func() Kernel {
			rate := time.Duration(number() >> 20)
			k, err := NewTokenBucket(number(), 1+rate, rate, number(), enc, "")
			if leaks {
				k, err = NewLeakyBucket(number(), 1+rate, rate, number(), enc, "")
			}
			if err != nil {
				return nil
			}
			return k
		}
		fast, slow := bucket(), bucket()
		if fast == nil || slow == nil {
			continue
		}
		adopted++
		st := fast.Spend(make([]uint64, fast.Width()), begun/enc.Tick, fast.Limit())
		require.True(t, fast.Valid(st, InMemory), "%+v", fast)
		as, _ := slow.Adopt(fast, st, begun/enc.Tick, begun/enc.Tick)
		require.True(t, slow.Valid(as, InMemory), "%+v of %+v: %v", slow, fast, as)
	}
	assert.Greater(t, adopted, 14_000)
}
