package decide_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// A keptAll is a store for the keys of a HoldAll. Its function of returns a limiter on the store. A
// second limiter of the same name is that of another process.
type keptAll struct {
	name string
	of   func(alg ratelimit.Algorithm) ratelimit.Limiter
}

// keptAlls are stores that decide on several keys together, and stores that decide on each key
// apart.
func keptAlls(clk *stepclock.Clock) (all []keptAll) {
	for _, name := range []string{"memory", "together", "apart", "wrappers"} {
		memory, joint := new(ratelimit.MemoryStore), newJointStore()
		joint.undecided = name == "apart"
		all = append(all, keptAll{name, func(alg ratelimit.Algorithm) ratelimit.Limiter {
			switch name {
			case "memory":
				return ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(memory), ratelimit.WithClock(clk), ratelimit.WithName(fmt.Sprintf("%T", alg))))
			case "wrappers":
				return fakes.Wrapped{Limiter: joint.of(clk, alg)}
			}
			return joint.of(clk, alg)
		}})
	}
	return all
}

func remaining(t *testing.T, bounds ...ratelimit.Bound) (left []int) {
	t.Helper()
	for _, b := range bounds {
		d, err := b.Limiter().Peek(t.Context(), b.Key())
		require.NoError(t, err)
		left = append(left, d.Remaining)
	}
	return left
}

// Each key of a HoldAll is held from when the events of all may leave the queues of their
// LeakyBuckets, as an All of them is: otherwise, what is in flight would end by itself while it
// waits for another key, or soon after, and more than the Limit would run at once.
func TestHoldAll_OfAQueue(t *testing.T) {
	for i := range keptAlls(stepclock.New()) {
		clk := stepclock.New()
		kept := keptAlls(clk)[i]
		t.Run(kept.name, func(t *testing.T) {
			flight := ratelimit.InFlight{Limit: 10, Timeout: time.Minute}
			algs := []ratelimit.Algorithm{
				flight,
				ratelimit.LeakyBucket{Rate: ratelimit.PerHour(20), Capacity: 10},
				ratelimit.All{flight, ratelimit.LeakyBucket{Rate: ratelimit.PerHour(60), Capacity: 10}},
				ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour},
			}
			var bounds []ratelimit.Bound
			var all ratelimit.All // of all but the All
			for i, alg := range algs {
				bounds = append(bounds, ratelimit.For(kept.of(alg), fmt.Sprint(i), ratelimit.HoldFor(time.Minute), ratelimit.GiveBack()))
				if _, ok := alg.(ratelimit.All); !ok {
					all = append(all, alg)
				}
			}
			alone := ratelimit.Must(ratelimit.New(all, ratelimit.WithClock(clk)))
			flying := ratelimit.Must(ratelimit.New(flight, ratelimit.WithClock(clk)))
			for i := range 4 { // delayed for 0, 3, 6 and 9 minutes
				r, got, err := ratelimit.HoldAll(t.Context(), 1, bounds...)
				require.NoError(t, err)
				_, want, err := alone.Hold(t.Context(), "key", 1, ratelimit.HoldFor(time.Minute), ratelimit.GiveBack())
				require.NoError(t, err)
				require.Equal(t, want.Delay, got.Delay)
				require.Equal(t, time.Duration(i)*3*time.Minute, got.Delay)
				for _, part := range r.Parts() {
					require.Equal(t, got.Delay, part.Delay())
				}
				_, _, err = flying.Hold(t.Context(), "key", 1, ratelimit.HoldFor(got.Delay+time.Minute))
				require.NoError(t, err)
			}
			for range 4 {
				clk.Advance(time.Minute - 1)
				for range 2 { // before a hold ends, and when it does
					in, err := flying.Peek(t.Context(), "key")
					require.NoError(t, err)
					left := remaining(t, bounds...)
					require.Equal(t, in.Remaining, left[0])
					require.Equal(t, in.Remaining, min(left[2], left[3]))
					require.Equal(t, in.Remaining, left[3])
					whole, err := alone.Peek(t.Context(), "key")
					require.NoError(t, err)
					require.Equal(t, whole.Remaining, min(left[0], left[1], left[3]))
					clk.Advance(1)
				}
				clk.Advance(2*time.Minute - 1)
			}
			require.Equal(t, []int{10, 10, 10, 10}, remaining(t, bounds...))
		})
	}
}

