package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// Random histories of these tests: 3 of each algorithm in CI, and 10 at night (RATELIMIT_NIGHTLY=1).

// A story is what happens to a key and its holds, which have names.
type story struct {
	*testing.T
	key   *Key
	holds map[string]*Held
}

// An act is a step of a story, at an instant in seconds.
type act func(s *story, msg string)

func tell(t *testing.T, alg ratelimit.Algorithm, acts ...act) {
	s := &story{t, fresh(alg), map[string]*Held{}}
	for i, do := range acts {
		do(s, fmt.Sprint("act ", i))
	}
}

func seconds(f float64) int64 { return int64(f*1000+0.5) * ms }

// hold holds n events.
func hold(name string, at float64, n int) act { return holdFor(name, at, n, Terms{}) }

func holdFor(name string, at float64, n int, terms Terms) act {
	return func(s *story, msg string) {
		h, d := s.key.Hold(seconds(at), n, terms)
		require.True(s, d.Allowed, msg)
		s.holds[name] = h
	}
}

// reserve holds n events from when they can be granted, which must be at due.
func reserve(name string, at float64, n int, due float64) act {
	return func(s *story, msg string) {
		got, h, err := s.key.HoldWithin(seconds(at), n, Terms{}, ratelimit.Never)
		require.NoError(s, err, msg)
		require.EqualValues(s, seconds(due), got, msg)
		s.holds[name] = h
	}
}

// take takes n events, which must be granted.
func take(at float64, n int) act {
	return func(s *story, msg string) { require.True(s, s.key.Take(seconds(at), n).Allowed, msg) }
}

// deny asks for n events, which must be denied.
func deny(at float64, n int) act {
	return func(s *story, msg string) { require.False(s, s.key.Take(seconds(at), n).Allowed, msg) }
}

// settle settles a hold for n events.
func settle(name string, at float64, n int) act {
	return func(s *story, _ string) { s.key.Settle(seconds(at), s.holds[name], n) }
}

// extend lets a hold last for d from an instant on, if it is open.
func extend(name string, at float64, d time.Duration, open bool) act {
	return func(s *story, msg string) {
		require.Equal(s, open, s.key.Extend(seconds(at), s.holds[name], d), msg)
	}
}

// left checks how many events are left.
func left(at float64, n int) act {
	return func(s *story, msg string) { require.Equal(s, n, s.key.Take(seconds(at), 0).Remaining, msg) }
}

// retry checks when n events, which are denied, would be granted.
func retry(at float64, n int, after float64) act {
	return func(s *story, msg string) {
		require.EqualValues(s, seconds(after), s.key.Clone().Take(seconds(at), n).RetryAfter, msg)
	}
}

// A bucket of 10 gains 1 a second. FixedWindow and the like have 10 in 10 s.
var (
	bucket   = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10}
	interval = ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 4, Per: 4 * time.Second}, Burst: 10, Refill: ratelimit.RefillInterval}
	window   = ratelimit.FixedWindow{Limit: 10, Window: 10 * time.Second}
	first10  = ratelimit.FixedWindow{Limit: 10, Window: 10 * time.Second, Start: ratelimit.StartOnFirstEvent}
	sliding  = ratelimit.SlidingWindow{Limit: 10, Window: 10 * time.Second}
	eventLog = ratelimit.SlidingLog{Limit: 10, Window: 10 * time.Second}
	denials  = ratelimit.SlidingLog{Limit: 10, Window: 10 * time.Second, CountDenied: true}
	rolling  = ratelimit.RollingWindow{Quota: 10, Window: 10 * time.Second, Period: 5 * time.Second, PeriodLimit: 6}
	flying   = ratelimit.InFlight{Limit: 10, Timeout: 10 * time.Second}
)

