package decide_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The tests in this file change the limit of a key, each parameter of it, and change it back.

// TestNewLimit: a key whose limit changes keeps the events it has used. What remains, and when the
// next event is granted, is by the new limit.
func TestNewLimit(t *testing.T) {
	t.Parallel()
	for name, c := range limitChanges() {
		for kind, open := range fakes.Stores {
			t.Run(name+"/"+kind, func(t *testing.T) {
				limit := c.was
				l, clk := withLimitOf(ratelimit.FixedWindow{Limit: 1, Window: time.Minute}, open(), &limit)
				require.True(t, l.AllowN("key", c.used))
				limit = c.is
				require.Equal(t, c.remaining, fakes.Peek(t, l).Remaining, "%+v, and then %+v", c.was, c.is)
				require.False(t, l.AllowN("key", c.remaining+1))
				require.True(t, l.AllowN("key", c.remaining))
				grantedAtRetryAfter(t, l, clk)
			})
		}
	}
}

// TestRevertedLimit: if a limit changes, and changes back before a request is made of the key, that
// has no effect, except that ResetAfter may be later if the window's length or segments differ.
func TestRevertedLimit(t *testing.T) {
	t.Parallel()
	for name, c := range limitChanges() {
		if !c.keepsState() {
			continue
		}
		for kind, open := range fakes.Stores {
			t.Run(name+"/"+kind, func(t *testing.T) {
				var limit ratelimit.Algorithm // nil for the limiter's own
				l, _ := withLimitOf(c.was, open(), &limit)
				l.AllowN("key", c.used)
				before := fakes.Peek(t, l)
				limit = c.is
				l.Allow("another")
				fakes.Peek(t, l)
				limit = nil
				after := fakes.Peek(t, l)
				assert.Equal(t, before.Remaining, after.Remaining)
				assert.GreaterOrEqual(t, after.ResetAfter, before.ResetAfter)
			})
		}
	}
}

// TestLimitOfAnotherKind: with a limit of another kind, a key starts afresh.
func TestLimitOfAnotherKind(t *testing.T) {
	t.Parallel()
	for name, alg := range storetest.Algorithms() {
		for kind, open := range fakes.Stores {
			limit := alg
			l, _ := withLimitOf(alg, open(), &limit)
			fakes.Take(t, l, 1)
			fakes.Take(t, l, 1)
			limit = ratelimit.RollingWindow{Quota: 3, Window: 3 * time.Hour, Period: time.Hour}
			d := fakes.Take(t, l, 1)
			assert.True(t, d.Allowed, "%s, %s", name, kind)
			if !strings.HasPrefix(name, "RollingWindow") {
				assert.Equal(t, 2, d.Remaining, "%s, %s", name, kind)
			}
		}
	}
}

// withLimitOf returns a limiter that looks up *own for each key, and its clock. If *own is nil, keys
// have the limit alg.
func withLimitOf(alg ratelimit.Algorithm, store ratelimit.Store, own *ratelimit.Algorithm) (ratelimit.Limiter, *stepclock.Clock) {
	clk := stepclock.New()
	clk.Advance(12*time.Hour + 34*time.Minute + 56789*time.Millisecond) // no border of a window
	return ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk),
		limitsOf(func(string) ratelimit.Algorithm { return *own }))), clk
}

// grantedAtRetryAfter takes an event of a key that is used up: it is granted at RetryAfter, and not
// a nanosecond before.
func grantedAtRetryAfter(t *testing.T, l ratelimit.Limiter, clk *stepclock.Clock) {
	t.Helper()
	d := fakes.Take(t, l, 1)
	require.False(t, d.Allowed)
	clk.Advance(d.RetryAfter - 1)
	require.False(t, l.Allow("key"), "a nanosecond before %v", d.RetryAfter)
	clk.Advance(1)
	require.True(t, l.Allow("key"), "after %v", d.RetryAfter)
}

// A limitChange is a change of the limit of a key.
type limitChange struct {
	was, is   ratelimit.Algorithm
	used      int // events taken before the change
	remaining int // right after the change
}

