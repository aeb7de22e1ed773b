package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/stray"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// A Limiter decides for each key separately whether events may happen. A key is any string,
// including the empty one. It names what is limited: a user, an address, a tenant. Any number of
// goroutines may call the methods at once. Calls on one key have the same results as if they were
// made one after another.
//
// The package documentation has the exact laws, in its sections Promises, Waiting, "Reservations
// and holds" and Debts. In all methods, n = 0 is always allowed and spends nothing, and a negative
// n is an error that matches [ErrInvalid]. If the context has ended, methods return its error and
// spend nothing. If the store fails, the [FailurePolicy] decides, and the error says so.
//
// # Wrappers
//
// Later versions may add methods to this interface, so a limiter of one's own embeds another one,
// which gets the calls of all methods that are not overridden. Few programs need one:
// [WithObserver] tells of decisions, and [WithLimits] refuses keys whose limit is [Blocked].
//
// A wrapper that refuses must not be passed by another method of the limiter inside. So override
// together all methods that grant events: Allow, AllowN, Take, TakeUpTo, TakeEach, Wait, WaitN,
// Reserve and Hold, as the example does. Middlewares call whichever they need. [TakeAll] asks
// wrappers last, and calls Hold, so that it can give back what they grant if another key refuses;
// of the last one, Take. [HoldAll] calls Hold. A wrapper with a limit of its own also overrides
// Describe, because package httplimit tells clients what that returns.
//
// In tests, package ratelimittest has a limiter that decides all calls by one function.
type Limiter interface {
	// Allow reports whether one event may happen now, and spends it if so. Use it to drop events
	// that exceed the limit.
	Allow(key string) bool

	// AllowN reports whether all of n events may happen now, and spends them if so. It returns the
	// Allowed of Take's decision. [WithStoreTimeout] bounds how long it waits for the store.
	AllowN(key string, n int) bool

	// Take is AllowN, and returns the whole decision: whether the events may happen, how many are
	// left, and when to retry. A denial is not an error. An error says why another limit, or the
	// [FailurePolicy], has made the decision: because the store has failed, or did not answer by
	// ctx's deadline or within [WithStoreTimeout], or because the limit of the key could not be
	// looked up ([WithLimits]).
	Take(ctx context.Context, key string, n int) (Decision, error)

	// TakeUpTo takes as many of n events as remain, in one decision, and returns how many: from 0
	// to n, which may exceed the limit. The Decision is that of Take for these events. If none are
	// granted, it is that of a Take of one event: RetryAfter says when there is one. Of an [All],
	// it takes what the part grants with the fewest events remaining. TakeUpTo neither waits nor
	// overtakes those who do. The errors are those of Take.
	TakeUpTo(ctx context.Context, key string, n int) (granted int, d Decision, err error)

	// TakeEach takes n events of each key, each for itself, and appends the decisions to out, in
	// the order of the keys: as a loop of Take, but in less time. In a [MemoryStore], it loads the
	// states of many keys at once, and does not allocate if out has room. In Redis, the requests
	// of all keys share round trips. Elsewhere, and with [WithLimits] in memory, it is that loop.
	//
	// There is a decision for each key, even if TakeEach returns an error. If n is negative or ctx
	// has ended, which is checked once, all of them are zero, which is a denial. If Take would fail
	// for some keys only, the error has one for each of them, which names keys[i].
	TakeEach(ctx context.Context, keys []string, n int, out []Decision) ([]Decision, error)

	// Wait waits until one event may happen, and spends it. See WaitN.
	Wait(ctx context.Context, key string) error

	// WaitN waits in line until n events may happen, spends them, and returns nil. If ctx ends
	// during the wait, WaitN leaves the line, spends nothing, and returns the context's error.
	//
	// WaitN fails at once and spends nothing if ctx's deadline is before the turn (a [TurnError],
	// which matches [context.DeadlineExceeded]), if a [LeakyBucket] has no room ([ErrQueueFull]),
	// if the line is too long ([WithMaxWaiters]), or if the turn never comes ([ErrNever]).
	WaitN(ctx context.Context, key string, n int) error

	// Reserve spends n events at the earliest time at which they may happen, or, with [Within],
	// only if that is near enough. It is for callers that wait by other means than Wait. It returns
	// a Reservation that knows the time, and a Decision whose Delay is the wait.
	//
	// If the events are not reserved, nothing is spent, the Reservation is nil, and RetryAfter is
	// the wait until the same call succeeds, provided that nobody else uses the key: because the
	// turn is too far off or never comes, a [LeakyBucket] has no room in its queue, all of an
	// [InFlight] is in use, or others stand in line on the key. That is not an error; the errors
	// are those of Take.
	Reserve(
		ctx context.Context,
		key string,
		n int,
		opts ...ReserveOption,
	) (*Reservation, Decision, error)

	// Hold is Take for requests whose cost is known only afterwards. It holds an estimate. If the
	// events are granted, it returns a Reservation, whose Settle says how many have happened, or
	// whose Cancel says that none have. With [Waiting], Hold waits for the events in line, as WaitN
	// does, and has its errors.
	//
	// A hold that nobody settles ends by itself, after ten minutes or as [HoldFor] and [GiveBack]
	// say; that of an [InFlight], after its Timeout.
	Hold(ctx context.Context, key string, n int, opts ...HoldOption) (*Reservation, Decision, error)

	// Charge spends n events that have happened, whatever the limit says: a request that is paid
	// for afterwards, or a penalty. If there is no room for them, the key is in debt: Remaining is
	// 0, and nothing is granted until the debt is paid. RetryAfter says when that is. The Decision
	// is what Peek returns afterwards.
	//
	// If a debt is too large for the state of the key, none of the events is counted, and the error
	// matches [ErrDebt]; if the store is full, [ErrFull]. If the store fails, it is unknown whether
	// they were counted; a [Fallback] counts them.
	Charge(ctx context.Context, key string, n int) (Decision, error)

	// Peek returns the decision that Take(ctx, key, 1) would, but spends nothing: Remaining events
	// could be taken now.
	Peek(ctx context.Context, key string) (Decision, error)

	// Reset forgets key, so that its next request finds it unused. It also forgets what is reserved
	// and held: cancelling that gives nothing back.
	Reset(ctx context.Context, key string) error

	// Resume returns the Reservation whose [Reservation.Token] another process has passed on, or
	// this one before it crashed, so that it can be settled, released or extended: a worker that
	// takes a job from a queue settles what was held when the job was put there. The limiter must
	// have the same name, kind of algorithm and store as the one that made it, and key is the key
	// of the hold. A hold must be settled once, by whoever it is: a second Settle, of another
	// Reservation of the hold, changes nothing, except that it counts events that exceed it once
	// more.
	//
	// If token is damaged, or is that of another key or limiter, the error matches [ErrInvalid].
	// Resume does not ask the store, so that it returns a Reservation even if the hold has ended;
	// but with [WithLimits], it calls the lookup, and returns its error.
	Resume(ctx context.Context, key, token string) (*Reservation, error)

	// Describe returns what the limiter is: its name, algorithm, store and clock.
	Describe() Info
}