func TestSettle(t *testing.T) {
	for name, tc := range map[string]struct {
		alg  ratelimit.Algorithm
		acts []act
	}{
		"TokenBucket, nothing since": {bucket, []act{
			hold("A", 0, 8), left(1, 3), settle("A", 1, 2), left(1, 9), left(2, 10),
		}},
		// With 2 in place of 8, the bucket would have 8 at 0, 10 at 2 and, after the 4, 6 at 3.
		"TokenBucket, full meanwhile": {bucket, []act{
			hold("A", 0, 8), take(3, 4), left(3, 1), settle("A", 3, 2), left(3, 6),
		}},
		"TokenBucket, others at once": {bucket, []act{
			hold("A", 0, 4), take(0, 4), settle("A", 3, 1), left(3, 8),
		}},
		"TokenBucket, two, the older first": {bucket, []act{
			// A of 1: 9 at 0, 10 at 1 (B takes 3): 7, 9 at 3.
			hold("A", 0, 4), hold("B", 1, 3), left(3, 6), settle("A", 3, 1), left(3, 9),
			// B of 0: 10 at 3.
			settle("B", 3, 0), left(3, 10),
		}},
		"TokenBucket, two, the younger first": {bucket, []act{
			// B of 0: 6 at 0, 9 at 3.
			hold("A", 0, 4), hold("B", 1, 3), settle("B", 3, 0), left(3, 9),
			// A of 1 and B of 0: 9 at 0, full from 1 on.
			settle("A", 3, 1), left(3, 10),
		}},
		// Without A, the bucket would have been full when the 4 were taken at 5.
		"TokenBucket, full in the end": {bucket, []act{
			hold("A", 0, 6), left(5, 9), take(5, 4), settle("A", 6, 0), left(6, 7),
		}},
		"TokenBucket, as many as held": {bucket, []act{
			hold("A", 0, 6), take(1, 2), settle("A", 2, 6), left(2, 4),
		}},
		"TokenBucket, more than held": {bucket, []act{
			// The 9 are charged at 2: 10−3+2−9 = 0.
			hold("A", 0, 3), settle("A", 2, 12), left(2, 0), left(4, 2),
		}},
		"TokenBucket, a debt": {bucket, []act{
			// 10−4−1 is 7 at 2, and −5 after the other 12 of B. Without A, it was 10 at 2.
			hold("A", 0, 4), hold("B", 0, 1), settle("B", 2, 13), retry(2, 1, 6), settle("A", 2, 0), retry(2, 1, 3),
		}},
		"TokenBucket, a second time": {bucket, []act{
			hold("A", 0, 4), settle("A", 0, 2), settle("A", 0, 0), left(0, 8),
		}},
		"TokenBucket, a queue behind it": {bucket, []act{
			// B waits for 4 to come, and keeps its turn. Without A, there are 10 at 0, and 5 at 4.
			hold("A", 0, 9), reserve("B", 0, 5, 4), settle("A", 0, 0), deny(0, 1), deny(3.999, 1), left(4, 5),
		}},
		"TokenBucket, before its turn": {bucket, []act{
			take(0, 10), reserve("A", 0, 5, 5), settle("A", 1, 2), deny(1, 1), left(5, 3),
		}},
		"TokenBucket, cancelled before its turn": {bucket, []act{
			take(0, 10), reserve("A", 0, 5, 5), settle("A", 1, 0), left(1, 1),
		}},
		"TokenBucket, cancelled before others' turn": {bucket, []act{
			// B keeps its turn at 8, where the bucket without A has 8 and gives 3.
			take(0, 10), reserve("A", 0, 5, 5), reserve("B", 0, 3, 8), settle("A", 1, 0), deny(7.999, 1), left(8, 5),
		}},

		"RefillInterval": {interval, []act{
			// 6 at 0, refilled to 10 at 4. With 1: 9 at 0, and 6 after the 3; 10 at 4.
			hold("A", 0, 4), take(1, 3), settle("A", 2, 1), left(2, 6), left(4, 10),
		}},
		"RefillInterval, full meanwhile": {interval, []act{
			// 2, 6 at 4, 1 at 5. With 2: 8, 10 at 4, 5 at 5, 9 at 8.
			hold("A", 0, 8), take(5, 5), settle("A", 6, 2), left(6, 5), left(8, 9),
		}},
		// The refills count from the hold at 1, as was decided: at 5 and 9, and not at 6.
		"RefillInterval, the anchor stays": {interval, []act{
			hold("A", 1, 4), take(2, 6), settle("A", 3, 0), left(3, 4), left(4.999, 4), left(5, 8), left(9, 10),
		}},
		"RefillInterval, nothing counts from the anchor": {interval, []act{
			hold("A", 1, 4), settle("A", 2, 0), take(3, 10), left(6.999, 0), left(7, 4),
		}},
		"RefillInterval, two holds at the anchor": {interval, []act{
			hold("A", 1, 4), hold("B", 2, 4), settle("A", 3, 0), settle("B", 3, 0), take(3.5, 10), left(7.499, 0), left(7.5, 4),
		}},
		// A of 1 leaves the bucket full from 5 on, but the 2 were taken from a bucket that
		// was not: the refills of the hold at 1 go on.
		"RefillInterval, full, as it turned out": {interval, []act{
			hold("A", 1, 8), take(6, 2), settle("A", 7, 1), left(7, 8), left(9, 10), take(10, 10), left(14, 4),
		}},

		// A level of 8 at 0 is 5 at 3, and 9 with the 4. With 2: 0 at 2, and 4 at 3.
		"LeakyBucket": {ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 10}, []act{
			hold("A", 0, 8), take(3, 4), left(3, 1), settle("A", 3, 2), left(3, 6),
		}},
		"LeakyBucket, others at once": {ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 10}, []act{
			hold("A", 0, 4), take(0, 4), settle("A", 3, 1), left(3, 8),
		}},

		"FixedWindow": {window, []act{
			hold("A", 1, 6), take(2, 4), deny(2, 1), settle("A", 3, 1), left(3, 5),
		}},
		"FixedWindow, the next": {window, []act{
			hold("A", 9, 6), take(11, 4), settle("A", 11, 0), left(11, 6),
		}},
		"FixedWindow, a debt": {window, []act{
			hold("A", 1, 6), hold("B", 1, 2), settle("B", 2, 10), left(2, 0), settle("A", 2, 0), left(2, 0), left(10, 10),
		}},
		// The reservation is in the next window. When it is cancelled, the first has room.
		"FixedWindow, a reservation in the next": {window, []act{
			hold("A", 1, 8), reserve("B", 1, 6, 10), settle("A", 2, 1), deny(2, 1), settle("B", 3, 0), left(3, 9),
		}},

		// The window began at 1, and stays while the 4 count in it.
		"StartOnFirstEvent, the start stays": {first10, []act{
			hold("A", 1, 6), take(3, 4), settle("A", 4, 0), left(4, 6), take(10, 6), left(10.999, 0), left(11, 10),
		}},
		"StartOnFirstEvent, nothing counts since the start": {first10, []act{
			hold("A", 1, 6), settle("A", 4, 0), take(5, 4), left(14.999, 6), left(15, 10),
		}},
		"StartOnFirstEvent, the next": {first10, []act{
			hold("A", 1, 6), take(11, 4), settle("A", 12, 0), left(12, 6),
		}},

		// 8 in the first window weigh 0.5 at 15. With 2, they are 1.
		"SlidingWindow": {sliding, []act{
			hold("A", 5, 8), take(15, 3), left(15, 3), settle("A", 15, 2), left(15, 6),
		}},
		"SlidingWindow, forgotten": {sliding, []act{
			hold("A", 5, 8), take(20, 3), settle("A", 20, 0), left(20, 7),
		}},

		"SlidingLog": {eventLog, []act{
			hold("A", 1, 6), take(5, 4), settle("A", 6, 2), left(6, 4), left(11, 6), left(15, 10),
		}},
		"SlidingLog, forgotten": {eventLog, []act{
			hold("A", 1, 6), take(5, 4), settle("A", 11, 0), left(11, 6),
		}},
		// The denied event of 2 stays noted until 12.
		"SlidingLog with CountDenied": {denials, []act{
			hold("A", 1, 10), deny(2, 1), settle("A", 3, 4), left(3, 5), left(11, 9), left(12, 10),
		}},
		// The 8 denied events stay noted, although the hold alone filled the log.
		"SlidingLog with CountDenied, more than its limit": {denials, []act{
			hold("A", 1, 10), deny(2, 8), settle("A", 3, 0), left(3, 2),
		}},

		// 6 in the first period leave 4 for the second. With 1, they leave 6.
		"RollingWindow": {rolling, []act{
			hold("A", 1, 6), take(6, 3), left(6, 1), settle("A", 7, 1), left(7, 3), left(10, 6),
		}},
		"RollingWindow, forgotten": {rolling, []act{
			hold("A", 1, 6), take(11, 3), settle("A", 11, 0), left(11, 3),
		}},

		"InFlight": {flying, []act{
			hold("A", 0, 4), hold("B", 1, 6), deny(1, 1), settle("A", 2, 4), left(2, 4), settle("B", 2, 0), left(2, 10),
		}},
		"InFlight, more than held": {flying, []act{hold("A", 0, 4), settle("A", 1, 9), left(1, 10)}},
		"InFlight, ended":          {flying, []act{hold("A", 0, 4), hold("B", 5, 6), left(10, 4), settle("A", 11, 4), left(11, 4)}},
		"InFlight, no hold":        {flying, []act{take(0, 4), left(9.999, 6), left(10, 10)}},

		// Each part by itself: the bucket would have been full at 2, and has 7 left at 4, the
		// window has 5, and 6 more may be in flight.
		"All": {ratelimit.All{bucket, window, ratelimit.InFlight{Limit: 9, Timeout: time.Minute}}, []act{
			hold("A", 0, 6), deny(0, 4), take(4, 3), deny(4, 1), settle("A", 4, 2), left(4, 5),
		}},
		"Unlimited": {ratelimit.Unlimited{}, []act{hold("A", 0, 5), settle("A", 0, 0), take(0, 5)}},
		"no events": {bucket, []act{hold("A", 0, 0), settle("A", 1, 3), left(1, 7)}},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, tc.alg, tc.acts...)
		})
	}
}

