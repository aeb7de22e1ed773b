package decide_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// logins is the limit of the laws below: the fifth failure within 15 minutes of the first locks an
// account for a minute, the next one for two, and so on up to ten.
var logins = ratelimit.Lockout{
	Limit:   5,
	Window:  15 * time.Minute,
	First:   time.Minute,
	Longest: 10 * time.Minute,
}

// onEachKeeping runs a law for limiters of an algorithm that keep their states as words and as
// bytes.
func onEachKeeping(
	t *testing.T,
	alg ratelimit.Algorithm,
	law func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock),
) {
	t.Helper()
	for name, opts := range fakes.Keepings {
		t.Run(name, func(t *testing.T) {
			l, clk := fakes.At(t, alg, opts()...)
			law(t, l, clk)
		})
	}
}

// lockNow locks the key by as many events as there is room for, and returns how long the lock
// lasts.
func lockNow(t *testing.T, l ratelimit.Limiter) time.Duration {
	t.Helper()
	require.True(t, fakes.Take(t, l, fakes.Remaining(t, l)).Allowed)
	return fakes.Peek(t, l).RetryAfter
}

// assertLockedFor: the key is locked for as long as that, to the nanosecond. Afterwards it is not
// locked, and the count is 0.
func assertLockedFor(
	t *testing.T,
	l ratelimit.Limiter,
	clk *storetest.Clock,
	lasts time.Duration,
) {
	t.Helper()
	d := fakes.Take(t, l, 1)
	assert.False(t, d.Allowed)
	assert.Equal(t, lasts, d.RetryAfter)
	assert.Zero(t, d.Remaining)
	clk.Advance(lasts - 1)
	assert.False(t, fakes.Take(t, l, 1).Allowed, "a nanosecond before the end of the lock")
	clk.Advance(1)
	assert.Equal(t, logins.Limit, fakes.Peek(t, l).Remaining, "at the end of the lock")
}

// TestLockout_Count: the count begins with the first event. If it has not reached Limit, it is
// forgotten when Window has passed since then.
func TestLockout_Count(t *testing.T) {
	onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
		require.True(t, fakes.Take(t, l, 3).Allowed)
		clk.Advance(logins.Window - 1)
		require.True(t, fakes.Take(t, l, 1).Allowed)
		d := fakes.Take(t, l, 2)
		assert.False(t, d.Allowed, "one is left")
		assert.EqualValues(t, 1, d.RetryAfter, "until the count is forgotten")
		assert.EqualValues(t, 1, d.ResetAfter)
		clk.Advance(1)
		assert.Equal(t, 5, fakes.Remaining(t, l), "the fourth event was forgotten with the first")
		require.True(t, fakes.Take(t, l, 1).Allowed)
		assert.Equal(t, logins.Window, fakes.Peek(t, l).ResetAfter, "the next count has begun")
	})
}

// TestLockout_Locks: the event that makes the count reach Limit is granted, and locks the key for
// For. After that, the count is 0.
func TestLockout_Locks(t *testing.T) {
	onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
		for range 5 {
			clk.Advance(time.Second)
			require.True(t, fakes.Take(t, l, 1).Allowed)
		}
		assertLockedFor(t, l, clk, time.Minute)
	})
}

// TestLockout_Grows: each lock lasts twice as long as the one before, at most Longest. When Longest
// has passed since the end of a lock, the next one lasts for First again: not a nanosecond earlier,
// also if the count has begun before.
func TestLockout_Grows(t *testing.T) {
	onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
		for _, minutes := range []time.Duration{1, 2, 4, 8, 10, 10} {
			require.Equal(t, minutes*time.Minute, lockNow(t, l))
			assert.Equal(t, minutes*time.Minute+logins.Longest, fakes.Peek(t, l).ResetAfter)
			assertLockedFor(t, l, clk, minutes*time.Minute)
		}
		clk.Advance(logins.Longest - 1)
		assert.EqualValues(t, 1, fakes.Peek(t, l).ResetAfter)
		assert.Equal(t, 10*time.Minute, lockNow(t, l))

		clk.Advance(10*time.Minute + logins.Longest - 1)
		require.True(t, fakes.Take(t, l, 1).Allowed)
		clk.Advance(1)
		assert.Equal(t, time.Minute, lockNow(t, l))
	})
}