// New returns a limiter that applies alg to each key. If a parameter or an option cannot be used,
// New returns an error that names it and matches [ErrInvalid].
func New(alg Algorithm, opts ...Option) (Limiter, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if c.lookup != nil && param.IsNil(alg) {
		return nil, param.Invalid(
			"Algorithm",
			nil,
			"must be the limit of keys for which the lookup of WithLimits returns nil, "+
				"such as Blocked{}",
		)
	}
	enc := kernel.InMemory
	enc.Varies = c.lookup != nil
	lim, err := newLimit(alg, enc)
	if err != nil {
		return nil, err
	}
	var own *limitCache
	if c.lookup != nil {
		own = &limitCache{lookup: c.lookup, base: lim}
	}
	tl, err := timelineOf(c.store, c.clock)
	if err != nil {
		return nil, err
	}
	states, err := c.store.Open(c.name, lim, c.storeTimeout)
	if err != nil {
		return nil, err
	}
	l := &limiter{
		name:           c.name,
		store:          c.store,
		limit:          lim,
		states:         states,
		lines:          states.Lines(),
		strays:         states.Strays(),
		ownLimits:      own,
		timeline:       tl,
		policy:         c.policy,
		storeFailures:  c.newFailureLog(&policyWords[c.policy.kind]),
		lookupFailures: c.newFailureLog(&lookupWords),

		maxWaiters: c.maxWaiters,

		observers: c.observers,
	}
	if s, ok := states.(interface{ OnLateFailure(func(string, error)) }); ok {
		s.OnLateFailure(l.logLateFailure)
	}
	local, isInMemory := states.(*memory.States)
	if isInMemory && (own != nil || !lim.Stateless()) {
		l.local = local
		if own == nil && l.observers == nil {
			l.fast = local.Space
		}
	}
	return l, nil
}

// Must returns l, and panics if err is not nil. Use it for limiters whose parameters are written in
// the source.
func Must(l Limiter, err error) Limiter {
	if err != nil {
		panic(err)
	}
	return l
}

// A limiter binds an algorithm to the states of its keys and to a clock.
type limiter struct {
	name       string
	limit      *limit.Limit // of keys without a limit of their own
	ownLimits  *limitCache  // of the other keys; nil without WithLimits
	states     limit.States
	timeline   *timeline.Timeline
	lines      *line.Lines    // the callers that wait
	maxWaiters int            // for a key; 0 for any number
	local      *memory.States // states, if they are in memory and used
	// The space of local, if all keys have one limit and there are no observers. Then no lookup and
	// no store can fail, and calls may ask the space directly.
	fast           *memory.Space
	strays         *stray.List // the holds that are settled later; nil if the store always answers
	storeFailures  *failureLog
	lookupFailures *failureLog
	policy         FailurePolicy

	observers []Observer
	store     Store // that states belong to
}

// check returns an error if the request need not be sent to the store.
func (l *limiter) check(ctx context.Context, n int) error {
	switch {
	case n < 0:
		return param.Invalid("n", n, "must be at least 0")
	case ctx == nil:
		return errNoContext
	}
	return ctx.Err()
}
