// Package clientip says who sent an HTTP request: the client's IP address, also behind proxies.
//
//	balancers := clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))
//	limited := httplimit.Middleware(limiter, httplimit.WithKey(clientip.Of(balancers)))
//
// [Of] returns a function whose result is the key of a limit, so the text of the result is that of
// an address only for IPv4. For IPv6 it is that of a network.
package clientip

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/ascii"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Option says which proxies and header fields [Of] trusts.
type Option func(*config)

// TrustedProxies names the proxies, such as the load balancers in front of the
// service, that are trusted to report where a request came from. [Of]
// believes the address that a trusted proxy adds to X-Forwarded-For. If that is
// again the address of a trusted proxy, it also believes the address before it, and
// so on for at most 32 proxies. Without prefixes, no proxy is trusted.
func TrustedProxies(prefixes ...netip.Prefix) Option {
	return func(c *config) {
		c.listed = true
		for _, p := range prefixes {
			c.trusted = append(
				c.trusted,
				netip.PrefixFrom(p.Addr().Unmap(), unmappedBits(p)).Masked(),
			)
		}
	}
}

// unmappedBits returns the length of p once its address is unmapped.
func unmappedBits(p netip.Prefix) int {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return p.Bits() - 96
	}
	if p.Addr().Is4In6() {
		return -1 // the prefix reaches beyond IPv4, so it is invalid in both
	}
	return p.Bits()
}

// TrustedHops trusts the n nearest proxies, whatever their addresses are. Use 1 if
// every request comes through one load balancer, and 2 if it comes through a content
// delivery network before that. If clients can reach the service without passing
// these proxies, they can claim any address: use [TrustedProxies] instead. With
// both, a proxy must be among the n nearest and have a trusted address.
func TrustedHops(n int) Option {
	return func(c *config) { c.hops, c.counted = n, true }
}

// FromForwarded reads the header field Forwarded (RFC 7239) instead of X-Forwarded-For. Read the
// field that the proxies write: the other one comes from the client as it is.
//
// Proxies may copy the host that a client asks for into their element. If such an element has a
// backslash, or a string that does not end, it is not read, like any entry that is not an address:
// the client has the key of the proxy then, which all such clients share (see [Of]). A proxy that
// copies the quotes of a host as they are even lets a client end the string, and claim any address,
// with the host a", for=203.0.113.7;b=" for example. So let the proxy refuse a host with quotes, as
// Go's net/http does, or write no host.
func FromForwarded() Option { return FromHeader(fieldForwarded) }

// FromHeader reads the given header field instead of X-Forwarded-For. It is for proxies that
// report one address in a field of their own: X-Real-IP (nginx, as it is often configured),
// CF-Connecting-IP (Cloudflare), True-Client-IP (Akamai, Cloudflare), Fly-Client-IP
// (Fly.io) or CloudFront-Viewer-Address (CloudFront). In the latter, the last colon precedes the
// port, because CloudFront writes no brackets around an IPv6 address: 2001:db8::5:46532.
//
// The field is believed if the peer of the connection is trusted, so FromHeader needs
// [TrustedProxies] or [TrustedHops]. If the field is missing, present more than once, a list,
// or not an address, the peer is the client. A trusted proxy must set the field, whatever the
// client has sent, or get requests only from a proxy that does: a load balancer that passes
// CF-Connecting-IP on lets any client that reaches it without Cloudflare claim any address.
//
// FromHeader of X-Forwarded-For or Forwarded reads these as [Of] and [FromForwarded] do.
func FromHeader(name string) Option {
	return func(c *config) { c.fields = append(c.fields, name) }
}

// IPv6Prefix sets how many bits of an IPv6 address tell clients apart. The
// default is 64, because a client usually controls its whole /64.
func IPv6Prefix(bits int) Option { return func(c *config) { c.bits = bits } }

