package decide_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// The tests in this file check what TakeUpTo promises beyond a Take of what remains. TestModel
// compares it with its definition, and TestUpToOfManyCallers calls it from many goroutines.

// More than the limit may be asked for. No events are always granted, and fewer are an error.
func TestUpToAnyNumber(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, keeping := range fakes.Keepings {
		window := ratelimit.FixedWindow{Limit: 4, Window: time.Hour}
		l := ratelimit.Must(ratelimit.New(window, append(keeping(), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New()))...))
		for _, tt := range []struct {
			ctx        context.Context
			n, granted int
			want       ratelimit.Decision
			err        error
		}{
			{t.Context(), -1, 0, ratelimit.Decision{}, ratelimit.ErrInvalid},
			{ended, 2, 0, ratelimit.Decision{}, context.Canceled},
			{t.Context(), 0, 0, ratelimit.Decision{Allowed: true, Limit: 4, Remaining: 4}, nil},
			{t.Context(), 1, 1, ratelimit.Decision{Allowed: true, Limit: 4, Remaining: 3, ResetAfter: time.Hour}, nil},
			{t.Context(), 99, 3, ratelimit.Decision{Allowed: true, Limit: 4, ResetAfter: time.Hour}, nil},
			{t.Context(), 99, 0, ratelimit.Decision{Limit: 4, RetryAfter: time.Hour, ResetAfter: time.Hour}, nil},
			{t.Context(), 0, 0, ratelimit.Decision{Allowed: true, Limit: 4, ResetAfter: time.Hour}, nil},
		} {
			granted, d, err := l.TakeUpTo(tt.ctx, "key", tt.n)
			require.ErrorIs(t, err, tt.err, name)
			assert.Equal(t, tt.granted, granted, "%s: %d", name, tt.n)
			assert.Equal(t, tt.want, d, "%s: %d", name, tt.n)
		}
		require.NoError(t, l.Reset(t.Context(), "key"))
	}
}

// The part of an All with the fewest events remaining says how many are granted, and Part which one
// that is.
func TestUpToTheLeastPart(t *testing.T) {
	clk := stepclock.New()
	l := ratelimit.Must(ratelimit.New(ratelimit.All{
		ratelimit.FixedWindow{Limit: 5, Window: time.Minute},
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(8)},
	}, ratelimit.WithClock(clk)))
	for _, want := range []struct{ granted, part int }{{5, 0}, {3, 1}, {0, 1}} {
		granted, d, err := l.TakeUpTo(t.Context(), "key", 100)
		require.NoError(t, err)
		assert.Equal(t, want.granted, granted)
		assert.Equal(t, want.part, d.Part)
		clk.Advance(time.Minute)
	}
}

// Events that are held are not there, and come back when the hold is settled or, as RetryAfter
// says, ends by itself.
func TestUpToWhatIsNotHeld(t *testing.T) {
	for name, open := range fakes.Stores {
		clk := stepclock.New()
		l := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 9, Window: time.Hour},
			ratelimit.WithStore(open()), ratelimit.WithName("test"), ratelimit.WithClock(clk)))
		held, _, err := l.Hold(t.Context(), "key", 6, ratelimit.HoldFor(time.Minute), ratelimit.GiveBack())
		require.NoError(t, err)
		for _, granted := range []int{3, 0} {
			got, d, err := l.TakeUpTo(t.Context(), "key", 8)
			require.NoError(t, err)
			assert.Equal(t, granted, got, name)
			if granted == 0 {
				assert.Equal(t, time.Minute, d.RetryAfter, "%s: when one event comes back", name)
			}
		}
		_, err = held.Settle(t.Context(), 4)
		require.NoError(t, err)
		got, _, err := l.TakeUpTo(t.Context(), "key", 8)
		require.NoError(t, err)
		assert.Equal(t, 2, got, name)
	}
}

func TestUpToAllocations(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(50)}, ratelimit.SlidingWindow{Limit: 50, Window: time.Hour, Segments: 4},
	} {
		l, ctx := ratelimit.Must(ratelimit.New(alg)), t.Context()
		assert.Zero(t, testing.AllocsPerRun(100, func() { _, _, _ = l.TakeUpTo(ctx, "key", 3) }), "%T", alg)
	}
}
