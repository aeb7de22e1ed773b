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
	mostWaiters  int

	storeSet, clockSet, lookupSet, storeTimeoutSet, failureLogSet, mostWaitersSet bool
}

// WithStore keeps the limiter's states in s, which several limiters may share. It needs
// [WithName], which keeps them apart, unless s is a [MemoryStore]: there, a limiter without a name has states
// of its own, which leave the store with the limiter. By default a limiter has its own MemoryStore, with no
// bound on the number of keys.
func WithStore(s Store) Option {
	return func(c *config) { c.store, c.storeSet = s, true }
}

// WithClock makes the limiter use clk. The default is the system's clock. If clk
// steps back, the limiter's time stands still until clk has caught up: if clk jumps
// a year ahead by mistake and back again, time stands still for a year.
//
// Time passes as clk.Since shows it: by the monotonic clock, if clk has one. But if the wall clock,
// clk.Now, is more than a second ahead of that, because the machine was suspended or its clock was
// set, that time has passed as well. The limiter sees this within 10 ms; whoever waits sleeps no
// shorter. If the wall clock was set back, time goes on as before: windows begin early by as
// much, until the store is made anew.
//
// Whoever waits sleeps on one of clk's timers. A clock with a method Set(time.Time), such as a
// clock.Mock, is taken for one that is moved by hand; 10 ms after a timer was set, it is looked at
// once more, because a mock that is moved at that very moment may pass the timer by.
//
// All limiters on a [MemoryStore] must have the same clock, because times that one
// of them stores are compared with the time of the others. Otherwise New returns an
// error. Two clocks are the same if they are equal, or if both are the system's.
//
// Aligned windows follow the wall time that clk shows when New is called for the
// first limiter on the store, plus the time that has passed since. If that wall time is
// before 1970 or after 2100, only windows of up to a week are aligned as documented.
func WithClock(clk clock.Clock) Option {
	return func(c *config) { c.clock, c.clockSet = clk, true }
}

// WithStoreTimeout bounds how long the limiter waits for one call of its store. The end
// of the caller's context bounds it as well, even if a [Database] ignores the context.
// After the timeout, the [FailurePolicy] decides, and the error matches
// [context.DeadlineExceeded]. This holds for each method, for [Reservation.Cancel],
// and for the call by which a Wait whose context has ended gives its place back. The
// default is one second for a Database, and the store's own timeout in package redisstore. The
// option has no effect with a [MemoryStore], which never waits.
//
// The timeout is in real time, not that of [WithClock].
//
// The limiter does not know what the store does after the timeout: if it grants the
// request late, the events are spent. A call of a Database that nobody waits for any more keeps a goroutine
// until it returns. While 1,024 keys of a store have such calls, further calls fail at once.
func WithStoreTimeout(d time.Duration) Option {
	return func(c *config) { c.storeTimeout, c.storeTimeoutSet = d, true }
}

// WithName gives the limiter a name, which keeps it apart from others on the same store, in
// this process and others. Limiters with the same name and the same algorithm share the states
// of keys. If their algorithms differ, New returns an error for the second one on a store, because
// each would count the events of the other: use [WithLimits] for a limit that changes. Limiters
// without a name share nothing; only a store that outlives the process needs one. Names also
// appear in errors, in logs, and in what observers are told.
func WithName(name string) Option {
	return func(c *config) { c.name = name }
}

// WithMaxWaiters bounds how many callers wait for a key at once, in this process, to n, which is at least 1.
// If as many stand in line, a Wait that does not get its turn at once fails with [ErrQueueFull]. By
// default there is no bound: each waiter takes one or two kilobytes, besides what its caller takes.
func WithMaxWaiters(n int) Option {
	return func(c *config) { c.mostWaiters, c.mostWaitersSet = n, true }
}

