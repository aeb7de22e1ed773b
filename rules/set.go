package rules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// A Source is where rules come from.
type Source interface {
	// Load returns all rules. An error leaves the ones that were loaded before in
	// force.
	Load(ctx context.Context) ([]Rule, error)
}

// A SourceFunc is a [Source] that is a function.
type SourceFunc func(ctx context.Context) ([]Rule, error)

// Load calls f.
func (f SourceFunc) Load(ctx context.Context) ([]Rule, error) { return f(ctx) }

// Static returns a source of rules in code.
func Static(rules ...Rule) Source {
	return SourceFunc(func(context.Context) ([]Rule, error) { return rules, nil })
}

// An Option changes how [New] makes a set.
type Option func(*Set)

// WithInterval sets how often the rules are loaded: on average, for each time is
// drawn from 10 % less to 10 % more, so that many processes do not ask at once. The
// default is 30 s; 0 means only when [Set.Reload] is called.
func WithInterval(d time.Duration) Option { return func(s *Set) { s.interval = d } }

// WithTimeout sets how long a load may take. The default is 10 s.
func WithTimeout(d time.Duration) Option { return func(s *Set) { s.timeout = d } }

// WithInitial gives rules to start with, in case the first load fails.
func WithInitial(rules ...Rule) Option {
	return func(s *Set) { s.initial, s.hasInitial = rules, true }
}

// WithOnError calls f with the error of each load that has failed, besides logging
// it with slog. It must return soon.
func WithOnError(f func(error)) Option { return func(s *Set) { s.onError = f } }

// WithOnShadow calls f for each call that a rule with Shadow would have refused.
func WithOnShadow(f func(Answer)) Option { return func(s *Set) { s.onShadow = f } }

// WithLimiter passes options on to the limiter behind the set: a store, a failure
// policy. [ratelimit.WithLimits] is the set's own.
func WithLimiter(opts ...ratelimit.Option) Option {
	return func(s *Set) { s.limiterOpts = append(s.limiterOpts, opts...) }
}

// WithClock makes the set, and its limiter, tell the time by clk.
func WithClock(clk clock.Clock) Option { return func(s *Set) { s.clk = clk } }

// A Set holds calls to the rules that are in force. It may be used by any number of
// goroutines.
type Set struct {
	source      Source
	interval    time.Duration
	timeout     time.Duration
	initial     []Rule
	hasInitial  bool
	onError     func(error)
	onShadow    func(Answer)
	limiterOpts []ratelimit.Option
	clk         clock.Clock

	limiter ratelimit.Limiter
	force   atomic.Pointer[inForce]

	loading sync.Mutex // held while rules are loaded, so that they are in the order of their loads
	mu      sync.Mutex // protects status
	status  Status

	stop    context.CancelFunc
	stopped sync.WaitGroup
}

// inForce is what one load has found.
type inForce struct {
	tree    *tree
	rules   []*compiled // by ID
	version uint64
}

// Status says how the loading of a set fares.
type Status struct {
	Version uint64    // how many loads have changed the rules
	Loaded  time.Time // when the last load was that succeeded; zero if none did
	Rules   int       // how many are in force, those that have expired since included
	Err     error     // of the last load, nil if it succeeded
}

// New loads the rules of source, and returns the set of them. That fails if the
// load does, unless there are rules [WithInitial]. The set must be closed.
func New(ctx context.Context, source Source, opts ...Option) (*Set, error) {
	s := &Set{source: source, interval: 30 * time.Second, timeout: 10 * time.Second, clk: clock.New()}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	switch {
	case source == nil:
		return nil, errors.New("rules: the source is nil: give one, such as SQL(db)")
	case s.interval < 0:
		return nil, fmt.Errorf("rules: WithInterval(%v): must be longer than 0, or 0 for no loads but those of Reload", s.interval)
	case s.timeout <= 0:
		return nil, fmt.Errorf("rules: WithTimeout(%v): must be longer than 0", s.timeout)
	case s.clk == nil:
		return nil, errors.New("rules: WithClock(nil): give a clock.Clock, such as clock.New()")
	}
	var err error
	opted := append([]ratelimit.Option{ratelimit.WithClock(s.clk), ratelimit.WithName("rules")}, s.limiterOpts...)
	s.limiter, err = ratelimit.New(ratelimit.SlidingLog{Limit: 1, Window: time.Second}, append(opted, ratelimit.WithLimits(limitOf))...)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	if s.hasInitial {
		if err := s.put(s.initial); err != nil {
			return nil, fmt.Errorf("rules: WithInitial: %w", err)
		}
		s.status.Version, s.status.Loaded = 0, time.Time{}
	}
	if err := s.Reload(ctx); err != nil && !s.hasInitial {
		return nil, err
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if s.interval > 0 {
		timer := s.clk.Timer(s.jittered())
		s.stopped.Go(func() { s.refresh(ctx, timer) })
	}
	return s, nil
}

// Close ends the loading. The rules that are in force stay so.
func (s *Set) Close() error {
	s.stop()
	s.stopped.Wait()
	return nil
}

func (s *Set) refresh(ctx context.Context, timer *clock.Timer) {
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			_ = s.Reload(ctx) // which has reported it
			timer.Reset(s.jittered())
		}
	}
}

