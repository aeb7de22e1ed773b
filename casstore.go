package ratelimit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A CASStore keeps states in a database that can get, compare-and-swap and delete
// values: bbolt, SQLite, DynamoDB, etcd, or a map. Make one with [NewCASStore].
// Any number of goroutines and limiters may use it. Any number of processes may use
// one database, if their clocks agree.
type CASStore struct {
	missing string // the name of a function that is nil, or empty
	apply   func(ctx context.Context, key string, t *Transition, req Request) (Result, error)
	del     func(ctx context.Context, key string) error

	conflicts, unreadable atomic.Uint64

	mu   sync.Mutex             // protects open
	open map[string]*Transition // by the name of their limiters
}

// NewCASStore returns a store on a database that three functions access. Any number
// of goroutines call them at once. They should return when ctx ends; if they do not,
// the limiter abandons the call (see [WithStoreTimeout]). The limiter reports their
// errors.
//
// get returns the state of key and its version, which compareAndSwap uses to check
// that the state has not changed. If key has no state, state is nil or empty, err is
// nil, and version denotes that there is none. get may return an expired state.
//
// compareAndSwap stores state for key if the present state still has the version that
// get returned, and reports whether it did so, in one atomic step. It must return
// false if the key had a state and has none now, or had none and has one now. It may
// keep the slice state. From the time expires on, by the limiter's clock, the state
// equals that of a key never seen, and may be deleted; the zero Time means never. A
// database that deletes by its own clock should add the greatest difference between the
// two clocks: deleting late costs space, deleting early hands out a fresh limit.
//
// remove deletes the state of key, if it has one, whatever its version.
//
// A version may be the state itself (a string or []byte), compared byte by byte, or a
// number or token that is new for each write. A counter that restarts after a key was
// deleted is not a version, because different states would get the same number.
//
// Keys are ASCII, not empty, and at most 200 bytes long; a hash replaces longer ones.
// The database must distinguish upper and lower case. [Store] documents the size of
// states.
func NewCASStore[V any](
	get func(ctx context.Context, key string) (state []byte, version V, err error),
	compareAndSwap func(ctx context.Context, key string, version V, state []byte, expires time.Time) (swapped bool, err error),
	remove func(ctx context.Context, key string) error,
) *CASStore {
	s := &CASStore{del: remove}
	switch {
	case get == nil:
		s.missing = "get"
	case compareAndSwap == nil:
		s.missing = "compareAndSwap"
	case remove == nil:
		s.missing = "remove"
	}
	s.apply = func(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
		if err := req.check(); err != nil {
			return Result{}, err
		}
		for {
			state, version, err := get(ctx, key)
			if err != nil {
				return Result{}, err
			}
			at, _ := req.Read() // now that the state is at hand
			next, changed, res, err := t.Apply(state, at)
			if err != nil || !changed {
				return res, err
			}
			swapped, err := compareAndSwap(ctx, key, version, next, at.expiry(res.Decision))
			if err != nil {
				return Result{}, err
			}
			if swapped {
				if res.StateErr() != nil {
					s.unreadable.Add(1)
				}
				return res, nil
			}
			s.conflicts.Add(1)
			if err := ctx.Err(); err != nil {
				return Result{}, err
			}
		}
	}
	return s
}

// CASStats are the counts of a [CASStore] since it was made.
type CASStats struct {
	Conflicts  uint64 // times that a swap failed because another request had changed the state
	Unreadable uint64 // keys that started afresh because their state could not be read: see ErrState
}

// Stats returns the counts of the store.
func (s *CASStore) Stats() CASStats {
	return CASStats{Conflicts: s.conflicts.Load(), Unreadable: s.unreadable.Load()}
}

// Open implements [Store]. Limiters with the same name on one CASStore must have the
// same algorithm. A limiter that another CASStore opens on the same database (after a
// restart, or in another process) may have another algorithm: its states are adopted as
// [WithLimits] describes.
func (s *CASStore) Open(name string, t *Transition) (States, error) {
	if s.apply == nil {
		return nil, param.Invalid("the CASStore", "zero", "must be made by NewCASStore")
	}
	if s.missing != "" {
		return nil, param.Invalid("NewCASStore's "+s.missing, nil, "must be a function")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.open[name]; have != nil {
		if err := have.shares(name, t); err != nil {
			return nil, err
		}
	}
	if s.open == nil {
		s.open = make(map[string]*Transition)
	}
	s.open[name] = t
	return &casStates{s, name}, nil
}

// casStates are the states of one limiter.
type casStates struct {
	*CASStore
	name string
}

// Apply implements [States].
func (s *casStates) Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
	return s.apply(ctx, s.key(key), t, req)
}

// Reset implements [States].
func (s *casStates) Reset(ctx context.Context, key string) error {
	return s.del(ctx, s.key(key))
}

// longestCASKey is a length that DynamoDB, etcd, MySQL's indexes and others accept.
const longestCASKey = 200

// key returns the key in the database, which is different for each pair of a limiter's
// name and a key.
func (s *casStates) key(key string) string {
	if len(s.name)+len(key) < longestCASKey {
		if k := url.QueryEscape(s.name) + ":" + url.QueryEscape(key); len(k) <= longestCASKey {
			return k
		}
	}
	sum := sha256.New()
	sum.Write(binary.AppendUvarint(nil, uint64(len(s.name))))
	sum.Write([]byte(s.name + key))
	return "#" + hex.EncodeToString(sum.Sum(nil)) // '#' is escaped in all other keys
}
