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
// including the empty one. It names what is limited: a user, an address, a tenant.
//
// Use [Limiter.Allow] to drop events that exceed the limit, [Limiter.Take] to also learn how many
// are left and when to retry, [Limiter.Wait] to block until an event may happen, and
// [Limiter.Reserve] to delay it by other means. If the number of events is known only afterwards,
// use [Limiter.Hold] or [Limiter.Charge]. Any number of goroutines may call the methods at once.
// Calls on one key have the same results as if they were made one after another.
//
// n = 0 is always allowed and spends nothing. If n is negative, methods return an error that
// matches [ErrInvalid]. If the context has ended, they return its error and spend nothing.
//
// # Wrappers
//
// Later versions may add methods to this interface, so a limiter of one's own embeds another one,
// which gets the calls of all methods that are not overridden. Few programs need one: [WithObserver]
// tells of decisions, and [WithLimits] refuses keys whose limit is [Blocked].
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
	// Allow reports whether one event may happen now, and spends it if so.
	Allow(key string) bool

	// AllowN reports whether all of n events may happen now, and spends them if so. It returns the
	// Allowed of Take's decision. [WithStoreTimeout] bounds how long it waits for the store.
	AllowN(key string, n int) bool

	// Take is like AllowN, and returns the whole decision. A denial is not an error. If the store
	// fails, or does not answer by ctx's deadline or within [WithStoreTimeout], Take returns the
	// decision of the [FailurePolicy], and an error that says why. If the limit of the key cannot
	// be looked up ([WithLimits]), it returns the decision of the limit of New, and the lookup's
	// error.
	Take(ctx context.Context, key string, n int) (Decision, error)

	// TakeUpTo takes as many of n events as remain, in one decision, and returns how many: from 0
	// to n, which may exceed the limit. The Decision is that of Take for these events. If none are
	// granted, it is that of a Take of one event: RetryAfter says when there is one. TakeUpTo
	// neither waits nor overtakes those who do: while callers wait for the key, it is denied.
	//
	// Of an [All], it takes what the part grants with the fewest events remaining. The errors are
	// those of Take. If the store fails, the [FailurePolicy] decides: [FailOpen] grants all n,
	// [FailClosed] none, and a [Fallback] as many as remain there.
	//
	// With package redisstore, TakeUpTo is one call of a script. For more than one event, it ends
	// the leases that the process has of the key.
	TakeUpTo(ctx context.Context, key string, n int) (granted int, d Decision, err error)

	// TakeEach takes n events of each key, each for itself, and appends the decisions to out, in
	// the order of the keys. The results are those of a loop that calls Take, but TakeEach takes
	// less time. A key that occurs several times is decided on as often, in order.
	//
	// TakeEach appends one decision for each key, even if it returns an error. If n is negative or
	// ctx has ended, all of them are zero, which is a denial, and the error is that of Take. If
	// Take would fail only for some keys, the error has one for each of them, which names keys[i].
	// The decisions on these keys are those of the [FailurePolicy] or, if their lookups failed, of
	// the limit of New, as with Take: they are Degraded.
	//
	// In a [MemoryStore], TakeEach loads the states of 64 keys at once, and does not allocate if
	// out has room. It checks ctx once, before the first key. Package redisstore sends the requests
	// of all keys at once, so that they share round trips. With any other store, and with
	// [WithLimits] in memory, TakeEach is a loop.
	TakeEach(ctx context.Context, keys []string, n int, out []Decision) ([]Decision, error)

	// Wait waits until one event may happen, and spends it. See WaitN.
	Wait(ctx context.Context, key string) error

	// WaitN waits until n events may happen, and spends them. It returns nil when they may.
	//
	// Waiters on a key stand in a line, one for each name and store in a process: first come, first
	// served. Nothing overtakes the line: until it is through, other requests for the key, those of
	// Reserve too, are denied in this process, and RetryAfter says when that is. Charge is the
	// exception: its events count at once. Processes that share a store take turns: the first ones
	// of their lines are served in the order in which they became the first, unless they wait for
	// events that are held, or in flight.
	//
	// If ctx ends during the wait, WaitN leaves the line, spends nothing, and returns the context's
	// error. Those behind it move up.
	//
	// WaitN fails at once and spends nothing if ctx's deadline is before the turn (a [TurnError],
	// which matches [context.DeadlineExceeded]), if a [LeakyBucket] has no room ([ErrQueueFull]),
	// if the line is too long ([WithMaxWaiters]), or if the turn never comes ([ErrNever]). Where
	// the turn is not known, WaitN waits until ctx ends instead: while events of the key are held
	// ([Limiter.Hold]), behind callers that will hold theirs, with an [InFlight], and in a store
	// that is not in memory behind others. There, only the turns of the first ones are known, and
	// WaitN fails at once if ctx's deadline is before the last of these.
	//
	// In a busy process, whose goroutines and timers are late, the line keeps its rate: a turn that
	// has come is taken as of the instant at which it came. How long ago that may be is bounded: by
	// two milliseconds plus the most by which other turns were late within the last second, and by
	// a tenth of a second. It is never before the last Settle or Cancel that gave events of the key
	// back. In stores that are not in memory, turns are reserved earlier instead: by twice the time
	// by which others were late, and at most 64 of them.
	//
	// After a pause, a process serves its waiters at the limit's rate, not all at once. The
	// exception is turns that were already reserved: in memory those of the last two milliseconds,
	// in other stores at most 64.
	//
	// A call that need not wait costs as much as Allow. A waiter in memory costs a few hundred
	// bytes besides its goroutine. In other stores, it costs one call of the store. The exception
	// is a waiter behind events that are held, or in flight. Nobody tells it of what other
	// processes give back. So the first waiter of each process asks the store again, after an
	// eighth of the time that it has waited, but at least ten milliseconds and at most a second.
	// Until it does, other callers may be faster: whoever gives events back serves the waiters of
	// its own process first. [FailurePolicy] says what WaitN does if the store fails.
	WaitN(ctx context.Context, key string, n int) error

	// Reserve spends n events at the earliest time at which they may happen, or, with [Within],
	// only if that is near enough. It returns a Reservation that knows this time, for callers that
	// wait by other means than Wait, and a Decision whose Delay is the wait. The time never
	// changes: a reservation in the middle that is cancelled leaves a gap, which nobody fills, so
	// callers that may leave use Wait. Until then the key grants nothing else, except that a
	// [LeakyBucket] keeps queueing events that fit, behind these.
	//
	// If the events are not reserved, nothing is spent, the Reservation is nil, and RetryAfter is
	// the wait until the same call succeeds, provided that nobody else uses the key: because the
	// turn is too far off or never comes, a [LeakyBucket] has no room in its queue, all of an
	// [InFlight] is in use, or others stand in line on the key. That is not an error; the errors
	// are those of Take. If the store fails, the [FailurePolicy] decides; a reservation that it
	// allows is due at once and holds nothing.
	//
	// With [HoldFor] or [GiveBack], and always with an InFlight, the events are held from their
	// turn on, as those of Hold are.
	//
	// A reservation takes 32 bytes until its turn comes; the first one takes as much as the state
	// besides. To make, settle or cancel one takes about 0.1 ms if a thousand are ahead. Of more
	// than 4,096 on a key, the oldest ones cannot be cancelled any more.
	Reserve(
		ctx context.Context,
		key string,
		n int,
		opts ...ReserveOption,
	) (*Reservation, Decision, error)

	// Hold is Take, and returns a Reservation of the events if they are granted, and otherwise nil.
	// It is for requests whose cost is known only afterwards: hold an estimate, and pass the cost
	// to [Reservation.Settle], or 0 by [Reservation.Cancel]. With [Waiting], Hold waits for the
	// events in line, as WaitN does, and has its errors. A hold that nobody settles ends by itself,
	// after ten minutes or as [HoldFor] and [GiveBack] say; that of an [InFlight], after its
	// Timeout. [Reservation.Extend] moves its end, and [Reservation.Token] lets another process
	// settle it.
	//
	// An open hold takes 32 to 40 bytes, with a [WarmingUp] up to 56, and 8 to 32 more for each
	// further part of an [All]. Without an InFlight, a key has at most 4,096 of them: then the
	// oldest one ends early, as it would by itself. The first decision after a hold has ended by
	// itself takes time in proportion to the number of open ones, as Settle does; with a
	// [SlidingLog] or an InFlight, both and Hold also to the events in the log, some 40 µs for
	// 100,000. In memory, Hold makes an allocation for the Reservation, of 80 bytes. A key with
	// open holds costs as much as with a SlidingLog, and its decisions take a lock; if its state is
	// one word, until it is granted events after they have ended, and otherwise until it is idle.
	Hold(ctx context.Context, key string, n int, opts ...HoldOption) (*Reservation, Decision, error)

	// Charge spends n events that have happened, whatever the limit says: a request that is paid
	// for afterwards, or a penalty. If there is no room for them, the key is in debt: Remaining is
	// 0, and nothing is granted until the debt is paid and there is room. RetryAfter says when that
	// is. Buckets pay at their rate, windows and logs as the events leave them. They count now,
	// even while reservations are ahead, which keep their turns; in a [WarmingUp], at the time of
	// its next grant.
	//
	// The Decision is what Peek returns afterwards. A debt may exceed the limit itself: in buckets
	// and WarmingUp, if it is paid before 2116; in windows and logs, if they count at most 2³¹−1
	// events, and mostly far more. Reservations that are ahead need room beside them. If there is
	// no room, none of the events is counted, and the error matches [ErrDebt] and says how many
	// would fit. If the store is full, it matches [ErrFull]. If the store fails, the
	// [FailurePolicy] makes the Decision, the error says so, and it is unknown whether the events
	// were counted; a [Fallback] counts them. If only the lookup of [WithLimits] fails, they are
	// counted, and the error is the lookup's. An [Unlimited] or [Blocked] limit counts nothing,
	// also as that of New if the lookup fails.
	Charge(ctx context.Context, key string, n int) (Decision, error)

	// Peek returns the decision that Take(ctx, key, 1) would, but spends nothing: Remaining events
	// could be taken now.
	Peek(ctx context.Context, key string) (Decision, error)

	// Reset forgets key, so that its next request finds it unused. It also forgets what is reserved
	// and held: cancelling that gives nothing back.
	Reset(ctx context.Context, key string) error

	// Resume returns the Reservation whose Token another process has passed on, or this one before
	// it crashed, so that it can be settled, released or extended: a worker that takes a job from a
	// queue settles what was held when the job was put there. The limiter must have the same name,
	// kind of algorithm and store as the one that made it, and key is the key of the hold. A hold
	// must be settled once, by whoever it is: a second Settle, of another Reservation of the hold,
	// changes nothing, except that it counts events that exceed it once more.
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