// keepsState reports whether the state of the former limit comes back with that limit, if the
// change is reverted before a request is made.
func (c *limitChange) keepsState() bool {
	was, is := partsOf(c.was), partsOf(c.is)
	return reflect.TypeOf(c.was) == reflect.TypeOf(c.is) && len(was) == len(is)
}

// partsOf returns the parts of an All. Any other algorithm is its only part.
func partsOf(alg ratelimit.Algorithm) ratelimit.All {
	if all, ok := alg.(ratelimit.All); ok {
		return all
	}
	return ratelimit.All{alg}
}

// limitChanges returns changes of each parameter, by name.
func limitChanges() map[string]limitChange {
	fixed := func(limit int) ratelimit.Algorithm {
		return ratelimit.FixedWindow{
			Limit: limit, Window: time.Minute, Start: ratelimit.StartOnFirstEvent,
		}
	}
	calendar := func(limit int, every ratelimit.CalendarUnit) ratelimit.Algorithm {
		return ratelimit.CalendarWindow{Limit: limit, Every: every, Zone: "Europe/London"}
	}
	sliding := func(limit int) ratelimit.Algorithm {
		return ratelimit.SlidingWindow{Limit: limit, Window: time.Minute}
	}
	eventLog := func(limit int) ratelimit.Algorithm {
		return ratelimit.SlidingLog{Limit: limit, Window: time.Minute}
	}
	rolling := func(quota int) ratelimit.Algorithm {
		return ratelimit.RollingWindow{Quota: quota, Window: time.Hour, Period: time.Minute}
	}
	bucket := func(n int) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: ratelimit.PerMinute(n)}
	}
	interval := func(n int) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: ratelimit.PerMinute(n), Refill: ratelimit.RefillInterval}
	}
	leaky := func(capacity int) ratelimit.Algorithm {
		return ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(10), Capacity: capacity}
	}
	lockout := func(n int) ratelimit.Algorithm {
		return ratelimit.Lockout{Limit: n, Window: time.Hour, First: time.Minute, Longest: time.Hour}
	}
	all := func(n int) ratelimit.Algorithm {
		return ratelimit.All{eventLog(n), bucket(n), fixed(n)}
	}
	return map[string]limitChange{
		"fixed, up":      {fixed(10), fixed(100), 10, 90},
		"fixed, down":    {fixed(100), fixed(10), 50, 0},
		"fixed, longer":  {fixed(10), ratelimit.FixedWindow{Limit: 100, Window: time.Hour}, 10, 90},
		"fixed, shorter": {fixed(10), ratelimit.FixedWindow{Limit: 10, Window: time.Second}, 10, 0},
		"aligned, up": {
			ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}, 10, 990,
		},
		"calendar, up":      {calendar(10, ratelimit.Month), calendar(1000, ratelimit.Month), 10, 990},
		"calendar, down":    {calendar(100, ratelimit.Month), calendar(10, ratelimit.Month), 50, 0},
		"calendar, longer":  {calendar(10, ratelimit.Day), calendar(100, ratelimit.Month), 10, 90},
		"calendar, shorter": {calendar(10, ratelimit.Month), calendar(10, ratelimit.Day), 10, 0},
		"calendar, zone": {
			calendar(10, ratelimit.Day), ratelimit.CalendarWindow{Limit: 15, Every: ratelimit.Day, Zone: "Asia/Tokyo"}, 10, 5,
		},
		"sliding, up":       {sliding(10), sliding(100), 10, 90},
		"sliding, down":     {sliding(100), sliding(10), 50, 0},
		"sliding, segments": {sliding(10), ratelimit.SlidingWindow{Limit: 20, Window: time.Minute, Segments: 6}, 10, 10},
		"log, up":           {eventLog(10), eventLog(100), 10, 90},
		"log, down":         {eventLog(100), eventLog(10), 50, 0},
		"log, shorter":      {eventLog(10), ratelimit.SlidingLog{Limit: 1, Window: time.Second}, 10, 0},
		"rolling, up":       {rolling(10), rolling(100), 10, 90},
		"rolling, down":     {rolling(100), rolling(10), 50, 0},
		"rolling, periods": {
			rolling(10), ratelimit.RollingWindow{Quota: 30, Window: time.Hour, Period: time.Hour, PeriodLimit: 25}, 10, 15,
		},
		"bucket, up":     {bucket(10), bucket(100), 10, 90},
		"bucket, faster": {bucket(10), ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, 10, 0},
		"bucket, slower": {
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, 10, 0,
		},
		"bucket, down": {bucket(100), bucket(10), 50, 0},
		"bucket, sevenths": {
			bucket(10), ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 7, Per: time.Minute}, Burst: 70}, 10, 60,
		},
		"interval":          {interval(10), interval(100), 10, 90},
		"leaky":             {leaky(10), leaky(100), 10, 90},
		"lockout, up":       {lockout(10), lockout(100), 10, 90},
		"lockout, down":     {lockout(100), lockout(10), 50, 0},
		"all, up":           {all(10), all(100), 5, 95},
		"all, other parts":  {all(10), ratelimit.All{bucket(10)}, 10, 10},
		"another algorithm": {bucket(10), fixed(10), 10, 10},
		"no change":         {bucket(10), bucket(10), 10, 0},
	}
}

