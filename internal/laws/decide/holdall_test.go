package decide_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// A keptAll is a place in which a HoldAll holds: of returns a limiter there, and a second one of the same
// name is that of another process.
type keptAll struct {
	name string
	of   func(alg ratelimit.Algorithm) ratelimit.Limiter
}

// keptAlls are those whose keys are decided on together, and apart.
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

// The events of a HoldAll last from when they leave the queue of a LeakyBucket, as those of an All do: in every
// key, wherever it is, whether its queue is the longest or it has none.
func TestHoldAll_OfAQueue(t *testing.T) {
	clk := stepclock.New()
	parts := ratelimit.All{
		ratelimit.InFlight{Limit: 10, Timeout: time.Hour},
		ratelimit.LeakyBucket{Rate: ratelimit.PerHour(200), Capacity: 10},
		ratelimit.All{ratelimit.LeakyBucket{Rate: ratelimit.PerHour(400), Capacity: 10}},
	}
	for _, kept := range append(keptAlls(clk), keptAll{name: "several"}) {
		t.Run(kept.name, func(t *testing.T) {
			joint := newJointStore()
			var bounds []ratelimit.Bound
			for i, part := range parts {
				switch {
				case kept.of != nil:
					bounds = append(bounds, ratelimit.For(kept.of(part), "key"))
				case i == 1: // the longest queue is in memory, and the others are not
					bounds = append(bounds, ratelimit.For(ratelimit.Must(ratelimit.New(part, ratelimit.WithClock(clk))), "key"))
				default:
					bounds = append(bounds, ratelimit.For(joint.of(clk, part), "key"))
				}
			}
			all := ratelimit.Must(ratelimit.New(parts, ratelimit.WithClock(clk)))
			for range 3 {
				r, d, err := ratelimit.HoldAll(t.Context(), 1, bounds...)
				require.NoError(t, err)
				want, wanted, err := all.Hold(t.Context(), "key", 1)
				require.NoError(t, err)
				require.Equal(t, wanted.ResetAfter, d.ResetAfter)
				require.Equal(t, wanted.Delay, d.Delay)
				require.Equal(t, wanted.Delay, want.Delay())
				for i, held := range r.Parts() {
					part, err := ratelimit.Resume(t.Context(), bounds[i].Limiter(), "key", held.Token())
					require.NoError(t, err)
					require.Equal(t, wanted.Delay, part.Delay(), "the hold of bounds[%d] may happen then", i)
				}
			}
			clk.Advance(time.Hour + 36*time.Second - 1) // the last one has left the queue after 36 s
			d, err := bounds[0].Limiter().Peek(t.Context(), bounds[0].Key())
			require.NoError(t, err)
			require.Equal(t, 9, d.Remaining)
			clk.Advance(1)
			d, err = bounds[0].Limiter().Peek(t.Context(), bounds[0].Key())
			require.NoError(t, err)
			require.Equal(t, 10, d.Remaining)
		})
	}
}

// lasting is a limiter that New has not made, whose holds last for five hours.
type lasting struct{ ratelimit.Limiter }

func (w lasting) Hold(ctx context.Context, key string, n int, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return w.Limiter.Hold(ctx, key, n, append(opts, ratelimit.HoldFor(5*time.Hour))...)
}

// A queue makes a hold last later, but as long as its own limiter says.
func TestHoldAll_OfAQueueAndAWrapper(t *testing.T) {
	clk := stepclock.New()
	queue := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerHour(200), Capacity: 10}, ratelimit.WithClock(clk)))
	other := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 10, Timeout: time.Hour}, ratelimit.WithClock(clk)))
	require.True(t, queue.Allow("key"))
	r, _, err := ratelimit.HoldAll(t.Context(), 1, ratelimit.For(queue, "key"), ratelimit.For(lasting{other}, "key"))
	require.NoError(t, err)
	clk.Advance(18*time.Second + 5*time.Hour - 1)
	require.Equal(t, []int{9}, remaining(t, ratelimit.For(other, "key")))
	clk.Advance(1)
	require.Equal(t, []int{10}, remaining(t, ratelimit.For(other, "key")))
	require.NotNil(t, r)
}

// inextensible is a store that fails to move the end of a hold.
type inextensible struct{ *jointStates }

func (s inextensible) Open(string, *limit.Limit, time.Duration) (limit.States, error) { return s, nil }

