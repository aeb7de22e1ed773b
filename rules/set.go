package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A Source is where rules come from.
type Source interface {
	// Load returns all rules. An error leaves the ones that were loaded before in
	// force, except BadRules, which may come with rules: those can be used.
	Load(ctx context.Context) ([]Rule, error)
}

// A SourceFunc is a [Source] that is a function.
type SourceFunc func(ctx context.Context) ([]Rule, error)

// Load calls f.
func (f SourceFunc) Load(ctx context.Context) ([]Rule, error) { return f(ctx) }

// Static returns a source of rules in code.
func Static(rules ...Rule) Source {
	rules = slices.Clone(rules)
	return SourceFunc(func(context.Context) ([]Rule, error) { return rules, nil })
}

// A Set holds calls to the rules that are in force. It may be used by any number of
// goroutines.
type Set struct {
	config
	source  Source
	limiter ratelimit.Limiter
	force   atomic.Pointer[inForce]

	mu     sync.Mutex // protects what follows
	status Status
	under  *load // the load that the source is working on; nil if it is on none
	next   *load // the one to begin when it has answered; nil if nobody waits for one
	closed bool

	stop    context.CancelFunc
	stopped sync.WaitGroup
}

// inForce is what one load has found.
type inForce struct {
	*index
	version uint64
}

// lastGood returns all rules that could be used in the last load, by ID.
func (f *inForce) lastGood() map[string]Rule {
	if f == nil {
		return nil
	}
	return f.good
}

// same reports whether the rules of t are in force already.
func (f *inForce) same(t *index) bool {
	return f != nil && slices.EqualFunc(f.rules, t.rules, func(a, b *compiled) bool { return a.Rule == b.Rule })
}

// with returns the same table with other good rules.
func (f *inForce) with(good map[string]Rule) *index {
	t := *f.index
	t.good = good
	return &t
}

// Status says how the loading of a set fares.
type Status struct {
	Version uint64    // how many loads have changed the rules
	Loaded  time.Time // when the last load was that put its rules in force; zero if none did
	Rules   int       // how many are in force, those that have expired since included
	Bad     int       // how many rules of that load cannot be used
	Err     error     // of the last load: why it failed, or BadRules; nil if all is well
}

// New loads the rules of source, and returns the set of them. That fails if the
// load does, unless there are rules [WithInitial]. Rules that cannot be used are left
// out, and [Set.Status] says so. The set must be closed.
func New(ctx context.Context, source Source, opts ...Option) (*Set, error) {
	if ctx == nil {
		return nil, errors.New("rules: New(nil): give a context, such as context.Background()")
	}
	if isNil(source) {
		return nil, errors.New("rules: the source is nil: give one, such as SQL(db)")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	s := &Set{config: *c, source: source}
	opted := append([]ratelimit.Option{ratelimit.WithClock(s.clk), ratelimit.WithName("rules")}, s.limiterOpts...)
	s.limiter, err = ratelimit.New(ratelimit.SlidingLog{Limit: 1, Window: time.Second}, append(opted, ratelimit.WithLimits(limitOf))...)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	if s.hasInitial {
		if err := s.put(s.initial, nil); err != nil {
			return nil, fmt.Errorf("rules: WithInitial: %w", err)
		}
		s.status.Version, s.status.Loaded = 0, time.Time{}
	}
	if err := s.Reload(ctx); err != nil && s.force.Load() == nil {
		return nil, err
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if s.interval > 0 {
		timer := s.clk.Timer(s.jittered())
		s.stopped.Go(func() { s.refresh(ctx, timer) })
	}
	return s, nil
}

// Close ends the loading, also if the source hangs. The rules that are in force stay
// so.
func (s *Set) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, l := range []*load{s.under, s.next} {
		if l != nil {
			l.cancel()
		}
	}
	s.mu.Unlock()
	if s.stop != nil {
		s.stop()
	}
	s.stopped.Wait()
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
// subject is whatever has a limit of its own: a user, an address. The path is that of
// a request as it was sent, with its escapes ([net/url.URL.EscapedPath]); one without
// them does as well where a handler is called by it.
//
// If there are several ways to read the path (see [Rule]), the answer is that of the
// strictest rule: of those that refuse, the one with the longest RetryAfter, and
// otherwise the one with the least Remaining. A refusal then spends nothing of the
// other rules either, unless the subject's limits are used by other calls meanwhile.
func (s *Set) Take(ctx context.Context, subject, method, path string, n int) (Answer, error) {
	var buf [4]*compiled
	switch rules := s.match(buf[:0], method, path); len(rules) {
	case 0:
		return Answer{Decision: ratelimit.Decision{Allowed: true}}, nil
	case 1:
		d, err := limiterOf{set: s, rule: rules[0]}.Take(ctx, subject, n)
		return s.answer(rules[0], verdict{d, err})
	default:
		rules = slices.Clone(rules) // which escape
		verdicts, strictest := s.takeAll(ctx, subject, n, rules)
		for i, v := range verdicts {
			if i != strictest && rules[i].Shadow {
				_, _ = s.answer(rules[i], v) // which reports it
			}
		}
		return s.answer(rules[strictest], verdicts[strictest])
	}
}

// match appends to found the rules in force for a call.
func (s *Set) match(found []*compiled, method, path string) []*compiled {
	f := s.force.Load()
	if f == nil { // not made by New
		return found
	}
	return f.match(found, method, path, s.clk)
}

// answer returns what rule decided.
func (s *Set) answer(rule *compiled, v verdict) (Answer, error) {
	a := Answer{Decision: v.Decision, Rule: &rule.Rule, Refused: v.refused()}
	if a.Refused && rule.Shadow {
		a.Allowed = true
		if s.onShadow != nil {
			s.onShadow(a)
		}
	}
	return a, v.err
}