func TestSettle_WarmingUp(t *testing.T) {
	// A cold bucket grants 75 in 1.875 s and 150 in 3 s, and the next 150 in 1.5 s.
	warming := ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: 3 * time.Second}
	for name, acts := range map[string][]act{
		"fewer":               {hold("A", 0, 150), settle("A", 1, 75), deny(1.874, 1), take(1.875, 1)},
		"none":                {hold("A", 0, 150), settle("A", 1, 0), take(1, 150), deny(3.999, 1), take(4, 1)},
		"others since":        {hold("A", 0, 150), take(3, 150), settle("A", 4, 0), deny(4.499, 1), take(4.5, 1)},
		"others that waited":  {hold("A", 0, 150), reserve("B", 0, 1, 3), settle("A", 1, 0), deny(2.999, 1)},
		"others, for nothing": {hold("A", 0, 150), hold("B", 3, 150), settle("B", 4, 0), settle("A", 4, 0), take(4, 150), deny(6.999, 1), take(7, 1)},
		"more":                {hold("A", 0, 75), settle("A", 1, 150), deny(2.999, 1), take(3, 1)},
	} {
		t.Run(name, func(t *testing.T) { tell(t, warming, acts...) })
	}
}

func TestHoldEnds(t *testing.T) {
	second := Terms{For: time.Second}
	backIn := func(d time.Duration) Terms { return Terms{For: d, GiveBack: true} }
	inFlight := ratelimit.InFlight{Limit: 10, Timeout: 10 * time.Second}
	for name, tc := range map[string]struct {
		alg  ratelimit.Algorithm
		acts []act
	}{
		"counted": {window, []act{
			holdFor("A", 1, 6, second), settle("A", 2, 0), left(2, 4),
		}},
		"just before": {window, []act{
			holdFor("A", 1, 6, second), settle("A", 1.999, 0), left(2, 10),
		}},
		"given back": {window, []act{
			holdFor("A", 1, 6, backIn(time.Second)), left(1.999, 4), take(2, 10), settle("A", 2, 8), left(2, 0),
		}},
		"given back, and more than held": {window, []act{
			holdFor("A", 1, 6, backIn(time.Second)), settle("A", 2, 8), left(2, 8),
		}},
		"given back at different times": {bucket, []act{
			// 10, 4 at 0, 7 at 3, 3 with B. Without B, A of 6 leaves 7 at 3. Without both, 10.
			holdFor("A", 0, 6, backIn(4*time.Second)), holdFor("B", 2, 4, backIn(time.Second)),
			left(2.999, 2), left(3, 7), left(4, 10),
		}},
		// Nobody counts on what may be given back.
		"the retry": {window, []act{
			holdFor("A", 1, 6, backIn(time.Second)), retry(1, 5, 1), take(2, 5),
		}},
		"settled before": {window, []act{
			holdFor("A", 1, 6, backIn(time.Second)), settle("A", 1, 5), left(3, 5),
		}},
		"extended": {window, []act{
			holdFor("A", 1, 6, backIn(time.Second)), extend("A", 1.5, 2*time.Second, true), left(3.499, 4), left(3.5, 10),
		}},
		"extended too late": {window, []act{
			holdFor("A", 1, 6, backIn(time.Second)), extend("A", 2, time.Second, false), left(2, 10),
		}},
		"shortened": {window, []act{
			holdFor("A", 1, 6, backIn(time.Minute)), extend("A", 2, time.Second, true), left(3, 10),
		}},
		"from its turn": {ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, []act{
			take(0, 10), reserve("A", 0, 6, 3600), settle("A", 4199.999, 0), left(4199.999, 10),
		}},
		"extended before its turn": {window, []act{
			take(0, 10), reserve("A", 0, 6, 10), extend("A", 1, time.Second, true), settle("A", 10.999, 0), left(10.999, 10),
		}},
		"InFlight": {inFlight, []act{
			holdFor("A", 0, 4, second), holdFor("B", 0, 3, backIn(2*time.Second)), retry(0, 7, 1), left(1, 7), left(2, 10),
		}},
		"InFlight, extended": {inFlight, []act{
			hold("A", 0, 4), extend("A", 9, 5*time.Second, true), retry(10, 7, 4), left(13.999, 6), left(14, 10),
		}},
		"All with an InFlight": {ratelimit.All{window, inFlight}, []act{
			hold("A", 0.5, 4), left(10.499, 6), settle("A", 10.5, 0), left(10.5, 10),
		}},
	} {
		t.Run(name, func(t *testing.T) { tell(t, tc.alg, tc.acts...) })
	}
}

