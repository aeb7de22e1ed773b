package ratelimit

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/logvalve"
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

// WithStore keeps the limiter's states in s, which several limiters may share. It needs [WithName], which keeps
// them apart, unless s is a [MemoryStore]: there, a limiter without a name has states of its own, which leave the
// store with the limiter. By default a limiter has its own MemoryStore, with no bound on the number of keys.
func WithStore(s Store) Option {
	return func(c *config) { c.store, c.storeSet = s, true }
}

// WithClock makes the limiter use clk, whose methods must not call the limiter. The default is the system's clock.
// If clk steps back, the limiter's time stands still until clk has caught up.
//
// Time passes as clk.Since shows it: by the monotonic clock, if clk has one. But if the wall clock, clk.Now, is
// more than a second ahead of that, because the machine was suspended or its clock was set, that time has passed
// as well. The limiter sees this within 10 ms; whoever waits sleeps on one of clk's timers, and no shorter. If the
// wall clock was set back, time goes on as before: windows begin early by as much, until the store is made anew.
//
// All limiters on a [MemoryStore] must have the same clock, because the states hold times. Otherwise New returns
// an error. Two clocks are the same if they are equal, or if both are the system's.
//
// Aligned windows follow the wall time that clk shows when New is called for the first limiter on the store. If
// that is before 1970 or after 2100, only windows of up to a week are aligned as documented. Time stands still
// from 2116 on or, in that case, once the clock has moved on by 50 to 146 years.
func WithClock(clk clock.Clock) Option {
	return func(c *config) { c.clock, c.clockSet = clk, true }
}

// WithStoreTimeout bounds how long, in real time, the limiter waits for one call of its store. The end of the
// caller's context bounds it as well, even if a [Database] ignores the context. After the timeout, the
// [FailurePolicy] decides, and the error matches [context.DeadlineExceeded]. The default is one second for a
// Database, and the store's own timeout in package redisstore. The option has no effect with a [MemoryStore],
// which never waits.
//
// The limiter does not know what the store does after the timeout: if it grants the request late, the events are
// spent. A call of a Database that nobody waits for any more keeps a goroutine until it returns. While 1,024 keys
// of a store have such calls, further calls fail at once.
func WithStoreTimeout(d time.Duration) Option {
	return func(c *config) { c.storeTimeout, c.storeTimeoutSet = d, true }
}

// WithName gives the limiter a name, which keeps it apart from others on the same store, in this process and
// others. Limiters with the same name and the same algorithm share the states of keys. If their algorithms differ,
// New returns an error for the second one on a store: use [WithLimits] for a limit that changes. Names also appear
// in errors, in logs, and in what observers are told.
func WithName(name string) Option {
	return func(c *config) { c.name = name }
}

// WithMaxWaiters bounds how many callers wait for a key at once, in this process, to n, which is at least 1. If as
// many stand in line, a Wait that does not get its turn at once fails with [ErrQueueFull]. By default there is no
// bound: each waiter takes one or two kilobytes, besides what its caller takes.
func WithMaxWaiters(n int) Option {
	return func(c *config) { c.mostWaiters, c.mostWaitersSet = n, true }
}

// WithFailurePolicy sets what the limiter decides when its store fails. The default is [FailOpen]. The in-memory
// store never fails.
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
	_, inMemory := c.store.(*MemoryStore)
	for _, a := range []struct {
		is    bool
		what  string
		value any
		must  string
	}{
		{c.storeSet && param.IsNil(c.store), "WithStore's store", nil, "must be a Store, such as new(MemoryStore)"},
		{c.storeSet && c.name == "" && !inMemory, "the name of a limiter with WithStore", "empty", "must be given by WithName, because the states in a store that outlives the process are those of a name"},
		{c.clockSet && param.IsNil(c.clock), "WithClock's clock", nil, "must be a clock.Clock, such as clock.New()"},
		{c.lookupSet && c.lookup == nil, "WithLimits's lookup", nil, "must be a function"},
		{c.policy.kind == fallback && param.IsNil(c.policy.limiter), "Fallback's limiter", nil, "must be a Limiter"},
		{slices.ContainsFunc(c.observers, func(o Observer) bool { return o == nil }), "WithObserver's observer", nil, "must be an Observer"},
		{c.mostWaitersSet && c.mostWaiters < 1, "WithMaxWaiters's n", c.mostWaiters, "must be at least 1; without WithMaxWaiters there is no bound"},
		{c.storeTimeoutSet && c.storeTimeout <= 0, "WithStoreTimeout's duration", c.storeTimeout, "must be positive"},
	} {
		if a.is {
			return nil, param.Invalid(a.what, a.value, a.must)
		}
	}
	if !c.storeSet {
		own := new(MemoryStore)
		own.alone = true
		c.store = own
	}
	return c, nil
}

