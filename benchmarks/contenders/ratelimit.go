package contenders

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// ModulePath is the path of this library's module.
const ModulePath = "github.com/ratelimit-go/ratelimit"

// The names of contenders that are this library. The first is the one that is compared with
// the peers.
const (
	TokenBucket    = "ratelimit"
	IntervalBucket = "ratelimit, interval bucket"
	LeakyBucket    = "ratelimit, leaky bucket"
	FixedWindow    = "ratelimit, fixed window"
	SlidingWindow  = "ratelimit, sliding window"
	RollingWindow  = "ratelimit, rolling window"
	SlidingLog     = "ratelimit, sliding log"
	WarmingUp      = "ratelimit, warming up"
	AllOfTwo       = "ratelimit, All of two"
	Take           = "ratelimit, Take"
	TakeAllOfTwo   = "ratelimit, TakeAll of two keys"
	HoldSettle     = "ratelimit, Hold and Settle"
	TakePeriods    = "ratelimit, Take, rolling window"
	HoldPeriods    = "ratelimit, Hold and Settle, rolling window"
	TakePeek       = "ratelimit, Take and Peek"
	PeekPeriods    = "ratelimit, Take and Peek, rolling window"
	CoarseClock    = "ratelimit, coarse clock"
)

// library returns a contender that is this library with the given algorithm, the default
// store and clock, and a call of Allow for each decision. like are the peers that are most
// like it.
func library(name, setup string, alg func(Limit) ratelimit.Algorithm, like ...string) Contender {
	return Contender{
		Name:   name,
		Role:   Variant,
		Quick:  true,
		Module: ModulePath,
		Setup:  setup,
		Like:   like,
		New:    func(l Limit) (Allow, error) { return limiting(alg(l)) },
		Own: func(l Limit) (Allow, error) {
			var plans [10]ratelimit.Algorithm
			for i := range plans {
				plans[i] = plan(alg(l), i)
			}
			return limiting(alg(l), ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
				return plans[key[len(key)-1]-'0'], nil
			}))
		},
	}
}

// limiting returns an Allow that calls Allow of a new limiter.
func limiting(alg ratelimit.Algorithm, opts ...ratelimit.Option) (Allow, error) {
	limiter, err := ratelimit.New(alg, opts...)
	if err != nil {
		return nil, err
	}
	return allowing(limiter), nil
}

// allowing returns an Allow that calls Allow of l.
func allowing(l ratelimit.Limiter) Allow {
	return func(key string) Answer { return answer(l.Allow(key)) }
}

// taking returns an Allow that calls Take of l.
func taking(l ratelimit.Limiter) Allow {
	ctx := context.Background()
	return func(key string) Answer {
		d, err := l.Take(ctx, key, 1)
		if err != nil {
			return Failed
		}
		return answer(d.Allowed)
	}
}

// settling returns an Allow that holds two events of l, of which one happens. It is two calls.
func settling(l ratelimit.Limiter) Allow {
	ctx := context.Background()
	return func(key string) Answer {
		r, d, err := l.Hold(ctx, key, 2)
		switch {
		case err != nil:
			return Failed
		case !d.Allowed:
			return Denied
		}
		if _, err := r.Settle(ctx, 1); err != nil {
			return Failed
		}
		return Allowed
	}
}

// peeking returns an Allow that does what Hold and Settle must do, whatever the algorithm: decide,
// allocate what the caller keeps, mark it as used, and decide again. In addition, Settle changes the
// state. It need not hash the key.
func peeking(l ratelimit.Limiter) Allow {
	ctx, take := context.Background(), taking(l)
	return func(key string) Answer {
		if a := take(key); a != Allowed {
			return a
		}
		if newKept().used.Swap(true) {
			return Failed
		}
		if _, err := l.Peek(ctx, key); err != nil {
			return Failed
		}
		return Allowed
	}
}

// kept is as large as a Reservation, and has as many pointers.
type kept struct {
	_    [2]*byte
	used atomic.Bool
	_    [5]uint64
}

// newKept allocates, because it is not inlined.
//
//go:noinline
func newKept() *kept { return new(kept) }

// takingEach returns an Each that calls TakeEach of l. If the call fails, or does not return
// one decision for each key, nothing counts as allowed.
func takingEach(l ratelimit.Limiter) Each {
	ctx := context.Background()
	var decisions []ratelimit.Decision // reused
	return func(keys []string) (allowed int) {
		var err error
		decisions, err = ratelimit.TakeEach(ctx, l, keys, 1, decisions[:0])
		if err != nil || len(decisions) != len(keys) {
			return 0
		}
		for i := range decisions {
			if decisions[i].Allowed {
				allowed++
			}
		}
		return allowed
	}
}