// Each key of a HoldAll is held with the options of its Bound. A key that is given twice is held
// with the options of the first Bound.
func TestHoldAll_Options(t *testing.T) {
	clk := stepclock.New()
	for _, kept := range keptAlls(clk) {
		t.Run(kept.name, func(t *testing.T) {
			l, flight := kept.of(ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour}), kept.of(ratelimit.InFlight{Limit: 10, Timeout: time.Hour})
			bounds := []ratelimit.Bound{
				ratelimit.For(l, "usual"), ratelimit.For(l, "back", ratelimit.GiveBack()),
				ratelimit.For(l, "short", ratelimit.HoldFor(time.Minute), ratelimit.GiveBack()).N(3),
				ratelimit.For(l, "usual", ratelimit.GiveBack()), ratelimit.For(flight, "flight"),
			}
			r, d, err := ratelimit.HoldAll(t.Context(), 1, bounds...)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			assert.Equal(t, []int{8, 9, 7, 8, 9}, remaining(t, bounds...))
			clk.Advance(time.Minute)
			assert.Equal(t, []int{8, 9, 10, 8, 9}, remaining(t, bounds...))
			clk.Advance(9 * time.Minute)
			assert.Equal(t, []int{8, 10, 10, 8, 9}, remaining(t, bounds...))
			clk.Advance(50 * time.Minute)
			assert.Equal(t, []int{8, 10, 10, 8, 10}, remaining(t, bounds...))
			_, err = r.Settle(t.Context(), 0, 0, 3, 0, 0)
			require.NoError(t, err)
			assert.Equal(t, []int{8, 10, 10, 8, 10}, remaining(t, bounds...), "they have ended")
		})
	}
}

func TestFor_Options(t *testing.T) {
	ctx, clk := t.Context(), stepclock.New()
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour}, ratelimit.WithClock(clk)))
	opts := []ratelimit.EndOption{ratelimit.HoldFor(time.Minute), ratelimit.GiveBack()}
	b := ratelimit.For(l, "key", opts...)
	opts[0] = nil
	_, _, err := ratelimit.HoldAll(ctx, 3, b)
	require.NoError(t, err)
	// the last one decides
	_, _, err = ratelimit.HoldAll(ctx, 3, ratelimit.For(l, "key", ratelimit.HoldFor(time.Minute),
		ratelimit.GiveBack(), ratelimit.HoldFor(2*time.Minute)))
	require.NoError(t, err)
	assert.Equal(t, []int{4}, remaining(t, b))
	clk.Advance(time.Minute)
	assert.Equal(t, []int{7}, remaining(t, b))
	clk.Advance(time.Minute)
	assert.Equal(t, []int{10}, remaining(t, b))

	for _, opt := range []ratelimit.EndOption{nil, ratelimit.HoldFor(0)} {
		wrong := ratelimit.For(l, "key", ratelimit.GiveBack(), opt)
		_, _, err := ratelimit.HoldAll(ctx, 1, b, wrong)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		_, err = ratelimit.TakeAll(ctx, 1, b, wrong)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
	assert.Equal(t, []int{10}, remaining(t, b))
}

