package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/casstore"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// A Store keeps the states of keys, and decides on each key for one request at a time. This module
// makes all stores: a [MemoryStore], those of [NewStore] for any [Database], and those of package
// redisstore.
type Store interface {
	limit.Store // its method is for New alone
}

// A Database keeps states for [NewStore]: a table of SQL, bbolt, DynamoDB, etcd, or a map.
// docs/databases.md shows how to write one in about 25 lines, and package storetest tests it.
//
// Keys are ASCII without spaces, not empty, and at most 200 bytes long. Upper and lower case
// differ.
//
// States are any bytes, mostly 10 to 60. A [SlidingWindow] takes 4 bytes more for each of its
// Segments, and a [RollingWindow] for each period in Window (8 if the limit is above 2³²−1); a
// [SlidingLog] takes 8 to 16 for each event in Window, and an [All] the sum of its parts. A
// Database that cannot keep a state returns an error. States contain no checksum. They are equal if
// all bytes are. A Database may keep a slice that it was given, but changes none, and what Get has
// returned stays as it is. The store changes no slices either.
//
// Any number of goroutines call the methods at once, also for one key. A method should return when
// ctx ends; if it does not, the limiter abandons the call (see [WithStoreTimeout]). Errors are
// those of the database. The limiter returns them, and its [FailurePolicy] decides. The store does
// not try again, because a call that failed may have had its effect.
type Database interface {
	// Get returns the state of key. If there is none, state is empty and err is nil. An expired
	// state may be returned or not.
	Get(ctx context.Context, key string) (state []byte, err error)

	// CompareAndSwap makes new the state of key if the present state is old, and reports whether it
	// did so, in one atomic step. old is what Get has returned, or nil if that was empty: then it
	// swaps only if key has no state. If key has none, because it was deleted meanwhile, and old is
	// not nil, it does not swap. new is never empty.
	//
	// If the comparison fails, it is best to roll the transaction back: a commit that changes
	// nothing may wait for the disk as long as one that does.
	//
	// From the time expires on, by the limiter's clock, the state means the same as none, and may
	// be deleted; the zero Time means never. A Database that deletes by another clock adds the
	// greatest difference between the two, because deleting early hands out a fresh limit.
	//
	// A database that can compare only versions reads the state and its version, compares the state
	// with old, and swaps if the version is still the same. No version may come back after a key
	// was deleted.
	CompareAndSwap(
		ctx context.Context,
		key string,
		old, new []byte,
		expires time.Time,
	) (swapped bool, err error)

	// Delete deletes the state of key, if it has one.
	Delete(ctx context.Context, key string) error
}

// NewStore returns a store that keeps states in db. Any number of limiters may use it, and any
// number of processes one database, if their clocks agree.
//
// Calls on one key take turns, a Reset too. Those that wait share the next Get and CompareAndSwap,
// and so do not depend on how long a write takes. If a swap fails, because another process has
// changed the state, the store waits for a random time and starts over, until the context ends. If
// the Database panics, the calls that share what it was asked for fail with an error that has the
// stack.
//
// Limiters with the same name on one store must have the same algorithm. After a restart, or in
// another process, it may be another one: the states are adopted as [WithLimits] describes.
//
// If the Database fails while it opens or ends a hold, the store ends the hold later: it calls the
// Database in the background until that answers, at the latest until the hold has ended by itself,
// or for a day. [DatabaseStore.Close] ends that. A Database that is closed before is called all the
// same, and returns an error.
func NewStore(db Database) *DatabaseStore { return &DatabaseStore{casstore.New(db)} }

// A DatabaseStore keeps states in a [Database]. [NewStore] makes one.
type DatabaseStore struct{ engine *casstore.Store }

// Open implements [Store].
func (s *DatabaseStore) Open(
	name string, lim *limit.Limit, timeout time.Duration,
) (limit.States, error) {
	if s.engine == nil {
		return nil, param.Invalid("the DatabaseStore", "zero", "must be one that NewStore returns")
	}
	return s.engine.Open(name, lim, timeout)
}

// String returns "a database".
func (*DatabaseStore) String() string { return "a database" }

