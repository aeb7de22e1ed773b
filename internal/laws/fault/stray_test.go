package fault_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// holdable are the algorithms of the tests below. Their limits are 5, and nothing comes back by
// itself while a test runs.
var holdable = map[string]ratelimit.Algorithm{
	"InFlight":      ratelimit.InFlight{Limit: 5, Timeout: 10 * time.Hour},
	"TokenBucket":   ratelimit.TokenBucket{Burst: 5, Rate: ratelimit.Rate{Events: 1, Per: 100 * time.Hour}},
	"SlidingWindow": ratelimit.SlidingWindow{Limit: 5, Window: 100 * time.Hour},
	"All": ratelimit.All{
		ratelimit.FixedWindow{Limit: 5, Window: 100 * time.Hour},
		ratelimit.InFlight{Limit: 5, Timeout: 10 * time.Hour},
	},
}

// stalling tests with a database that can stall between a Get and a CompareAndSwap, for each
// algorithm.
func stalling(
	t *testing.T,
	test func(t *testing.T, db *fakes.Hanging, l ratelimit.Limiter),
) {
	for name, alg := range holdable {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := fakes.NewHanging()
				db.Late, db.Repeats = true, true
				l, err := ratelimit.New(alg, ratelimit.WithStore(db.Store()), ratelimit.WithName("test"))
				require.NoError(t, err)
				test(t, db, l)
			})
		})
	}
}

// answers lets the database answer again, and waits until the limiter has asked it.
func answers(db *fakes.Hanging) {
	db.Release()
	time.Sleep(time.Second)
	synctest.Wait()
}

// What the store has held although its answer came too late is given back once the store answers,
// whichever call has asked for it, and whether the caller has waited or not.
func TestUnansweredHoldsAreGivenBack(t *testing.T) {
	calls := map[string]func(ctx context.Context, l ratelimit.Limiter){
		"Hold": func(ctx context.Context, l ratelimit.Limiter) {
			_, _, _ = l.Hold(ctx, "key", 1)
		},
		"Hold, GiveBack": func(ctx context.Context, l ratelimit.Limiter) {
			_, _, _ = l.Hold(ctx, "key", 1, ratelimit.GiveBack(), ratelimit.HoldFor(9*time.Hour))
		},
		"Hold, Waiting": func(ctx context.Context, l ratelimit.Limiter) {
			_, _, _ = l.Hold(ctx, "key", 1, ratelimit.Waiting())
		},
		"Reserve": func(ctx context.Context, l ratelimit.Limiter) {
			_, _, _ = l.Reserve(ctx, "key", 1, ratelimit.HoldFor(9*time.Hour))
		},
		"Reserve, Within": func(ctx context.Context, l ratelimit.Limiter) {
			_, _, _ = l.Reserve(ctx, "key", 1, ratelimit.Within(0), ratelimit.HoldFor(9*time.Hour))
		},
		"Wait for an InFlight": func(ctx context.Context, l ratelimit.Limiter) {
			if strings.Contains(l.Describe().Algorithm.String(), "at once") {
				_ = l.Wait(ctx, "key")
			}
		},
		"HoldAll": func(ctx context.Context, l ratelimit.Limiter) {
			other := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))
			_, _, _ = ratelimit.HoldAll(ctx, 1, ratelimit.For(l, "key"), ratelimit.For(other, "k"))
		},
	}
	for name, call := range calls {
		for how, leaves := range map[string]bool{"in time": false, "left": true} {
			t.Run(name+", "+how, func(t *testing.T) {
				stalling(t, func(t *testing.T, db *fakes.Hanging, l ratelimit.Limiter) {
					for range 5 {
						db.Hang()
						ctx, cancel := context.WithCancel(t.Context())
						if leaves {
							time.AfterFunc(time.Millisecond, cancel)
						}
						call(ctx, l)
						cancel()
						answers(db)
						assert.Equal(t, 5, fakes.Remaining(t, l))
					}
				})
			})
		}
	}
}

// A settlement without an answer is repeated, once the store answers, and counts once.
func TestUnansweredSettlementsAreRepeated(t *testing.T) {
	for name, settle := range map[string]func(r *ratelimit.Reservation){
		"Cancel":  func(r *ratelimit.Reservation) { r.Cancel() },
		"Release": func(r *ratelimit.Reservation) { _ = r.Release(context.Background()) },
		"Settle":  func(r *ratelimit.Reservation) { _, _ = r.Settle(context.Background(), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			stalling(t, func(t *testing.T, db *fakes.Hanging, l ratelimit.Limiter) {
				r := fakes.Held(t, l, "key", 2)
				inTime := fakes.Held(t, l, "other", 2)
				settle(inTime)
				want, err := l.Peek(t.Context(), "other")
				require.NoError(t, err)

				db.Hang()
				db.Heeds = true // so that the first attempt fails
				settle(r)
				answers(db)
				d, err := l.Peek(t.Context(), "key")
				require.NoError(t, err)
				assert.Equal(t, want.Remaining, d.Remaining)
				require.ErrorIs(t, r.Release(t.Context()), ratelimit.ErrEnded)
			})
		})
	}
}