func TestHold_Denied(t *testing.T) {
	k := fresh(window)
	h, d := k.Hold(0, 11, Terms{})
	assert.Nil(t, h)
	assert.False(t, d.Allowed)
	assert.Equal(t, 10, k.Settle(0, h, 5).Remaining)
	assert.Equal(t, 10, k.Release(0, h).Remaining)
	assert.False(t, k.Extend(0, h, time.Second))
}

func TestHold_AnotherKey(t *testing.T) {
	h, _ := fresh(window).Hold(0, 6, Terms{})
	k := fresh(window) // the same one after a reset
	require.True(t, k.Take(0, 6).Allowed)
	assert.Equal(t, 4, k.Settle(0, h, 0).Remaining)
	assert.Equal(t, 4, k.Release(0, h).Remaining)
	assert.Equal(t, 2, k.Settle(0, h, 8).Remaining, "what exceeds the hold is charged")
	assert.False(t, k.Extend(0, h, time.Second))
}

func TestHold_Clone(t *testing.T) {
	k := fresh(window)
	h, _ := k.Hold(0, 6, Terms{})
	c := k.Clone()
	require.True(t, c.Extend(0, h, 5*time.Second))
	assert.Equal(t, 10, c.Settle(sec, h, 0).Remaining)
	assert.Equal(t, 4, k.Peek(6*sec).Remaining)
	assert.Equal(t, 10, k.Settle(6*sec, h, 0).Remaining, "the copy was extended and settled, not this key")
}

