// Package casstore keeps states in any database that can get, compare-and-swap and delete values.
// It is the only package that calls a user's Database. It bounds how long a limiter waits for the
// Database, and how many calls of the Database are under way at once.
package casstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/url"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
)

// A Database is that of package ratelimit, which documents it.
type Database interface {
	Get(ctx context.Context, key string) (state []byte, err error)
	CompareAndSwap(
		ctx context.Context,
		key string,
		old, new []byte,
		expires time.Time,
	) (swapped bool, err error)
	Delete(ctx context.Context, key string) error
}

// A Store keeps states in a Database.
type Store struct {
	db    Database
	lines line.LinesByName

	strays stray.List

	mu     sync.Mutex              // protects the fields below, and those of queues
	open   map[string]*limit.Limit // by the name of their limiters
	queues map[string]*queue       // of the keys with calls under way
	behind int                     // the number of queues whose callers have all left
}

// New returns a store in db.
func New(db Database) *Store {
	return &Store{db: db, open: make(map[string]*limit.Limit), queues: make(map[string]*queue)}
}

// usualTimeout is long for a store, and short for a caller that waits for it.
const usualTimeout = time.Second

// Open returns the states of the limiter called name. Their calls take at most timeout; 0 means a
// second.
func (s *Store) Open(name string, l *limit.Limit, timeout time.Duration) (limit.States, error) {
	if param.IsNil(s.db) {
		return nil, param.Invalid("NewStore's Database", nil, "must not be nil")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.open[name]; have != nil {
		if err := have.CheckSame(name, l); err != nil {
			return nil, err
		}
	}
	s.open[name] = l
	if timeout == 0 {
		timeout = usualTimeout
	}
	return &states{Store: s, name: name, timeout: timeout}, nil
}

// Close asks the Database once more to end holds that may be open, and does not repeat that from
// then on.
func (s *Store) Close(ctx context.Context) error { return s.strays.Close(ctx) }

// states are the states of one limiter.
type states struct {
	*Store
	name    string
	timeout time.Duration
	failed  func(key string, err error) // see OnLateFailure; may be nil
}

// OnLateFailure sets a function to call when a call for a key fails whose caller no longer waits,
// because its deadline has passed. It must be set before the first call.
func (s *states) OnLateFailure(f func(key string, err error)) { s.failed = f }

// Timeout implements [limit.States].
func (s *states) Timeout() time.Duration { return s.timeout }

// Lines implements [limit.States].
func (s *states) Lines() *line.Lines { return s.lines.Of(s.name) }

// Strays implements [limit.States].
func (s *states) Strays() *stray.List { return &s.strays }

// Apply implements [limit.States].
func (s *states) Apply(
	ctx context.Context,
	key string,
	l *limit.Limit,
	req step.Request,
) (step.Answer, error) {
	c := &call{l: l, req: req}
	if s.failed != nil {
		c.failed = func(err error) { s.failed(key, err) }
	}
	return s.do(ctx, s.timeout, s.key(key), c)
}

// Reset implements [limit.States].
func (s *states) Reset(ctx context.Context, key string) error {
	_, err := s.do(ctx, s.timeout, s.key(key), new(call))
	return err
}

// longestKey is a length that DynamoDB, etcd, MySQL's indexes and others accept.
const longestKey = 200

// key returns the key in the database, which is different for each pair of a limiter's
// name and a key.
func (s *states) key(key string) string {
	if len(s.name)+len(key) < longestKey {
		if k := url.QueryEscape(s.name) + ":" + url.QueryEscape(key); len(k) <= longestKey {
			return k
		}
	}
	sum := sha256.New()
	sum.Write(binary.AppendUvarint(nil, uint64(len(s.name))))
	sum.Write([]byte(s.name + key))
	return "#" + hex.EncodeToString(sum.Sum(nil)) // '#' is escaped in all other keys
}