// A settlement that the store has certainly not executed can be made again, also with another
// number.
func TestRefusedSettlementsCanBeMadeAgain(t *testing.T) {
	for name, alg := range holdable {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := fakes.NewMapDB()
				db.Repeats = true
				l, err := ratelimit.New(alg, ratelimit.WithStore(db.Store()), ratelimit.WithName("test"))
				require.NoError(t, err)
				r := fakes.Held(t, l, "key", 2)
				db.Err = io.EOF // of Get, before anything is written
				_, err = r.Settle(t.Context(), 1)
				require.ErrorIs(t, err, io.EOF)
				require.ErrorIs(t, r.Release(t.Context()), io.EOF)
				db.Err = nil
				_, err = r.Settle(t.Context(), 0)
				require.NoError(t, err)
				assert.Equal(t, 5, fakes.Remaining(t, l))
				require.ErrorIs(t, r.Release(t.Context()), ratelimit.ErrEnded)
				time.Sleep(time.Hour)
				assert.Equal(t, 5, fakes.Remaining(t, l), "nothing is settled with 1")

				// A Release that is deferred makes the Settle before it again.
				r = fakes.Held(t, l, "key", 3)
				db.Err = io.EOF
				_, err = r.Settle(t.Context(), 1)
				require.ErrorIs(t, err, io.EOF)
				db.Err = nil
				require.NoError(t, r.Release(t.Context()))
				left := map[bool]int{true: 5, false: 4}[name == "InFlight"]
				assert.Equal(t, left, fakes.Remaining(t, l))

				r = fakes.Held(t, l, "key", 2)
				db.Swap = io.EOF // the state may have been written
				require.ErrorIs(t, r.Release(t.Context()), io.EOF)
				require.ErrorIs(t, r.Release(t.Context()), ratelimit.ErrEnded)
			})
		})
	}
}

// A hold that has ended by itself is not settled any more, so that neither its limiter nor the database is kept for it.
func TestUnansweredHoldsMatterUntilTheyEnd(t *testing.T) {
	const lasts, fewMinutes = time.Hour, 3 * time.Minute
	for name, fail := range map[string]func(ctx context.Context, l ratelimit.Limiter, db *fakes.Hanging){
		"Hold": func(ctx context.Context, l ratelimit.Limiter, db *fakes.Hanging) {
			db.Hang()
			_, _, _ = l.Hold(ctx, "key", 1, ratelimit.HoldFor(lasts))
		},
		"Settle": func(ctx context.Context, l ratelimit.Limiter, db *fakes.Hanging) {
			r, _, _ := l.Hold(ctx, "key", 1, ratelimit.HoldFor(lasts))
			db.Hang()
			_, _ = r.Settle(ctx, 1)
		},
		"Settle, extended": func(ctx context.Context, l ratelimit.Limiter, db *fakes.Hanging) {
			r, _, _ := l.Hold(ctx, "key", 1, ratelimit.HoldFor(9*time.Hour))
			_ = r.Extend(ctx, lasts)
			db.Hang()
			_, _ = r.Settle(ctx, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stalling(t, func(t *testing.T, db *fakes.Hanging, l ratelimit.Limiter) {
				db.Late, db.Heeds = false, true
				fail(t.Context(), l, db)
				time.Sleep(lasts - fewMinutes)
				before := db.Asked.Load()
				time.Sleep(fewMinutes)
				assert.Greater(t, db.Asked.Load(), before, "the hold may be open")
				time.Sleep(fewMinutes)
				before = db.Asked.Load()
				time.Sleep(24 * time.Hour)
				assert.Equal(t, before, db.Asked.Load())
			})
		})
	}
}

// A hold that may be open after a long outage is settled within seconds once the store has answered another call, and
// not only when it would have been asked again.
func TestUnansweredHoldsAreGivenBackAfterAnOutage(t *testing.T) {
	stalling(t, func(t *testing.T, db *fakes.Hanging, l ratelimit.Limiter) {
		r := fakes.Held(t, l, "key", 2)
		db.Late, db.Heeds = false, true
		db.Hang()
		r.Cancel()
		time.Sleep(5 * time.Minute) // the limiter asks once in a minute by then
		db.Release()
		time.Sleep(time.Second)
		_, err := l.Peek(t.Context(), "other")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		assert.Equal(t, 5, fakes.Remaining(t, l))
	})
}