func TestHold_TooMany(t *testing.T) {
	limit := 2 * mostHolds
	hold := func(k *Key, terms Terms) *Held {
		due, h, err := k.HoldWithin(0, 1, terms, 0)
		require.NoError(t, err)
		require.Zero(t, due)
		return h
	}
	k := fresh(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: limit})
	oldest, second := hold(k, Terms{GiveBack: true}), hold(k, Terms{})
	for range mostHolds - 2 {
		hold(k, Terms{GiveBack: true})
	}
	assert.Equal(t, limit-mostHolds, k.Peek(0).Remaining)
	hold(k, Terms{})
	assert.Equal(t, limit-mostHolds, k.Peek(0).Remaining, "the oldest is given back")
	assert.False(t, k.Extend(0, oldest, time.Second))
	hold(k, Terms{})
	assert.Equal(t, limit-mostHolds-1, k.Peek(0).Remaining, "the next is counted")
	assert.False(t, k.Extend(0, second, time.Second))

	k = fresh(ratelimit.InFlight{Limit: limit, Timeout: time.Minute})
	oldest = hold(k, Terms{})
	for range mostHolds {
		hold(k, Terms{})
	}
	assert.True(t, k.Extend(0, oldest, time.Second))
}

// A reservation that was cancelled before its turn is gone, and a hold behind it keeps its turn.
func TestHold_BehindACancelledReservation(t *testing.T) {
	k := fresh(bucket)
	require.True(t, k.Take(0, 10).Allowed)
	_, r, err := k.Reserve(0, 5, ratelimit.Never)
	require.NoError(t, err)
	due, h, err := k.HoldWithin(0, 3, Terms{}, ratelimit.Never)
	require.NoError(t, err)
	require.EqualValues(t, 8*sec, due)
	k.Cancel(0, r)
	assert.Equal(t, 8*time.Second, k.Peek(0).RetryAfter, "it is left out, and nothing comes before the hold")
	assert.Equal(t, time.Second, k.Settle(0, h, 0).RetryAfter)
}

