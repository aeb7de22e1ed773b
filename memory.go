package ratelimit

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A MemoryStore keeps states in the memory of the process. It is safe for any
// number of goroutines and limiters, needs no goroutine of its own and need
// not be closed. The zero MemoryStore is empty and ready to use. Limiters that
// share one should share a clock, too: a key is idle if it is by the clock of
// whoever looks.
//
// It forgets a key only when that makes no difference: when its state equals
// that of a key never seen. It looks for such keys when it needs room for new
// ones, or when [MemoryStore.Shrink] tells it to. [WithMaxKeys] sets a bound for
// the case that too many are in use.
//
// Keys are known by 96 bits of hash, under secrets that each store draws for
// itself. That two of 100 million keys share a state has a chance below 10⁻¹²,
// which no attacker can raise. On average, two thirds of a table are in use. So a
// key costs 1.5 × (13⅓ bytes + its state). With a [SlidingLog] or [WithLimits] it
// costs 1.5 × 48 bytes + its state, which is 32 bytes for a log of one event.
// A limiter without keys takes about a kilobyte or less.
type MemoryStore struct {
	memoryConfig
	engine memory.Store

	mu     sync.Mutex // protects spaces
	spaces map[string]*memoryStates
}

// A MemoryOption changes how [NewMemoryStore] makes a store.
type MemoryOption func(*memoryConfig)

// memoryConfig is what options choose. The store keeps a copy, which nothing
// changes later. Every check of it is in check.
type memoryConfig struct {
	maxKeys int64 // 0 means no bound
	full    FullPolicy
	missing error // names the first option that is nil
}

// NewMemoryStore returns an empty store. If an option is nil or cannot be used,
// [New] returns an error for each limiter on the store.
func NewMemoryStore(opts ...MemoryOption) *MemoryStore {
	s := &MemoryStore{}
	for i, opt := range opts {
		switch {
		case opt != nil:
			opt(&s.memoryConfig)
		case s.missing == nil:
			s.missing = param.Invalid(fmt.Sprintf("option %d of NewMemoryStore", i), nil, "must be WithMaxKeys's or WithFullPolicy's result")
		}
	}
	s.engine.MaxKeys, s.engine.Full = s.maxKeys, memory.Policy(s.full)
	return s
}

func (c *memoryConfig) check() error {
	switch {
	case c.missing != nil:
		return c.missing
	case c.maxKeys < 0:
		return param.Invalid("WithMaxKeys's n", c.maxKeys, "must be at least 1, or 0 for no bound")
	case c.full < EvictLeast || c.full > ShareUnseen:
		return param.Invalid("WithFullPolicy's policy", int(c.full), "must be EvictLeast, RefuseUnseen or ShareUnseen")
	}
	return nil
}

// WithMaxKeys bounds the number of keys that a store holds, over all of its
// limiters, to n; 0, the default, sets no bound. When a further key comes, and
// no idle one is found, the store evicts the key whose loss forgives least:
// the one with the most Remaining, and among equals the one that resets
// soonest. So a flood of new keys pushes out its own, and not a key that has used
// up its limit; unless each new key uses up its own limit at once, as with a
// limit of 1, since then they are equals. [WithFullPolicy] chooses otherwise.
//
// With up to 512 keys, the store compares all of them. With more, it compares a
// sample of 64; if several keys in the sample tie for the most Remaining, up to 16
// of them are evicted one after the other within the next second. While all keys in
// the sample are used up, the sample is enlarged, to at most 16,384 keys. If still
// all of them are used up, the 1/64 of them that have something left soonest are
// evicted at once, since to look at so many takes a millisecond or two, for which
// new keys wait. (They are also evicted if there are more keys, and fewer than 16 in
// the sample have something left.)
//
// Each loss is counted in [MemoryStats].Evictions. A negative n is an error that
// [New] returns.
func WithMaxKeys(n int) MemoryOption {
	return func(c *memoryConfig) { c.maxKeys = int64(n) }
}

// A FullPolicy says what a store does with a new key when it is full, and finds
// no idle key among those that it looks at.
type FullPolicy int

const (
	// EvictLeast forgets the key whose loss forgives least, see [WithMaxKeys].
	EvictLeast FullPolicy = iota

	// RefuseUnseen denies the new key. RetryAfter is the time until the first of the
	// keys that the store has looked at lately is idle, if it is not used until
	// then. Wait and Reserve fail with [ErrFull]. Nothing is ever evicted. The store
	// looks at up to 16,384 keys at a time, and at all keys at most once a second,
	// or each time that 1/64 of them have become idle.
	RefuseUnseen

	// ShareUnseen lets all new keys share one state, as if they were one key
	// more, for as long as the store is full. Nothing is ever evicted.
	ShareUnseen
)

// WithFullPolicy says what a store with [WithMaxKeys] does when it is full. The
// default is EvictLeast.
func WithFullPolicy(p FullPolicy) MemoryOption {
	return func(c *memoryConfig) { c.full = p }
}

// Len returns the number of keys held, idle ones not yet forgotten included.
func (s *MemoryStore) Len() int { return s.engine.Len() }