// A FailurePolicy says what a limiter decides when its store fails: [FailOpen], [FailClosed] or [Fallback]. A
// store fails if it returns an error, does not answer in time (see [WithStoreTimeout]), or cannot read a key's
// state ([ErrState]). If only the lookup of [WithLimits] fails, the limit of New decides instead. The limiter logs that
// the policy decides: see [WithFailureLog].
//
//   - Take, Hold, Charge, Settle, Peek and Reserve return the policy's decision, with Degraded set, and the error.
//     [Decision.Checked] says whether a fallback has checked a limit. Allow returns the Allowed of that decision.
//     With Fallback, all of them except Settle call its limiter: Settle of what the fallback has held settles it
//     there, and of what the store has held, it denies.
//   - With FailOpen, a Wait succeeds at once, with no other sign of the failure than the log: nothing is reserved,
//     and the error is nil. With FailClosed it returns the error. With Fallback it calls the same method of its
//     limiter.
//   - Reset returns the error, and Cancel gives nothing back.
//
// If the caller's context was cancelled, its error is returned and the policy is not used. For a Wait, this is so
// even if its deadline has passed.
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

	// FailClosed denies everything while the store fails. RetryAfter is a second then: nobody knows when the store
	// will answer again.
	FailClosed = FailurePolicy{kind: failClosed}
)

// Fallback makes l decide while the store fails. l may be a limiter in memory with this process's [Share] of the
// limit.
//
// A request that l can never grant, although the limit of the key can, is refused as with FailClosed: RetryAfter
// is a second, and the error is the store's, that of a Wait too, and not [ErrNever]. The decision is not Checked.
func Fallback(l Limiter) FailurePolicy { return FailurePolicy{kind: fallback, limiter: l} }

// WithLimits gives keys limits of their own, which may change at any time. lookup returns the algorithm for a key,
// or nil for the algorithm passed to [New], which may be [Blocked] if every key has a limit. Each call that
// decides on a key calls lookup before the store; Cancel, Reset, and Settle and Release of what the store holds do
// not: the Decision of Settle is that of the limit under which the key was last granted something. So lookup
// should answer from memory (package rules has a cache for lookups in a database).
//
// If lookup fails, or returns parameters that cannot be used, the limit that was passed to New decides, as if it were
// that of the key for this call: what is used stays used. The Decision is Degraded, with StandIn set, and comes with
// the lookup's error; a Wait waits by that limit, and returns nil when the events may happen. Observers see that it
// [Failed], and [WithFailureLog] has a line of it. Events that New's limit could never grant, because they are too
// many, or it is Blocked, are refused as by [FailClosed], because the limit of the key may grant them: RetryAfter is a
// second, and a Wait returns the lookup's error, and not [ErrNever]. If ctx ended before lookup returned its error, the
// call returns that of ctx, and spends nothing. The [FailurePolicy] is for stores, and decides if the store fails as
// well.
//
// A key whose limit changes keeps its usage: what it has been granted counts under the new limit as well, at the
// time at which it happened, as exactly as that is known. With another kind of algorithm, or another Refill, a key
// starts afresh; [Unlimited] and [Blocked] leave its state as it is. Two versions of a program may ask with
// different limits in turns. [docs/algorithms.md] says what that means for each algorithm, and what is not kept.
//
// In a [MemoryStore], a key whose state takes 8 bytes with its limit costs no more memory than without WithLimits,
// and decisions on it take no lock: for the first 1,023 distinct limits of the limiter, and with no reservations
// ahead and no more used than its limit. Other keys cost as much as with a [SlidingLog]. Each distinct limit costs
// about 500 bytes, which [MemoryStats] does not count. The limiter keeps between 8,192 and 16,384 of them compiled,
// those that were used last. If more are in use, a call whose limit is not among them compiles it again, which takes
// several microseconds. An All costs an allocation in each call. With more than four parts, or with an All among them,
// it costs a few microseconds, because it is compiled each time.
//
// [docs/algorithms.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/algorithms.md#when-a-limit-changes
func WithLimits(lookup func(ctx context.Context, key string) (Algorithm, error)) Option {
	return func(c *config) { c.lookup, c.lookupSet = lookup, true }
}

