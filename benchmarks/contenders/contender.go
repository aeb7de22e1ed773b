// Package contenders makes the limiters that are compared do the same thing,
// each through its own public API: hold each key to a limit, and say whether
// one more event may happen.
//
// To add one, write a file with a function that returns its [Contender], and
// put that into [All].
package contenders

import "time"

// A Limit is what every key is held to.
type Limit struct {
	Burst int           // events that a key may have at once when it is new
	Every time.Duration // how long it takes until one of them comes back
}

// The limits of the scenarios. Under all of them, what a run spends does not
// come back while it lasts: a key that was used stays in use, so that nobody
// may forget it, and a key that is denied stays denied.
var (
	// Plenty is more than one key uses up in any run. Burst times Every is 127
	// years, near the most that a limiter which counts in nanoseconds can hold;
	// a key that is used all the time is in use whatever Every is.
	Plenty = Limit{Burst: 400_000_000, Every: 10 * time.Second}

	// Hundred is more than any of many keys uses up, and few enough to use up
	// a key on purpose.
	Hundred = Limit{Burst: 100, Every: 1000 * time.Hour}

	// Lavish is Plenty where the clock counts in microseconds up to the year
	// 2116. A key in Redis whose one event has come back is forgotten, so that takes
	// longer than a round does.
	Lavish = Limit{Burst: 20_000_000, Every: 50 * time.Second}

	// Once is used up by the first event.
	Once = Limit{Burst: 1, Every: 1000 * time.Hour}
)

// window is the window of contenders that count events in windows instead of
// letting them come back one by one. It is longer than any run.
const window = 1000 * time.Hour

// An Answer is what a limiter says about one event.
type Answer uint8

// The answers. Failed is an error of the limiter itself, which says neither,
// and is never the right one.
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

// Allow asks a limiter whether one event of key may happen now, and spends it
// if so. It may be called by any number of goroutines at once.
type Allow func(key string) Answer

// A Role is the part that a contender has in the comparison.
type Role int

// The roles.
const (
	Main    Role = iota // this library, as it is compared with the peers
	Variant             // this library with another algorithm
	Peer                // another library
	Bound               // a sketch that does only what every exact limiter must
	Floor               // nothing at all: what the harness itself costs
	Weighed             // this library with another algorithm, of which only the bytes count
)

// A Contender is a limiter that takes part.
type Contender struct {
	Name   string // as in the tables
	Role   Role
	HTTP   bool   // whether it is a middleware: it is compared with such
	Wire   bool   // whether it answers hostile requests over a connection: likewise
	Rules  bool   // whether it is a table of rules, or what such are compared with
	Module string // the path of its module, of which the report tells the version
	Setup  string // how it is configured and called, for the report

	// New returns a new limiter without keys.
	New func(Limit) (Allow, error)

	// Dial takes the place of New for limiters in Redis: it returns one that asks
	// the server at addr through a client of its own, and what closes that.
	Dial func(addr string, l Limit) (Allow, func(), error)

	// Events is how many of a key are spent to weigh its state in Redis, if not
	// one.
	Events int

	// Always takes the place of New for Floor: it always says the same.
	Always func(Answer) Allow

	// Stop stops what the latest limiter runs in the background. It is nil if
	// that is nothing.
	Stop func()
}

// All returns the contenders, those of this library first.
func All() []Contender {
	return []Contender{
		tokenBucket(),
		coarseClock(),
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

// LeftOut says which peers are missing, and why.
func LeftOut() []string {
	return []string{
		"clipperhouse/rate: the Go module proxy answers 403 for github.com/clipperhouse/rate, no version of it can be had",
		"httprate-redis: the same for github.com/go-chi/httprate-redis",
	}
}