// plan returns alg with a limit that grows with i.
func plan(alg ratelimit.Algorithm, i int) ratelimit.Algorithm {
	switch a := alg.(type) {
	case ratelimit.TokenBucket:
		a.Burst += i
		return a
	case ratelimit.LeakyBucket:
		a.Capacity += i
		return a
	case ratelimit.FixedWindow:
		a.Limit += i
		return a
	case ratelimit.SlidingWindow:
		a.Limit += i
		return a
	case ratelimit.RollingWindow:
		a.Quota += i
		return a
	case ratelimit.SlidingLog:
		a.Limit += i
		return a
	case ratelimit.WarmingUp:
		a.Warmup += time.Duration(i)
		return a
	case ratelimit.All:
		parts := make(ratelimit.All, len(a))
		for j := range a {
			parts[j] = plan(a[j], i)
		}
		return parts
	}
	panic(fmt.Sprintf("no plan for %T", alg))
}

func tokenBucket() Contender {
	c := library(TokenBucket, "`TokenBucket`", bucketOf, xtimeInXsync)
	c.Role = Main
	c.Each = func(l Limit) (Allow, Each, error) {
		limiter, err := ratelimit.New(bucketOf(l))
		if err != nil {
			return nil, nil, err
		}
		return allowing(limiter), takingEach(limiter), nil
	}
	return c
}

func bucketOf(l Limit) ratelimit.Algorithm {
	return ratelimit.TokenBucket{Rate: ratelimit.Every(l.Every), Burst: l.Burst}
}

func intervalBucket() Contender {
	return library(IntervalBucket, "`TokenBucket` with `RefillInterval`", func(l Limit) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: ratelimit.Every(l.Every), Burst: l.Burst, Refill: ratelimit.RefillInterval}
	}, sethvargo)
}

func leakyBucket() Contender {
	return library(LeakyBucket, "`LeakyBucket`", func(l Limit) ratelimit.Algorithm {
		return ratelimit.LeakyBucket{Rate: ratelimit.Every(l.Every), Capacity: l.Burst}
	}, throttledName)
}

func fixedWindow() Contender {
	return library(FixedWindow, "`FixedWindow` of 1000 h", windowOf, failsafeMap, sethvargo, ulule)
}

func windowOf(l Limit) ratelimit.Algorithm {
	return ratelimit.FixedWindow{Limit: l.Burst, Window: l.window()}
}

func slidingWindow() Contender {
	return library(SlidingWindow, "`SlidingWindow` of 1000 h, or of 127 years with the limit of S1, one segment", func(l Limit) ratelimit.Algorithm {
		w := l.window()
		if l == Plenty {
			w = time.Duration(l.Burst) * l.Every // as for the bucket; in 1000 h, so many events do not fit one word
		}
		return ratelimit.SlidingWindow{Limit: l.Burst, Window: w}
	}, httprateName, httprateCount)
}

func rollingWindow() Contender {
	return library(RollingWindow, "`RollingWindow` of 24 periods of 1000 h each", rollingOf, httprateName, httprateCount)
}

func rollingOf(l Limit) ratelimit.Algorithm {
	period := window
	if l == Quick {
		period = l.Every
	}
	return ratelimit.RollingWindow{Quota: l.Burst, Window: 24 * period, Period: period}
}

// slidingLog has at most about a hundred events of a key in its window. Where a key is used
// more often, it forgets them as fast as new ones come.
func slidingLog() Contender {
	const setup = "`SlidingLog` with up to about 100 events of a key in its window: 1,000 in 10 µs for one key, 1,000 in 10 ms for each of 1,000 keys, and otherwise 100 in 1000 h"
	return library(SlidingLog, setup, func(l Limit) ratelimit.Algorithm {
		switch l {
		case Plenty:
			return ratelimit.SlidingLog{Limit: 1000, Window: 10 * time.Microsecond}
		case Few:
			return ratelimit.SlidingLog{Limit: 1000, Window: 10 * time.Millisecond}
		}
		return ratelimit.SlidingLog{Limit: l.Burst, Window: l.window()}
	}, httprateName, httprateCount)
}

// warmingUp has no burst: after an event, a key waits for the time that the event takes. Where
// all events are to be granted, that is less than a nanosecond.
func warmingUp() Contender {
	const setup = "`WarmingUp`; where events are allowed, they take so little time that a key is always idle"
	c := library(WarmingUp, setup, func(l Limit) ratelimit.Algorithm {
		switch l {
		case Spent, Once:
			return ratelimit.WarmingUp{Rate: ratelimit.Every(l.Every), Warmup: 24 * time.Hour}
		}
		return ratelimit.WarmingUp{Rate: ratelimit.Rate{Events: 1_000_000, Per: time.Microsecond}, Warmup: time.Second}
	})
	c.AtOnce = 1
	return c
}

