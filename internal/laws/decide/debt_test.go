package decide_test

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// ticking are the stores for debts, and their ticks.
var ticking = map[string]struct {
	tick  time.Duration
	store func(clk *storetest.Clock) ratelimit.Store
}{
	"memory":   {1, func(*storetest.Clock) ratelimit.Store { return new(ratelimit.MemoryStore) }},
	"bytes":    {1, func(*storetest.Clock) ratelimit.Store { return fakes.NewMapDB().Store() }},
	"portable": {time.Microsecond, func(clk *storetest.Clock) ratelimit.Store { return fakes.NewPortable(clk) }},
}

// eachDebt runs f for algorithms of every kind and each kind of store.
func eachDebt(t *testing.T, f func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock, alg ratelimit.Algorithm, tick time.Duration)) {
	for storeName, s := range ticking {
		for name, alg := range storetest.Algorithms() {
			t.Run(storeName+"/"+name, func(t *testing.T) {
				clk := storetest.NewClock(fakes.Midnight)
				logger, logged := fakes.Log()
				l, err := ratelimit.New(alg, ratelimit.WithClock(clk), ratelimit.WithStore(s.store(clk)),
					ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
					ratelimit.WithFailureLog(logger))
				require.NoError(t, err)
				f(t, l, clk, alg, s.tick)
				require.Empty(t, logged(), "no state is unreadable, also to calls that return no error")
			})
		}
	}
}

// While a debt lasts, Remaining is 0, and RetryAfter is the first tick at which it is paid and
// the request fits. Nothing is granted ahead of it.
func TestDebt(t *testing.T) {
	eachDebt(t, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock, alg ratelimit.Algorithm, tick time.Duration) {
		rnd := fakes.Rand(t)
		peek := func() ratelimit.Decision {
			d, err := l.Peek(ctx, "key")
			require.NoError(t, err)
			return d
		}
		for range 20 {
			l.AllowN("key", peek().Remaining)
			debt := 1 + rnd.IntN(2*min(peek().Limit, 1000))
			before := peek()
			d, err := l.Charge(ctx, "key", debt)
			if errors.Is(err, ratelimit.ErrDebt) {
				require.Equal(t, before, peek())
				clk.Advance(max(tick, before.ResetAfter))
				continue
			}
			require.NoError(t, err)
			require.Equal(t, d, peek(), "Charge answers as Peek does afterwards")
			require.False(t, d.Allowed)
			require.Zero(t, d.Remaining)
			if before.RetryAfter < ratelimit.Never && d.RetryAfter < ratelimit.Never {
				require.GreaterOrEqual(t, d.RetryAfter, before.RetryAfter)
			}
			for looks := 0; !d.Allowed && looks < 1000; looks++ {
				require.Zero(t, d.RetryAfter%tick)
				if d.RetryAfter > 50*365*24*time.Hour {
					return
				}
				clk.Advance(d.RetryAfter - tick)
				require.False(t, peek().Allowed, "one tick before %v", d.RetryAfter)
				if !countsDenied(alg) {
					require.False(t, l.Allow("key"))
				}
				clk.Advance(tick)
				d = peek()
			}
			require.True(t, d.Allowed, "RetryAfter is exact")
			require.True(t, l.Allow("key"))
		}
	})
}

func countsDenied(alg ratelimit.Algorithm) bool {
	switch alg := alg.(type) {
	case ratelimit.SlidingLog:
		return alg.CountDenied
	case ratelimit.All:
		for _, part := range alg {
			if countsDenied(part) {
				return true
			}
		}
	}
	return false
}

var canHold = regexp.MustCompile(`can hold (\d+) more$`)

// TestDebtOfAnAllWithAShortWindow: however short a window is, there is room for as great a debt as in any other.
func TestDebtOfAnAllWithAShortWindow(t *testing.T) {
	for _, window := range []time.Duration{time.Second, time.Millisecond, time.Microsecond, 1} {
		window := ratelimit.FixedWindow{Limit: 1, Window: window}
		l, _ := fakes.At(t, ratelimit.All{window, ratelimit.Lockout{Limit: 5, Window: time.Hour, First: time.Minute}})
		_, err := l.Charge(t.Context(), "key", math.MaxInt32)
		assert.NoError(t, err, window)
	}
}

