package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The tests in this file check what Settle gives back of a continuous TokenBucket: everything if
// nothing was granted since the hold, and otherwise no more than certainly is missing still, so
// that no span has more events than the bucket bounds. A state does not say when others took
// theirs, so what is known of that depends on the store and on the form of the state.

// A settledBucket is a way to keep the state of a TokenBucket.
type settledBucket struct {
	name   string
	events int // a second, in multiples of which a test counts
	limit  func(b ratelimit.TokenBucket) ratelimit.Algorithm
	opts   func() []ratelimit.Option
}

func alone(b ratelimit.TokenBucket) ratelimit.Algorithm { return b }

// inAll returns b with a part that never decides.
func inAll(b ratelimit.TokenBucket) ratelimit.Algorithm {
	return ratelimit.All{b, ratelimit.FixedWindow{Limit: 1 << 20, Window: time.Hour}}
}

func inMemory() []ratelimit.Option { return nil }

func inBytes() []ratelimit.Option {
	return []ratelimit.Option{ratelimit.WithStore(newMapDB().store()), ratelimit.WithName("test")}
}

// withLimits gives each key a limit of its own that is that of all.
func withLimits() []ratelimit.Option {
	return []ratelimit.Option{ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil })}
}

// keepings are the ways to keep the state of any algorithm.
var keepings = map[string]func() []ratelimit.Option{"memory": inMemory, "bytes": inBytes, "limits": withLimits}

var settledBuckets = []settledBucket{
	{"one word", 1, alone, inMemory},
	{"one word of thirds", 3, alone, inMemory},
	{"three words", 7, alone, inMemory},
	{"All", 1, inAll, inMemory},
	{"bytes", 1, alone, inBytes},
	{"bytes of All", 7, inAll, inBytes},
	{"limits", 1, alone, withLimits},
	{"limits of three words", 7, alone, withLimits},
}

// newSettled returns a limiter of a bucket of the given seconds' worth of events, and its clock.
func (b settledBucket) new(t *testing.T, seconds int) (ratelimit.Limiter, *storetest.Clock) {
	t.Helper()
	return at(t, b.limit(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(b.events), Burst: seconds * b.events}), b.opts()...)
}

func eachSettledBucket(t *testing.T, f func(t *testing.T, b settledBucket)) {
	for _, b := range settledBuckets {
		t.Run(b.name, func(t *testing.T) { f(t, b) })
	}
}

// mustHold holds n events of a key that grants them.
func mustHold(t *testing.T, l ratelimit.Limiter, n int) *ratelimit.Reservation {
	t.Helper()
	return held(t, l, "key", n)
}

// mustSettle settles r, and returns what remains.
func mustSettle(t *testing.T, r *ratelimit.Reservation, n int) int {
	t.Helper()
	d, err := r.Settle(ctx, n)
	require.NoError(t, err)
	return d.Remaining
}

// A bucket may be as a hold left it because just as many events have come back of an earlier hold
// as others were granted. What has come back meanwhile does not come back again.
func TestSettleAsTheHoldLeftIt(t *testing.T) {
	eachSettledBucket(t, func(t *testing.T, b settledBucket) {
		for _, others := range []int{3, 5} {
			l, clk := b.new(t, 10)
			first, second := mustHold(t, l, 5*b.events), mustHold(t, l, 5*b.events)
			require.Equal(t, 5*b.events, mustSettle(t, first, 0))
			clk.Advance(4 * time.Second)
			require.True(t, l.AllowN("key", others*b.events))
			// Of five, one is missing still.
			assert.Equal(t, (9-others+1)*b.events, mustSettle(t, second, 0), "%d taken by others", others)
		}
	})
}

// The same, after other events came back, and were granted, more often.
func TestSettleAfterSeveralReturns(t *testing.T) {
	eachSettledBucket(t, func(t *testing.T, b settledBucket) {
		for grants := 1; grants <= 3; grants++ {
			l, clk := b.new(t, 20)
			var holds []*ratelimit.Reservation
			for range 3 {
				holds = append(holds, mustHold(t, l, 4*b.events))
			}
			last := mustHold(t, l, 8*b.events)
			for i, r := range holds {
				clk.Advance(time.Second)
				before, err := l.Peek(ctx, "key")
				require.NoError(t, err)
				back := mustSettle(t, r, 0) - before.Remaining
				require.Positive(t, back)
				if i < grants {
					require.True(t, l.AllowN("key", back))
				}
			}
			clk.Advance(2 * time.Second)
			before, err := l.Peek(ctx, "key")
			require.NoError(t, err)
			assert.Equal(t, before.Remaining+3*b.events, mustSettle(t, last, 0), "of 8, 5 came back in 5 seconds")
		}
	})
}

