package main

import (
	"bytes"
	"net/http"
	"net/netip"
	"strings"

	"github.com/ratelimit-go/ratelimit/httplimit"
)

// maxClients is how many clients are cached by their text.
const maxClients = 1 << 16

// clients maps the text of a client in a line to its key. An address has the key that
// httplimit gives it: 192.0.2.1, or 2001:db8::/64.
type clients struct {
	keyOf httplimit.KeyFunc
	known map[string]client // at most maxClients of them
}

// A client is the parsed text of a client.
type client struct {
	key  string // empty if the line has no client
	addr bool   // whether it is an address, as opposed to a name
}

func newClients() clients {
	return clients{keyOf: httplimit.ClientIP(), known: make(map[string]client)}
}

// of returns the client with the text s: an address with or without a port, a list such
// as X-Forwarded-For's, whose first entry is the client, or any other text, which is its
// name.
func (c *clients) of(s []byte) client {
	s = withoutPort(s)
	if known, ok := c.known[string(s)]; ok {
		return known
	}
	if len(c.known) >= maxClients {
		clear(c.known)
	}
	text := string(s)
	found := c.parse(text)
	c.known[text] = found
	return found
}

func (c *clients) parse(s string) client {
	s, _, _ = strings.Cut(s, ",")
	s = strings.Trim(s, ` "`)
	host := string(withoutPort([]byte(s)))
	addr, err := netip.ParseAddr(host)
	if err != nil {
		// Some programs write an IPv6 address before a port without brackets.
		if i := strings.LastIndexByte(host, ':'); i > 0 {
			addr, err = netip.ParseAddr(host[:i])
		}
	}
	if err == nil {
		r := http.Request{RemoteAddr: netip.AddrPortFrom(addr.WithZone(""), 0).String()}
		if key, err := c.keyOf(&r); err == nil {
			return client{key, true}
		}
	}
	if host == "-" {
		host = ""
	}
	return client{host, false}
}

// withoutPort returns s without its brackets and port, if it has them. It does not change
// an IPv6 address without brackets.
func withoutPort(s []byte) []byte {
	i := bytes.IndexByte(s, ':')
	if i < 0 {
		return s
	}
	if s[0] == '[' {
		if end := bytes.IndexByte(s, ']'); end > 0 {
			return s[1:end]
		}
		return s
	}
	if bytes.IndexByte(s[i+1:], ':') >= 0 || !isNumber(s[i+1:]) {
		return s
	}
	return s[:i]
}

// withoutLastPort is like withoutPort for an address that is known to have a port, and may
// be IPv6 without brackets.
func withoutLastPort(s []byte) []byte {
	if i := bytes.LastIndexByte(s, ':'); i >= 0 {
		return bytes.Trim(s[:i], "[]")
	}
	return s
}

// isAddress reports whether s is an address, with or without a port.
func isAddress(s []byte) bool {
	_, err := netip.ParseAddr(string(withoutPort(s)))
	return err == nil
}

func isNumber(s []byte) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(s) > 0
}
