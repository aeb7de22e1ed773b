package clientip

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
)

// proxyFields are the header fields in which proxies report the client, in the canonical form
// of net/http.
var proxyFields = [...]string{
	fieldXForwardedFor, fieldForwarded,
	"X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip", "Fly-Client-Ip",
}

// An untrustedLog logs once that there seems to be a proxy, and nobody is trusted. A client may
// send the field as well as a proxy, so the line does not tell which of the two the peer is.
type untrustedLog struct{ done atomic.Bool }

// check logs the first request that has one of proxyFields. known is whether the address of its
// peer is known.
func (l *untrustedLog) check(r *http.Request, peer netip.Addr, known bool) {
	if l.done.Load() {
		return
	}
	for _, field := range proxyFields {
		if len(r.Header[field]) == 0 {
			continue
		}
		if !l.done.Swap(true) {
			slog.WarnContext(r.Context(),
				"clientip: a request has a header field that proxies write, but no proxy is trusted: "+
					"if the peer is a proxy, all its clients share one limit",
				"field", field, "peer", r.RemoteAddr,
				"if_proxy_write", trusting(field, peer, known),
				"if_not_write", "httplimit.WithKey(clientip.Of(clientip.TrustedProxies()))")
		}
		return
	}
}

// trusting returns the code that makes Of believe the field of the peer.
func trusting(field string, peer netip.Addr, known bool) string {
	trusted := "clientip.TrustedHops(1)"
	if known {
		trusted = fmt.Sprintf(
			"clientip.TrustedProxies(netip.MustParsePrefix(%q))",
			netip.PrefixFrom(peer, peer.BitLen()),
		)
	}
	switch field {
	case fieldXForwardedFor:
	case fieldForwarded:
		trusted += ", clientip.FromForwarded()"
	default:
		trusted += fmt.Sprintf(", clientip.FromHeader(%q)", field)
	}
	return "httplimit.WithKey(clientip.Of(" + trusted + "))"
}