// limits looks up the limits of keys, and caches them compiled.
//
// Decisions in memory seldom need the cache: a key's slot names the limit that it was last decided by, and that is
// compared with the result of lookup.
type limits struct {
	lookup func(ctx context.Context, key string) (Algorithm, error)
	base   *limit.Limit

	young, old atomic.Pointer[sync.Map] // limits by keyOf; nil until needed

	mu   sync.Mutex // protects against another change of young and old
	kept int        // the number of limits in young
}

// manyLimits is the most limits in each of young and old: WithLimits tells users of it. When young is full, it becomes old, and the previous old
// is dropped. A limit in old that is used moves to young.
const manyLimits = 8192

// of returns the limit for alg, which lookup returned for key, with err.
func (l *limits) of(key string, alg Algorithm, err error) (*limit.Limit, error) {
	t := l.base
	if err == nil && alg != nil {
		t, err = l.compiled(alg)
	}
	if err != nil {
		return nil, fmt.Errorf("ratelimit: the limit of key %q: %w", key, err)
	}
	return t, nil
}

// compiled returns alg, which a user passed, compiled.
func (l *limits) compiled(alg Algorithm) (*limit.Limit, error) {
	key, ok := keyOf(alg)
	if ok {
		if t := l.known(key); t != nil {
			return t, nil
		}
	}
	t, err := newLimit(alg, kernel.InMemory.Varying())
	if err != nil || !ok {
		return t, err
	}
	if isPlain(alg) {
		t.Asked = key
	}
	return l.keep(key, t), nil
}

// known returns the cached limit for key, or nil.
func (l *limits) known(key any) *limit.Limit {
	if t := find(&l.young, key); t != nil {
		return t
	}
	t := find(&l.old, key)
	if t != nil {
		t = l.keep(key, t)
	}
	return t
}

// find returns the limit for key in a part of the cache, or nil.
func find(in *atomic.Pointer[sync.Map], key any) *limit.Limit {
	m := in.Load()
	if m == nil {
		return nil
	}
	t, _ := m.Load(key)
	found, _ := t.(*limit.Limit)
	return found
}

// keep caches t, unless there is already a limit for key. It returns that or t.
func (l *limits) keep(key any, t *limit.Limit) *limit.Limit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := find(&l.young, key); known != nil {
		return known
	}
	if l.young.Load() == nil || l.kept >= manyLimits {
		l.old.Store(l.young.Load())
		l.young.Store(new(sync.Map))
		l.kept = 0
	}
	l.young.Load().Store(key, t)
	l.kept++
	return t
}

// keyOf returns a key for the cache: keys of two algorithms are equal if their parameters are. An All with more
// than four parts, or with a nested All, has none.
func keyOf(alg Algorithm) (key any, ok bool) {
	if isPlain(alg) {
		return alg, true
	}
	all, isAll := alg.(All)
	var parts [4]Algorithm
	if !isAll || copy(parts[:], all) < len(all) || slices.ContainsFunc(all, func(part Algorithm) bool { return !isPlain(part) }) {
		return nil, false
	}
	return parts, true
}

// NewCoarseClock returns the system's clock, read only once every resolution, for [WithClock]. Reading the
// system's clock is more than half of the cost of a decision on a hot key; using a stored reading costs almost
// nothing. If the resolution is not positive, the error matches [ErrInvalid].
//
// A goroutine reads the clock, until stop is called, which may be called twice. Afterwards, clk reads the system's
// clock each time. If all processors are busy, the goroutine may be tens of milliseconds late. So before a limiter
// denies a request or makes it wait, it reads the clock again, and the rate is kept even in a busy process.
//
// Readings never go back, and are at most as old as the resolution and the delay of the goroutine. So a span of
// length s sees at most as many events as the limit allows in s plus the age of the oldest reading in it: with one
// event every 10 ms and a resolution of 1 ms, and a goroutine that is not late, two events are at least 9 ms
// apart.
func NewCoarseClock(resolution time.Duration) (clk clock.Clock, stop func(), err error) {
	if resolution < 1 {
		return nil, nil, param.Invalid("NewCoarseClock's resolution", resolution, "must be at least 1ns, such as 1ms")
	}
	c := newCoarseClock()
	stopped := make(chan struct{})
	go c.run(resolution, stopped)
	return c, sync.OnceFunc(func() { close(stopped) }), nil
}

