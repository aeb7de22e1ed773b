package ratelimit

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Option changes how [New] makes a limiter.
type Option func(*config)

// A config holds the values of options. newConfig checks them.
type config struct {
	name   string
	store  Store
	clock  clock.Clock
	policy FailurePolicy

	lookup func(ctx context.Context, key string) (Algorithm, error)

	storeTimeout time.Duration
	failureLog   *slog.Logger
	observers    []Observer
	maxWaiters   int

	storeSet, clockSet, lookupSet, storeTimeoutSet, failureLogSet, maxWaitersSet bool
}

// WithStore keeps the limiter's states in s, which several limiters may share. It needs [WithName],
// which keeps them apart, unless s is a [MemoryStore]: there, a limiter without a name has states
// of its own, which leave the store with the limiter. By default a limiter has its own MemoryStore,
// with no bound on the number of keys.
func WithStore(s Store) Option {
	return func(c *config) { c.store, c.storeSet = s, true }
}

// WithClock makes the limiter use clk, whose methods must not call the limiter. The default is the
// system's clock. If clk steps back, the limiter's time stands still until clk has caught up.
//
// Time passes as clk.Since shows it: by the monotonic clock, if clk has one. But if the wall clock,
// clk.Now, is more than a second ahead of that, because the machine was suspended or its clock was
// set, that time has passed as well. The limiter sees this within 10 ms; whoever waits sleeps on
// one of clk's timers, and no shorter. If the wall clock was set back, time goes on as before:
// windows begin early by as much, until the store is made anew.
//
// All limiters on a [MemoryStore] must have the same clock, because the states hold times.
// Otherwise New returns an error. Two clocks are the same if they are equal, or if both are the
// system's.
//
// Aligned windows follow the wall time that clk shows when New is called for the first limiter on
// the store. If that is before 1970, or in 2100 or later, only windows of up to a week are aligned
// as documented. Time stands still from 2116 on or, in that case, once the clock has moved on by 50
// to 146 years.
func WithClock(clk clock.Clock) Option {
	return func(c *config) { c.clock, c.clockSet = clk, true }
}

// WithStoreTimeout bounds how long, in real time, the limiter waits for one call of its store. The
// end of the caller's context bounds it as well, even if a [Database] ignores the context. After
// the timeout, the [FailurePolicy] decides, and the error matches [context.DeadlineExceeded]. The
// default is one second for a Database, and the timeout of the Store in package redisstore, which d
// must not exceed. The option has no effect with a [MemoryStore], which never waits.
//
// The limiter does not know what the store does after the timeout: if it grants the request late,
// the events are spent. A call of a Database that nobody waits for any more keeps a goroutine until
// it returns. While 1,024 keys of a store have such calls, further calls fail at once. A call whose
// caller has left before the timeout goes on until then, and its context ends.
func WithStoreTimeout(d time.Duration) Option {
	return func(c *config) { c.storeTimeout, c.storeTimeoutSet = d, true }
}

// WithName gives the limiter a name, which keeps it apart from others on the same store, in this
// process and others. Limiters with the same name and the same algorithm share the states of keys.
// If their algorithms differ, New returns an error for the second one on a store: use [WithLimits]
// for a limit that changes. Names also appear in errors, in logs, and in what observers are told.
func WithName(name string) Option {
	return func(c *config) { c.name = name }
}

// WithMaxWaiters bounds how many callers wait for a key at once, in this process, to n, which is at
// least 1. If as many stand in line, a Wait that does not get its turn at once fails with
// [ErrQueueFull]. By default there is no bound: each waiter takes one or two kilobytes, besides
// what its caller takes.
func WithMaxWaiters(n int) Option {
	return func(c *config) { c.maxWaiters, c.maxWaitersSet = n, true }
}

func newConfig(opts []Option) (*config, error) {
	c := new(config)
	for i, opt := range opts {
		if opt == nil {
			return nil, param.Invalid(
				fmt.Sprintf("option %d of New", i),
				nil,
				"must be the result of a With function",
			)
		}
		opt(c)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if !c.storeSet {
		own := new(MemoryStore)
		own.isPrivate = true
		c.store = own
	}
	return c, nil
}

// check returns an error if the value of an option cannot be used.
func (c *config) check() error {
	_, inMemory := c.store.(*MemoryStore)
	switch {
	case c.storeSet && param.IsNil(c.store):
		return param.Invalid("WithStore's store", nil, "must be a Store, such as new(MemoryStore)")
	case c.storeSet && c.name == "" && !inMemory:
		return param.Invalid(
			"the name of a limiter with WithStore",
			"empty",
			"must be given by WithName, because the states in a store that outlives the process "+
				"are those of a name",
		)
	case c.clockSet && param.IsNil(c.clock):
		return param.Invalid("WithClock's clock", nil, "must be a clock.Clock, such as clock.New()")
	case c.lookupSet && c.lookup == nil:
		return param.Invalid("WithLimits's lookup", nil, "must be a function")
	case c.policy.kind == fallback && param.IsNil(c.policy.limiter):
		return param.Invalid("Fallback's limiter", nil, "must be a Limiter")
	case slices.ContainsFunc(c.observers, func(o Observer) bool { return o == nil }):
		return param.Invalid("WithObserver's observer", nil, "must be an Observer")
	case c.maxWaitersSet && c.maxWaiters < 1:
		return param.Invalid(
			"WithMaxWaiters's n",
			c.maxWaiters,
			"must be at least 1; without WithMaxWaiters there is no bound",
		)
	case c.storeTimeoutSet && c.storeTimeout <= 0:
		return param.Invalid("WithStoreTimeout's duration", c.storeTimeout, "must be positive")
	}
	return nil
}