// A debt is bounded by what a state can hold. The error says how much that is, and nothing is
// counted. Numbers near the bound overflow nowhere.
func TestDebtBound(t *testing.T) {
	eachDebt(t, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock, alg ratelimit.Algorithm, tick time.Duration) {
		l.Allow("key")
		peek := func() ratelimit.Decision {
			d, err := l.Peek(ctx, "key")
			require.NoError(t, err)
			return d
		}
		before := peek()
		for charges := 0; ; charges++ {
			d, err := l.Charge(ctx, "key", math.MaxInt)
			require.Equal(t, peek(), d)
			if err == nil { // a state that can hold several
				require.Less(t, charges, 1<<22, "there is an end")
				before = d
				if charges > 1<<10 {
					return // the machine's int is short
				}
				continue
			}
			require.ErrorIs(t, err, ratelimit.ErrDebt)
			require.Equal(t, before, d, "nothing is counted")
			text := canHold.FindStringSubmatch(err.Error())
			require.NotNil(t, text, err.Error())
			most, err := strconv.ParseUint(text[1], 10, 64)
			require.NoError(t, err)
			if most >= math.MaxInt {
				t.Fatalf("%d more do not fit, but %d would", math.MaxInt, most)
			}
			d, err = l.Charge(ctx, "key", int(most))
			require.NoError(t, err)
			require.Equal(t, peek(), d)
			require.GreaterOrEqual(t, d.ResetAfter, before.ResetAfter)
			if most > uint64(before.Remaining) {
				require.False(t, d.Allowed)
				require.Zero(t, d.Remaining)
			}
			_, err = l.Charge(ctx, "key", 1)
			require.ErrorIs(t, err, ratelimit.ErrDebt)
			break
		}
		// All operations still work.
		r, _, err := l.Reserve(ctx, "key", 1)
		require.NoError(t, err)
		if r != nil {
			r.Cancel()
			_, err = r.Settle(ctx, 5)
			require.ErrorIs(t, err, ratelimit.ErrEnded)
		}
		for range 8 {
			d := peek()
			if r, held, err := l.Hold(ctx, "key", 1); r != nil {
				require.NoError(t, err)
				require.True(t, d.Allowed)
				_, err = r.Settle(ctx, 0)
				require.NoError(t, err)
			} else {
				require.NoError(t, err)
				require.False(t, held.Allowed)
			}
			clk.Advance(min(50*365*24*time.Hour/8, max(tick, d.RetryAfter)))
		}
	})
}

// If a state has no room for a debt, the events that were held still count. Of several keys, they
// count only in the keys that are not settled.
func TestReleaseWithoutRoomForADebt(t *testing.T) {
	small, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerDay(5)})
	large := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1 << 20, Window: time.Hour}, ratelimit.WithClock(clk)))
	cost := 1 << 19 // the bucket would need centuries
	for name, make := range map[string]func() (*ratelimit.Reservation, ratelimit.Decision, error){
		"Hold": func() (*ratelimit.Reservation, ratelimit.Decision, error) { return small.Hold(ctx, "key", 2) },
		"HoldAll": func() (*ratelimit.Reservation, ratelimit.Decision, error) {
			return ratelimit.HoldAll(ctx, 2, ratelimit.For(small, "keys"), ratelimit.For(large, "keys"))
		},
	} {
		hold, _, err := make()
		require.NoError(t, err, name)
		settle := func() error {
			_, err := hold.Settle(ctx, cost)
			if errors.Is(err, ratelimit.ErrDebt) {
				err = hold.Release(ctx)
			}
			return err
		}
		require.NoError(t, settle(), name)
	}
	for key, want := range map[*ratelimit.Limiter]map[string]int{&small: {"key": 3, "keys": 3}, &large: {"keys": 1 << 19}} {
		for k, remaining := range want {
			d, err := (*key).Peek(ctx, k)
			require.NoError(t, err)
			assert.Equal(t, remaining, d.Remaining, k)
		}
	}
}

// A hold that cannot be settled for want of room in the state stays as it was, and can be
// settled again.
func TestSettleBeyondTheBound(t *testing.T) {
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 10, Window: time.Second}, ratelimit.WithStore(store()), ratelimit.WithName("test"))
			r, _, err := l.Hold(ctx, "key", 4)
			require.NoError(t, err)
			n := math.MaxInt
			if strconv.IntSize == 32 {
				for range 4 { // four times more than that fits into the word
					_, err = l.Charge(ctx, "key", math.MaxInt)
					if err != nil {
						break
					}
				}
			}
			d, err := r.Settle(ctx, n)
			if err == nil && strconv.IntSize == 32 {
				t.Skip("the state holds more than an int")
			}
			require.ErrorIs(t, err, ratelimit.ErrDebt)
			assert.ErrorContains(t, err, fmt.Sprint(n-4, " more, and"))
			peek, err := l.Peek(ctx, "key")
			require.NoError(t, err)
			assert.Equal(t, peek, d)
			d, err = r.Settle(ctx, 3)
			require.NoError(t, err)
			if strconv.IntSize == 64 {
				assert.Equal(t, 7, d.Remaining)
			}
		})
	}
}