func allOfTwo() Contender {
	return library(AllOfTwo, "`All` of two `TokenBucket`s, the second with a burst of one more", func(l Limit) ratelimit.Algorithm {
		return ratelimit.All{bucketOf(l), ratelimit.TokenBucket{Rate: ratelimit.Every(l.Every), Burst: l.Burst + 1}}
	}, twoXtime)
}

// calling returns a contender that calls a limiter of this library with call for each decision, in
// rows of at most a thousand keys.
func calling(name, setup string, alg func(Limit) ratelimit.Algorithm, call func(ratelimit.Limiter) Allow) Contender {
	return Contender{
		Name:   name,
		Role:   Variant,
		Small:  true,
		Module: ModulePath,
		Setup:  setup,
		New: func(l Limit) (Allow, error) {
			limiter, err := ratelimit.New(alg(l))
			if err != nil {
				return nil, err
			}
			return call(limiter), nil
		},
	}
}

func take() Contender {
	c := calling(Take, "`TokenBucket`, called with `Take`", bucketOf, taking)
	c.Quick = true
	return c
}

func takeAllOfTwo() Contender {
	return Contender{
		Name:   TakeAllOfTwo,
		Role:   Variant,
		Quick:  true,
		Small:  true,
		Module: ModulePath,
		Setup:  "the same key of two `TokenBucket`s on one store, called with `TakeAll`",
		New: func(l Limit) (Allow, error) {
			store := ratelimit.NewMemoryStore()
			first, err := ratelimit.New(bucketOf(l), ratelimit.WithStore(store), ratelimit.WithName("first"))
			if err != nil {
				return nil, err
			}
			second, err := ratelimit.New(bucketOf(l), ratelimit.WithStore(store), ratelimit.WithName("second"))
			if err != nil {
				return nil, err
			}
			ctx := context.Background()
			return func(key string) Answer {
				d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(first, key), ratelimit.For(second, key))
				if err != nil {
					return Failed
				}
				return answer(d.Allowed)
			}, nil
		},
	}
}

func holdSettle() Contender {
	c := calling(HoldSettle, "`TokenBucket`; for each decision, `Hold` of two events, and `Settle` of one", bucketOf, settling)
	c.Quick, c.AtOnce = true, Spent.Burst-1 // then there is no room for two
	return c
}

func takePeek() Contender { return calling(TakePeek, takeAndPeek, bucketOf, peeking) }

const takeAndPeek = "the same; for each decision, `Take` of one event, an allocation as large as a Reservation, of which a bit is swapped, and `Peek`"

// takePeriods, holdPeriods and peekPeriods are take, holdSettle and takePeek with a state of
// several words.
func takePeriods() Contender {
	return calling(TakePeriods, "`RollingWindow` of 24 periods, called with `Take`", rollingOf, taking)
}

func holdPeriods() Contender {
	c := calling(HoldPeriods, "the same; for each decision, `Hold` of two events, and `Settle` of one", rollingOf, settling)
	c.AtOnce = Spent.Burst - 1
	return c
}

func peekPeriods() Contender { return calling(PeekPeriods, takeAndPeek, rollingOf, peeking) }

func coarseClock() Contender {
	var clk *ratelimit.CoarseClock
	return Contender{
		Name:   CoarseClock,
		Role:   Variant,
		Module: ModulePath,
		Setup:  "`TokenBucket` with a `CoarseClock` of 1 ms",
		New: func(l Limit) (_ Allow, err error) {
			if clk, err = ratelimit.NewCoarseClock(time.Millisecond); err != nil {
				return nil, err
			}
			return limiting(bucketOf(l), ratelimit.WithClock(clk))
		},
		Stop: func() { clk.Stop() },
	}
}

// Bounded returns a token bucket of this library whose store holds at most the given
// number of keys.
func Bounded(l Limit, keys int) (Allow, error) {
	return limiting(bucketOf(l), ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(keys))), ratelimit.WithName("api"))
}

// Simulated returns a token bucket of this library with 10 events a second, on a clock that
// tick moves, and its store.
func Simulated() (allow Allow, store *ratelimit.MemoryStore, tick func(time.Duration), err error) {
	clk := &simulatedClock{Clock: clock.New(), now: time.Unix(1_700_000_000, 0)}
	store = ratelimit.NewMemoryStore()
	allow, err = limiting(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.WithStore(store), ratelimit.WithName("api"), ratelimit.WithClock(clk))
	return allow, store, func(d time.Duration) { clk.now = clk.now.Add(d) }, err
}

// A simulatedClock is a clock for one goroutine, which moves it.
type simulatedClock struct {
	clock.Clock // for timers, which are not used
	now         time.Time
}

func (c *simulatedClock) Now() time.Time                  { return c.now }
func (c *simulatedClock) Since(t time.Time) time.Duration { return c.now.Sub(t) }
