package rules

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A Source loads rules, from a database for example.
type Source interface {
	// Load returns all rules. If it fails, the rules loaded before stay in force. If the
	// error is BadRules, the returned rules are put in force all the same.
	Load(ctx context.Context) ([]Rule, error)
}

// SourceFunc makes a [Source] of a function.
type SourceFunc func(ctx context.Context) ([]Rule, error)

// Load calls f.
func (f SourceFunc) Load(ctx context.Context) ([]Rule, error) { return f(ctx) }

// Static returns a source of the given rules.
func Static(rules ...Rule) Source {
	rules = slices.Clone(rules)
	return SourceFunc(func(context.Context) ([]Rule, error) { return rules, nil })
}

// A Set limits calls by the rules of a [Source]. It is safe for concurrent use by
// multiple goroutines.
type Set struct {
	config
	source  Source
	limiter ratelimit.Limiter
	force   atomic.Pointer[inForce]

	mu     sync.Mutex // protects status
	status Status

	// The loader of the set:
	reloads chan chan<- error // calls of Reload, which wait for the error of a load
	stop    context.CancelFunc
	ended   chan struct{} // closed when the loader has ended
}

// inForce has the rules in force.
type inForce struct {
	*index
	version uint64
}

// same reports whether the rules of t are those already in force.
func (f *inForce) same(t *index) bool {
	return f != nil &&
		slices.EqualFunc(f.rules, t.rules, func(a, b *compiled) bool { return a.Rule == b.Rule })
}

// Status describes the rules of a set and how loading them went.
type Status struct {
	Version uint64    // the number of loads that changed the rules
	Loaded  time.Time // of the last load that put its rules in force, or zero
	Rules   int       // the number of rules in force, including those expired since the load
	Bad     int       // the number of invalid rules in that load
	Dropped int       // the number of rules that were there before that load, and no longer in it
	Err     error     // of the last load: why it failed, or BadRules; nil if it succeeded
}

// New loads the rules of source and returns a set of them. It fails if the load fails,
// unless [WithInitial] is given. Invalid rules are left out, and [Set.Status] reports
// them. Call Close when the set is no longer needed, to stop loading.
func New(ctx context.Context, source Source, opts ...Option) (*Set, error) {
	if ctx == nil {
		return nil, invalid("New(nil): give a context, such as context.Background()")
	}
	if isNil(source) {
		return nil, invalid("the source is nil: give one, such as SQL(db)")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	s := &Set{config: *c, source: source}
	opted := append(
		[]ratelimit.Option{ratelimit.WithClock(s.clk), ratelimit.WithName("rules")},
		s.limiterOpts...)
	s.limiter, err = ratelimit.New(
		ratelimit.SlidingLog{Limit: 1, Window: time.Second},
		append(opted, ratelimit.WithLimits(s.limitOf))...)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	if s.hasInitial {
		if err := s.put(loadResult{rules: s.initial}); err != nil {
			return nil, fmt.Errorf("rules: WithInitial: %w", err)
		}
		s.status.Version, s.status.Loaded = 0, time.Time{}
	}
	s.reloads, s.ended = make(chan chan<- error), make(chan struct{})
	l := &loader{Set: s}
	l.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if s.interval > 0 {
		l.timer = s.clk.Timer(s.jittered())
	}
	go l.run()
	if err := s.Reload(ctx); err != nil && s.force.Load() == nil {
		_ = s.Close() // returns nil
		return nil, err
	}
	return s, nil
}

// Close stops loading, and does not wait for a source that hangs. The rules stay in
// force.
func (s *Set) Close() error {
	if s.stop != nil {
		s.stop()
		<-s.ended
	}
	return nil
}

// Status returns the status of the set.
func (s *Set) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// An Answer is a decision on a call.
type Answer struct {
	ratelimit.Decision

	// Rule is the rule that the call counts against. It is nil if no rule matches; then
	// the call is allowed, and the rest of the decision is zero.
	Rule *Rule

	// Refused means that the rule refused the call. If the rule is a Shadow, Allowed is
	// still true.
	Refused bool
}

// Take decides on n events of a subject that calls a path with a method. A subject is
// anything that has a limit of its own, such as a user or an address. The path should be
// that of the request as sent, with its escapes ([net/url.URL.EscapedPath]). An unescaped
// path is fine if the handler is chosen by that path.
//
// If the path has several interpretations (see [Rule]), the rules for all of them decide together,
// as [ratelimit.TakeAll] says: in memory and in one slot of Redis, a refusal spends nothing,
// whatever other calls do. The answer is that of the strictest rule: of the rules that refuse, the
// one with the longest RetryAfter, or if none does, the one with the least Remaining. Its Decision
// is that of all rules.
//
// With an in-flight rule, the events count for its Window, because nobody can release them:
// use [Set.Hold].
func (s *Set) Take(ctx context.Context, subject, method, path string, n int) (Answer, error) {
	rules := s.match(nil, method, path)
	if len(rules) == 0 {
		return free, nil
	}
	q := question{set: s, ctx: newMatched(ctx, rules), subject: subject, n: n}
	return q.ask(rules)
}

// Hold is Take, and returns a Hold of the events. Its method Release ends a call of an
// in-flight rule. If a rule refuses the call, nothing is spent, and the Hold is nil. If no
// rule matches, the Hold holds nothing.
//
// A Hold that is neither settled nor released ends by itself: of an in-flight rule, after its
// Window, of others, after ten minutes, or as the options say.
//
// With a lockout rule, hold an event with [ratelimit.Waiting] while a password is checked, and with
// a ctx that ends after the time for which an attempt may wait. If the password is right, call
// [Hold.Settle] with 0, which takes the event back; if not, [Hold.Release]. So many right passwords
// at once lock nobody out, and of many wrong ones at once no more than Limit are checked. If
// several rules limit the call, Waiting is an error.
//
// A rule with Shadow set that would have refused the call holds nothing.
func (s *Set) Hold(
	ctx context.Context,
	subject, method, path string,
	n int,
	opts ...ratelimit.HoldOption,
) (*Hold, Answer, error) {
	rules := s.match(nil, method, path)
	if len(rules) == 0 {
		return new(Hold), free, nil
	}
	q := question{
		set:     s,
		ctx:     newMatched(ctx, rules),
		subject: subject,
		n:       n,
		holds:   true,
		opts:    opts,
	}
	answer, err := q.ask(rules)
	if !answer.Allowed {
		q.giveBack()
		return nil, answer, err
	}
	return &Hold{q.held}, answer, err
}

// free is the answer to a call that no rule limits.
var free = Answer{Decision: ratelimit.Decision{Allowed: true}}

// match appends to found the rules in force for a call.
func (s *Set) match(found []*compiled, method, path string) []*compiled {
	f := s.force.Load()
	if f == nil { // the set was not made by New
		return found
	}
	return f.match(found, method, path, s.clk)
}
