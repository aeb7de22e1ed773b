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

// A CASStore keeps states in a database that can get a value, put one in the place
// of another that it was read as, and delete one: bbolt, SQLite, DynamoDB, etcd, a
// map. Made by [NewCASStore], it is safe for any number of goroutines and limiters.
// Any number of processes may use one database, if their clocks agree.
type CASStore struct {
	missing string // which function, if one is
	apply   func(ctx context.Context, key string, t *Transition, req Request) (Result, error)
	del     func(ctx context.Context, key string) error

	conflicts, unreadable atomic.Uint64

	mu   sync.Mutex             // protects open
	open map[string]*Transition // by the name of their limiters
}

// NewCASStore returns a store on a database that is reached by three functions. Any
// number of goroutines call them at once. They should heed ctx; if they do not, the
// limiter leaves them behind, see [WithStoreTimeout]. An error of theirs is
// what the limiter reports.
//
// get returns the state of key, with its version: whatever compareAndSwap needs to
// tell whether the state is still that one. If there is none, state is nil or
// empty, err is nil, and version says so. get may return a state whose time to expire
// has come.
//
// compareAndSwap stores state for key, if the state there still has the version
// that get returned, and reports whether it did. That must be one atomic step. In
// particular, it must return false if the key had a state and has none now, or had
// none and has one now. state may be kept. From the time expires on, by the limiter's
// clock, the state is as good as none and may be deleted; the zero Time means never.
// A database that deletes by a clock of its own should do so later by as much as
// the two may differ: too late costs room, too early hands out a fresh limit.
//
// remove deletes the state of key, whatever its version, if there is one.
//
// A version may be the state itself (as a string, or []byte), compared byte by byte.
// It may be a number, or a token, that is new for each write; but a counter that
// begins anew when a key was deleted is none, for one version is two states then.
//
// Keys are not empty, of ASCII, and at most 200 bytes long; long ones have a hash in
// them. The database must tell upper case from lower case. For the size of states,
// see [Store].
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

// CASStats are counts of a [CASStore] since it was made.
type CASStats struct {
	Conflicts  uint64 // times that a request was applied again, for another had changed the state
	Unreadable uint64 // states that could not be read, and began afresh: see ErrState
}

// Stats returns the counts of the store.
func (s *CASStore) Stats() CASStats {
	return CASStats{Conflicts: s.conflicts.Load(), Unreadable: s.unreadable.Load()}
}

// Open implements [Store]. Two limiters of one name in one CASStore must have the same
// algorithm. A limiter that is opened on the same database later (after a restart, or
// in another process) may have another, as [WithLimits] describes.
func (s *CASStore) Open(name string, t *Transition) (States, error) {
	if s.apply == nil {
		return nil, param.Invalid("the CASStore", "zero", "must be made by NewCASStore")
	}
	if s.missing != "" {
		return nil, param.Invalid("NewCASStore's "+s.missing, "nil", "must be a function")
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

// longestCASKey is what DynamoDB, etcd, MySQL's indexes and others all take.
const longestCASKey = 200

// key returns the key in the database: the limiter's name and the key, so that no
// other pair has the same one.
func (s *casStates) key(key string) string {
	if len(s.name)+len(key) < longestCASKey {
		if k := url.QueryEscape(s.name) + ":" + url.QueryEscape(key); len(k) <= longestCASKey {
			return k
		}
	}
	sum := sha256.New()
	sum.Write(binary.AppendUvarint(nil, uint64(len(s.name))))
	sum.Write([]byte(s.name + key))
	return "#" + hex.EncodeToString(sum.Sum(nil)) // nothing that is escaped begins so
}