// If nothing was granted since a hold, all of it comes back, whatever else happened: other holds
// were settled, a reservation was cancelled, and requests were denied.
func TestSettleIfNothingWasGranted(t *testing.T) {
	eachSettledBucket(t, func(t *testing.T, b settledBucket) {
		l, clk := b.new(t, 10)
		first, second := mustHold(t, l, 5*b.events), mustHold(t, l, 5*b.events)
		require.Equal(t, b.events, mustSettle(t, first, 4*b.events))
		require.False(t, l.AllowN("key", 2*b.events))
		clk.Advance(time.Second)
		r, err := l.Reserve(ctx, "key", 9*b.events)
		require.NoError(t, err)
		require.Positive(t, r.Delay())
		r.Cancel()
		_, err = l.Peek(ctx, "key")
		require.NoError(t, err)
		require.False(t, l.AllowN("key", 9*b.events))
		clk.Advance(3 * time.Second)
		assert.Equal(t, 10*b.events, mustSettle(t, second, 0), "4 were taken 4 seconds ago")
	})
}

// The same for holds of several keys.
func TestSettleAllAsTheHoldsLeftIt(t *testing.T) {
	eachSettledBucket(t, func(t *testing.T, b settledBucket) {
		for _, others := range []int{0, 5} {
			l, clk := b.new(t, 10)
			hold := func() *ratelimit.Reservation {
				r, d, err := ratelimit.HoldAll(ctx, 5*b.events, ratelimit.For(l, "key"), ratelimit.For(l, "other"))
				require.NoError(t, err)
				require.True(t, d.Allowed)
				return r
			}
			first, second := hold(), hold()
			clk.Advance(time.Second)
			require.Equal(t, 2*b.events, mustSettle(t, first, 4*b.events))
			clk.Advance(3 * time.Second)
			want := 10
			if others > 0 {
				require.True(t, l.AllowN("key", others*b.events)) // and not of the other key
				want = 1                                          // 10 were missing, one of them of the hold
			}
			assert.Equal(t, want*b.events, mustSettle(t, second, 0), "%d taken by others", others)
			d, err := l.Peek(ctx, "other")
			require.NoError(t, err)
			assert.Equal(t, 10*b.events, d.Remaining)
		}
	})
}

// Holds that are settled last in first out are as if there had been only the first ones.
func TestSettleNested(t *testing.T) {
	for name, store := range stores {
		l, clk := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10}, ratelimit.WithStore(store()), ratelimit.WithName("test"))
		first, second, third := mustHold(t, l, 3), mustHold(t, l, 3), mustHold(t, l, 3)
		for i, r := range []*ratelimit.Reservation{third, second, first} {
			assert.Equal(t, 4+3*i, mustSettle(t, r, 0), name)
		}
		clk.Advance(time.Second)
		assert.Equal(t, 10, take(t, l, 0).Remaining, name)
	}
}

// Whatever is held, settled, reserved and cancelled, no span has more events than the bucket
// bounds.
func TestSettleNeverExceeds(t *testing.T) {
	eachSettledBucket(t, func(t *testing.T, b settledBucket) {
		rnd := newRand(t)
		for range 1500 {
			spanSchedule(t, rnd, b)
		}
	})
}

// A spanHold is what a schedule holds or has reserved.
type spanHold struct {
	*ratelimit.Reservation
	taken
	reserved bool
}