// Close asks the Database once more to settle holds whose settlement, or whose opening, had no
// answer, and does not repeat that from then on. Call it before you close the Database. The store
// remains usable. If ctx ends first, Close returns its error. Holds that were not settled end by
// themselves.
func (s *DatabaseStore) Close(ctx context.Context) error {
	switch {
	case ctx == nil:
		return errNoContext
	case s.engine == nil:
		return nil
	}
	return s.engine.Close(ctx)
}

// A MemoryStore keeps states in the memory of the process. Any number of goroutines and limiters
// may use it. It has no goroutine and need not be closed. The zero MemoryStore is empty and ready
// to use. Its fields must not change once a limiter uses it. Limiters that share a store must have
// the same clock (see [WithClock]).
//
// The store forgets a key only when that makes no difference: when the key is idle, that is, when
// its state equals that of a key never seen. It keeps idle keys for five to ten seconds while new
// keys arrive, because a decision on a key that it knows is several times as fast. If none arrives,
// idle keys stay until [MemoryStore.Shrink].
//
// The store identifies keys by 96 bits of a hash with secret seeds of its own. With 100 million
// keys, the probability that any two share a state is below 10⁻¹², and no attacker can raise it. A
// key costs 1.5 × (13⅓ bytes + its state), because tables are two-thirds full on average: 32 bytes
// for most buckets and windows, and 48 bytes + 1.5 × its state with a [SlidingLog].
// [docs/algorithms.md] has a table of states, and [WithLimits] says what a key with a limit of its
// own costs. A limiter without keys takes a kilobyte or two.
//
// The states go with the process, unless [MemoryStore.Save] saves them.
//
// [docs/algorithms.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/algorithms.md
type MemoryStore struct {
	// MaxKeys bounds the number of keys that the store holds, for all its limiters together; 0 is
	// no bound. If too many are in use, the store evicts one for each new key, whose usage is
	// forgotten: of those that it has looked at, the key with the most Remaining. Among equals,
	// keys of a limiter that is flooded go first, then the key that regains an event or resets
	// soonest. Idle keys that it finds go before all others. So a flood of new keys evicts keys of
	// the flood, and not a key that has exhausted its limit. There are two exceptions. If every new
	// key exhausts its limit at once (a limit of 1), other keys are evicted too; if nearly all keys
	// are exhausted, some are.
	//
	// With several limiters, keys with equal Remaining are evicted from the limiter that is flooded
	// first. That is the limiter whose new keys find the store full, once it holds more than 1/32
	// of MaxKeys (and more than 16 keys). So a flood on one limiter evicts few keys of the others,
	// unless these have more Remaining.
	//
	// With up to 512 keys, the store looks at all of them for each new key. With more, it looks at
	// 16, and goes on until it knows one with events remaining, or has seen 128 in a row that are
	// used up; it remembers the 16 best. A TakeAll or HoldAll of new keys may exceed MaxKeys until
	// it returns.
	MaxKeys int

	// RefuseNew makes a full store deny a new key if it finds no idle one among 128 (all of up to
	// 512), and evict nothing. RetryAfter is the time until the first of these becomes idle,
	// assuming that it is not used. A Wait fails with [ErrFull], and Reserve denies.
	RefuseNew bool

	engine memory.Store

	isPrivate bool // whether the store belongs to one limiter, with which it goes

	saving sync.Mutex // held while the store is saved

	mu       sync.Mutex // protects the fields below
	isOpened bool       // whether the engine has got MaxKeys and RefuseNew
	byName   map[string]*memory.States
	loaded   *memory.Saved   // what Load has found; nil without
	refused  map[string]bool // files that Load could not use
}

// Len returns the number of keys held, including idle ones not yet forgotten.
func (s *MemoryStore) Len() int { return s.engine.Len() }

// MemoryStats are the counts of a [MemoryStore].
type MemoryStats struct {
	Keys      int    // keys held now, including idle ones not yet forgotten
	Inserts   uint64 // keys stored so far that were new or had been forgotten
	Evictions uint64 // keys in use that were evicted so far because of MaxKeys
	Rejected  uint64 // requests for new keys that RefuseNew denied so far
	Ended     uint64 // holds that ended by themselves so far, or early because their key had 4,096
	// Memory of keys and states, to within a fifth; limiters and their limits are not counted.
	Bytes uint64
}

// Stats returns the counts of the store. It does not read them at one instant. It takes about a
// microsecond for each limiter, and a few more for each thousand keys.
func (s *MemoryStore) Stats() MemoryStats { return MemoryStats(s.engine.Stats()) }

