package rules

import (
	"context"
	"net/http"
	"slices"
	"sync"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
)

// Middleware returns net/http middleware that applies the rules to the requests of a
// handler. It responds like [httplimit.Middleware], and takes the same options:
// [httplimit.WithKey] sets the subject, by default the client's address. The policy's
// name is the rule's ID, if that consists of printable ASCII characters, and "default" otherwise. It
// has rule- before it if a limiter of [httplimit.WithAlso] has that name. [httplimit.WithPolicyName]
// has no effect.
//
// If the path of a request has several interpretations (see [Rule]), the request must
// pass the rules for all of them, and the response has the header fields of each rule
// up to the one that refuses. With [httplimit.WithShaping], the request waits for one
// rule after the other.
//
// A request of an in-flight rule is in flight while its handler runs. It is released when the
// handler returns or panics, as [httplimit.Middleware] does.
//
// With [httplimit.WithSettle], a request is settled with each of its rules, and not at all if
// one of them refuses. The limiters of [httplimit.WithAlso] count a request once for each rule
// up to the one that refuses, and not at all if no rule applies.
//
// Middleware panics where [httplimit.Middleware] panics with these options, and the function that it
// returns panics if the handler is nil.
func (s *Set) Middleware(opts ...httplimit.Option) func(http.Handler) http.Handler {
	check, err := limitOfRule(limiterOf{set: s, rule: new(compiled)}, opts)
	if err != nil {
		panic(err)
	}
	shared := []httplimit.Option{ // by all rules, because these bound what is logged
		httplimit.WithKeyError(httplimit.BadRequest()),
		httplimit.WithKey(clientip.Of()),
	}
	opts = append(shared, opts...)
	return func(next http.Handler) http.Handler {
		check(next)
		return &middleware{set: s, next: next, opts: opts}
	}
}

// limitOfRule returns the middleware of a rule. The name of the policy is the rule's ID, unless a
// limiter of WithAlso has this name.
func limitOfRule(l limiterOf, opts []httplimit.Option) (limit func(http.Handler) http.Handler, err error) {
	name := l.rule.ID
	if !isPrintable(name) {
		name = "default"
	}
	for range 1 + len(opts) { // no option takes more than one of these names
		limit, err = httplimit.New(l, append(slices.Clip(opts), httplimit.WithPolicyName(name))...)
		if err == nil {
			return limit, nil
		}
		name = "rule-" + name
	}
	return nil, err
}

type middleware struct {
	set  *Set
	next http.Handler
	opts []httplimit.Option

	mu       sync.RWMutex // protects the fields below
	version  uint64       // of the rules that the handlers are for
	handlers map[handlerKey]http.Handler
}

// A handlerKey identifies a handler by the requests that it is for: those that count
// against a rule, alone or jointly with other rules.
type handlerKey struct {
	rule  *compiled
	joint bool
}

func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var buf [4]*compiled
	f := m.set.force.Load()
	if f == nil { // the set was not made by New
		m.next.ServeHTTP(w, r)
		return
	}
	path := r.URL.EscapedPath()
	rules := f.match(buf[:0], r.Method, path, m.set.clk)
	if raw := r.URL.RawPath; raw != "" && raw != path { // outdated, because Path was changed since, but some routers use it
		rules = f.match(rules, r.Method, raw, m.set.clk)
	}
	switch len(rules) {
	case 0:
		m.next.ServeHTTP(w, r)
	case 1:
		m.handler(f.version, handlerKey{rules[0], false}).ServeHTTP(w, r)
	default:
		j := &joint{version: f.version, rules: slices.Clone(rules)}
		defer j.end(r.Context())
		m.handler(f.version, handlerKey{rules[0], true}).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), m, j)))
	}
}

// A joint is a request that counts against several rules. It passes through the handlers
// of these rules in turn, each of which reports the decision of its rule.
type joint struct {
	version uint64
	rules   []*compiled
	passed  int // the number of rules that the request has passed

	verdicts  []verdict // nil before the decision; ask hands on what is held
	strictest int
}

// end gives back what no handler has got, because one before it has refused the request for
// another reason.
func (j *joint) end(ctx context.Context) { giveBack(ctx, j.verdicts) }

func (m *middleware) jointOf(ctx context.Context) *joint {
	if ctx == nil {
		return nil
	}
	j, _ := ctx.Value(m).(*joint)
	return j
}

// ask returns the verdict of l's rule on the request. The first call decides for all its
// rules, and holds what they grant if that is asked for or one of them is in-flight. If the
// request is refused, only the strictest rule reports a refusal.
func (j *joint) ask(ctx context.Context, l limiterOf, subject string, n int, hold bool, opts ...ratelimit.HoldOption) verdict {
	if j.verdicts == nil {
		held := hold || slices.ContainsFunc(j.rules, (*compiled).flies)
		j.verdicts, j.strictest = l.set.takeAll(ctx, subject, n, j.rules, held, opts...)
	}
	i := slices.Index(j.rules, l.rule)
	if i >= len(j.verdicts) { // the request was refused, but an option let it pass on to a shadow
		return limiterOf{set: l.set, rule: l.rule}.ask(ctx, subject, n, hold, opts...)
	}
	v := j.verdicts[i]
	j.verdicts[i].held = nil // its handler's from now on; events that it does not hold are spent
	if i != j.strictest && !l.rule.Shadow {
		v.Allowed, v.RetryAfter = true, 0
	}
	return v
}

// pass passes a joint request on to the handler of its next rule, or to the user's.
func (m *middleware) pass(w http.ResponseWriter, r *http.Request) {
	j := m.jointOf(r.Context())
	if j.passed++; j.passed < len(j.rules) {
		m.handler(j.version, handlerKey{j.rules[j.passed], true}).ServeHTTP(w, r)
		return
	}
	m.next.ServeHTTP(w, r)
}

// handler returns a handler that applies a rule, of the given version of the rules.
func (m *middleware) handler(version uint64, l handlerKey) http.Handler {
	m.mu.RLock()
	h := m.handlers[l]
	m.mu.RUnlock()
	if h != nil {
		return h
	}
	rule, opts := l.rule, m.opts
	if rule.Shadow {
		opts = append(opts[:len(opts):len(opts)], httplimit.WithShaping(0), httplimit.WithShadow(func(_ *http.Request, d ratelimit.Decision) {
			if f := m.set.onShadow; f != nil {
				f(Answer{Decision: d, Rule: &rule.Rule, Refused: true})
			}
		}))
	}
	limiter, next := limiterOf{set: m.set, rule: rule}, m.next
	if l.joint {
		limiter.within, next = m, http.HandlerFunc(m.pass)
	}
	limit, err := limitOfRule(limiter, opts)
	if err != nil {
		panic(err) // never: Middleware has tried these options, and rules differ in their names only
	}
	h = limit(next)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handlers == nil || m.version < version { // drop the handlers of the old rules
		m.handlers, m.version = make(map[handlerKey]http.Handler), version
	}
	if m.version == version {
		m.handlers[l] = h
	}
	return h
}

// isPrintable reports whether s consists of one or more printable ASCII characters, and
// so can be the name of a policy.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return s != ""
}
