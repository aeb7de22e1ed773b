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
// denied stays denied.
var (
	// Plenty is more than one key can use in a run. Burst times Every is 127 years, near
	// the maximum of a limiter that counts in nanoseconds. Every may be short, because
	// the key is used all the time.
	Plenty = Limit{Burst: 400_000_000, Every: 10 * time.Second}

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

	// Once is exhausted by the first event.
	Once = Limit{Burst: 1, Every: 1000 * time.Hour}
)

// window is the window of contenders that count events in windows. It is longer than any
// run.
const window = 1000 * time.Hour

// window returns the window of contenders that count events in windows.
func (l Limit) window() time.Duration {
	if l == Quick {
		return time.Duration(l.Burst) * l.Every
	}
	return window
}

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

// A Role is the role of a contender in the comparison.
type Role int

// The roles.
const (
	Main    Role = iota // this library, as compared with the peers
	Variant             // this library with another algorithm
	Peer                // another library
	Bound               // a sketch that does only what every exact limiter must do
	Floor               // no limiter: the cost of the harness
	Weighed             // this library with another algorithm, to measure its bytes only
)

// A Contender is a limiter in the comparison.
type Contender struct {
	Name   string // as in the tables
	Role   Role
	HTTP   bool   // whether it is a middleware, which is compared with other ones
	Wire   bool   // whether it answers hostile requests over a connection; likewise
	Rules  bool   // whether it is a table of rules, or is compared with one
	Quick  bool   // whether it can have the limit Quick
	Module string // the path of its module, whose version the report has
	Setup  string // how it is configured and called, for the report

	// New returns a new limiter without keys.
	New func(Limit) (Allow, error)

	// Dial replaces New for limiters in Redis. It returns a limiter that uses the server
	// at addr through its own client, and a function that closes the client. The timeout
	// is that of this library's store; 0 means the default.
	Dial func(addr string, l Limit, timeout time.Duration) (Allow, func(), error)

	// Swaps is whether the limiter in Redis reads a state and replaces it if it has not
	// changed, until that succeeds. With a thousand callers of one key that takes minutes.
	Swaps bool

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
		coarseClock(),
		ownLimits(),
		fixedWindow(),
		slidingWindow(),
		leakyBucket(),
		rollingWindow(),
		xtimeMutex(),
		xtimeXsync(),
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
		redisSlidingWindow(1),
		redisSlidingWindow(60),
		redisSlidingLog(),
		redisRollingWindow(),
		redisWarmingUp(),
		redisRate(),
		redisThrottled(),
		redisUlule(),
	}
}

// LeftOut returns the peers that are missing, with the reasons.
func LeftOut() []string {
	return []string{
		"clipperhouse/rate: the Go module proxy answers 403 for github.com/clipperhouse/rate, so that no version is available",
		"httprate-redis: the same for github.com/go-chi/httprate-redis",
	}
}
