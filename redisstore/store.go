package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Errors that a limiter's own error matches when this store has failed. In each
// case the limiter's [ratelimit.FailurePolicy] has decided.
var (
	// ErrTimeout says that Redis did not answer in time. What was asked may have
	// been done all the same, or may still be.
	ErrTimeout = errors.New("redisstore: no answer in time")

	// ErrOpen says that the circuit breaker kept the call from Redis.
	ErrOpen = errors.New("redisstore: the circuit breaker is open")
)

// errOther says that the script cannot work with the state: another limit left it, or
// it was damaged. The caller rewrites it then.
var errOther = errors.New("redisstore: the state is not one of this limit")

// A Store keeps states in Redis. It implements [ratelimit.Store]; any number of
// limiters and goroutines may use it.
type Store struct {
	config
	conn  Conn
	begin time.Time // of the store's own clock

	programs programs
	servers  servers
	flights  flights
	workers  workers
	ticks    atomic.Int64 // of the timeout
	ticking  atomic.Bool
	backlog  func() bool // whether goroutines wait for a processor
	calls    sync.Pool   // of *call that nobody knows; the store's own, for tests in bubbles
	denials  denials
	leases   leases
	returns  returns
	counts   counts
}

// New returns a store that reaches Redis through conn. Modules goredis and rueidis
// have one that takes a client. If an option cannot be used, the error names it,
// and matches [ratelimit.ErrInvalid].
func New(conn Conn, opts ...Option) (*Store, error) {
	if isNil(conn) {
		return nil, invalid("the Conn", nil, "must be one, such as that of modules goredis and rueidis")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return &Store{config: *c, conn: conn, begin: time.Now(), backlog: backlog}, nil
}

// elapsed is the reading of the store's own clock: how long ago it was made.
func (s *Store) elapsed() time.Duration { return time.Since(s.begin) }

// Open implements [ratelimit.Store]. The error says what of the algorithm does not
// fit into this store: it counts time in microseconds, and numbers up to 2⁵¹.
func (s *Store) Open(name string, t *ratelimit.Transition) (ratelimit.States, error) {
	prog, err := s.programs.of(t)
	if err != nil {
		return nil, err
	}
	// States of other parameters do not meet, unless they say what left them.
	id := binary.AppendUvarint([]byte{nameVersion}, uint64(len(name)))
	id = append(id, name...)
	if prog.tag == "" {
		id = append(id, prog.header...)
	}
	sum := sha256.Sum256(id)
	// The braces have nothing between them, so that those in a user's key do not
	// choose its slot in a cluster.
	readable := strings.ReplaceAll(name, "{", "(")
	return &states{s, s.prefix + readable + ":" + base64.RawURLEncoding.EncodeToString(sum[:9]) + "{}"}, nil
}

// nameVersion is the version of the names of keys, apart from that of what left their
// states, which is in the header.
const nameVersion = 2

// states is a Store's part that belongs to one limiter.
type states struct {
	*Store
	head string // of the names of its keys
}

// longest is how long a key may be to appear in the name of its key in Redis as it
// is. Longer ones appear as their SHA-256.
const longest = 128

func (s *states) name(key string) name {
	if len(key) <= longest {
		return nameOf(s.head + ":" + key)
	}
	sum := sha256.Sum256([]byte(key))
	return nameOf(s.head + "#" + base64.RawURLEncoding.EncodeToString(sum[:]))
}

// A name is that of a key in Redis, with its hash: many places want that.
type name struct {
	text string
	hash uint64
}

func nameOf(text string) name { return name{text, maphash.String(seed, text)} }

var seed = maphash.MakeSeed()

// shards is the number of parts that what is kept by key is in.
const shards = 64

func (n name) shard() int { return int(n.hash % shards) }

// Bounded implements [ratelimit.BoundedStates]: callers leave when their context ends or
// the store's own timeout is over.
func (s *states) Bounded() bool { return true }

// Apply implements [ratelimit.States].
func (s *states) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	res, err := s.apply(ctx, key, t, req)
	s.counts.tally(err)
	return res, err
}