// A hold is settled for n by charging n at its instant to a key that has charged everything else
// as well, in the order of the instants.
func TestSettle_Random(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"TokenBucket": bucket, "LeakyBucket": ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 10},
		"FixedWindow": window, "SlidingWindow": sliding, "SlidingLog": eventLog, "RollingWindow": rolling,
		"All": ratelimit.All{bucket, sliding, rolling},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range budget.Seeds(t, budget.Histories(3, 10)) {
				settleAtRandom(t, alg, rand.New(rand.NewPCG(seed, 1)))
			}
		})
	}
}

func settleAtRandom(t *testing.T, alg ratelimit.Algorithm, rng *rand.Rand) {
	type counted struct {
		at int64
		n  int
	}
	type held struct {
		*Held
		of int // in all
	}
	var all []counted
	var holds []held
	now, k := int64(0), fresh(alg)
	for range 60 {
		now += rng.Int64N(sec)
		n := 1 + rng.IntN(6)
		switch i := rng.IntN(3); {
		case i == 0:
			if k.Take(now, n).Allowed {
				all = append(all, counted{now, n})
			}
		case i == 1 || len(holds) == 0:
			if h, d := k.Hold(now, n, Terms{}); d.Allowed {
				holds = append(holds, held{h, len(all)})
				all = append(all, counted{now, n})
			}
		default:
			i := rng.IntN(len(holds))
			h := holds[i]
			holds = slices.Delete(holds, i, i+1)
			k.Settle(now, h.Held, n)
			all[h.of].n = min(n, h.n)
			if n > h.n {
				all = append(all, counted{now, n - h.n})
			}
		}
		again := fresh(alg)
		for _, c := range all {
			again.charge(instant(c.at), c.n)
		}
		require.Equal(t, again.Peek(now), k.Peek(now))
	}
}

// Callers that always wait hold 1000 for each stream, and it costs 250. If the cost were known,
// all would be granted 10,000 a minute. What comes back after a window has ended is lost.
func TestSettle_Throughput(t *testing.T) {
	rate := ratelimit.PerMinute(10000)
	streams := []int64{sec / 2, 5 * sec, 20 * sec}
	for name, tc := range map[string]struct {
		alg  ratelimit.Algorithm
		want []int // for each length of the streams
	}{
		"TokenBucket": {ratelimit.TokenBucket{Rate: rate}, []int{10000, 10000, 9750}},
		"LeakyBucket": {ratelimit.LeakyBucket{Rate: rate, Capacity: 10000}, []int{10000, 10000, 9750}},
		"RefillInterval": {
			ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1000, Per: 6 * time.Second}, Burst: 10000,
				Refill: ratelimit.RefillInterval},
			[]int{10000, 10000, 9250},
		},
		"FixedWindow":   {ratelimit.FixedWindow{Limit: 10000, Window: time.Minute}, []int{9250, 9250, 5500}},
		"SlidingWindow": {ratelimit.SlidingWindow{Limit: 10000, Window: time.Minute}, []int{9000, 7500, 4500}},
		"SlidingLog":    {ratelimit.SlidingLog{Limit: 10000, Window: time.Minute}, []int{9250, 7750, 4750}},
		"RollingWindow": {
			ratelimit.RollingWindow{Quota: 10000, Window: time.Minute, Period: time.Second},
			[]int{9250, 7750, 4750},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int
			for _, lasts := range streams {
				got = append(got, fifthMinute(tc.alg, lasts))
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

// fifthMinute returns what streams that last a time cost in the fifth minute, in which the burst
// of the first has no part.
func fifthMinute(alg ratelimit.Algorithm, lasts int64) (cost int) {
	type stream struct {
		ends int64
		*Held
	}
	var streams []stream
	k := fresh(alg)
	for now := int64(0); now < 300*sec; {
		for len(streams) > 0 && streams[0].ends <= now {
			k.Settle(now, streams[0].Held, 250)
			streams = streams[1:]
		}
		h, d := k.Hold(now, 1000, Terms{})
		if d.Allowed {
			streams = append(streams, stream{now + lasts, h})
			if now >= 240*sec {
				cost += 250
			}
			continue
		}
		now += int64(d.RetryAfter)
		if len(streams) > 0 {
			now = min(now, streams[0].ends)
		}
	}
	return cost
}
