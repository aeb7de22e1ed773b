package storetest

import (
	"reflect"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testChanges changes the limit of a key, and changes it back.
func testChanges(s *suite) {
	for name, alg := range Algorithms() {
		testNewKind(s, name, alg)
	}
	for name, c := range limitChanges() {
		testNewLimit(s, name, c)
		if c.keepsState() {
			testRevertedChange(s, name, c)
		}
	}
}

// testNewKind gives a key of alg a limit of another kind, with which the key starts fresh.
func testNewKind(s *suite, name string, alg ratelimit.Algorithm) {
	limit := alg
	b := s.bench(alg, ownLimit(&limit))
	s.take(b, "k", 1)
	s.take(b, "k", 1)
	limit = ratelimit.RollingWindow{Quota: 3, Window: 3 * time.Hour, Period: time.Hour}
	sameKind := strings.HasPrefix(name, "RollingWindow")
	d := s.take(b, "k", 1)
	if !d.Allowed || !sameKind && d.Remaining != 2 {
		s.broken("%s: %v started with %+v", name, limit, d)
	}
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
		"fixed, up":         {fixed(10), fixed(100), 10, 90},
		"fixed, down":       {fixed(100), fixed(10), 50, 0},
		"fixed, longer":     {fixed(10), ratelimit.FixedWindow{Limit: 100, Window: time.Hour}, 10, 90},
		"fixed, shorter":    {fixed(10), ratelimit.FixedWindow{Limit: 10, Window: time.Second}, 10, 0},
		"aligned, up":       {ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}, 10, 990},
		"calendar, up":      {calendar(10, ratelimit.Month), calendar(1000, ratelimit.Month), 10, 990},
		"calendar, down":    {calendar(100, ratelimit.Month), calendar(10, ratelimit.Month), 50, 0},
		"calendar, longer":  {calendar(10, ratelimit.Day), calendar(100, ratelimit.Month), 10, 90},
		"calendar, shorter": {calendar(10, ratelimit.Month), calendar(10, ratelimit.Day), 10, 0},
		"calendar, zone":    {calendar(10, ratelimit.Day), ratelimit.CalendarWindow{Limit: 15, Every: ratelimit.Day, Zone: "Asia/Tokyo"}, 10, 5},
		"sliding, up":       {sliding(10), sliding(100), 10, 90},
		"sliding, down":     {sliding(100), sliding(10), 50, 0},
		"sliding, segments": {sliding(10), ratelimit.SlidingWindow{Limit: 20, Window: time.Minute, Segments: 6}, 10, 10},
		"log, up":           {eventLog(10), eventLog(100), 10, 90},
		"log, down":         {eventLog(100), eventLog(10), 50, 0},
		"log, shorter":      {eventLog(10), ratelimit.SlidingLog{Limit: 1, Window: time.Second}, 10, 0},
		"rolling, up":       {rolling(10), rolling(100), 10, 90},
		"rolling, down":     {rolling(100), rolling(10), 50, 0},
		"rolling, periods":  {rolling(10), ratelimit.RollingWindow{Quota: 30, Window: time.Hour, Period: time.Hour, PeriodLimit: 25}, 10, 15},
		"bucket, up":        {bucket(10), bucket(100), 10, 90},
		"bucket, faster":    {bucket(10), ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, 10, 0},
		"bucket, slower":    {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, 10, 0},
		"bucket, down":      {bucket(100), bucket(10), 50, 0},
		"bucket, sevenths":  {bucket(10), ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 7, Per: time.Minute}, Burst: 70}, 10, 60},
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

// testNewLimit uses a key, changes its limit, and checks that Remaining and RetryAfter are those of
// the new limit.
func testNewLimit(s *suite, name string, c limitChange) {
	limit := c.was
	b := s.bench(ratelimit.FixedWindow{Limit: 1, Window: time.Minute}, ownLimit(&limit))
	if !b.AllowN("k", c.used) {
		s.broken("%s: a fresh key was denied %d", name, c.used)
	}
	limit = c.is
	if d := s.peek(b, "k"); d.Remaining != c.remaining {
		s.broken("%s: %d of %+v were used, and then %+v has %d remaining, want %d",
			name, c.used, c.was, c.is, d.Remaining, c.remaining)
	}
	if b.AllowN("k", c.remaining+1) || !b.AllowN("k", c.remaining) {
		s.broken("%s: Remaining is %d, but that is not what can be taken", name, c.remaining)
	}
	d := s.take(b, "k", 1)
	if d.Allowed {
		s.broken("%s: more than what remained was granted", name)
	}
	b.clk.Advance(d.RetryAfter - s.Tick)
	if b.Allow("k") {
		s.broken("%s: granted %v before RetryAfter, %v", name, s.Tick, d.RetryAfter)
	}
	b.clk.Advance(s.Tick)
	if !b.Allow("k") {
		s.broken("%s: denied at RetryAfter, %v", name, d.RetryAfter)
	}
}

// testRevertedChange changes the limit of a key, and changes it back before a request is made of
// the key. The change then has no effect, except that ResetAfter may be later if the window's
// length or segments differ.
func testRevertedChange(s *suite, name string, c limitChange) {
	var limit ratelimit.Algorithm // nil for the limiter's own
	b := s.bench(c.was, ownLimit(&limit))
	b.AllowN("k", c.used)
	before := s.peek(b, "k")
	limit = c.is
	b.Allow("another")
	s.peek(b, "k")
	limit = nil
	after := s.peek(b, "k")
	if after.Remaining != before.Remaining || after.ResetAfter < before.ResetAfter {
		s.broken("%s: a reverted change turned\n%+v\ninto\n%+v", name, before, after)
	}
}
