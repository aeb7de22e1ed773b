package client

import (
	"encoding/base64"
	"encoding/hex"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ratelimit-go/ratelimit/internal/ascii"
)

// quotaOf returns the quota of a RateLimit field that needs the slowest pace: of the items of a
// list ("name";r=1;t=2) or, in an earlier draft, of a dictionary (limit=3, remaining=1, reset=2).
// policy is the field RateLimit-Policy, which has the limits of a list, and windows.
func quotaOf(rateLimit, policy []string) (slowest Quota, ok bool) {
	policies := make(map[string]sfMember)
	for _, m := range sfMembers(policy) {
		policies[m.name] = m
	}
	slowest.Left = -1
	var whole sfMember // the dictionary, as if it were an item
	for _, m := range sfMembers(rateLimit) {
		switch m.key {
		case "": // an item of a list
			m.quota, m.window = policies[m.name].quota, policies[m.name].window
			slowest = slower(slowest, m.said())
		case "limit":
			whole.quota, whole.window = m.value, policies[m.name].window
		case "remaining":
			whole.left = m.value
		case "reset":
			whole.reset = m.value
		}
	}
	return slower(slowest, whole.said()).bounded()
}

// slower returns what needs the slower pace. What says nothing has a negative Left.
func slower(q, other Quota) Quota {
	if q.Left < 0 || other.Left >= 0 && other.isSlower(q) {
		return other
	}
	return q
}

// An sfInteger is an integer of a structured field. It is not known if there is none, or a value
// of another type.
type sfInteger struct {
	n     int64
	known bool
}

// count returns n as a number of requests.
func (n sfInteger) count() int { return int(min(max(0, n.n), mostLeft)) }

// duration returns n seconds, from 0 to most.
func (n sfInteger) duration(most time.Duration) time.Duration {
	return time.Duration(min(max(0, n.n), int64(most/time.Second))) * time.Second
}

// An sfMember is a member of a list or, if it has a key, of a dictionary.
type sfMember struct {
	key                        string
	name                       string // the value as it is written
	value                      sfInteger
	left, reset, quota, window sfInteger // the parameters r, t, q and w
}

// said returns what m says as an item of a list. If it says nothing, Left is negative.
func (m sfMember) said() Quota {
	if !m.left.known || !m.reset.known || m.left.n < 0 || m.reset.n < 0 {
		return Quota{Left: -1}
	}
	return Quota{
		Left: m.left.count(), Limit: m.quota.count(),
		Reset: m.reset.duration(longestRest), Window: m.window.duration(math.MaxInt64),
	}
}

// How much of a field is read.
const (
	longestField = 4096 // in bytes
	mostMembers  = 32
)

// sfMembers returns the members of a field, and none if it is not well-formed (RFC 9651, 4.2).
func sfMembers(lines []string) (members []sfMember) {
	p := sfParser{strings.Join(lines, ",")}
	if len(p.rest) > longestField {
		return nil
	}
	for p.rest != "" {
		m, ok := p.member()
		if !ok || len(members) == mostMembers ||
			len(members) > 0 && (m.key == "") != (members[0].key == "") {
			return nil
		}
		members = append(members, m)
	}
	return members
}

// An sfParser parses what is used of structured fields (RFC 9651): lists and dictionaries of items
// of all types, but no inner lists.
type sfParser struct{ rest string }

// member parses the next member, and the comma after it, unless it is the last one.
func (p *sfParser) member() (m sfMember, ok bool) {
	p.rest = strings.TrimLeft(p.rest, " \t")
	if key := p.key(); key != "" && p.rest[len(key):] != "" && p.rest[len(key)] == '=' {
		m.key, p.rest = key, p.rest[len(key)+1:]
	}
	written := p.rest
	m.value, ok = p.value()
	if !ok {
		return m, false
	}
	m.name = written[:len(written)-len(p.rest)]
	for p.take(';') {
		p.rest = strings.TrimLeft(p.rest, " ")
		key := p.key()
		if key == "" {
			return m, false
		}
		p.rest = p.rest[len(key):]
		var value sfInteger
		if p.take('=') {
			value, ok = p.value()
			if !ok {
				return m, false
			}
		}
		switch key {
		case "r":
			m.left = value
		case "t":
			m.reset = value
		case "q":
			m.quota = value
		case "w":
			m.window = value
		}
	}
	p.rest = strings.TrimLeft(p.rest, " \t")
	if p.rest == "" {
		return m, true
	}
	if !p.take(',') {
		return m, false
	}
	p.rest = strings.TrimLeft(p.rest, " \t")
	return m, p.rest != ""
}