// Another process settles exactly what a HoldAll holds, key by key. A key that is given twice has
// one part, at both of its places.
func TestParts(t *testing.T) {
	clk := stepclock.New()
	for _, kept := range keptAlls(clk) {
		t.Run(kept.name, func(t *testing.T) {
			bounds := func() []ratelimit.Bound {
				l, flight := kept.of(ratelimit.FixedWindow{Limit: 100, Window: time.Hour}), kept.of(ratelimit.InFlight{Limit: 100, Timeout: time.Hour})
				return []ratelimit.Bound{
					ratelimit.For(l, "a").N(1),
					ratelimit.For(l, "b").N(20),
					ratelimit.For(flight, "c").N(3),
					ratelimit.For(l, "a").N(4),
					ratelimit.For(l, "none").N(0),
				}
			}
			all, _, err := ratelimit.HoldAll(t.Context(), 7, bounds()...)
			require.NoError(t, err)
			assert.Equal(t, []int{95, 80, 97, 95, 100}, remaining(t, bounds()...))
			assert.Empty(t, all.Token())
			parts := all.Parts()
			require.Len(t, parts, 5)
			assert.Same(t, parts[0], parts[3])
			assert.Empty(t, parts[4].Token(), "nothing is held")
			elsewhere := bounds()
			for i, happened := range []int{3, 25, 3} {
				r, err := elsewhere[i].Limiter().Resume(t.Context(), elsewhere[i].Key(), parts[i].Token())
				require.NoError(t, err)
				require.NoError(t, r.Extend(t.Context(), time.Hour))
				assert.Equal(t, parts[i].Token(), r.Token())
				_, err = r.Settle(t.Context(), happened)
				require.NoError(t, err)
			}
			assert.Equal(t, []int{97, 75, 100, 97, 100}, remaining(t, bounds()...))
			_, err = all.Settle(t.Context(), 0)
			require.NoError(t, err)
			assert.Equal(t, []int{97, 75, 100, 97, 100}, remaining(t, bounds()...), "it was settled")

			part, _, err := bounds()[0].Limiter().Hold(t.Context(), bounds()[0].Key(), 1)
			require.NoError(t, err)
			assert.Equal(t, []*ratelimit.Reservation{part}, part.Parts())
			part.Cancel()
			assert.Nil(t, (*ratelimit.Reservation)(nil).Parts())
		})
	}
}

// A key that is given several times is extended once.
func TestHoldAll_ExtendsAKeyOnce(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5)}))
	r, _, err := ratelimit.HoldAll(t.Context(), 1, ratelimit.For(l, "key"), ratelimit.For(l, "key"))
	require.NoError(t, err)
	require.NoError(t, r.Extend(t.Context(), time.Hour))
	require.NoError(t, l.Reset(t.Context(), "key"))
	require.EqualError(t, r.Extend(t.Context(), time.Hour), ratelimit.ErrEnded.Error())
}

// TestHoldAll_OfManyBounds: keys that are given several times among many are one key, of each
// limiter, as they are among few.
func TestHoldAll_OfManyBounds(t *testing.T) {
	const keys = 100
	window := ratelimit.FixedWindow{Limit: 5, Window: time.Hour}
	for i := range keptAlls(stepclock.New()) {
		kept := keptAlls(stepclock.New())[i]
		t.Run(kept.name, func(t *testing.T) {
			l := kept.of(window)
			other := ratelimit.Must(ratelimit.New(window))
			var bounds []ratelimit.Bound
			var ns []int
			for i := range 3 * keys {
				bounds = append(bounds, ratelimit.For(l, fmt.Sprint(i%keys)), ratelimit.For(other, fmt.Sprint(i%keys)))
				ns = append(ns, i/keys, 0) // 0, 1 and 2 of each key
			}
			r, d, err := ratelimit.HoldAll(t.Context(), 1, bounds...)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			assert.Equal(t, 2, d.Remaining)
			for i, p := range r.Parts() {
				assert.Same(t, r.Parts()[i%(2*keys)], p)
			}
			require.NoError(t, r.Extend(t.Context(), time.Hour))
			_, err = r.Settle(t.Context(), ns...)
			require.NoError(t, err)
			for i := range 2 * keys {
				assert.Equal(t, []int{2, 5}[i%2], remaining(t, bounds[i])[0], "bounds[%d]", i)
			}
			d, err = ratelimit.TakeAll(t.Context(), 1, bounds...)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "the sum is 3 of each key, and l has 2 left")
		})
	}
}
