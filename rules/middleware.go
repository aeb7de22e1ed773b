package rules

import (
	"net/http"
	"sync"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/ascii"
)

// Middleware returns what holds the calls of a handler to the rules, for net/http.
// It answers and tells what is left as [httplimit.Middleware] does, and takes its
// options: [httplimit.WithKey] says who the subject is, by default the client's
// address. The policy's name is the rule's ID, if that is printable.
func (s *Set) Middleware(opts ...httplimit.Option) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return &middleware{set: s, next: next, opts: opts}
	}
}

type middleware struct {
	set  *Set
	next http.Handler
	opts []httplimit.Option

	mu      sync.RWMutex // protects what follows
	version uint64       // of the rules that the handlers are for
	of      map[*compiled]http.Handler
}

func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	force := m.set.force.Load()
	rule := force.tree.find(r.Method, escaped(r.URL.EscapedPath()), m.set.clk.Now)
	if rule == nil {
		m.next.ServeHTTP(w, r)
		return
	}
	m.handler(force.version, rule).ServeHTTP(w, r)
}

// handler returns the handler behind the limit of a rule.
func (m *middleware) handler(version uint64, rule *compiled) http.Handler {
	m.mu.RLock()
	h := m.of[rule]
	m.mu.RUnlock()
	if h != nil {
		return h
	}
	opts := m.opts
	if ascii.IsPrintable(rule.ID) {
		opts = append([]httplimit.Option{httplimit.WithPolicyName(rule.ID)}, opts...)
	}
	if rule.Shadow {
		opts = append(opts[:len(opts):len(opts)], httplimit.WithShaping(0), httplimit.WithShadow(func(_ *http.Request, d ratelimit.Decision) {
			if f := m.set.onShadow; f != nil {
				f(Answer{Decision: d, Rule: &rule.Rule, Refused: true})
			}
		}))
	}
	h = httplimit.Middleware(limiterOf{m.set, rule}, opts...)(m.next)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil || m.version < version { // the handlers of rules that are gone go with them
		m.of, m.version = make(map[*compiled]http.Handler), version
	}
	if m.version == version {
		m.of[rule] = h
	}
	return h
}