// take skips c, if it is next.
func (p *sfParser) take(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// key returns the key that is next, if there is one.
func (p *sfParser) key() string {
	n := 0
	for n < len(p.rest) && (beginsKey(p.rest[n]) || n > 0 && continuesKey(p.rest[n])) {
		n++
	}
	return p.rest[:n]
}

// beginsKey reports whether a key may begin with c, and continuesKey whether c may only come later.
func beginsKey(c byte) bool    { return isLower(c) || c == '*' }
func continuesKey(c byte) bool { return isDigit(c) || strings.IndexByte("_-.", c) >= 0 }

// value parses a value, and returns it if it is an integer.
func (p *sfParser) value() (n sfInteger, ok bool) {
	if p.rest == "" {
		return n, false
	}
	end := 0 // of the value; 0 if it is malformed
	switch c := p.rest[0]; {
	case c == '"':
		end = p.stringEnd()
	case c == ':':
		if bytes, _, found := strings.Cut(p.rest[1:], ":"); found {
			// A parser should not insist on the padding (RFC 9651, 4.2.7).
			unpadded := strings.TrimRight(bytes, "=")
			if _, err := base64.RawStdEncoding.DecodeString(unpadded); err == nil {
				end = len(bytes) + 2
			}
		}
	case c == '@': // a date
		p.rest = p.rest[1:]
		_, ok = p.integer()
		return n, ok
	case strings.HasPrefix(p.rest, `%"`):
		end = p.displayStringEnd()
	case c == '?':
		if len(p.rest) > 1 && (p.rest[1] == '0' || p.rest[1] == '1') {
			end = 2
		}
	case c == '-' || isDigit(c):
		return p.number()
	case c == '*' || isLower(c|0x20):
		for end < len(p.rest) &&
			(ascii.InToken(p.rest[end]) || p.rest[end] == ':' || p.rest[end] == '/') {
			end++
		}
	}
	p.rest = p.rest[end:]
	return n, end > 0
}

// stringEnd returns the end of the string that is next, or 0 if it is malformed.
func (p *sfParser) stringEnd() int {
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			return i + 1
		case c < ' ' || c > '~':
			return 0
		case c == '\\':
			if i++; i == len(p.rest) || p.rest[i] != '"' && p.rest[i] != '\\' {
				return 0
			}
		}
	}
	return 0
}

// displayStringEnd returns the end of the display string that is next, or 0 if it is malformed: its
// bytes after %" are printable or, in hexadecimal after a %, UTF-8.
func (p *sfParser) displayStringEnd() int {
	var text []byte
	for i := len(`%"`); i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"' && utf8.Valid(text):
			return i + 1
		case c == '"' || c < ' ' || c > '~':
			return 0
		case c == '%':
			digits := p.rest[i+1 : min(i+3, len(p.rest))]
			b, err := hex.DecodeString(digits)
			if err != nil || len(b) != 1 || strings.ToLower(digits) != digits {
				return 0
			}
			text = append(text, b[0])
			i += len(digits)
		default:
			text = append(text, c)
		}
	}
	return 0
}

// number parses an integer or a decimal, and returns it if it is an integer.
func (p *sfParser) number() (n sfInteger, ok bool) {
	written := p.rest
	whole, ok := p.integer()
	digits := len(strings.TrimPrefix(written[:len(written)-len(p.rest)], "-"))
	if !ok || !p.take('.') {
		return whole, ok
	}
	decimals := p.digits()
	return n, digits <= 12 && 1 <= len(decimals) && len(decimals) <= 3
}

// integer parses an integer.
func (p *sfParser) integer() (n sfInteger, ok bool) {
	negative := p.take('-')
	digits := p.digits()
	if digits == "" || len(digits) > 15 {
		return n, false
	}
	for _, d := range []byte(digits) {
		n.n = 10*n.n + int64(d-'0')
	}
	if negative {
		n.n = -n.n
	}
	n.known = true
	return n, true
}

// digits skips the digits that are next, and returns them.
func (p *sfParser) digits() string {
	n := 0
	for n < len(p.rest) && isDigit(p.rest[n]) {
		n++
	}
	digits := p.rest[:n]
	p.rest = p.rest[n:]
	return digits
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