// A coarseClock is what NewCoarseClock returns.
type coarseClock struct {
	clock.Clock // for timers, which are exact

	readings kernel.Coarse
	timeline *kernel.Timeline // of all that use the clock
}

// newCoarseClock returns one whose readings are not renewed yet.
func newCoarseClock() *coarseClock {
	c := &coarseClock{Clock: clock.New()}
	c.readings.Init()
	c.timeline = kernel.NewTimeline(c, &c.readings)
	return c
}

func (c *coarseClock) run(resolution time.Duration, stopped <-chan struct{}) {
	ticker := time.NewTicker(resolution)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.readings.Refresh()
		case <-stopped:
			c.readings.Stop()
			return
		}
	}
}

// What follows is by the latest reading.

func (c *coarseClock) Now() time.Time                  { return c.timeline.Time() }
func (c *coarseClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
func (c *coarseClock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// newTimeline returns the timeline of clk, or of the system's clock if clk is nil.
func newTimeline(clk clock.Clock) *kernel.Timeline {
	if c, ok := clk.(*coarseClock); ok {
		return c.timeline
	}
	return kernel.NewTimeline(clk, nil)
}

// WithFailureLog sets the logger that the limiter warns when its [FailurePolicy] has decided because the store
// failed. The first such decision is logged at once, and those that follow in one line every ten seconds, by the
// limiter's clock. A line has the limiter's name, the store's error, and the number of decisions without the store
// since the previous line. Lookups of [WithLimits] that failed have lines of their own, with their error and number.
// The default is [slog.Default] at the time of the line. A nil logger turns the log off.
func WithFailureLog(logger *slog.Logger) Option {
	return func(c *config) { c.failureLog, c.failureLogSet = logger, true }
}

// failureLogInterval is the least time between two lines of a limiter.
const failureLogInterval = 10 * time.Second

// A failureLog logs failures of one kind: those of the store, or those of lookups.
type failureLog struct {
	logger  *slog.Logger // nil for the default one
	off     bool
	message string // what happens instead
	counts  string // the attribute that says how often
	valve   logvalve.Valve
}

// decided is what the log says that a policy did.
var decided = [...]string{
	failOpen:   "ratelimit: the store failed, and requests are allowed without it",
	failClosed: "ratelimit: the store failed, and requests are denied",
	fallback:   "ratelimit: the store failed, and the fallback decides",
}

// storeFailures returns the log of decisions that a policy has made.
func (c *config) storeFailures() *failureLog {
	return c.logOf(decided[c.policy.kind], "decisions")
}

// lookupFailures returns the log of lookups that have failed.
func (c *config) lookupFailures() *failureLog {
	return c.logOf("ratelimit: a lookup failed, and the limit of New decides", "lookups")
}

func (c *config) logOf(message, counts string) *failureLog {
	return &failureLog{logger: c.failureLog, off: c.failureLogSet && c.failureLog == nil, message: message, counts: counts}
}

// failing logs that the policy decides because the store failed with err, and returns the error that says so.
func (l *limiter) failing(ctx context.Context, err error) error {
	l.log(ctx, l.failures, err)
	return l.failed(err)
}

// lookupFailed logs that a lookup failed with err, and returns the error that says so.
func (l *limiter) lookupFailed(ctx context.Context, err error) error {
	l.log(ctx, l.unknown, err)
	return fmt.Errorf("ratelimit: limiter %q: a lookup failed, and the limit of New decides: %w", l.name, err)
}

// log logs err, or counts it for the next line.
func (l *limiter) log(ctx context.Context, to *failureLog, err error) {
	if to.off {
		return
	}
	clk := l.timeline.Clock()
	switch held, ok := to.valve.Pass(clk.Now(), failureLogInterval); {
	case ok:
		to.line(ctx, l.name, err, held+1)
	case held == 1:
		ctx = context.WithoutCancel(ctx)
		clk.AfterFunc(failureLogInterval, func() {
			if held, ok := to.valve.Flush(clk.Now(), failureLogInterval); ok {
				logvalve.Safely(func() { to.line(ctx, l.name, err, held) })
			}
		})
	}
}

// line logs a line about the limiter of a name.
func (f *failureLog) line(ctx context.Context, name string, err error, count int) {
	logger := f.logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.WarnContext(ctx, f.message, "limiter", name, "error", err, f.counts, count)
}
