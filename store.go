package ratelimit

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/casstore"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A Store keeps the states of keys, and decides on each key for one request at a time. This module makes
// all stores: a [MemoryStore], those of [NewStore] for any [Database], and those of package redisstore.
type Store interface {
	// Open returns the states of the limiter called name. Only [New] calls it.
	Open(name string, l *limit.Limit, timeout time.Duration) (limit.States, error)
}

// A Database keeps states for [NewStore]: a table of SQL, bbolt, DynamoDB, etcd, or a map.
// docs/redis.md shows how to write one in about 25 lines, and package storetest tests it.
//
// Keys are ASCII without spaces, not empty, and at most 200 bytes long. Upper and lower case differ.
//
// States are any bytes, mostly 10 to 60. A [SlidingWindow] takes 4 bytes more for each of
// its Segments, and a [RollingWindow] for each period in Window (8 if the limit is
// above 2³²−1); a [SlidingLog] takes 8 to 16 for each event in Window, and an [All]
// the sum of its parts. A Database that cannot keep a state returns an error. States contain no
// checksum. They are equal if all bytes are. A Database may keep a slice that it was given, but
// changes none, and what Get has returned stays as it is. The store changes no slices either.
//
// Any number of goroutines call the methods at once, also for one key. A method should return when
// ctx ends; if it does not, the limiter abandons the call (see [WithStoreTimeout]).
//
// Errors are those of the database. The limiter returns them, and its [FailurePolicy]
// decides. The store does not try again, because a call that failed may have had its effect.
type Database interface {
	// Get returns the state of key. If there is none, state is empty and err is nil.
	// An expired state may be returned or not.
	Get(ctx context.Context, key string) (state []byte, err error)

	// CompareAndSwap makes new the state of key if the present state is old, and reports
	// whether it did so, in one atomic step. old is what Get has returned, or nil if that was empty:
	// then it swaps only if key has no state. If key has none, because it was deleted
	// meanwhile, and old is not nil, it does not swap. new is never empty.
	//
	// If the comparison fails, it is best to roll the transaction back: a commit that changes
	// nothing may wait for the disk as long as one that does.
	//
	// From the time expires on, by the limiter's clock, the state means the same as none, and may be
	// deleted; the zero Time means never. A Database that deletes by another clock adds the
	// greatest difference between the two: deleting late costs space, deleting
	// early hands out a fresh limit.
	//
	// A database that can compare only versions reads the state and its version, compares the
	// state with old, and swaps if the version is still the same. A version must
	// not come back after a key was deleted, as that of a counter would that starts again.
	CompareAndSwap(ctx context.Context, key string, old, new []byte, expires time.Time) (swapped bool, err error)

	// Delete deletes the state of key, if it has one.
	Delete(ctx context.Context, key string) error
}

// NewStore returns a store that keeps states in db. Any number of limiters may
// use it, and any number of processes one database, if their clocks agree.
//
// Calls on one key take turns, a Reset too. Those that wait share the next Get and CompareAndSwap, and so
// do not depend on how long a write takes. If a swap fails, because another process has changed the state,
// the store waits for a random time and starts over, until the context ends. A panic of the Database reaches
// one of the callers that still wait.
//
// Limiters with the same name on one store must have the same algorithm. On another
// store with the same database (after a restart, or in another process) the algorithm
// may be another one: the states are adopted as [WithLimits] describes.
func NewStore(db Database) Store { return casstore.New(db) }