// A config is what the options of Of make. newConfig checks it.
type config struct {
	trusted   []netip.Prefix
	listed    bool // whether TrustedProxies was given
	hops      int
	counted   bool     // whether TrustedHops was given
	fields    []string // the names given to FromHeader
	field     string   // the one that is read, in canonical form
	bits      int
	untrusted untrustedLog
}

func newConfig(opts []Option) (*config, error) {
	c := &config{bits: 64, field: fieldXForwardedFor}
	for i, opt := range opts {
		if opt == nil {
			return nil, invalid(fmt.Sprintf("option %d of Of", i), nil,
				"must be the result of a function that returns an Option, such as TrustedProxies")
		}
		opt(c)
	}
	for _, p := range c.trusted {
		if !p.IsValid() {
			return nil, invalid("TrustedProxies's prefix", p,
				"must be one such as 10.0.0.0/8 or 2001:db8::/32")
		}
	}
	if err := c.chooseField(); err != nil {
		return nil, err
	}
	switch {
	case c.bits < 1 || c.bits > 128:
		return nil, invalid("IPv6Prefix's number of bits", c.bits, "must be from 1 to 128")
	case c.hops < 0:
		return nil, invalid("TrustedHops's number", c.hops, "must not be negative")
	}
	return c, nil
}

// chooseField sets the field that is read.
func (c *config) chooseField() error {
	for i, name := range c.fields {
		field := http.CanonicalHeaderKey(name)
		switch {
		case !ascii.IsToken(name):
			return invalid("FromHeader's name", fmt.Sprintf("%q", name),
				"must be the name of a header field, such as X-Real-IP")
		case i > 0 && field != c.field:
			return invalid("FromHeader's name", fmt.Sprintf("%q", name), fmt.Sprintf(
				"must be the only one, because a client could set the others: remove it, or %q",
				c.fields[0]))
		case field != fieldForwarded && field != fieldXForwardedFor && !c.listed && !c.counted:
			return invalid("FromHeader's name", fmt.Sprintf("%q", name),
				"must be given with TrustedProxies or TrustedHops, which say whose field is believed")
		}
		c.field = field
	}
	return nil
}

// maxProxies is how many proxies are trusted without TrustedHops.
const maxProxies = 32

// Of returns the client's IP address as the key: 192.0.2.1, or for IPv6 a
// prefix, 2001:db8::/64.
//
// The client is the peer of the connection, unless the options trust that peer as a
// proxy. Then Of reads X-Forwarded-For from right to left, all its lines
// joined, and skips trusted proxies: the first address that is not trusted is the
// client. If an entry is not an address, the address to its right, or else the peer, is
// the client. So nothing that a client writes into the field can change its key.
//
// An IPv6 address that contains an IPv4 address makes the same key as that IPv4
// address: mapped addresses (::ffff:0:0/96), NAT64 (64:ff9b::/96, RFC 6052), 6to4
// (2002::/16) and Teredo (2001::/32), because in the latter two one IPv4 address has a
// whole network, or shares one with others. In 64:ff9b:1::/48, where operators choose
// the place of the IPv4 address (RFC 8215), each IPv6 address is a key.
//
// Without an option that says whom to trust, all clients behind a proxy have its address, and
// share one limit. Of logs with slog the first request that has a field in which proxies
// report the client, and what to write. TrustedProxies() without prefixes says that there is no
// proxy, and prevents the log line.
//
// The function fails with [key.ErrNone] if the connection has no IP address, such as that of a Unix
// socket, and no trusted proxy names one.
//
// If an option is invalid, Of panics, as regexp.MustCompile does. The value is an error that
// matches ratelimit.ErrInvalid.
func Of(opts ...Option) key.Func {
	c, err := newConfig(opts)
	if err != nil {
		panic(err)
	}
	return func(r *http.Request) (string, error) {
		addr, err := c.client(r)
		if err != nil {
			return "", err
		}
		bits := c.bits
		if addr.Is6() {
			addr, bits = embedded(addr, bits)
		}
		if addr.Is4() {
			return text4(addr, r.RemoteAddr), nil
		}
		prefix, err := addr.Prefix(bits)
		var text [64]byte
		return string(prefix.AppendTo(text[:0])), err
	}
}