// jittered returns the time until the next load.
func (s *Set) jittered() time.Duration {
	return max(1, time.Duration(float64(s.interval)*(0.9+0.2*rand.Float64())))
}

// Reload loads the rules now, and puts all of them in force at once. If it fails,
// or a rule cannot be used, those of the last load that succeeded stay in force.
func (s *Set) Reload(ctx context.Context) error {
	err := s.load(ctx)
	if err != nil && ctx.Err() == nil {
		slog.ErrorContext(ctx, "rules: the ones loaded before stay in force", "error", err)
		if s.onError != nil {
			s.onError(err)
		}
	}
	return err
}

func (s *Set) load(ctx context.Context) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	within, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	rules, err := s.ask(within)
	if err != nil {
		err = fmt.Errorf("rules: they cannot be loaded: %w", err)
	} else {
		err = s.put(rules)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Err = err
	return err
}

// ask asks the source. It may be called by a goroutine whose panic would end the
// process.
func (s *Set) ask(ctx context.Context) (rules []Rule, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the source panicked: %v", p)
		}
	}()
	return s.source.Load(ctx)
}

// put puts rules in force.
func (s *Set) put(rules []Rule) error {
	now := s.clk.Now()
	tree, all, err := newTree(rules, now)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.force.Load(); old == nil || !slices.EqualFunc(old.rules, all, func(a, b *compiled) bool { return a.Rule == b.Rule }) {
		s.status.Version++
		s.force.Store(&inForce{tree: tree, rules: all, version: s.status.Version})
	}
	s.status.Loaded, s.status.Rules = now, len(all)
	return nil
}

// Status returns how the loading fares.
func (s *Set) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// An Answer is a decision on a call.
type Answer struct {
	ratelimit.Decision

	// Rule is the one that the call counts against, or nil if none names it: then
	// it is allowed, and the rest of the decision is zero.
	Rule *Rule

	// Refused says that the rule refused it: that is Allowed all the same if the
	// rule is a Shadow.
	Refused bool
}

// Take decides on n events of a subject: on a call of a path with a method. The
// subject is whoever has a limit of its own: a user, an address.
func (s *Set) Take(ctx context.Context, subject, method, path string, n int) (Answer, error) {
	rule := s.find(method, path)
	if rule == nil {
		return Answer{Decision: ratelimit.Decision{Allowed: true}}, nil
	}
	l := limiterOf{s, rule}
	d, err := l.Take(ctx, subject, n)
	a := Answer{Decision: d, Rule: &rule.Rule, Refused: !d.Allowed && (err == nil || d.Degraded)}
	if a.Refused && rule.Shadow {
		a.Allowed = true
		if s.onShadow != nil {
			s.onShadow(a)
		}
	}
	return a, err
}

func (s *Set) find(method, path string) *compiled {
	return s.force.Load().tree.find(strings.ToUpper(method), normal(path), s.clk.Now)
}

// limitOf finds the limit for a key in the context of the request: the rule that it
// was matched with, whatever is loaded meanwhile.
func limitOf(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
	alg, ok := ctx.Value(ruleKey{}).(ratelimit.Algorithm)
	if !ok {
		return nil, errors.New("rules: a request without a rule")
	}
	return alg, nil
}

type ruleKey struct{}

// A ruled context carries the limit of a rule.
type ruled struct {
	context.Context
	alg ratelimit.Algorithm
}

func (c ruled) Value(key any) any {
	if key == (ruleKey{}) {
		return c.alg
	}
	return c.Context.Value(key)
}

// A limiterOf is the limiter of one rule; its keys are subjects.
type limiterOf struct {
	set  *Set
	rule *compiled
}

// key joins a subject and the rule so that different ones make different keys.
func (l limiterOf) key(subject string) string {
	return strconv.Itoa(len(subject)) + ":" + subject + l.rule.ID
}

func (l limiterOf) in(ctx context.Context) context.Context {
	if ctx == nil {
		return nil // which the limiter refuses
	}
	return ruled{ctx, l.rule.alg}
}

// Algorithm is for [ratelimit.AlgorithmOf].
func (l limiterOf) Algorithm() ratelimit.Algorithm { return l.rule.alg }

func (l limiterOf) Allow(subject string) bool { return l.AllowN(subject, 1) }

func (l limiterOf) AllowN(subject string, n int) bool {
	d, _ := l.Take(context.Background(), subject, n)
	return d.Allowed
}

func (l limiterOf) Take(ctx context.Context, subject string, n int) (ratelimit.Decision, error) {
	return l.set.limiter.Take(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) Wait(ctx context.Context, subject string) error { return l.WaitN(ctx, subject, 1) }

func (l limiterOf) WaitN(ctx context.Context, subject string, n int) error {
	return l.set.limiter.WaitN(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) Reserve(ctx context.Context, subject string, n int) (*ratelimit.Reservation, error) {
	return l.set.limiter.Reserve(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) ReserveWithin(ctx context.Context, subject string, n int, maxWait time.Duration) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return l.set.limiter.ReserveWithin(l.in(ctx), l.key(subject), n, maxWait)
}

func (l limiterOf) Peek(ctx context.Context, subject string) (ratelimit.Decision, error) {
	return l.set.limiter.Peek(l.in(ctx), l.key(subject))
}

func (l limiterOf) Reset(ctx context.Context, subject string) error {
	return l.set.limiter.Reset(ctx, l.key(subject))
}
