package decide_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
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
		ratelimit.RollingWindow{Quota: 7, Window: time.Minute, Period: 20 * time.Second, PeriodLimit: 6},
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
	"all in flight": {
		ratelimit.All{ratelimit.InFlight{Limit: 6, Timeout: time.Minute}, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10)}},
		ratelimit.All{ratelimit.InFlight{Limit: 9, Timeout: time.Hour}, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(20)}},
	},
	"all with logs": {
		ratelimit.All{ratelimit.FixedWindow{Limit: 10, Window: time.Minute}, ratelimit.SlidingLog{Limit: 9, Window: time.Minute}},
		ratelimit.All{ratelimit.FixedWindow{Limit: 15, Window: time.Hour}, ratelimit.SlidingLog{Limit: 9, Window: time.Hour}},
	},
}

// rivalsIn returns what histories of a key are played on whose limit is one of rivals: three stores.
// Of the databases, one deletes each state when it expires.
func rivalsIn(name string) *history.Twins {
	s := &history.Twins{Limits: rivals[name], Start: fakes.Midnight, Kept: "bytes, bytes that expire, and memory"}
	s.Open = func(of func(key string) ratelimit.Algorithm) (on history.OpenTwins) {
		clk, db, memory := storetest.NewClock(s.Start), fakes.NewMapDB(), new(ratelimit.MemoryStore)
		for i, store := range []ratelimit.Store{
			db.Store(),
			ratelimit.NewStore(&expiring{fakes.NewMapDB(), clk}),
			memory,
		} {
			var both []ratelimit.Limiter
			for range 2 {
				l := ratelimit.Must(ratelimit.New(of(""), ratelimit.WithStore(store), ratelimit.WithName("test"),
					ratelimit.WithClock(clk), limitsOf(of), fakes.Patient))
				if i == 0 {
					l = onlyLooking{l, db}
				}
				both = append(both, l)
			}
			on.Stores = append(on.Stores, history.Store{Limiters: both})
		}
		on.Clock, on.After = clk, keysAgree(memory)
		return on
	}
	return s
}

// keysAgree fails a history after which the numbers of keys that a store returns do not agree.
func keysAgree(s *ratelimit.MemoryStore) func([]history.Op) error {
	return func([]history.Op) error {
		if keys, n := s.Stats().Keys, s.Len(); keys != n {
			return fmt.Errorf("Stats has %d keys, and Len is %d", keys, n)
		}
		return nil
	}
}

// An onlyLooking limiter fails if a Peek writes to its database.
type onlyLooking struct {
	ratelimit.Limiter
	db *fakes.MapDB
}

func (l onlyLooking) Peek(ctx context.Context, key string) (ratelimit.Decision, error) {
	before := maps.Clone(l.db.States)
	d, err := l.Limiter.Peek(ctx, key)
	if err == nil && !maps.Equal(before, l.db.States) {
		err = fmt.Errorf("a Peek of %q wrote %x, where %x was", key, l.db.States, before)
	}
	return d, err
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
// also one that deletes the states that have expired, and a Peek writes nothing. A request that was
// denied is granted when it was told to be, and not earlier.
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

// obeying returns what histories of a key in memory are played on whose limit changes, and which a
// limiter of law watches: its errors end a history.
func obeying(algs []ratelimit.Algorithm, law func(w watched) ratelimit.Limiter) *history.Twins {
	s := &history.Twins{Limits: algs, Start: fakes.Midnight, Kept: "memory"}
	s.Open = func(of func(key string) ratelimit.Algorithm) (on history.OpenTwins) {
		clk, store := storetest.NewClock(s.Start), new(ratelimit.MemoryStore)
		l := ratelimit.Must(ratelimit.New(of(""), ratelimit.WithStore(store), ratelimit.WithName("test"),
			ratelimit.WithClock(clk), limitsOf(of)))
		on.Clock, on.Stores = clk, []history.Store{{Limiters: []ratelimit.Limiter{law(watched{l, of, clk})}}}
		on.After = keysAgree(store)
		return on
	}
	return s
}

// A watched limiter has a law that other methods than its own require.
type watched struct {
	ratelimit.Limiter
	of  func(key string) ratelimit.Algorithm
	clk *storetest.Clock
}

// turns chooses takes and reservations, while the limit changes.
func turns(c history.Random, limits, most int) history.Step {
	made := 0
	return history.AtMost(60, func(history.Player) (history.Op, bool) {
		switch c.Below(4) {
		case 0:
			return history.Op{Verb: history.Limit, N: c.Below(limits)}, true
		case 1:
			return history.Op{Verb: history.Pass, For: c.Within(3 * time.Second)}, true
		case 2:
			made++
			return history.Op{Verb: history.Reserve, N: 1 + c.Below(most), Name: fmt.Sprint("r", made)}, true
		default:
			return history.Op{Verb: history.Take, N: 1}, true
		}
	})
}

// TestChangesKeepPendingReservations: limits change up, down and back. Nothing is granted before
// the turn of the latest pending reservation.
func TestChangesKeepPendingReservations(t *testing.T) {
	t.Parallel()
	draw := func(rng *rand.Rand) (n int, w time.Duration) {
		return 1 + rng.IntN(12), []time.Duration{time.Second, 7 * time.Second, time.Minute}[rng.IntN(3)]
	}
	for name, random := range map[string]func(rng *rand.Rand) ratelimit.Algorithm{
		"token": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: n, Per: w}, Burst: 1 + rng.IntN(12)}
		},
		"interval": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: n, Per: w}, Burst: 1 + rng.IntN(12), Refill: ratelimit.RefillInterval}
		},
		"fixed": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			return ratelimit.FixedWindow{Limit: n, Window: w, Start: ratelimit.WindowStart(rng.IntN(2))}
		},
		"lockout": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			return ratelimit.Lockout{Limit: n, Window: w, First: w / 2, Longest: w * time.Duration(rng.IntN(3))}
		},
		"calendar": func(rng *rand.Rand) ratelimit.Algorithm {
			n, _ := draw(rng)
			return ratelimit.CalendarWindow{Limit: n, Every: ratelimit.CalendarUnit(1 + rng.IntN(5)), Hour: rng.IntN(24)}
		},
		"sliding": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			return ratelimit.SlidingWindow{Limit: n, Window: w, Segments: []int{1, 2, 5}[rng.IntN(3)]}
		},
		"log": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			return ratelimit.SlidingLog{Limit: n, Window: w}
		},
		"counted": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			return ratelimit.SlidingLog{Limit: n, Window: w, CountDenied: true}
		},
		"rolling": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			return ratelimit.RollingWindow{Quota: n, Window: w, Period: w / []time.Duration{1, 2, 4, 5}[rng.IntN(4)]}
		},
		"warming": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			return ratelimit.WarmingUp{Rate: ratelimit.Rate{Events: n, Per: w}, Warmup: w}
		},
		"all": func(rng *rand.Rand) ratelimit.Algorithm {
			n, w := draw(rng)
			m, v := draw(rng)
			return ratelimit.All{
				ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: n, Per: w}},
				ratelimit.SlidingLog{Limit: m, Window: v},
				ratelimit.FixedWindow{Limit: n, Window: v},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range budget.Seeds(t, budget.Histories(50, 200)) {
				c := history.NewRandom(seed, 23)
				algs := make([]ratelimit.Algorithm, 16)
				for i := range algs {
					algs[i] = random(c.Rand)
				}
				law := func(w watched) ratelimit.Limiter { return &inTurn{watched: w} }
				history.Run(t, obeying(algs, law), turns(c, len(algs), 2))
			}
		})
	}
}

