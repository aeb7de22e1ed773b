// Package contenders makes the compared limiters do the same, each through its own public
// API: limit each key, and decide whether one more event may happen.
//
// To add a limiter, write a file with a function that returns its [Contender], and add
// that to [All].
package contenders

import "time"

// A Limit is the limit of every key.
type Limit struct {
	Burst int           // the events that a new key may have at once
	Every time.Duration // the time until one of them comes back
}

// The limits of the scenarios. With each of them but Quick, no event comes back during a
// run: a key that was used stays in use, so that no limiter may forget it, and a key that is
// denied stays denied. They differ, so that a contender can tell them apart.
var (
	// Plenty is more than one key can use in a run. Burst times Every is 127 years, near
	// the maximum of a limiter that counts in nanoseconds. Every may be short, because
	// the key is used all the time.
	Plenty = Limit{Burst: 400_000_000, Every: 10 * time.Second}

	// Few is more than each of a thousand keys can use in a round.
	Few = Limit{Burst: 400_000, Every: 10 * time.Minute}

	// Hundred is more than any of many keys uses, and small enough to exhaust a key on
	// purpose.
	Hundred = Limit{Burst: 100, Every: 1000 * time.Hour}

	// Lavish is Plenty for a clock that counts in microseconds up to the year 2116. Every
	// is longer than a round, because Redis forgets a key once its event has come back.
	Lavish = Limit{Burst: 20_000_000, Every: 50 * time.Second}

	// Quick comes back before a key is used again, as for most clients of most services:
	// they are far below their limits, so that the state of a key is that of a new one when
	// it is used.
	Quick = Limit{Burst: 10, Every: time.Microsecond}

	// Spent is exhausted by a hundred events, which a log then holds.
	Spent = Limit{Burst: 100, Every: 2000 * time.Hour}

	// Once is exhausted by the first event.
	Once = Limit{Burst: 1, Every: 1000 * time.Hour}
)

// window is the window of contenders that count events in windows. It is longer than any
// run.
const window = 1000 * time.Hour

// Exhausts returns how many events exhaust a new key.
func (c Contender) Exhausts(l Limit) int {
	if c.AtOnce > 0 {
		return c.AtOnce
	}
	return l.Burst
}

// window returns the window of contenders that count events in windows.
func (l Limit) window() time.Duration {
	if l == Quick {
		return time.Duration(l.Burst) * l.Every
	}
	return window
}

// The names of peers that algorithms of this library are compared with.
const (
	xtimeInXsync = "x/time in an xsync map"
	twoXtime     = "two x/time in an xsync map"

	sethvargo     = "sethvargo/go-limiter"
	throttledName = "throttled"
	ulule         = "ulule/limiter"
	failsafeMap   = "failsafe-go in a sync.Map"
	httprateName  = "httprate"
	httprateCount = "httprate's counter"
)

// An Answer is the decision of a limiter on one event.
type Answer uint8

// The answers. Failed is an error of the limiter, and is always wrong.
const (
	Denied Answer = iota
	Allowed
	Failed
)

func answer(allowed bool) Answer {
	if allowed {
		return Allowed
	}
	return Denied
}

// Allow asks a limiter whether one event of key may happen now, and spends it if so. It is
// safe for concurrent use by multiple goroutines.
type Allow func(key string) Answer

// Each asks a limiter in one call whether one event of each key may happen now, spends those
// that may, and returns how many may. It is for one goroutine.
type Each func(keys []string) (allowed int)

// A Role is the role of a contender in the comparison.
type Role int

// The roles.
const (
	Main    Role = iota // this library, as compared with the peers
	Variant             // this library with another algorithm
	Peer                // another library
	Bound               // a sketch that does only what every exact limiter must do
	Floor               // no limiter: the cost of the harness
	Weighed             // this library with another algorithm in Redis, to measure its bytes only
	Slots               // the same with a state of many slots, to measure R1 as well
	Settled             // this library in Redis, called with Hold and Settle, to measure R1 only
)

