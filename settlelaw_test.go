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
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The tests in this file check what Settle gives back of a continuous TokenBucket, in all forms of its
// state: as much as if the other events had never been taken, so that no span has more events than the
// bucket bounds. TestSettleSchedules checks it for all algorithms.

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
		for range budget.Histories(300, 1500) {
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
