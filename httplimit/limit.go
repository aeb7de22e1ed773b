package httplimit

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/internal/policy"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Limit is one of the limits that a request counts in; see [NewGateOf].
type Limit struct {
	// Name is that of the limit in header fields and bodies. If another limit of the request, or a
	// part of it, has the same name, such as "api", its name is "api-2". If Name is not one or more
	// printable ASCII characters, it is that of [WithPolicyName].
	Name string

	Limiter ratelimit.Limiter
	Key     string

	// InFlight says that the algorithm of the key is a [ratelimit.InFlight] or has one in it, so
	// that its events must be held. It need not be set if the limiter has one algorithm for all
	// keys.
	InFlight bool

	// Shadow is nil if the limit is enforced. Otherwise the limit refuses nobody and is in no
	// header field: it is asked when all others have let a request pass, and Shadow is called if it
	// would have refused the request.
	Shadow func(ratelimit.Decision)
}

// A namedLimit is a limiter as clients know it.
type namedLimit struct {
	limiter ratelimit.Limiter
	name    string
	key     key.Func // nil for a Limit, which has its key
	costing          // its own, if it has one
	info    ratelimit.Info
	flies   bool // whether it is known to have an InFlight
	isLocal bool // whether it is known to decide in memory, without waiting for anything

	// Within what time its store answers, even if that is slow and this process is busy.
	answersIn time.Duration

	policies *policy.List // of all keys
	standIns *policy.List // of what decides in its place, of which only the name is known
	ofKeys   policy.Cache // if they have limits of their own, for policiesOf
}

// longestAnswer bounds a timeout, so that sums do not overflow. No request lasts as long.
const longestAnswer = 1000 * time.Hour

// describe sets what is known of the limiter. status is that of a refusal.
func (l *namedLimit) describe(status int) {
	l.info = l.limiter.Describe()
	l.flies = policy.Flies(l.limiter)
	_, inMemory := l.info.Store.(*ratelimit.MemoryStore)
	l.isLocal = inMemory && l.info.Lookup == nil
	l.answersIn = 2 * min(l.info.StoreTimeout, longestAnswer)
	if l.info.Store == nil { // New has not made the limiter
		l.answersIn = longestRequest
	}
	l.policies = policy.New(l.name, status, l.info.Algorithm)
	l.standIns = policy.New(l.name, status, nil)
}

// sharesName reports whether clients would take l for other, or a part of one for one of the other.
func (l *namedLimit) sharesName(other *namedLimit) bool {
	return l.name == other.name || l.policies.SharesName(other.policies)
}

// policiesOf returns the policies of key.
func (l *namedLimit) policiesOf(ctx context.Context, key string, status int) *policy.List {
	if l.info.Lookup == nil {
		return l.policies
	}
	alg, err := l.info.AlgorithmOf(ctx, key)
	if err != nil || alg == nil {
		return l.policies // not known
	}
	return l.ofKeys.Of(l.name, status, alg)
}

// A limitCache has the namedLimits of Limits.
type limitCache struct {
	known sync.Map // of *namedLimit, by limitKey
	count atomic.Int64
}

// A limitKey tells Limits apart.
type limitKey struct {
	name    string
	limiter ratelimit.Limiter
}

// limit returns the namedLimit of a limiter that has been asked for requests of that name.
func (c *limitCache) limit(name string, limiter ratelimit.Limiter, status int) *namedLimit {
	isComparable := param.Same(limiter, limiter)
	key := limitKey{name, limiter}
	if isComparable {
		if l, ok := c.known.Load(key); ok {
			return l.(*namedLimit)
		}
	}
	l := &namedLimit{limiter: limiter, name: name}
	l.describe(status)
	if isComparable {
		if c.count.Add(1) > policy.MostCached {
			c.known.Clear()
			c.count.Store(1)
		}
		c.known.Store(key, l)
	}
	return l
}

// A costing is what a request costs in a limit.
type costing struct {
	cost   func(*http.Request) int                              // nil if it is 1
	settle func(r *http.Request, status int, written int64) int // nil if requests are not settled
	ends   []ratelimit.EndOption                                // of what is held until then
	hold   []ratelimit.HoldOption                               // ends, converted only once

	byStatus bool // whether settle needs nothing but the status: see WithSettle
}

// costs reports whether the limit has a costing of its own.
func (c *costing) costs() bool { return c.cost != nil || c.settle != nil }

// costOf returns how many events r is taken for.
func (c *costing) costOf(r *http.Request) (n int, err error) {
	if c.cost == nil {
		return 1, nil
	}
	n = c.cost(r)
	if n < 0 {
		err = fmt.Errorf("httplimit: the cost of the request is %d: it must be at least 0", n)
	}
	return n, err
}