// A Contender is a limiter in the comparison.
type Contender struct {
	Name   string // as in the tables
	Role   Role
	HTTP   bool   // whether it is a middleware, which is compared with other ones
	Wire   bool   // whether it answers hostile requests over a connection; likewise
	Rules  bool   // whether it is a table of rules, or is compared with one
	Quick  bool   // whether it can have the limit Quick
	Small  bool   // whether it takes part only in rows of at most a thousand keys
	Module string // the path of its module, whose version the report has
	Setup  string // how it is configured and called, for the report

	// Like are the names of the peers with the same algorithm or, if there are none, with
	// the nearest one.
	Like []string

	// AtOnce is the number of events that a new key may have at once, if it is not the
	// Burst of the limit.
	AtOnce int

	// New returns a new limiter without keys.
	New func(Limit) (Allow, error)

	// Own is like New, with one of ten limits for each key by its last digit. It is nil if
	// that is not measured.
	Own func(Limit) (Allow, error)

	// Each is like New, and also returns a call for many keys on the same limiter. It is
	// nil if that is not measured.
	Each func(Limit) (Allow, Each, error)

	// Dial replaces New for limiters in Redis. It returns a limiter that uses the server
	// at addr through its own client, and a function that closes the client. The timeout
	// is that of this library's store; 0 means the default.
	Dial func(addr string, l Limit, timeout time.Duration) (Allow, func(), error)

	// DialEach replaces Each for limiters in Redis, as Dial replaces New.
	DialEach func(addr string, l Limit, timeout time.Duration) (Allow, Each, func(), error)

	// Swaps is whether the limiter in Redis reads a state and replaces it if it has not
	// changed, until that succeeds. With a thousand callers of one key that takes minutes.
	Swaps bool

	// Stale is whether the limiter reads the clock before the state, so that a caller that
	// is stopped between the two may be denied for events that came later. The limit of idle
	// keys comes back within the time that a caller is stopped, so Stale ones are not measured
	// there from all cores.
	Stale bool

	// Events is how many events of a key are spent to measure its state in Redis; 0 means
	// 1.
	Events int

	// Always replaces New for Floor. It returns a limiter that always gives the same
	// answer.
	Always func(Answer) Allow

	// Stop stops the background work of the latest limiter. It is nil if there is none.
	Stop func()
}

// All returns the contenders, with those of this library first.
func All() []Contender {
	return []Contender{
		tokenBucket(),
		intervalBucket(),
		leakyBucket(),
		fixedWindow(),
		slidingWindow(),
		rollingWindow(),
		slidingLog(),
		warmingUp(),
		allOfTwo(),
		take(),
		takeAllOfTwo(),
		holdSettle(),
		takePeek(),
		takePeriods(),
		holdPeriods(),
		peekPeriods(),
		coarseClock(),
		xtimeMutex(),
		xtimeXsync(),
		xtimeTwice(),
		sethvargoMemory(),
		throttledMemory(),
		ululeMemory(),
		httprateOnLimit(),
		httprateCounter(),
		jujuSyncMap(),
		failsafeSyncMap(),
		tollboothKeys(),
		bound(),
		timeNow(),
		httplimitMiddleware(),
		httplimitHeader(),
		httprateMiddleware(),
		tollboothMiddleware(),
		ululeMiddleware(),
		noMiddleware(),
		httplimitHostile(),
		only429(),
		rulesOf("rules, 10,000 of them", Main, 10_000),
		rulesOf(FewRules, Variant, 10),
		limitAlone(),
		nothing(),
		redisRueidis(),
		redisGoRedis(),
		redisAutoPipeline(),
		redisLease(),
		redisFixedWindow(),
		redisSlidingWindow(),
		redisHoldSettle(),
		redisSegments(),
		redisSlidingLog(),
		redisPeriods(),
		redisWarmingUp(),
		redisRate(),
		redisThrottled(),
		redisUlule(),
		bareScript(),
	}
}

// LeftOut returns the peers that are missing, with the reasons.
func LeftOut() []string {
	return []string{
		"uber-go/ratelimit: it only blocks, and does not say whether an event may happen",
		"clipperhouse/rate: the Go module proxy answers 403 for github.com/clipperhouse/rate, so that no version is available",
		"httprate-redis: the same for github.com/go-chi/httprate-redis",
	}
}