// TestLockout_AllAlike: without Longest, each lock lasts for First, and nothing is remembered of it.
func TestLockout_AllAlike(t *testing.T) {
	alike := logins
	alike.Longest = 0
	onEachKeeping(t, alike, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
		for range 4 {
			require.Equal(t, time.Minute, lockNow(t, l))
			assert.Equal(t, time.Minute, fakes.Peek(t, l).ResetAfter)
			assertLockedFor(t, l, clk, time.Minute)
		}
	})
}

// TestLockout_Hammering: whoever keeps trying makes a lock neither longer nor the next one.
func TestLockout_Hammering(t *testing.T) {
	onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
		lockNow(t, l)
		for second := range time.Duration(60) {
			for range 20 {
				require.Equal(t, time.Minute-second*time.Second, fakes.Take(t, l, 1).RetryAfter)
			}
			clk.Advance(time.Second)
		}
		assert.Equal(t, 2*time.Minute, lockNow(t, l))
	})
}

// TestLockout_SettledBack: an event that is taken back never locked the key, and the lock that it
// made leaves no trace.
func TestLockout_SettledBack(t *testing.T) {
	onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
		require.True(t, fakes.Take(t, l, 4).Allowed)
		hold := heldFor(t, l, 1)
		clk.Advance(30 * time.Second)
		require.False(t, l.Allow("key"))
		assert.Equal(t, 1, mustSettle(t, hold, 0))
		assert.Equal(t, logins.Window-30*time.Second, fakes.Peek(t, l).ResetAfter)
		assert.Equal(t, time.Minute, lockNow(t, l), "the first lock")
	})
}

// TestLockout_HoldOutlivesItsLock: a lock that was served stays so, whether or not anybody has asked
// since its end.
func TestLockout_HoldOutlivesItsLock(t *testing.T) {
	for _, counted := range []int{0, 2} {
		onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
			require.True(t, fakes.Take(t, l, 4).Allowed)
			hold := heldFor(t, l, 1)
			clk.Advance(time.Minute)
			require.True(t, fakes.Take(t, l, counted).Allowed)
			assert.Equal(t, 5-counted, mustSettle(t, hold, 0))
			assert.Equal(t, 2*time.Minute, lockNow(t, l))
		})
	}
}

// TestLockout_Crash: a process dies while it checks passwords. Its holds give their events back at
// their ends, and have locked nobody out: also if nobody asks before the lock would have ended, and
// in whatever order the holds end.
func TestLockout_Crash(t *testing.T) {
	for _, asks := range []time.Duration{10 * time.Second, 2 * time.Minute} {
		onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
			for i := range time.Duration(5) {
				last := 2*time.Minute - 1 // longer than the lock, but for the last hold
				if i == 4 {
					last = 10 * time.Second
				}
				heldFor(t, l, 1, ratelimit.HoldFor(last), ratelimit.GiveBack())
			}
			d := fakes.Take(t, l, 1)
			require.False(t, d.Allowed)
			assert.Equal(t, 10*time.Second, d.RetryAfter)
			clk.Advance(asks)
			if asks > time.Minute {
				assert.Equal(t, 5, fakes.Remaining(t, l))
			}
			assert.Equal(t, time.Minute, lockNow(t, l), "it is the first")
		})
	}
}

