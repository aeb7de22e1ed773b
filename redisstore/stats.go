package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// Stats are a store's counters since it was made.
type Stats struct {
	Calls     uint64 // commands sent
	Coalesced uint64 // requests that shared another request's command
	Cached    uint64 // denials answered from the denial cache
	Leased    uint64 // events granted from leases

	// Lost counts events that perhaps were not given back: those of a Settle, a Release or a
	// cancellation whose call failed, even if it succeeds when it is repeated, and those of a lease
	// whose end came too late.
	Lost uint64

	// Failures counts the requests that the limiter's [ratelimit.FailurePolicy] decided because
	// Redis failed: the sum of the four fields below. It does not count requests whose context was
	// cancelled, those of Reserve and Wait whose context ended, and errors that are returned
	// without a decision, such as those of Reset. That the deadline of a request passes before the
	// timeout is no failure, even if the policy decides then. But its command goes on, and counts
	// if it fails: so it is noticed that Redis is away even if all deadlines are short.
	Failures     uint64
	Timeouts     uint64 // no answer in time: ErrTimeout, or a timeout of the client
	BreakerOpen  uint64 // not sent: ErrOpen
	ErrorReplies uint64 // the server replied with an error, such as OOM or NOPERM
	OtherErrors  uint64 // for example lost connections and unreadable states

	// Holds, also those of leases, that ended by themselves, or early because their key had 4,096,
	// as commands of this store found.
	Ended uint64

	Unreadable uint64 // unreadable states that were replaced by new ones: see [ratelimit.ErrState]

	// Latency counts the commands that the server replied to, by the time from sending to
	// reading the reply: Latency[i] took at most LatencyBounds()[i], and longer than the
	// bound before. The last element counts those that took longer than all bounds.
	Latency [len(latencyBounds) + 1]uint64

	// Breakers has the state of the circuit breaker of each server that has been used: "closed",
	// "half-open" or "open". A server that is not used for a minute while others are, because it
	// is no node of the cluster any more, is not in it, nor in Outages. A server's name is its
	// address. It is "" for all servers of which the client does not say which keys they have:
	// those of a cluster of rueidis, and those of a cluster of go-redis until the client has asked
	// for its nodes. (With sentinels, the name is "FailoverClient" in go-redis and "" in rueidis.)
	// Without breakers, the map is empty.
	Breakers map[string]string

	// Outages has the servers whose latest command failed, by the same names.
	Outages map[string]Outage
}

// An Outage is the time during which no command to a server succeeds.
type Outage struct {
	Since time.Time // when the first of them failed, by this process's clock
	Cause error     // of the latest failure
}

var latencyBounds = [...]time.Duration{
	250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond,
	5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond,
}

// LatencyBounds returns the upper bounds of the buckets of Stats.Latency, from 250 µs to
// 100 ms.
func LatencyBounds() []time.Duration { return append([]time.Duration(nil), latencyBounds[:]...) }

// Stats returns the store's counters. They are read one after another, while requests
// continue.
func (s *Store) Stats() Stats {
	c := &s.counts
	stats := Stats{
		Calls: c.calls.Load(), Coalesced: c.coalesced.Load(), Cached: c.cached.Load(),
		Leased: c.leased.Load(), Lost: c.lost.Load(),
		Timeouts: c.timeouts.Load(), BreakerOpen: c.breakerOpen.Load(),
		ErrorReplies: c.errorReplies.Load(), OtherErrors: c.otherErrors.Load(),
		Ended: c.ended.Load(), Unreadable: c.unreadable.Load(),
	}
	s.look(&stats)
	stats.Failures = stats.Timeouts + stats.BreakerOpen + stats.ErrorReplies + stats.OtherErrors
	for i := range c.latency {
		stats.Latency[i] = c.latency[i].Load()
	}
	return stats
}

type counts struct {
	calls, coalesced, cached, leased, lost           atomic.Uint64
	timeouts, breakerOpen, errorReplies, otherErrors atomic.Uint64
	ended, unreadable                                atomic.Uint64
	latency                                          [len(latencyBounds) + 1]atomic.Uint64
}

// tally counts a request of a caller with the context ctx if the limiter lets its policy decide
// because the store failed. The end of ctx is no failure of the store.
func (c *counts) tally(ctx context.Context, req *step.Request, err error) {
	if err == nil || !policyDecides(ctx, req) || errors.Is(err, ctx.Err()) {
		return
	}
	c.fail(err)
}

// fail counts a failure.
func (c *counts) fail(err error) {
	switch {
	case errors.Is(err, ErrTimeout), isTimeout(err):
		c.timeouts.Add(1)
	case errors.Is(err, ErrOpen):
		c.breakerOpen.Add(1)
	case isReply(err):
		c.errorReplies.Add(1)
	default:
		c.otherErrors.Add(1)
	}
}

// failLeft counts the failure of a command, if err is one, for its callers whose deadline had
// passed before: tally has not counted them. It tells their limiter, which has logged nothing, in
// another goroutine, because a log may take long.
func (c *counts) failLeft(g *group, err error) {
	asked := g.calls[0].name
	if err == nil || asked.of == nil {
		return
	}
	left := 0
	for _, one := range g.calls {
		if one.isLeft.Load() {
			c.fail(err)
			left++
		}
	}
	if left == 0 || asked.of.failed == nil {
		return
	}
	go func() {
		for range left {
			asked.of.failed(asked.key, err)
		}
	}()
}

// policyDecides reports whether a limiter's FailurePolicy decides req, whose call has failed. It
// does not if the caller has left, for a Wait also if its deadline has passed, and for what is not
// decided.
func policyDecides(ctx context.Context, req *step.Request) bool {
	if req.Yields {
		return ctx.Err() == nil
	}
	return isDecided(ctx, req) && !errors.Is(ctx.Err(), context.Canceled)
}

// isDecided reports whether a limiter's FailurePolicy decides a req whose call fails while its
// caller waits.
func isDecided(ctx context.Context, req *step.Request) bool {
	return req.Op != step.OpExtend && !limit.Repeats(ctx)
}

// observe counts a command that returned err after took, if the server replied.
func (c *counts) observe(took time.Duration, err error) {
	if err != nil && !isReply(err) {
		return
	}
	i := 0
	for i < len(latencyBounds) && took > latencyBounds[i] {
		i++
	}
	c.latency[i].Add(1)
}
