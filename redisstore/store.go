package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/stray"
)

// A Store keeps states in Redis. It implements [ratelimit.Store]. It is safe for
// concurrent use, and any number of limiters may share it.
type Store struct {
	config
	conn   Conn
	prompt PromptConn // the same, or nil
	begin  time.Time  // when the store was made

	programs programs
	limiters limiters
	lines    line.LinesByName
	outboxes outboxes
	ticks    atomic.Int64 // how many there were
	ticking  atomic.Bool  // whether the timer runs
	inTick   sync.Mutex   // held by tick
	backlog  func() bool  // whether goroutines wait for a processor
	// Of unused *call; not global, because its channels belong to one synctest bubble.
	calls   sync.Pool
	denials denials
	leases  leases
	returns returns
	strays  stray.List // holds and leases of which the server may not know that they are over
	counts  counts
}

var _ ratelimit.Store = (*Store)(nil)

// New returns a store that sends its commands through conn. Modules goredis, rueidis and valkey
// have a New that takes a client. If conn is nil or an option is invalid, the error names it and
// matches [ratelimit.ErrInvalid].
func New(conn Conn, opts ...Option) (*Store, error) {
	if param.IsNil(conn) {
		return nil, param.InvalidIn("redisstore", "the Conn", nil,
			"must be a Conn, such as NewConn of module goredis, rueidis or valkey returns")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	s := &Store{config: *c, conn: conn, begin: time.Now(), backlog: backlog}
	s.prompt, _ = conn.(PromptConn)
	return s, nil
}

// elapsed returns the reading of the store's own clock, which is the store's age.
func (s *Store) elapsed() time.Duration { return time.Since(s.begin) }

// String returns "Redis".
func (*Store) String() string { return "Redis" }

// Open implements [ratelimit.Store]. It returns an error that matches [ratelimit.ErrInvalid] if a
// parameter of the algorithm does not fit into this store, which counts time in microseconds and
// supports numbers up to 2⁵¹, if the timeout of the limiter is longer than that of the store, or if
// the store has opened a limiter of the same name with another algorithm, and no thousands of
// others since.
func (s *Store) Open(name string, l *limit.Limit, timeout time.Duration) (limit.States, error) {
	if timeout > s.timeout {
		return nil, param.Invalid(
			"WithStoreTimeout's duration",
			timeout,
			fmt.Sprintf(
				"must be at most the timeout of the store, %v, which redisstore.WithTimeout sets",
				s.timeout,
			),
		)
	}
	prog, err := s.programs.get(l)
	if err != nil {
		return nil, err
	}
	if err := s.limiters.add(name, l); err != nil {
		return nil, err
	}
	return &states{
		Store:   s,
		head:    s.prefix + head(name, prog, l.Varies),
		lines:   s.lines.Of(name),
		timeout: timeout,
	}, nil
}

// limiters are those that a store has opened lately, by their names.
type limiters struct {
	mu     sync.Mutex // protects byName
	byName map[string]*limit.Limit
}

// maxLimiters bounds the memory of a limiters.
const maxLimiters = 4096

// add returns an error if the limiter called name cannot have its limit.
func (l *limiters) add(name string, its *limit.Limit) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if have := l.byName[name]; have != nil {
		return have.CheckSame(name, its)
	}
	if l.byName == nil || len(l.byName) >= maxLimiters {
		l.byName = make(map[string]*limit.Limit)
	}
	l.byName[name] = its
	return nil
}

// named returns the limit of the limiter called name, or nil if that is not known.
func (l *limiters) named(name string) *limit.Limit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byName[name]
}

// states are the states of one limiter. It implements [limit.States].
type states struct {
	*Store
	head  string // the beginning of the names of its keys
	lines *line.Lines

	// Of a call, unless that of the store is shorter; 0 if only that bounds it.
	timeout time.Duration

	failed func(key string, err error) // see OnLateFailure; may be nil
}

// OnLateFailure sets a function to call when a call for a key fails whose caller no longer waits,
// because its deadline has passed. It must be set before the first call.
func (s *states) OnLateFailure(f func(key string, err error)) { s.failed = f }

// Timeout implements [limit.States].
func (s *states) Timeout() time.Duration { return cmp.Or(s.timeout, s.Store.timeout) }

// Lines are those of all limiters of the name in this process.
func (s *states) Lines() *line.Lines { return s.lines }

// Strays implements [limit.States].
func (s *states) Strays() *stray.List { return &s.strays }

// Reset implements [limit.States].
func (s *states) Reset(ctx context.Context, key string) error {
	ctx, cancel := within(ctx, s.timeout)
	defer cancel()
	name := s.name(key)
	// Before, so that answers in progress are not cached, and after, so that those of
	// commands that began in the meantime are not either.
	s.denials.forget(name)
	defer s.denials.forget(name)
	cmd := Command{Words: []string{"DEL", name.text}, Key: 1}
	_, err := s.run(ctx, nameOf(name.text), cmd, nil) // no policy decides on it
	s.resetLease(name, err)
	return err
}

// Close gives back the unused events of all leases, and takes no leases from then on. It asks Redis
// once more to settle holds whose settlement, or whose opening, had no answer, and does not repeat
// that from then on. The store remains usable. If ctx ends first, Close returns its error. Events
// that could not be given back stay spent, and holds end by themselves.
func (s *Store) Close(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	if err := s.closeLeases(ctx); err != nil {
		return errors.Join(err, s.strays.Close(ctx))
	}
	return s.strays.Close(ctx)
}

// Check returns nil if Redis runs a script for this store, and otherwise an error that says why
// not, such as that of connecting. A service can call it when it starts, or to tell whether it is
// ready. Check waits until ctx ends, or as long as the client does, and not only for the timeout
// of [WithTimeout]. It does not ask the circuit breaker, and stores nothing. In a cluster, it asks
// one node.
func (s *Store) Check(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	key, sent := s.prefix+"check", s.elapsed()
	replied := make(chan error, 1)
	go func() { // because the client may ignore ctx
		replied <- s.do(ctx, []Command{getCommand(key)})[0].Err
	}()
	var err error
	select {
	case err = <-replied:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		return nil
	}
	if isUnwilling(err) {
		s.redial(ctx, s.outboxOf(key).server, key, sent)
	}
	if ctx.Err() != nil {
		if why := s.conn.NoAnswer(""); why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
	}
	return fmt.Errorf("redisstore: no reply to a script: %w", err)
}