// TestLockout_CountBeforeACrash: what was counted before a hold counts for Window, even if the hold locked the key, for less, and
// then gave its event back by itself, while nobody asked. No store forgets the key before.
func TestLockout_CountBeforeACrash(t *testing.T) {
	long := logins
	long.Window, long.Longest = 24*time.Hour, 0
	memory := new(ratelimit.MemoryStore)
	db := expiring{fakes.NewMapDB(), storetest.NewClock(fakes.Midnight)}
	for name, store := range map[string]ratelimit.Store{"memory": memory, "bytes": ratelimit.NewStore(&db)} {
		l := ratelimit.Must(ratelimit.New(long, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(db.clk)))
		require.True(t, l.AllowN("key", 4))
		heldFor(t, l, 1, ratelimit.HoldFor(10*time.Second), ratelimit.GiveBack())
		db.clk.Advance(23 * time.Hour)
		memory.Shrink()
		assert.Equal(t, 1, fakes.Remaining(t, l), name)
		heldFor(t, l, 1, ratelimit.HoldFor(2*time.Hour), ratelimit.GiveBack())
		db.clk.Advance(time.Hour)
		assert.Equal(t, 5, fakes.Remaining(t, l), "%s: the lock was served", name)
	}
}

// TestLockout_Charge: events that are charged while the key is locked count, and the lock lasts from
// the latest of them on.
func TestLockout_Charge(t *testing.T) {
	onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
		d, err := l.Charge(ctx, "key", 7)
		require.NoError(t, err)
		assert.Equal(t, time.Minute, d.RetryAfter)
		clk.Advance(50 * time.Second)
		d, err = l.Charge(ctx, "key", 1)
		require.NoError(t, err)
		assert.Equal(t, time.Minute, d.RetryAfter)
		assertLockedFor(t, l, clk, time.Minute)
		assert.Equal(t, 2*time.Minute, lockNow(t, l), "that was one lock")
	})
}

// TestLockout_Reserve: a reservation behind a lock comes at its end, and the next lock lasts from
// its turn on.
func TestLockout_Reserve(t *testing.T) {
	onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
		lockNow(t, l)
		first, _, err := l.Reserve(ctx, "key", 5)
		require.NoError(t, err)
		assert.Equal(t, time.Minute, first.Delay())
		second, _, err := l.Reserve(ctx, "key", 1)
		require.NoError(t, err)
		assert.Equal(t, 3*time.Minute, second.Delay())
		first.Cancel()
		clk.Advance(3 * time.Minute)
		assert.Equal(t, 4, fakes.Remaining(t, l))
	})
}

// TestLockout_Reset: Reset ends a lock, and forgets those before.
func TestLockout_Reset(t *testing.T) {
	onEachKeeping(t, logins, func(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock) {
		assertLockedFor(t, l, clk, lockNow(t, l))
		lockNow(t, l)
		require.NoError(t, l.Reset(ctx, "key"))
		assert.Equal(t, time.Minute, lockNow(t, l))
	})
}

// TestLockout_Lowered: a lower limit that the count has reached locks the key from its latest event
// on, and the first limit does not when it comes back.
func TestLockout_Lowered(t *testing.T) {
	l, own, _, clk := fakes.Varying(t, logins)
	require.True(t, l.AllowN("key", 3))
	clk.Advance(10 * time.Second)
	lower := logins
	lower.Limit = 3
	own.Set("key", lower)
	assert.Equal(t, 50*time.Second, fakes.Peek(t, l).RetryAfter)
	own.Set("key", logins)
	assert.Equal(t, 2, fakes.Remaining(t, l))
}