// WithFailurePolicy sets what the limiter decides when its store fails. The default
// is [FailOpen]. The in-memory store never fails.
func WithFailurePolicy(p FailurePolicy) Option {
	return func(c *config) { c.policy = p }
}

func newConfig(opts []Option) (*config, error) {
	c := new(config)
	for i, opt := range opts {
		if opt == nil {
			return nil, param.Invalid(fmt.Sprintf("option %d of New", i), nil, "must be the result of a With function")
		}
		opt(c)
	}
	if c.storeSet && param.IsNil(c.store) {
		return nil, param.Invalid("WithStore's store", nil, "must be a Store, such as new(MemoryStore)")
	}
	if _, inMemory := c.store.(*MemoryStore); c.storeSet && c.name == "" && !inMemory {
		return nil, param.Invalid("the name of a limiter with WithStore", "empty", "must be given by WithName, because the states in a store that outlives the process are those of a name")
	}
	if c.clockSet && param.IsNil(c.clock) {
		return nil, param.Invalid("WithClock's clock", nil, "must be a clock.Clock, such as clock.New()")
	}
	if c.lookupSet && c.lookup == nil {
		return nil, param.Invalid("WithLimits's lookup", nil, "must be a function")
	}
	if c.policy.kind == fallback && param.IsNil(c.policy.limiter) {
		return nil, param.Invalid("Fallback's limiter", nil, "must be a Limiter")
	}
	if slices.ContainsFunc(c.observers, func(o Observer) bool { return o == nil }) {
		return nil, param.Invalid("WithObserver's observer", nil, "must be an Observer")
	}
	if c.mostWaitersSet && c.mostWaiters < 1 {
		return nil, param.Invalid("WithMaxWaiters's n", c.mostWaiters, "must be at least 1; without WithMaxWaiters there is no bound")
	}
	if c.storeTimeoutSet && c.storeTimeout <= 0 {
		return nil, param.Invalid("WithStoreTimeout's duration", c.storeTimeout, "must be positive")
	}
	if !c.storeSet {
		own := new(MemoryStore)
		own.alone = true
		c.store = own
	}
	return c, nil
}

// A FailurePolicy says what a limiter decides when its store fails: [FailOpen],
// [FailClosed] or [Fallback]. A store fails if it returns an error, does not answer
// in time (see [WithStoreTimeout]), or cannot read a key's state ([ErrState]).
//
//   - Take, Hold, Charge, Settle, Peek and Reserve return the policy's
//     decision, with Degraded set, and the error. Allow returns the Allowed of that
//     decision. With Fallback, all of them except Settle call its limiter: Settle of what
//     the fallback has held settles it there, and of what the store has held, it denies.
//   - With FailOpen, a Wait succeeds at once, with no other sign of the failure
//     than the log: nothing is reserved, and the error is nil. With FailClosed it
//     returns the error. With Fallback it calls the same method of its limiter.
//   - Reset returns the error, and Cancel gives nothing back.
//
// The limiter logs that the policy decides: see [WithFailureLog].
//
// If the caller's context was cancelled, its error is returned and the policy is not
// used. For a Wait, this is so even if its deadline has passed.
type FailurePolicy struct {
	kind    failure
	limiter Limiter // for fallback
}

type failure int

const (
	failOpen failure = iota
	failClosed
	fallback
)

var (
	// FailOpen allows everything while the store fails.
	FailOpen = FailurePolicy{kind: failOpen}

	// FailClosed denies everything while the store fails. RetryAfter is a
	// second then: nobody knows when the store will answer again.
	FailClosed = FailurePolicy{kind: failClosed}
)

// Fallback makes l decide while the store fails. l may be a limiter in memory with
// this process's [Share] of the limit.
//
// A request that l can never grant, although the limit of the key can, is refused as with
// FailClosed: RetryAfter is a second, and Wait and Reserve return the store's error, not
// [ErrNever].
func Fallback(l Limiter) FailurePolicy { return FailurePolicy{kind: fallback, limiter: l} }