func (s *states) apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	prog, err := s.programs.of(t)
	if err != nil {
		return ratelimit.Result{}, err
	}
	name := s.name(key)
	switch req.Op {
	case ratelimit.OpCancel, ratelimit.OpReturn:
		defer s.denials.forget(name)
		return s.rewrite(ctx, name, prog, req, nil)
	case ratelimit.OpTake:
		if d, ok := s.fromLease(name, prog, req); ok {
			return ratelimit.Result{Decision: d}, nil
		}
	}
	if d, ok := s.denied(name, prog, req); ok {
		s.counts.cached.Add(1)
		return ratelimit.Result{Decision: d}, nil
	}
	c := s.newCall()
	c.name, c.prog, c.req = name, prog, req
	if err := s.ask(ctx, c); err != nil {
		return ratelimit.Result{}, err
	}
	res := c.res
	s.free(c)
	return res, nil
}

// Reset implements [ratelimit.States].
func (s *states) Reset(ctx context.Context, key string) error {
	name := s.name(key)
	// Before, so that what is under way is not kept, and after, so that what began
	// meanwhile is not either.
	s.denials.forget(name)
	defer func() {
		s.denials.forget(name)
		s.dropLease(name)
	}()
	_, err := s.run(ctx, name, Command{Words: []string{"DEL", name.text}, Key: 1}, nil)
	s.counts.tally(err)
	return err
}

// An openError is what a breaker says that keeps a call from the server.
type openError struct{ why error }

func (e *openError) Error() string        { return "redisstore: not asked: " + e.why.Error() }
func (e *openError) Is(target error) bool { return target == ErrOpen }
func (e *openError) Unwrap() error        { return e.why }

// aboutKey reports whether a server's err is about a key or a script, or says that there
// is no memory for a new key: the server itself answers at once.
func aboutKey(err error) bool {
	text := err.Error()
	for _, prefix := range []string{"ERR ", "WRONGTYPE ", "OOM "} {
		if strings.HasPrefix(text, prefix) {
			return !strings.HasPrefix(text, "ERR max number of clients")
		}
	}
	return false
}

// Close gives back what leases have left, and lets none be taken any more. The
// store may be used further. It returns at ctx's end at the latest, with its error;
// what could not be given back counts as used.
func (s *Store) Close(ctx context.Context) error { return s.closeLeases(ctx) }

// programs are those of the transitions that were met lately.
type programs struct {
	mu    sync.RWMutex     // protects known
	known map[any]*program // by transition, or if that varies by its tag
}

// manyPrograms bounds the memory of a programs.
const manyPrograms = 4096

func (p *programs) of(t *ratelimit.Transition) (*program, error) {
	var id any = t
	if t.Varies() { // it may have been made for this call
		id = string(t.Tag())
	}
	p.mu.RLock()
	prog := p.known[id]
	p.mu.RUnlock()
	if prog != nil {
		return prog, nil
	}
	prog, err := newProgram(t)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil || len(p.known) >= manyPrograms {
		p.known = make(map[any]*program)
	}
	p.known[id] = prog
	return prog, nil
}

// Stats are counts since the store was made.
type Stats struct {
	Calls     uint64 // commands that were sent
	Coalesced uint64 // decisions that went along with another's command
	Cached    uint64 // denials repeated without asking
	Leased    uint64 // events handed out from leases
	Failures  uint64 // requests that failed, so that the policy decided
	Timeouts  uint64 // of those, requests that were not answered in time
	Refused   uint64 // of those, requests that the circuit breaker kept from Redis

	Unreadable uint64 // states that could not be read, and began afresh: see [ratelimit.ErrState]
}

type counts struct {
	calls, coalesced, cached, leased, failures, timeouts, refused, unreadable atomic.Uint64
}

// tally counts a request that failed.
func (c *counts) tally(err error) {
	if err == nil {
		return
	}
	c.failures.Add(1)
	switch {
	case errors.Is(err, ErrTimeout):
		c.timeouts.Add(1)
	case errors.Is(err, ErrOpen):
		c.refused.Add(1)
	}
}

// Stats returns how often what has happened.
func (s *Store) Stats() Stats {
	c := &s.counts
	return Stats{
		Calls: c.calls.Load(), Coalesced: c.coalesced.Load(), Cached: c.cached.Load(), Leased: c.leased.Load(),
		Failures: c.failures.Load(), Timeouts: c.timeouts.Load(), Refused: c.refused.Load(),
		Unreadable: c.unreadable.Load(),
	}
}
