package limitpage

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/byname"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/observe"
)

// A Page shows limiters. Its method Observe is the [ratelimit.Observer] of their decisions, and the
// Page is the [net/http.Handler] that serves them. New makes a Page.
type Page struct {
	config
	optionErr error     // of the first option that is nil
	started   time.Time // with a reading of the monotonic clock

	watched byname.Map[watchedLimiter]
	adding  sync.Mutex    // protects the limiter in each
	ignored atomic.Uint64 // decisions of limiters beyond mostLimiters
}

// mostLimiters is how many limiters a page shows. The bound protects programs that never stop
// making limiters of new names.
const mostLimiters = 256

const (
	mostListed = 32          // keys in each list of a limiter
	halfLife   = time.Minute // after which a denial or an event counts half
)

// A watchedLimiter has what the page knows of a limiter, or of several limiters of the same name.
type watchedLimiter struct {
	name    string
	limiter ratelimit.Limiter // nil unless added
	tally   tally
	outage  outage
	denied  *observe.TopKeys
	used    *observe.TopKeys
}

// An Option changes how [New] makes a Page.
type Option func(*config)

type config struct {
	reset  bool
	hashed bool
	secret []byte
	hosts  []string // in lower case
}

// WithReset lets everybody who sees the page reset keys. A program resets a key by a POST of the
// form action=reset&limiter=api&key=... The handler refuses the requests of pages of other origins.
func WithReset() Option { return func(c *config) { c.reset = true } }

// WithHosts adds names, without ports, under which the handler answers in plain HTTP:
// "limits.example.com" is that name, ".example.com" stands for all names with this ending, and "*"
// for any name. Without WithHosts, the handler answers under IP addresses and under names that
// nobody can register: names without a dot, and names that end with .localhost, .local or
// .internal.
//
// The list prevents DNS rebinding: a page of an attacker makes its own name resolve to the address
// of the handler, and then reads the handler's answers. The Host header of such requests has the
// attacker's name. HTTPS needs no list, because neither the handler nor the proxy in front of it
// has a certificate for the attacker's name. Behind a proxy, the handler recognizes HTTPS by the
// header Sec-Fetch-Site: pages cannot set it, and browsers send it to such a name only over HTTPS.
func WithHosts(names ...string) Option {
	return func(c *config) {
		for _, name := range names {
			c.hosts = append(c.hosts, strings.ToLower(name))
		}
	}
}

// privateHosts are endings of names that nobody can register.
var privateHosts = []string{".localhost", ".local", ".internal"}

// serves reports whether the handler answers in plain HTTP under host, which may have a port.
func (c *config) serves(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil ||
		!strings.Contains(host, ".") {
		return true
	}
	isServed := func(name string) bool {
		return name == "*" || name == host ||
			strings.HasPrefix(name, ".") && strings.HasSuffix(host, name)
	}
	return slices.ContainsFunc(privateHosts, isServed) || slices.ContainsFunc(c.hosts, isServed)
}

// WithHashedKeys shows hashes in place of keys: the first 16 hexadecimal digits of their
// HMAC-SHA256 with secret. Processes with the same secret show the same hashes. If secret is
// empty, the page makes a random one. WithHashedKeys also hides the errors of stores and lookups,
// because they may contain keys.
//
// A person who knows a key can still look it up, and then sees its hash. So a person who sees the
// page can find the key of a hash by trying likely keys. The lists of keys keep only the start of a
// key longer than 128 bytes, and show the hash of this start.
func WithHashedKeys(secret []byte) Option {
	secret = append([]byte(nil), secret...)
	return func(c *config) { c.hashed, c.secret = true, secret }
}

// New returns a page without limiters. If an option is nil, [Page.Add] returns an error.
func New(opts ...Option) *Page {
	p := &Page{started: time.Now()}
	for i, opt := range opts {
		if opt != nil {
			opt(&p.config)
		} else if p.optionErr == nil {
			p.optionErr = invalid(fmt.Sprintf("option %d of New", i), nil,
				"must be the result of a With function")
		}
	}
	if len(p.secret) == 0 {
		p.secret = []byte(rand.Text())
	}
	return p
}

// Add lets the page show the limit and the store of l, and look up its keys. The page counts only
// decisions that p observes, so make l with [ratelimit.WithObserver] and p.Observe. Limiters need
// different names (see [ratelimit.WithName]). If l cannot be added, the error matches
// [ratelimit.ErrInvalid].
//
// Once p observes a limiter that was not added, the page shows it as well, but without its limit
// and store. A page has at most 256 limiters. Of further limiters, it shows only how many decisions
// they made in all.
func (p *Page) Add(l ratelimit.Limiter) error {
	if p.optionErr != nil {
		return p.optionErr
	}
	if param.IsNil(l) {
		return invalid("Add's limiter", nil, "must be a Limiter")
	}
	name := l.Describe().Name
	w := p.watch(name)
	if w == nil {
		return invalid("the number of the page's limiters", mostLimiters+1,
			fmt.Sprintf("must be at most %d", mostLimiters))
	}
	p.adding.Lock()
	defer p.adding.Unlock()
	if w.limiter != nil && !param.Same(w.limiter, l) {
		return invalid("the name of Add's limiter", strconv.Quote(name),
			"must differ from those of the page's other limiters: use WithName")
	}
	w.limiter = l
	return nil
}

func invalid(what string, value any, want string) error {
	return param.InvalidIn("limitpage", what, value, want)
}

// Observe is a [ratelimit.Observer]: it counts o for the page.
func (p *Page) Observe(ctx context.Context, o ratelimit.Observation) {
	w := p.watch(o.Limiter)
	if w == nil {
		p.ignored.Add(1)
		return
	}
	now := p.now()
	w.tally.add(now, &o)
	if o.Outcome == ratelimit.Failed {
		w.outage.add(now, w.tally.decided(), o.Err)
	}
	w.denied.Observe(ctx, o)
	w.used.Observe(ctx, o)
}

// watch returns the watchedLimiter of that name, and makes it if there is none. If the page has too
// many limiters for another one, watch returns nil.
func (p *Page) watch(name string) *watchedLimiter {
	return p.watched.GetOrAdd(name, mostLimiters, func() *watchedLimiter {
		// There is no error, because the constants are in range.
		denied, _ := observe.TopDenied(mostListed, observe.WithHalfLife(halfLife))
		used, _ := observe.TopUsed(mostListed, observe.WithHalfLife(halfLife))
		w := &watchedLimiter{name: name, denied: denied, used: used}
		w.tally.begin(p.now())
		return w
	})
}

// now returns the time since the Unix epoch. It follows the monotonic clock, so it does not jump
// when the wall clock is set.
func (p *Page) now() time.Duration {
	return time.Duration(p.started.UnixNano()) + time.Since(p.started)
}