// TestPriorities: limits that differ only in how much they grant have one state. So calls of less
// importance leave to all others what the smaller limit lacks.
func TestPriorities(t *testing.T) {
	t.Parallel()
	for name, of := range priorities() {
		for kind, open := range fakes.Stores {
			t.Run(name+"/"+kind, func(t *testing.T) {
				var limit ratelimit.Algorithm
				l, clk := withLimitOf(of(10), open(), &limit)
				used := 0
				for i := range 36 {
					most := []int{5, 8, 10}[i%3]
					limit = of(most)
					d := fakes.Take(t, l, 1)
					require.Equal(t, used < most, d.Allowed, "%d of 10 are in use, and the limit is %d", used, most)
					if d.Allowed {
						used++
					}
					require.Equal(t, most, d.Limit)
					require.Equal(t, max(0, most-used), d.Remaining)
					clk.Advance(time.Millisecond)
				}
				limit = of(8)
				grantedAtRetryAfter(t, l, clk)
			})
		}
	}
}

// priorities returns functions, by name, each of which makes limits of a kind that differ only in
// the number that is granted at once. The limits regain nearly nothing during a test.
func priorities() map[string]func(n int) ratelimit.Algorithm {
	const long = 1000 * time.Hour
	rate := ratelimit.Rate{Events: 10, Per: long}
	bucket := func(n int) ratelimit.Algorithm { return ratelimit.TokenBucket{Rate: rate, Burst: n} }
	fixed := func(n int) ratelimit.Algorithm { return ratelimit.FixedWindow{Limit: n, Window: long} }
	return map[string]func(n int) ratelimit.Algorithm{
		"TokenBucket": bucket,
		"TokenBucket/interval": func(n int) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: rate, Burst: n, Refill: ratelimit.RefillInterval}
		},
		"LeakyBucket": func(n int) ratelimit.Algorithm { return ratelimit.LeakyBucket{Rate: rate, Capacity: n} },
		"FixedWindow": fixed,
		"FixedWindow/first event": func(n int) ratelimit.Algorithm {
			return ratelimit.FixedWindow{Limit: n, Window: long, Start: ratelimit.StartOnFirstEvent}
		},
		"CalendarWindow": func(n int) ratelimit.Algorithm { return ratelimit.CalendarWindow{Limit: n, Every: ratelimit.Year} },
		"SlidingWindow":  func(n int) ratelimit.Algorithm { return ratelimit.SlidingWindow{Limit: n, Window: long} },
		"SlidingWindow/segments": func(n int) ratelimit.Algorithm {
			return ratelimit.SlidingWindow{Limit: n, Window: long, Segments: 5}
		},
		"SlidingLog": func(n int) ratelimit.Algorithm { return ratelimit.SlidingLog{Limit: n, Window: long} },
		"RollingWindow": func(n int) ratelimit.Algorithm {
			return ratelimit.RollingWindow{Quota: n, Window: long, Period: long / 10}
		},
		"InFlight": func(n int) ratelimit.Algorithm { return ratelimit.InFlight{Limit: n, Timeout: long} },
		"All":      func(n int) ratelimit.Algorithm { return ratelimit.All{bucket(n), fixed(n)} },
	}
}
