// Package peers makes the compared limiters do the same, each through its own public API: limit each
// key, and decide whether one more event of it may happen.
//
// To add a limiter, write a file with a function that returns its [Peer], and add that to [All].
package peers

import (
	"net/http"
	"sync"
	"time"
)

// A Limit is the limit of every key: a burst, of which one event comes back after Every. Limiters that
// count in windows grant Burst in a Window.
type Limit struct {
	Burst  int
	Every  time.Duration
	Window time.Duration
}

// The limits of the benchmarks. With Plenty and Once no event comes back during a run: a key that was
// used stays in use, so that no limiter may forget it, and a key that is denied stays denied. Idle comes
// back before a key is used again, as for most clients of most services.
var (
	Plenty = Limit{Burst: 20_000_000, Every: 50 * time.Second, Window: 1000 * time.Hour}
	Once   = Limit{Burst: 1, Every: 1000 * time.Hour, Window: 1000 * time.Hour}
	Idle   = Limit{Burst: 10, Every: time.Microsecond, Window: 10 * time.Microsecond}
)

// Allow asks a limiter whether one event of key may happen now, and spends it if so. Any number of
// goroutines may call it.
type Allow func(key string) (bool, error)

// A Peer is a limiter in the comparison.
type Peer struct {
	Name string

	// Memory returns a new limiter without keys, in the memory of this process.
	Memory func(Limit) (Allow, error)

	// NotIdle is whether a limiter cannot have the limit Idle.
	NotIdle bool

	// Middleware returns an HTTP middleware with the limit for each client. It is nil if there is none.
	Middleware func(Limit) func(http.Handler) http.Handler

	// Redis has limiters in Redis, by the name of their column.
	Redis map[string]Dial
}

// Dial returns a limiter that uses a Redis through its own client, and a function that closes the
// client.
type Dial func(at Address, l Limit) (Allow, func(), error)

// An Address is where a Redis is, and how many connections a client of go-redis may have to it: 0 is
// the default of go-redis. A client of rueidis sends the commands of all callers through a few
// connections, and ignores that number.
type Address struct {
	Addr  string
	Conns int
}

// All returns the peers, with this library first.
func All() []Peer {
	return []Peer{ratelimits(), xtime(), sethvargo(), throttleds(), ulule(), httprates(), juju(), failsafe(), tollbooths(), redisRate(), floor()}
}

// A syncMap is the usual way to limit many keys with a library that has no keys: a sync.Map with a
// limiter for each key, made when the key is new.
type syncMap[V any] struct {
	limiters sync.Map // of V by key
	fresh    func() V
}

func (m *syncMap[V]) get(key string) V {
	v, ok := m.limiters.Load(key)
	if !ok {
		v, _ = m.limiters.LoadOrStore(key, m.fresh())
	}
	return v.(V)
}