// spanSchedule makes a schedule, and checks its spans. It counts in seconds' worth of events, and
// in halves of seconds.
func spanSchedule(t *testing.T, rnd *rand.Rand, b settledBucket) {
	burst := 1 + rnd.IntN(12)
	l, clk := b.new(t, burst)
	var happened []taken
	var open []spanHold
	var log []string
	logf := func(format string, args ...any) {
		log = append(log, fmt.Sprintf("%v "+format, append([]any{clk.Now().Sub(midnight)}, args...)...))
	}
	happens := func(at time.Time, n int) {
		if n > 0 {
			happened = append(happened, taken{at, n})
		}
	}
	for range 60 {
		switch n := min(burst, 1+rnd.IntN(2)) * b.events; rnd.IntN(14) {
		case 0, 1, 2, 3:
			r, d, err := l.Hold(ctx, "key", n)
			require.NoError(t, err)
			if d.Allowed {
				logf("hold %d", n)
				open = append(open, spanHold{Reservation: r, taken: taken{clk.Now(), n}})
			}
		case 4, 5:
			if rnd.IntN(3) == 0 {
				n = burst * b.events
			}
			granted, _, err := l.TakeUpTo(ctx, "key", n)
			require.NoError(t, err)
			logf("take %d of %d", granted, n)
			happens(clk.Now(), granted)
		case 6:
			if l.AllowN("key", n) {
				logf("allow %d", n)
				happens(clk.Now(), n)
			}
		case 7:
			r, err := l.Reserve(ctx, "key", n)
			require.NoError(t, err)
			logf("reserve %d in %v", n, r.Delay())
			open = append(open, spanHold{r, taken{clk.Now().Add(r.Delay()), n}, true})
		case 8, 9, 10:
			if len(open) == 0 {
				continue
			}
			i := rnd.IntN(len(open))
			h := open[i]
			open = slices.Delete(open, i, i+1)
			if h.reserved && rnd.IntN(2) == 0 {
				if logf("cancel %d", h.n); h.at.Before(clk.Now()) {
					happens(h.at, h.n)
				}
				h.Cancel()
				continue
			}
			n := rnd.IntN(h.n + 1)
			if rnd.IntN(3) > 0 {
				n = 0
			}
			logf("settle %d, held at %v, with %d", h.n, h.at.Sub(midnight), n)
			mustSettle(t, h.Reservation, n)
			happens(h.at, n)
		default:
			clk.Advance(time.Duration(rnd.IntN(7)) * time.Second / 2)
		}
	}
	for _, h := range open {
		happens(h.at, h.n)
	}
	slices.SortStableFunc(happened, func(a, b taken) int { return a.at.Compare(b.at) })
	for i, first := range happened {
		sum := 0
		for _, last := range happened[i:] {
			sum += last.n
			span := last.at.Sub(first.at)
			most := burst*b.events + int(span*time.Duration(b.events)/time.Second)
			require.LessOrEqual(t, sum, most, "in the %v after %v:\n%v", span, first.at.Sub(midnight), log)
		}
	}
}

// What a store remembers of keys whose events came back is dropped with the keys: a client that
// sends pairs of requests with new keys does not fill the memory.
func TestSettledKeysAreForgotten(t *testing.T) {
	store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(1000))
	l, clk := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerDay(10)}, ratelimit.WithStore(store), ratelimit.WithName("test"))
	empty := store.Stats().Bytes
	for i := range 30_000 {
		key := fmt.Sprint(i)
		first, _, err := l.Hold(ctx, key, 1)
		require.NoError(t, err)
		_, _, err = l.Hold(ctx, key, 1)
		require.NoError(t, err)
		_, err = first.Settle(ctx, 0)
		require.NoError(t, err)
	}
	assert.Less(t, store.Stats().Bytes, uint64(500_000))
	clk.Advance(48 * time.Hour)
	store.Shrink()
	assert.Less(t, store.Stats().Bytes, empty+8_000)
}

// Settle keeps the law if a key was forgotten because it was idle.
func TestSettleAfterTheKeyWasIdle(t *testing.T) {
	store := ratelimit.NewMemoryStore()
	l, clk := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10}, ratelimit.WithStore(store), ratelimit.WithName("test"))
	require.True(t, l.Allow("key")) // the first hold of a key would be kept in another way
	clk.Advance(time.Second)
	var holds [2]*ratelimit.Reservation
	for i := range holds {
		var err error
		holds[i], _, err = l.Hold(ctx, "key", 5)
		require.NoError(t, err)
	}
	_, err := holds[0].Settle(ctx, 0)
	require.NoError(t, err)
	clk.Advance(6 * time.Second)
	store.Shrink()
	require.Zero(t, store.Len())
	require.True(t, l.AllowN("key", 4))
	d, err := holds[1].Settle(ctx, 0)
	require.NoError(t, err)
	assert.Equal(t, 6, d.Remaining)
}

// A hold of several keys comes back in full if nothing was granted since, although an earlier hold came
// back before it was made.
func TestSettleLawOfHoldAll(t *testing.T) {
	ctx := t.Context()
	l, clk := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10})
	first := held(t, l, "k", 5)
	held(t, l, "k", 3)
	clk.Advance(time.Second)
	_, err := first.Settle(ctx, 0) // gives all of them back: the others were granted at the same instant
	require.NoError(t, err)
	r, d, err := ratelimit.HoldAll(ctx, 2, ratelimit.For(l, "k"), ratelimit.For(l, "other"))
	require.NoError(t, err)
	require.Equal(t, 6, d.Remaining)
	clk.Advance(time.Second)
	_, err = r.Settle(ctx, 0)
	require.NoError(t, err)
	d, err = l.Peek(ctx, "k")
	require.NoError(t, err)
	assert.Equal(t, 9, d.Remaining, "8 without the hold, and a second")
}