// An inTurn limiter fails if events are granted before the turn of the latest reservation, or a
// request is told to come before it.
type inTurn struct {
	watched
	latest time.Time // when that turn comes
}

func (l *inTurn) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	d, err := l.Limiter.Take(ctx, key, n)
	if err == nil && l.clk.Now().Add(d.RetryAfter).Before(l.latest) {
		err = fmt.Errorf("granted, or told to be, before %v, the turn of a reservation: %+v", l.latest, d)
	}
	return d, err
}

func (l *inTurn) Reserve(ctx context.Context, key string, n int,
	opts ...ratelimit.ReserveOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	r, d, err := l.Limiter.Reserve(ctx, key, n, opts...)
	if r == nil {
		return r, d, err
	}
	turn := l.clk.Now().Add(r.Delay())
	if turn.Before(l.latest) {
		err = fmt.Errorf("reserved at %v, before %v, the turn of another reservation", turn, l.latest)
	}
	l.latest = turn
	return r, d, err
}

// TestChangedBucketsKeepTheHighestBound: the bound of a bucket whose limit changes is burst +
// t·rate, with the highest burst and the highest rate that it had.
func TestChangedBucketsKeepTheHighestBound(t *testing.T) {
	for seed := range budget.Seeds(t, budget.Histories(75, 300)) {
		c := history.NewRandom(seed, 7)
		algs := make([]ratelimit.Algorithm, 16)
		for i := range algs {
			algs[i] = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1 + c.Below(8)), Burst: 1 + c.Below(8)}
		}
		law := func(w watched) ratelimit.Limiter { return &withinBound{watched: w} }
		history.Run(t, obeying(algs, law), turns(c, len(algs), 1))
	}
}

// A withinBound limiter fails if more events are granted within a span than the highest burst and
// rate allow.
type withinBound struct {
	watched
	burst, rate int
	granted     []time.Time // when events are granted
}

func (l *withinBound) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	d, err := l.Limiter.Take(ctx, key, n)
	if d.Allowed {
		err = errors.Join(err, l.grant(key, l.clk.Now()))
	}
	return d, err
}

func (l *withinBound) Reserve(ctx context.Context, key string, n int,
	opts ...ratelimit.ReserveOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	r, d, err := l.Limiter.Reserve(ctx, key, n, opts...)
	if r != nil {
		err = errors.Join(err, l.grant(key, l.clk.Now().Add(r.Delay())))
	}
	return r, d, err
}

// grant notes that an event is granted, and compares the events of each span that ends or begins
// with it with the bound.
func (l *withinBound) grant(key string, at time.Time) error {
	limit := l.of(key).(ratelimit.TokenBucket)
	l.burst, l.rate = max(l.burst, limit.Burst), max(l.rate, limit.Rate.Events)
	l.granted = append(l.granted, at)
	slices.SortFunc(l.granted, time.Time.Compare)
	for i, first := range l.granted {
		for j, last := range l.granted[i:] {
			span := last.Sub(first)
			if most := float64(l.burst) + span.Seconds()*float64(l.rate) + 1e-6; float64(j+1) > most {
				return fmt.Errorf("%d events within %v, where at most %v may happen", j+1, span, most)
			}
		}
	}
	return nil
}