// Shrink forgets all idle keys and releases their memory to the garbage collector. A store does the
// same by itself while new keys arrive; call Shrink after a flood, if few new keys arrive. It scans
// every key, and blocks callers only for the part of the keys that it is scanning.
func (s *MemoryStore) Shrink() { s.engine.Shrink() }

// Open implements [Store].
func (s *MemoryStore) Open(name string, lim *limit.Limit, _ time.Duration) (limit.States, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.configureEngine(); err != nil {
		return nil, err
	}
	if name == "" { // the states are those of one limiter, and leave with it
		return s.engine.Open(lim, !s.isPrivate, false), nil
	}
	if states := s.byName[name]; states != nil {
		if err := states.Limit.CheckSame(name, lim); err != nil {
			return nil, err
		}
		return states.Share(lim), nil
	}
	if s.byName == nil {
		s.byName = make(map[string]*memory.States)
	}
	states := s.engine.Open(lim, false, s.engine.Saves())
	if s.loaded != nil {
		states.RestoreStates(s.loaded, name)
	}
	s.byName[name] = states
	return states, nil
}

// configureEngine passes the fields to the engine, once.
func (s *MemoryStore) configureEngine() error {
	switch {
	case s.MaxKeys < 0:
		return param.Invalid(
			"MemoryStore's MaxKeys",
			s.MaxKeys,
			"must be at least 1, or 0 for no bound",
		)
	case s.RefuseNew && s.MaxKeys == 0:
		return param.Invalid(
			"MemoryStore's RefuseNew",
			s.RefuseNew,
			"needs MaxKeys; without a bound the store is never full",
		)
	case !s.isOpened:
		s.isOpened, s.engine.MaxKeys, s.engine.RefuseNew = true, int64(s.MaxKeys), s.RefuseNew
	case s.engine.MaxKeys != int64(s.MaxKeys) || s.engine.RefuseNew != s.RefuseNew:
		return param.Invalid(
			"MemoryStore",
			fmt.Sprintf("{MaxKeys: %d, RefuseNew: %t}", s.MaxKeys, s.RefuseNew),
			fmt.Sprintf(
				"must stay {MaxKeys: %d, RefuseNew: %t} once a limiter uses the store",
				s.engine.MaxKeys,
				s.engine.RefuseNew,
			),
		)
	}
	return nil
}

// A timekeeper is a [Store] whose limiters must agree on the time.
type timekeeper interface {
	// timelineOf returns the timeline of the store's limiters, or an error if their clock is not
	// clk.
	timelineOf(clk clock.Clock) (*timeline.Timeline, error)
}

// timelineOf returns the timeline for a limiter on store with the clock clk.
func timelineOf(store Store, clk clock.Clock) (*timeline.Timeline, error) {
	if s, ok := store.(timekeeper); ok {
		return s.timelineOf(clk)
	}
	return newTimeline(clk), nil
}

// timelineOf implements timekeeper.
func (s *MemoryStore) timelineOf(clk clock.Clock) (*timeline.Timeline, error) {
	t, err := s.engine.Timeline(func() (*timeline.Timeline, error) { return s.newTimeline(clk) })
	if err != nil {
		return nil, err
	}
	if !t.Tells(clk) {
		return nil, param.Invalid(
			"WithClock's clock",
			fmt.Sprintf("of type %T", clk),
			fmt.Sprintf(
				"must be the clock of the other limiters on this store (a %T), because states hold "+
					"times; use another store for another clock",
				t.Clock(),
			),
		)
	}
	return t, nil
}

// newTimeline returns the timeline of clk, which does not go back behind the time of saving.
func (s *MemoryStore) newTimeline(clk clock.Clock) (*timeline.Timeline, error) {
	t := newTimeline(clk)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded == nil {
		return t, nil
	}
	now, _ := t.Now()
	if err := checkSaved(s.loaded, now); err != nil {
		return nil, fmt.Errorf("%w: the states that the MemoryStore has loaded: %w", ErrInvalid, err)
	}
	s.engine.CountEvicted(s.loaded.Trim(max(now, s.loaded.At), max(0, s.MaxKeys)))
	t.Raise(s.loaded.At)
	return t, nil
}
