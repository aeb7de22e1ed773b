package rules

import (
	"context"
	"net/http"
	"slices"
	"sync"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// Middleware returns what holds the calls of a handler to the rules, for net/http.
// It answers and tells what is left as [httplimit.Middleware] does, and takes its
// options: [httplimit.WithKey] says who the subject is, by default the client's
// address. The policy's name is the rule's ID, if that is printable.
//
// If there are several ways to read the path of a request (see [Rule]), it must pass the
// rules of all of them, and the response has the header fields of each rule up to the
// one that refuses. With [httplimit.WithShaping], it waits for one after the other.
func (s *Set) Middleware(opts ...httplimit.Option) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		if isNil(next) {
			return httplimit.Middleware(limiterOf{set: s, rule: new(compiled)}, opts...)(next) // which says so
		}
		return &middleware{set: s, next: next, opts: opts}
	}
}

type middleware struct {
	set  *Set
	next http.Handler
	opts []httplimit.Option

	mu      sync.RWMutex // protects what follows
	version uint64       // of the rules that the handlers are for
	of      map[turn]http.Handler
}

// A turn says which requests a handler is for: those that count against a rule, alone
// or with others.
type turn struct {
	rule  *compiled
	joint bool
}

func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var buf [4]*compiled
	f := m.set.force.Load()
	if f == nil { // not made by New
		m.next.ServeHTTP(w, r)
		return
	}
	path := r.URL.EscapedPath()
	rules := f.match(buf[:0], r.Method, path, m.set.clk)
	if raw := r.URL.RawPath; raw != "" && raw != path { // of before somebody changed Path; some routers heed it
		rules = f.match(rules, r.Method, raw, m.set.clk)
	}
	switch len(rules) {
	case 0:
		m.next.ServeHTTP(w, r)
	case 1:
		m.handler(f.version, turn{rules[0], false}).ServeHTTP(w, r)
	default:
		j := &joint{version: f.version, rules: slices.Clone(rules)}
		m.handler(f.version, turn{rules[0], true}).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), m, j)))
	}
}

// A joint is a request that counts against several rules. It goes through the handler
// of one after the other, which tells what its rule decided.
type joint struct {
	version uint64
	rules   []*compiled
	passed  int // rules

	verdicts  []verdict // nil if nothing is decided yet
	strictest int
}

func (m *middleware) jointOf(ctx context.Context) *joint {
	if ctx == nil {
		return nil
	}
	j, _ := ctx.Value(m).(*joint)
	return j
}

// take decides on the request, the first time for all its rules, and returns what the
// one of l decided. One that would have passed does so, if another one refuses.
func (j *joint) take(ctx context.Context, l limiterOf, subject string, n int) (ratelimit.Decision, error) {
	if j.verdicts == nil {
		j.verdicts, j.strictest = l.set.takeAll(ctx, subject, n, j.rules)
	}
	i := slices.Index(j.rules, l.rule)
	if i >= len(j.verdicts) { // refused, and it would be a shadow's turn: an option has let it pass
		return limiterOf{set: l.set, rule: l.rule}.Take(ctx, subject, n)
	}
	v := j.verdicts[i]
	if i != j.strictest && !l.rule.Shadow {
		v.Allowed, v.RetryAfter = true, 0
	}
	return v.Decision, v.err
}

// pass hands a request of several rules on, which one of them lets through.
func (m *middleware) pass(w http.ResponseWriter, r *http.Request) {
	j := m.jointOf(r.Context())
	if j.passed++; j.passed < len(j.rules) {
		m.handler(j.version, turn{j.rules[j.passed], true}).ServeHTTP(w, r)
		return
	}
	m.next.ServeHTTP(w, r)
}

// handler returns the handler behind the limit of a rule.
func (m *middleware) handler(version uint64, l turn) http.Handler {
	m.mu.RLock()
	h := m.of[l]
	m.mu.RUnlock()
	if h != nil {
		return h
	}
	rule, opts := l.rule, m.opts
	if isPrintable(rule.ID) {
		opts = append([]httplimit.Option{httplimit.WithPolicyName(rule.ID)}, opts...)
	}
	if rule.Shadow {
		opts = append(opts[:len(opts):len(opts)], httplimit.WithShaping(0), httplimit.WithShadow(func(_ *http.Request, d ratelimit.Decision) {
			if f := m.set.onShadow; f != nil {
				f(Answer{Decision: d, Rule: &rule.Rule, Refused: true})
			}
		}))
	}
	if limiter := (limiterOf{set: m.set, rule: rule}); l.joint {
		limiter.within = m
		h = httplimit.Middleware(limiter, opts...)(http.HandlerFunc(m.pass))
	} else {
		h = httplimit.Middleware(limiter, opts...)(m.next)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil || m.version < version { // the handlers of rules that are gone go with them
		m.of, m.version = make(map[turn]http.Handler), version
	}
	if m.version == version {
		m.of[l] = h
	}
	return h
}

// isPrintable reports whether s has printable ASCII characters only, and one at least:
// then it may name a policy.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return s != ""
}
