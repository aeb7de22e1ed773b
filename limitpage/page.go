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

// A Page shows limiters. It is the [ratelimit.Observer] that their decisions are told to, and
// the [net/http.Handler] that serves the page. New makes one.
type Page struct {
	config
	optionErr error     // of the options
	started   time.Time // by the monotonic clock, and by the wall's

	watched byname.Map[watchedLimiter]
	adding  sync.Mutex    // protects the limiter in each
	ignored atomic.Uint64 // decisions of limiters beyond mostLimiters
}

// mostLimiters is how many limiters a page shows, in case a program makes ever new names.
const mostLimiters = 256

const (
	mostDenied = 32          // keys that are listed of a limiter
	halfLife   = time.Minute // after which a denial counts half
)

// A watchedLimiter is a limiter, or several of the same name.
type watchedLimiter struct {
	name    string
	limiter ratelimit.Limiter // nil unless added
	tally   tally
	outage  outage
	denied  *observe.DeniedKeys
}

// An Option changes how [New] makes a Page.
type Option func(*config)

type config struct {
	reset  bool
	hashed bool
	secret []byte
	hosts  []string // in lower case
}

// WithReset lets whoever sees the page reset keys. A program does so by a POST of the form
// action=reset&limiter=api&key=... The handler refuses the requests of pages of other origins.
func WithReset() Option { return func(c *config) { c.reset = true } }

// WithHosts adds names under which the page may be asked for in plain HTTP, without ports:
// "limits.example.com" is that name, ".example.com" all names that end so, and "*" any name.
// Without it, these are IP addresses, and names that cannot be registered: without a dot, or ending
// with .localhost, .local or .internal.
//
// A page of somebody else can make its own name resolve to the address of the handler, and then
// read what the handler answers (DNS rebinding). The name in the Host header is the attacker's
// then. HTTPS needs no list, because the handler, or the proxy in front of it, has no certificate
// for that name. Behind a proxy, the handler knows HTTPS by the header Sec-Fetch-Site, which pages
// cannot set, and browsers send to it only then.
func WithHosts(names ...string) Option {
	return func(c *config) {
		for _, name := range names {
			c.hosts = append(c.hosts, strings.ToLower(name))
		}
	}
}

// privateHosts are endings of names that nobody can register.
var privateHosts = []string{".localhost", ".local", ".internal"}

// serves reports whether host, which may have a port, is a name under which the page may be asked
// for.
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
// empty, the page makes a random one. Errors of stores and lookups are not shown then, because they
// may contain keys.
//
// Whoever knows a key can still look it up, and sees its hash. So whoever sees the page can find
// the key of a hash by trying likely keys. In the list of denied keys, a key longer than 128
// bytes has the hash of what the list keeps of it, and not its own.
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

// Add shows a limiter: its limit, its store, and its keys when they are looked up. The limiter
// should have been made with [ratelimit.WithObserver] and p, because the page counts only
// decisions that p observes. One that wraps another limiter should have the method Unwrap() that
// [ratelimit.Limiter] describes. Limiters need different names (see [ratelimit.WithName]). The
// error for a limiter that cannot be added matches [ratelimit.ErrInvalid].
//
// Limiters that were not added are shown as well once p observes them, but without their
// limit and store. A page has at most 256 limiters: decisions of further names are counted, and not
// shown.
func (p *Page) Add(l ratelimit.Limiter) error {
	if p.optionErr != nil {
		return p.optionErr
	}
	if param.IsNil(l) {
		return invalid("Add's limiter", nil, "must be a Limiter")
	}
	name := ratelimit.Describe(l).Name
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

// Observe is a [ratelimit.Observer].
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
}

// watch returns the limiter of that name, which is a new one if need be, or nil if there are
// too many.
func (p *Page) watch(name string) *watchedLimiter {
	return p.watched.GetOrAdd(name, mostLimiters, func() *watchedLimiter {
		// Fails only if these are out of range.
		denied, _ := observe.TopDenied(mostDenied, observe.WithHalfLife(halfLife))
		w := &watchedLimiter{name: name, denied: denied}
		w.tally.begin(p.now())
		return w
	})
}

// now returns the time since the Unix epoch. It does not step when the wall clock does.
func (p *Page) now() time.Duration {
	return time.Duration(p.started.UnixNano()) + time.Since(p.started)
}
