package main

import (
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
)

// A skipReason is why a line is left out of the replay.
type skipReason string

func (r skipReason) Error() string { return string(r) }

const (
	errBlank   skipReason = "blank or a comment"
	errTooLong skipReason = "longer than 1 MiB"
	errForeign skipReason = "not in the log's format"
	errTime    skipReason = "the time cannot be read"
	errRange   skipReason = "the time is before 1970 or after 2200"
	errKey     skipReason = "the key is missing"
	errPath    skipReason = "the path is missing"
	errCount   skipReason = "n is not an integer from 1 to 2147483647"
)

// anyLayouts are the layouts of times, unless -time sets another. Seconds may have a fraction. A
// time without a zone is UTC. Any log may also have Unix times.
var anyLayouts = []string{
	"02/Jan/2006:15:04:05 -0700", "02/Jan/2006:15:04:05", time.RFC3339,
	"2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05",
}

// latest is the year 2200, in nanoseconds since the Unix epoch.
const latest = 7258118400e9

// parseTime returns a time in nanoseconds since the Unix epoch, exact to the microsecond. It finds
// the unit of a Unix time by the size of the number: for times from 1973 to 5138, numbers of
// seconds, milliseconds, microseconds and nanoseconds lie in different ranges.
func parseTime(s string, layouts []string) (int64, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		for range 3 {
			if seconds >= 1e11 {
				seconds /= 1000
			}
		}
		if !(seconds >= 0 && seconds*1e9 < latest) { // written so that NaN fails as well
			return 0, errRange
		}
		return int64(math.Round(seconds*1e6)) * 1000, nil
	}
	s = strings.ReplaceAll(s, "\t", " ")
	for _, layout := range layouts {
		t, err := time.Parse(layout, s)
		switch {
		case err != nil:
			continue
		case t.Unix() < 0 || t.Unix() >= latest/1e9:
			return 0, errRange
		}
		return t.UnixNano(), nil
	}
	return 0, errTime
}

var clientIP = clientip.Of()

// parseAddr parses an address, with or without a port.
func parseAddr(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err == nil {
		return addr, true
	}
	port, err := netip.ParseAddrPort(s)
	return port.Addr(), err == nil
}

// keyOf returns the key of a client. If the client is an address, its key is that of package
// httplimit: the address without its port or, for IPv6, its /64. Of a list of addresses, as in
// X-Forwarded-For, keyOf uses the first. The key of any other text is the text itself.
func keyOf(s string) string {
	first, _, _ := strings.Cut(s, ",")
	if addr, ok := parseAddr(first); ok {
		r := http.Request{RemoteAddr: netip.AddrPortFrom(addr.WithZone(""), 0).String()}
		if key, err := clientIP(&r); err == nil {
			return key
		}
	}
	return s
}