// MemoryStats are the counts of a [MemoryStore].
type MemoryStats struct {
	Keys      int    // held now, idle ones not yet forgotten included
	Inserts   uint64 // keys that were new, or had been forgotten, so far
	Evictions uint64 // keys in use that WithMaxKeys forced the store to forget, so far
	Turned    uint64 // requests of new keys that RefuseUnseen denied or ShareUnseen decided, so far
	Bytes     uint64 // of memory for keys, states and limiters, to within a fifth
}

// Stats returns the counts of the store. They are read one after the other, which
// takes about a microsecond for each limiter, and a few more for each thousand of
// keys.
func (s *MemoryStore) Stats() MemoryStats {
	stats := s.engine.Stats()
	return MemoryStats{
		Keys:      stats.Keys,
		Inserts:   stats.Inserts,
		Evictions: stats.Evictions,
		Turned:    stats.Rejected,
		Bytes:     stats.Bytes,
	}
}

// Shrink forgets all idle keys and gives the memory that they took back to the
// garbage collector. A store does the same by itself as new keys come; call it
// if a flood has passed and few come any more. It looks at every key held, and
// holds up callers for the part of the keys that it is at.
func (s *MemoryStore) Shrink() { s.engine.Shrink() }

// Open implements [Store].
func (s *MemoryStore) Open(name string, t *Transition) (States, error) {
	if err := s.memoryConfig.check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.spaces[name]; sp != nil {
		if err := sp.t.shares(name, t); err != nil {
			return nil, err
		}
		sp.shared.Store(true)
		return sp, nil
	}
	sp := &memoryStates{t: t}
	if overhead := t.bytes() + limiterBytes; t.kernel.Width() > 0 && !t.Varies() {
		sp.tables = s.engine.OpenTables(t.kernel, overhead)
	} else {
		sp.logs = s.engine.OpenLogs(overhead)
	}
	if s.spaces == nil {
		s.spaces = make(map[string]*memoryStates)
	}
	s.spaces[name] = sp
	return sp, nil
}

// limiterBytes is what a limiter takes, and its place in the map of a store, about.
var limiterBytes = sizeOf[limiter]() + sizeOf[memoryStates]() + 56

// tagBytes is what is kept for [Transition.Tag], about.
const tagBytes = 100

// bytes returns the memory that the transition takes, about.
func (t *Transition) bytes() uint64 {
	size := func(v any) uint64 { return uint64(reflect.Indirect(reflect.ValueOf(v)).Type().Size()) }
	sum := sizeOf[Transition]() + size(t.alg) + t.kernel.Size()
	if t.Varies() {
		sum += sizeOf[limits]() + tagBytes
	}
	if parts, ok := t.alg.(All); ok {
		for _, part := range parts {
			sum += 16 + size(part)
		}
	}
	return sum
}

// sizeOf returns the bytes of a T.
func sizeOf[T any]() uint64 { return uint64(reflect.TypeFor[T]().Size()) }

// memoryStates are the states of the limiters of one name: in tables if they are of
// fixed width, and in logs if they grow with use or limits vary.
type memoryStates struct {
	t      *Transition
	tables *memory.Tables
	logs   *memory.Logs
	shared atomic.Bool // whether several limiters have them
}

// Apply implements [States].
func (s *memoryStates) Apply(_ context.Context, key string, t *Transition, req Request) (Result, error) {
	if err := req.check(); err != nil {
		return Result{}, err
	}
	asked, a := req.toKernel(), kernel.Answer{}
	s.apply(key, t.kernel, &asked, &a)
	return result(&a), nil
}

func (s *memoryStates) apply(key string, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) {
	if s.tables != nil {
		s.tables.Apply(key, req, a)
	} else {
		s.logs.Apply(key, k, req, a)
	}
}

// Reset implements [States].
func (s *memoryStates) Reset(_ context.Context, key string) error {
	if s.tables != nil {
		s.tables.Reset(key)
	} else {
		s.logs.Reset(key)
	}
	return nil
}

// A timekeeper is a [Store] whose limiters must agree on the time.
type timekeeper interface {
	// timelineOf returns the timeline that the store's limiters use, or an error
	// if that is not the one of clk.
	timelineOf(clk clock.Clock) (*kernel.Timeline, error)
}

// timelineOf returns the timeline for a limiter in store, by clk.
func timelineOf(store Store, clk clock.Clock) (*kernel.Timeline, error) {
	if s, ok := store.(timekeeper); ok {
		return s.timelineOf(clk)
	}
	return newTimeline(clk), nil
}

// timelineOf implements timekeeper.
func (s *MemoryStore) timelineOf(clk clock.Clock) (*kernel.Timeline, error) {
	t := s.engine.Timeline(func() *kernel.Timeline { return newTimeline(clk) })
	if !t.Tells(clk) {
		return nil, param.Invalid("WithClock's clock", kernel.NameOf(clk), fmt.Sprintf("must be the clock of the other limiters on this store, %s, since states hold instants; use another store for another clock", kernel.NameOf(t.Clock())))
	}
	return t, nil
}
