package decide_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// This file has laws of random histories of a key: takes, charges, holds, reservations and
// settlements, while the limit of the key changes and changes back.

// rivals are limits of one kind each, which a key has in turns. The first and the last differ only
// in how much they grant.
var rivals = map[string][]ratelimit.Algorithm{
	"token": {
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5},
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(7), Burst: 8},
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(5), Burst: 5},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 9},
	},
	"interval": {
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(3), Burst: 5, Refill: ratelimit.RefillInterval},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 8, Refill: ratelimit.RefillInterval},
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(3), Burst: 9, Refill: ratelimit.RefillInterval},
	},
	"leaky": {
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 5},
		ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(7), Capacity: 8},
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 9},
	},
	"fixed": {
		ratelimit.FixedWindow{Limit: 5, Window: time.Minute},
		ratelimit.FixedWindow{Limit: 8, Window: 10 * time.Second},
		ratelimit.FixedWindow{Limit: 6, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
		ratelimit.FixedWindow{Limit: 7, Window: time.Minute, Start: ratelimit.StartOnFirstEvent},
		ratelimit.FixedWindow{Limit: 9, Window: time.Minute},
	},
	"calendar": {
		ratelimit.CalendarWindow{Limit: 5, Every: ratelimit.Day},
		ratelimit.CalendarWindow{Limit: 8, Every: ratelimit.Day, Hour: 4},
		ratelimit.CalendarWindow{Limit: 6, Every: ratelimit.Week, Zone: "Asia/Tokyo"},
		ratelimit.CalendarWindow{Limit: 9, Every: ratelimit.Day},
	},
	"sliding": {
		ratelimit.SlidingWindow{Limit: 5, Window: time.Minute},
		ratelimit.SlidingWindow{Limit: 8, Window: 10 * time.Second},
		ratelimit.SlidingWindow{Limit: 9, Window: time.Minute},
	},
	"segments": {
		ratelimit.SlidingWindow{Limit: 5, Window: time.Minute, Segments: 6},
		ratelimit.SlidingWindow{Limit: 8, Window: 10 * time.Second, Segments: 2},
		ratelimit.SlidingWindow{Limit: 9, Window: time.Minute, Segments: 6},
	},
	"rolling": {
		ratelimit.RollingWindow{Quota: 5, Window: time.Minute, Period: 10 * time.Second, PeriodLimit: 3},
		ratelimit.RollingWindow{Quota: 8, Window: 10 * time.Second, Period: 5 * time.Second},
		ratelimit.RollingWindow{Quota: 9, Window: time.Minute, Period: 10 * time.Second, PeriodLimit: 3},
	},
	"log": {
		ratelimit.SlidingLog{Limit: 5, Window: time.Minute},
		ratelimit.SlidingLog{Limit: 8, Window: 10 * time.Second},
		ratelimit.SlidingLog{Limit: 9, Window: time.Minute},
	},
	"denials": {
		ratelimit.SlidingLog{Limit: 5, Window: time.Minute, CountDenied: true},
		ratelimit.SlidingLog{Limit: 8, Window: 10 * time.Second},
		ratelimit.SlidingLog{Limit: 9, Window: time.Minute, CountDenied: true},
	},
	"warming": {
		ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1), Warmup: 4 * time.Second},
		ratelimit.WarmingUp{Rate: ratelimit.PerMinute(7), Warmup: 40 * time.Second},
		ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1), Warmup: 4 * time.Second, ColdFactor: 2},
	},
	"in flight": {
		ratelimit.InFlight{Limit: 5, Timeout: time.Minute},
		ratelimit.InFlight{Limit: 8, Timeout: 10 * time.Second},
		ratelimit.InFlight{Limit: 9, Timeout: time.Minute},
	},
	"lockout": {
		ratelimit.Lockout{Limit: 5, Window: time.Minute, First: 10 * time.Second, Longest: time.Minute},
		ratelimit.Lockout{Limit: 8, Window: 20 * time.Second, First: 30 * time.Second},
		ratelimit.Lockout{Limit: 3, Window: time.Hour, First: time.Second, Longest: 10 * time.Second},
		ratelimit.Lockout{Limit: 9, Window: time.Minute, First: 10 * time.Second, Longest: time.Minute},
	},
	"all": {
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5}, ratelimit.FixedWindow{Limit: 20, Window: time.Minute}},
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 8}, ratelimit.FixedWindow{Limit: 10, Window: time.Hour}},
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 9}, ratelimit.FixedWindow{Limit: 30, Window: time.Minute}},
	},
}

// rivalsIn returns what histories of a key are played on whose limit is one of rivals: three stores.
// Of the databases, one deletes each state when it expires.
func rivalsIn(name string) *history.Twins {
	s := &history.Twins{Limits: rivals[name], Start: fakes.Midnight, Kept: "bytes, bytes that expire, and memory"}
	s.Open = func(of func(key string) ratelimit.Algorithm) (on history.OpenTwins) {
		clk := storetest.NewClock(s.Start)
		for _, store := range []ratelimit.Store{
			fakes.NewMapDB().Store(),
			ratelimit.NewStore(&expiring{fakes.NewMapDB(), clk}),
			new(ratelimit.MemoryStore),
		} {
			var both []ratelimit.Limiter
			for range 2 {
				both = append(both, ratelimit.Must(ratelimit.New(of(""), ratelimit.WithStore(store),
					ratelimit.WithName("test"), ratelimit.WithClock(clk), limitsOf(of), fakes.Patient)))
			}
			on.Stores = append(on.Stores, history.Store{Limiters: both})
		}
		on.Clock = clk
		return on
	}
	return s
}

// An expiring is a database that deletes each state when it expires.
type expiring struct {
	*fakes.MapDB
	clk *storetest.Clock
}

func (db *expiring) Get(ctx context.Context, key string) ([]byte, error) {
	if until := db.Until[key]; !until.IsZero() && !db.clk.Now().Before(until) {
		delete(db.States, key)
		delete(db.Until, key)
	}
	return db.MapDB.Get(ctx, key)
}

// TestReturnsAfterItHasGone: a limit that has gone, and is asked again, is another one: if it changes
// nothing, no store keeps it. It was kept where a store knew both limits from before.
func TestReturnsAfterItHasGone(t *testing.T) {
	history.Check(t, rivalsIn("denials"), `
		take 1
		limit 1
		take 1
		limit 0
		take 1
		pass 58s
		take 2
		pass 33s
		limit 1
		take 0
		limit 2
		take 8
		limit 1
		take 1
	`)
}

// TestRivals: while the limit of a key changes and changes back, each store gives the same answers,
// also one that deletes the states that have expired. A request that was denied is granted when it
// was told to be, and not earlier.
func TestRivals(t *testing.T) {
	t.Parallel()
	for name, limits := range rivals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			promises, histories := 0, budget.Histories(300, 3000)
			for seed := range budget.Seeds(t, histories) {
				g := &history.Generator{
					Choices: history.NewRandom(seed, 7),
					Keys:    []string{""},
					Spans:   []time.Duration{20 * time.Second, time.Minute, 2 * time.Hour},
					By:      2,
					Limits:  len(limits),
				}
				var last history.Player
				history.Run(t, rivalsIn(name), history.AtMost(120, func(p history.Player) (history.Op, bool) {
					last = p
					return g.Next(p)
				}))
				promises += last.Promises()
			}
			require.Greater(t, promises, int(histories)/4, "requests that are granted as they were told")
		})
	}
}
