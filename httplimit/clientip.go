package httplimit

import (
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"strings"
)

// An IPOption says what [ClientIP] believes.
type IPOption func(*clientIP)

// TrustedProxies names the proxies whose word about where a request came from is
// taken: the load balancers in front of the service. What they add to
// X-Forwarded-For is believed; what came to them in it, only as far as it is the
// address of such a proxy again.
func TrustedProxies(prefixes ...netip.Prefix) IPOption {
	return func(c *clientIP) {
		for _, p := range prefixes {
			c.trusted = append(c.trusted, netip.PrefixFrom(p.Addr().Unmap(), unmappedBits(p)).Masked())
		}
	}
}

// unmappedBits returns the length of p once its address is unmapped.
func unmappedBits(p netip.Prefix) int {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return p.Bits() - 96
	}
	return p.Bits()
}

// TrustedHops believes the n nearest proxies, whatever their addresses are: 1 if
// every request comes through one load balancer, 2 if through a content delivery
// network before that. If anybody can reach the service past them, use
// [TrustedProxies] instead, for then anybody can be anybody.
func TrustedHops(n int) IPOption { return func(c *clientIP) { c.hops = n } }

// FromForwarded reads the header field Forwarded (RFC 7239) instead of
// X-Forwarded-For. It must be the one that the proxies write: the other one is
// the client's to make up.
func FromForwarded() IPOption { return func(c *clientIP) { c.forwarded = true } }

// IPv6Prefix sets how many bits of an IPv6 address tell clients apart. The
// default is 64, for who has one address has, as a rule, all of its /64.
func IPv6Prefix(bits int) IPOption { return func(c *clientIP) { c.bits = bits } }

type clientIP struct {
	trusted   []netip.Prefix
	hops      int
	forwarded bool
	bits      int
}

// ClientIP returns the client's IP address as the key: 192.0.2.1, or for IPv6 a
// prefix, 2001:db8::/64. It is the address of the connection's other end. Only if
// that is a proxy that the options trust, X-Forwarded-For is asked where it had
// the request from: from the right, all its lines joined, over proxies that are
// trusted, up to the first address that is not: it is the client. An entry that
// is no address ends the walk at the last one that was. So nothing that a client
// writes into it can change its key.
//
// It fails if the connection has no address, as that of a Unix socket, and
// nobody trusted tells of one.
func ClientIP(opts ...IPOption) KeyFunc {
	c := &clientIP{bits: 64}
	for _, opt := range opts {
		if opt != nil {
			opt(c)
		}
	}
	if c.bits < 1 || c.bits > 128 || c.hops < 0 {
		err := fmt.Errorf("httplimit: IPv6Prefix(%d), TrustedHops(%d): a prefix has 1 to 128 bits, and there are at least 0 hops", c.bits, c.hops)
		return func(*http.Request) (string, error) { return "", err }
	}
	return func(r *http.Request) (string, error) {
		addr, err := c.client(r)
		if err != nil {
			return "", err
		}
		if addr.Is4() {
			return text4(addr, r.RemoteAddr), nil
		}
		prefix, err := addr.Prefix(c.bits)
		var text [64]byte
		return string(prefix.AppendTo(text[:0])), err
	}
}

// client returns the address that r came from, unmapped and without a zone.
func (c *clientIP) client(r *http.Request) (netip.Addr, error) {
	client, ok := parseAddr(r.RemoteAddr)
	walk := c.newWalk(r.Header)
	for hop := 0; hop < c.hops || ok && c.trusts(client); hop++ {
		entry, more := walk.next()
		if !more {
			break
		}
		addr, good := parseAddr(entry)
		if !good {
			break
		}
		client, ok = addr, true
	}
	if !ok {
		return client, fmt.Errorf("%w: the connection's address is %q, which is no IP address", ErrNoKey, r.RemoteAddr)
	}
	return client, nil
}

// text4 returns an IPv4 address as text, cut out of where it came from if that
// is the same: then it costs nothing.
func text4(addr netip.Addr, peer string) string {
	host := peer[:max(0, strings.LastIndexByte(peer, ':'))]
	if same, err := netip.ParseAddr(host); err == nil && same == addr {
		return host
	}
	return addr.String()
}

func (c *clientIP) trusts(addr netip.Addr) bool {
	for _, p := range c.trusted {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// A walk goes over the entries of a header field from the right, all its lines
// joined.
type walk struct {
	lines   []string
	entries []string // of the last line
	split   func(line string) (entries []string)
}

func (c *clientIP) newWalk(h http.Header) walk {
	if c.forwarded {
		return walk{lines: h["Forwarded"], split: forNodes}
	}
	return walk{lines: h["X-Forwarded-For"], split: func(line string) []string { return strings.Split(line, ",") }}
}

// next returns the next entry.
func (w *walk) next() (entry string, ok bool) {
	if len(w.entries) == 0 {
		last := len(w.lines) - 1
		if last < 0 {
			return "", false
		}
		w.lines, w.entries = w.lines[:last], w.split(w.lines[last])
	}
	last := len(w.entries) - 1
	entry, w.entries = w.entries[last], w.entries[:last]
	return strings.TrimSpace(entry), true
}

// forNodes returns for each element of a line of Forwarded the node that its
// parameter for names, or "" if it names none, or more than one.
func forNodes(line string) (nodes []string) {
	for element := range unquoted(line, ',') {
		node, found := "", 0
		for pair := range unquoted(element, ';') {
			name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
			if strings.EqualFold(name, "for") {
				found++
				node = strings.TrimSuffix(strings.TrimPrefix(value, `"`), `"`)
			}
		}
		if found > 1 {
			node = ""
		}
		nodes = append(nodes, node)
	}
	return nodes
}

// unquoted iterates over the parts of s between those of the separators that are
// not in a quoted string.
func unquoted(s string, separator byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		from, quoted := 0, false
		for i := 0; i < len(s); i++ {
			switch {
			case s[i] == '"':
				quoted = !quoted
			case quoted && s[i] == '\\':
				i++
			case s[i] == separator && !quoted:
				if !yield(s[from:i]) {
					return
				}
				from = i + 1
			}
		}
		yield(s[from:])
	}
}

// parseAddr returns the address in s, which may have a port, brackets or a zone.
func parseAddr(s string) (addr netip.Addr, ok bool) {
	var err error
	switch {
	case s == "":
		return addr, false
	case s[0] == '[' && s[len(s)-1] == ']':
		addr, err = netip.ParseAddr(s[1 : len(s)-1])
	case s[0] == '[' || strings.Count(s, ":") == 1:
		var port netip.AddrPort
		port, err = netip.ParseAddrPort(s)
		addr = port.Addr()
	default:
		addr, err = netip.ParseAddr(s)
	}
	return addr.WithZone("").Unmap(), err == nil
}