// TestLockout_Former: a limit that is asked again remembers its count for Window, and its doubling
// until Most has passed since the end of a lock, although another one was asked meanwhile.
func TestLockout_Former(t *testing.T) {
	short := ratelimit.Lockout{Limit: 100, Window: time.Second, First: time.Second}
	alike := logins
	alike.Longest = 0
	l, own, _, clk := fakes.Varying(t, alike)
	require.True(t, l.AllowN("key", 3))
	own.Set("key", short)
	require.True(t, l.Allow("key"))
	clk.Advance(5 * time.Minute)
	require.True(t, l.Allow("key"))
	own.Set("key", alike)
	assert.Equal(t, time.Minute, fakes.Peek(t, l).RetryAfter, "the five have locked the key")

	brief := logins
	brief.Window = time.Minute
	l, own, _, clk = fakes.Varying(t, brief)
	for range 6 { // up to locks of ten minutes
		clk.Advance(lockNow(t, l))
	}
	lockNow(t, l)
	own.Set("key", short)
	for range 2 {
		require.True(t, l.Allow("key"))
		clk.Advance(2 * time.Second)
	}
	clk.Advance(18 * time.Minute)
	own.Set("key", brief)
	assert.Equal(t, brief.Longest, lockNow(t, l), "the doubling")
}

// TestLockout_Clock: a lock ends by a clock that is set ahead. If one is set back, time stands still,
// and the lock lasts no shorter.
func TestLockout_Clock(t *testing.T) {
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	l := ratelimit.Must(ratelimit.New(logins, ratelimit.WithClock(clk)))
	lockNow(t, l)
	clk.Set(clk.Now().Add(-time.Hour))
	assert.Equal(t, time.Hour+time.Minute, fakes.Take(t, l, 1).RetryAfter)
	clk.Set(clk.Now().Add(time.Hour + time.Minute - 1))
	assert.EqualValues(t, 1, fakes.Take(t, l, 1).RetryAfter)
	clk.Set(clk.Now().Add(24 * time.Hour))
	assert.Equal(t, time.Minute, lockNow(t, l), "the lock and its doubling have passed")
}

// check holds an event of an account while a password is checked, for a second. It reports whether
// the password was checked.
func check(ctx context.Context, t *testing.T, l ratelimit.Limiter, right bool) (checked bool) {
	attempt, d, err := l.Hold(ctx, "account", 1,
		ratelimit.Waiting(), ratelimit.HoldFor(10*time.Second), ratelimit.GiveBack())
	if err != nil || !d.Allowed {
		return false
	}
	time.Sleep(time.Second)
	if right {
		attempt.Cancel()
		return true
	}
	assert.NoError(t, attempt.Release(context.WithoutCancel(ctx)))
	return true
}

// TestLockout_RightPasswordsAtOnce: eight right passwords at once lock nobody out. The sixth waits
// until the first was checked.
func TestLockout_RightPasswordsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(logins))
		began := time.Now()
		var checks sync.WaitGroup
		for range 8 {
			checks.Go(func() { assert.True(t, check(t.Context(), t, l, true)) })
		}
		checks.Wait()
		assert.Equal(t, 2*time.Second, time.Since(began))
		d, err := l.Peek(t.Context(), "account")
		require.NoError(t, err)
		assert.Equal(t, 5, d.Remaining)
		assert.Zero(t, d.ResetAfter, "as if there had been no attempt")
	})
}

// TestLockout_GuessesAtOnce: of a thousand guesses at once, five reach the check.
func TestLockout_GuessesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(logins))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var checked atomic.Int64
		var checks sync.WaitGroup
		for range 1000 {
			checks.Go(func() {
				if check(ctx, t, l, false) {
					checked.Add(1)
				}
			})
		}
		checks.Wait()
		assert.EqualValues(t, 5, checked.Load())
	})
}

// TestLockout_PeekThenCharge: whoever looks whether there is room, and counts a wrong password after
// the check, checks all of a thousand guesses at once. That is why a guess is held.
func TestLockout_PeekThenCharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(logins))
		var checked atomic.Int64
		var checks sync.WaitGroup
		for range 1000 {
			checks.Go(func() {
				d, err := l.Peek(t.Context(), "account")
				assert.NoError(t, err)
				if !d.Allowed {
					return
				}
				time.Sleep(time.Second)
				checked.Add(1)
				_, err = l.Charge(t.Context(), "account", 1)
				assert.NoError(t, err)
			})
		}
		checks.Wait()
		assert.EqualValues(t, 1000, checked.Load())
	})
}
