package httplimit

import (
	"fmt"
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
	if p.Addr().Is4In6() {
		return -1 // more than IPv4: no prefix of either
	}
	return p.Bits()
}

// TrustedHops believes the n nearest proxies, whatever their addresses are: 1 if
// every request comes through one load balancer, 2 if through a content delivery
// network before that. If anybody can reach the service past them, use
// [TrustedProxies] instead, for then anybody can be anybody. With both, a proxy
// must be among the n nearest and have a trusted address.
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
	for _, p := range c.trusted {
		if !p.IsValid() {
			return func(*http.Request) (string, error) {
				return "", fmt.Errorf("httplimit: TrustedProxies: %v is no prefix: give one such as 10.0.0.0/8 or 2001:db8::/32", p)
			}
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
	for hop := 0; c.believes(hop, client, ok); hop++ {
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

// believes reports whether what the hop-th proxy says is to be believed, whose
// address may not be known.
func (c *clientIP) believes(hop int, addr netip.Addr, known bool) bool {
	if len(c.trusted) == 0 {
		return hop < c.hops
	}
	return known && c.trusts(addr) && (c.hops == 0 || hop < c.hops)
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
	lines []string // but the one that the walk is in
	line  string   // what is left of that
	in    bool     // whether it is in one

	// last returns the last entry of a line, and what is left, if anything is.
	last func(line string) (entry, rest string, more bool)
}

func (c *clientIP) newWalk(h http.Header) walk {
	if c.forwarded {
		return walk{lines: h["Forwarded"], last: lastNode}
	}
	return walk{lines: h["X-Forwarded-For"], last: lastAddress}
}

// next returns the next entry.
func (w *walk) next() (entry string, ok bool) {
	if !w.in {
		last := len(w.lines) - 1
		if last < 0 {
			return "", false
		}
		w.lines, w.line = w.lines[:last], w.lines[last]
	}
	entry, w.line, w.in = w.last(w.line)
	return entry, true
}

func lastAddress(line string) (entry, rest string, more bool) {
	cut := strings.LastIndexByte(line, ',')
	return strings.TrimSpace(line[cut+1:]), line[:max(cut, 0)], cut >= 0
}

// mostCommas bounds how many an element may have within quotes.
const mostCommas = 8

// lastNode returns the node that the parameter for of the last element of a line
// of Forwarded names, or "" if it is none, or names none, or more than one.
//
// Where elements end, only the quotes before can tell, and a client may have left
// one open. But what a proxy has added is an element by itself: so the shortest
// end of the line that is one is taken, whatever comes before.
func lastNode(line string) (node, rest string, more bool) {
	cut := len(line)
	for range mostCommas + 1 {
		if cut = strings.LastIndexByte(line[:cut], ','); cut < 0 {
			node, _ = forNode(line)
			return node, "", false
		}
		if node, ok := forNode(line[cut+1:]); ok {
			return node, line[:cut], true
		}
	}
	return "", "", false
}

// forNode returns the node that an element of Forwarded names, and whether it is
// what RFC 7239 says.
func forNode(element string) (node string, ok bool) {
	found := 0
	for rest := element; ; {
		name, value, end, ok := forwardedPair(rest)
		if !ok || end < len(rest) && rest[end] == ',' {
			return "", false
		}
		if strings.EqualFold(name, "for") {
			node, found = value, found+1
		}
		if end == len(rest) {
			if found != 1 {
				node = ""
			}
			return node, true
		}
		rest = rest[end+1:]
	}
}

// forwardedPair returns the first parameter of s, which may be missing, and where
// it ends: at a comma, a semicolon or the end of s.
func forwardedPair(s string) (name, value string, end int, ok bool) {
	i := skipBlanks(s, 0)
	from := i
	for i < len(s) && isToken(s[i]) {
		i++
	}
	if name = s[from:i]; name != "" {
		if i == len(s) || s[i] != '=' {
			return "", "", 0, false
		}
		i++
		from = i
		if i < len(s) && s[i] == '"' {
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' {
					i++
				}
			}
			if i >= len(s) {
				return "", "", 0, false // it does not end
			}
			value = s[from+1 : i]
			i++
		} else {
			for i < len(s) && (isToken(s[i]) || s[i] == ':') { // a port is to be in quotes, and often is not
				i++
			}
			value = s[from:i]
		}
	}
	i = skipBlanks(s, i)
	return name, value, i, i == len(s) || s[i] == ',' || s[i] == ';'
}

func skipBlanks(s string, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\t') {
		i++
	}
	return i
}

// isToken reports whether c may be in a token (RFC 9110, 5.6.2).
func isToken(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
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
