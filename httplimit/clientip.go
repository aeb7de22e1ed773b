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
// address of such a proxy again, and over 32 proxies at most. Without prefixes, no
// proxy is trusted.
func TrustedProxies(prefixes ...netip.Prefix) IPOption {
	return func(c *clientIP) {
		c.listed = true
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
// [TrustedProxies] instead, because then anybody can be anybody. With both, a proxy
// must be among the n nearest and have a trusted address.
func TrustedHops(n int) IPOption {
	return func(c *clientIP) { c.hops, c.counted = n, true }
}

// FromForwarded reads the header field Forwarded (RFC 7239) instead of
// X-Forwarded-For. It must be the one that the proxies write, because a client can
// make up the other one.
func FromForwarded() IPOption { return func(c *clientIP) { c.forwarded = true } }

// IPv6Prefix sets how many bits of an IPv6 address tell clients apart. The
// default is 64, because a client usually controls its whole /64.
func IPv6Prefix(bits int) IPOption { return func(c *clientIP) { c.bits = bits } }

type clientIP struct {
	trusted   []netip.Prefix
	listed    bool // whether only these are trusted
	hops      int
	counted   bool // whether only so many are trusted
	forwarded bool
	bits      int
}

// mostProxies bounds how many a header field may name if they are not counted.
const mostProxies = 32

// ClientIP returns the client's IP address as the key: 192.0.2.1, or for IPv6 a
// prefix, 2001:db8::/64. It is the address of the connection's other end, unless
// that is a proxy that the options trust. Then X-Forwarded-For is read from the
// right, all its lines joined, over proxies that are trusted, up to the first
// address that is not: that is the client. An entry that is not an address ends the
// walk at the last one that was. So nothing that a client writes there can change
// its key.
//
// An IPv6 address that stands for one of IPv4 makes the same key as that: one that
// is mapped (::ffff:0:0/96) or translated by NAT64 (64:ff9b::/96, RFC 6052), and the
// client's address in those of 6to4 (2002::/16) and Teredo (2001::/32), which has a
// whole network, or shares one with others. In 64:ff9b:1::/48, where networks place
// IPv4 addresses as they like (RFC 8215), each address is a key.
//
// It fails if the connection has no address, as that of a Unix socket, and no
// trusted proxy names one.
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
	switch {
	case c.counted && hop >= c.hops, !c.counted && hop >= mostProxies:
		return false
	case c.listed:
		return known && c.trusts(addr)
	}
	return c.counted
}

// Prefixes of IPv6 in which IPv4 addresses lie.
var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")      // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")      // RFC 4380
)

// embedded returns the IPv4 address that an IPv6 address stands for, or itself, and
// how many of its bits tell clients apart.
func embedded(addr netip.Addr, bits int) (netip.Addr, int) {
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:])), 32
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), 32
	case teredo.Contains(addr): // inverted, lest address translators change it
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), 32
	case localNAT64.Contains(addr):
		return addr, 128
	}
	return addr, bits
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

// longestAddr bounds the text of an address, with a port, brackets and a zone.
const longestAddr = 128

// parseAddr returns the address in s, which may have a port, brackets or a zone.
func parseAddr(s string) (addr netip.Addr, ok bool) {
	var err error
	switch {
	case s == "" || len(s) > longestAddr:
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