func (s inextensible) Apply(ctx context.Context, key string, t *limit.Limit, req kernel.Request) (kernel.Answer, error) {
	if req.Op == kernel.OpExtend {
		return kernel.Answer{}, errors.ErrUnsupported
	}
	return s.jointStates.Apply(ctx, key, t, req)
}

// Events are held even if the store cannot let them last from the end of a queue.
func TestHoldAll_OfAQueueWhoseStoreFails(t *testing.T) {
	clk := stepclock.New()
	queue := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerHour(200), Capacity: 10}, ratelimit.WithClock(clk)))
	store := inextensible{jointStates: &jointStates{jointStore: newJointStore(), name: "other"}}
	other := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 10, Timeout: time.Hour}, ratelimit.WithClock(clk), ratelimit.WithStore(store), ratelimit.WithName("other"), ratelimit.WithFailurePolicy(ratelimit.FailClosed)))
	require.True(t, queue.Allow("key"))
	r, d, err := ratelimit.HoldAll(t.Context(), 1, ratelimit.For(queue, "key"), ratelimit.For(other, "key"))
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.True(t, d.Allowed)
	require.False(t, d.Degraded)
	require.Equal(t, []int{9}, remaining(t, ratelimit.For(other, "key")))
	require.NoError(t, r.Release(t.Context()))
	require.Equal(t, []int{10}, remaining(t, ratelimit.For(other, "key")))
}

// Each key of a HoldAll is held as its options say, and one that is given twice as those of the first.
func TestHoldAll_Options(t *testing.T) {
	clk := stepclock.New()
	for _, kept := range keptAlls(clk) {
		t.Run(kept.name, func(t *testing.T) {
			l, flight := kept.of(ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour}), kept.of(ratelimit.InFlight{Limit: 10, Timeout: time.Hour})
			bounds := []ratelimit.Bound{
				ratelimit.For(l, "usual"), ratelimit.For(l, "back", ratelimit.GiveBack()), ratelimit.For(l, "short", ratelimit.HoldFor(time.Minute), ratelimit.GiveBack()).N(3),
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
	opts := []ratelimit.HoldOption{ratelimit.HoldFor(time.Minute), ratelimit.GiveBack()}
	b := ratelimit.For(l, "key", opts...)
	opts[0] = nil
	_, _, err := ratelimit.HoldAll(ctx, 3, b)
	require.NoError(t, err)
	_, _, err = ratelimit.HoldAll(ctx, 3, ratelimit.For(l, "key", ratelimit.HoldFor(time.Minute), ratelimit.GiveBack(), ratelimit.HoldFor(2*time.Minute))) // the last one decides
	require.NoError(t, err)
	assert.Equal(t, []int{4}, remaining(t, b))
	clk.Advance(time.Minute)
	assert.Equal(t, []int{7}, remaining(t, b))
	clk.Advance(time.Minute)
	assert.Equal(t, []int{10}, remaining(t, b))

	for _, opt := range []ratelimit.HoldOption{nil, ratelimit.HoldFor(0)} {
		wrong := ratelimit.For(l, "key", ratelimit.GiveBack(), opt)
		_, _, err := ratelimit.HoldAll(ctx, 1, b, wrong)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		_, err = ratelimit.TakeAll(ctx, 1, b, wrong)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
	assert.Equal(t, []int{10}, remaining(t, b))
}

// Another process settles exactly what a HoldAll holds, key by key. A key that is given twice has one part, at both
// of its places.
func TestParts(t *testing.T) {
	clk := stepclock.New()
	for _, kept := range keptAlls(clk) {
		t.Run(kept.name, func(t *testing.T) {
			bounds := func() []ratelimit.Bound {
				l, flight := kept.of(ratelimit.FixedWindow{Limit: 100, Window: time.Hour}), kept.of(ratelimit.InFlight{Limit: 100, Timeout: time.Hour})
				return []ratelimit.Bound{ratelimit.For(l, "a").N(1), ratelimit.For(l, "b").N(20), ratelimit.For(flight, "c").N(3), ratelimit.For(l, "a").N(4), ratelimit.For(l, "none").N(0)}
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
				r, err := ratelimit.Resume(t.Context(), elsewhere[i].Limiter(), elsewhere[i].Key(), parts[i].Token())
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