// client returns the address of the client that sent r, unmapped and without a zone.
func (c *config) client(r *http.Request) (netip.Addr, error) {
	client, _, ok := parseAddr(r.RemoteAddr)
	if !c.listed && !c.counted {
		c.untrusted.check(r, client, ok)
	}
	walk := c.newWalk(r.Header)
	for hop := 0; c.believes(hop, client, ok); hop++ {
		entry, more := walk.next()
		if !more {
			break
		}
		addr, zone, good := parseAddr(entry)
		// In what looks like a zone, there may be another address.
		if !good || zone != "" && !isPlain(zone) {
			break
		}
		client, ok = addr, true
	}
	if !ok {
		return client, fmt.Errorf("%w: the connection's address %q is not an IP address",
			key.ErrNone, r.RemoteAddr)
	}
	return client, nil
}

// believes reports whether the hop-th proxy is trusted. Its address may be unknown.
func (c *config) believes(hop int, addr netip.Addr, known bool) bool {
	switch {
	case c.counted && hop >= c.hops, !c.counted && hop >= maxProxies:
		return false
	case c.listed:
		return known && c.trusts(addr)
	}
	return c.counted
}

// IPv6 prefixes whose addresses contain an IPv4 address.
var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")      // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")      // RFC 4380
)

// embedded returns the IPv4 address that an IPv6 address contains, or else the
// address itself, and how many of its bits tell clients apart.
func embedded(addr netip.Addr, bits int) (netip.Addr, int) {
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:])), 32
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), 32
	case teredo.Contains(addr):
		// The bits are inverted, to hide the address from NATs that would rewrite it.
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), 32
	case localNAT64.Contains(addr):
		return addr, 128
	}
	return addr, bits
}

// text4 returns an IPv4 address as text. If peer, an address with a port, has the
// same address, the text is a part of peer and needs no allocation.
func text4(addr netip.Addr, peer string) string {
	host := peer[:max(0, strings.LastIndexByte(peer, ':'))]
	if same, err := netip.ParseAddr(host); err == nil && same == addr {
		return host
	}
	return addr.String()
}

func (c *config) trusts(addr netip.Addr) bool {
	for _, p := range c.trusted {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// longestAddr bounds the length of an address with its port, brackets and zone.
const longestAddr = 128

// parseAddr returns the address in s, unmapped, and its zone. s may have a port or brackets, as a
// node of Forwarded has (RFC 7239, 6).
func parseAddr(s string) (addr netip.Addr, zone string, ok bool) {
	host, port := s, "0"
	switch {
	case len(s) > longestAddr:
		return addr, "", false
	case strings.HasPrefix(s, "["):
		end := strings.LastIndexByte(s, ']')
		if end < 0 {
			return addr, "", false
		}
		host = s[1:end]
		if rest := s[end+1:]; rest != "" {
			if rest[0] != ':' {
				return addr, "", false
			}
			port = rest[1:]
		}
	case strings.Count(s, ":") == 1:
		host, port, _ = strings.Cut(s, ":")
	}
	addr, err := netip.ParseAddr(host)
	return addr.WithZone("").Unmap(), addr.Zone(), err == nil && isPort(port)
}

// isPort reports whether s is a port, which may be obfuscated.
func isPort(s string) bool {
	if name, obfuscated := strings.CutPrefix(s, "_"); obfuscated {
		return isPlain(name)
	}
	return len(s) <= 5 && ascii.IsNumber(s)
}

// isPlain reports whether s consists of letters, digits, dots, underscores and hyphens.
func isPlain(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter, digit := 'a' <= c|0x20 && c|0x20 <= 'z', '0' <= c && c <= '9'
		if !letter && !digit && strings.IndexByte("._-", c) < 0 {
			return false
		}
	}
	return s != ""
}

// invalid returns the error of an invalid option.
func invalid(what string, value any, want string) error {
	return param.InvalidIn("clientip", what, value, want)
}
