package rules

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/benbjohnson/clock"
)

// Handlers interpret paths differently. For /a%2Fb/../c, net/http's ServeMux cleans the
// path, splits it into segments, and unescapes each. http.FileServer unescapes the whole
// path first and then cleans it, so that %2F and %2e%2e count. Some routers do not clean
// paths, some do not unescape them, and most distinguish upper and lower case. A handler
// mounted on a prefix may process the rest of the path separately: http.FileServer behind
// http.StripPrefix cleans only the rest, so that .. cannot lead above the prefix. A client
// that knows the rules could write a path that its handler reads in one way and the
// rules in another. So a call counts against the rules for every reading of its path:
// the rule for the handler's reading is among them.

// match appends to found each rule that applies to a reading of the call, once: first
// the enforced rules, then the shadows.
func (t *index) match(found []*compiled, method, p string, clk clock.Clock) []*compiled {
	m := matching{index: t, method: method, upper: strings.ToUpper(method)}
	if t.ends {
		m.now = clk.Now()
	}
	var buf [16]string
	if segments, ok := t.plain(buf[:0], p); ok {
		found = m.findIn(found, &t.folded, segments)
		if t.cased {
			found = m.findIn(found, &t.exact, segments)
		}
	} else {
		for _, form := range forms(p) {
			found = m.readEscaped(found, form)
		}
	}
	if len(found) < 2 {
		return found
	}
	slices.SortStableFunc(found, func(a, b *compiled) int {
		switch {
		case a.Shadow == b.Shadow:
			return 0
		case b.Shadow:
			return -1
		}
		return 1
	})
	return found
}

// plain appends the segments of a path as split does, if all readings of the path are
// the same: unescaping, cleaning and lower-casing change nothing except perhaps a
// trailing slash.
func (t *index) plain(segments []string, p string) (_ []string, ok bool) {
	if p == "" || p[0] != '/' {
		return segments, p == ""
	}
	begin := 1
	for i := 1; i < len(p); i++ {
		switch c := p[i]; {
		case c == '%' || c == '\\' || c >= 0x80 || 'A' <= c && c <= 'Z':
			return nil, false
		case (c == '/' || c == '.') && p[i-1] == '/':
			return nil, false
		case c == '/' && len(segments) < t.depth:
			segments = append(segments, p[begin:i])
			begin = i + 1
		}
	}
	if begin < len(p) {
		segments = append(segments, p[begin:])
	}
	return segments, true
}

// A matching finds the rules for the readings of a call. Its methods append to found
// the rules that it does not contain yet.
type matching struct {
	*index
	method, upper string
	now           time.Time // set only if a rule expires
}

// forms returns what handlers make of a path before they split it: nothing, the path without
// slashes at its ends, cleaned as by [path.Clean], or without dots but with empty segments, as
// section 5.2.4 of RFC 3986 says; and the first and the third with \ as /.
func forms(p string) []string {
	all := append(make([]string, 0, 6), p, path.Clean("/"+p))
	if strings.HasPrefix(p, "//") || strings.HasSuffix(p, "//") {
		all = append(all, "/"+strings.Trim(p, "/"))
	}
	if strings.Contains(p, "//") && strings.Contains(p, "/.") {
		all = append(all, withoutDots(p))
	}
	if slashed := strings.NewReplacer(`\`, "/", "%5C", "/", "%5c", "/").Replace(p); slashed != p {
		all = append(all, slashed, path.Clean("/"+slashed))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// withoutDots removes the segments . and .. of a path, each .. with the segment before it.
func withoutDots(p string) string {
	var out []byte
	for p = strings.TrimPrefix(p, "/"); ; {
		s, rest, more := strings.Cut(p, "/")
		switch {
		case s == "..":
			out = out[:max(0, bytes.LastIndexByte(out, '/'))]
		case s != ".":
			out = append(append(out, '/'), s...)
		}
		if !more {
			return string(out)
		}
		p = rest
	}
}

// readEscaped finds the rules for a path that may have escapes.
func (m *matching) readEscaped(found []*compiled, p string) []*compiled {
	found = m.read(found, p)
	if !strings.Contains(p, "%") {
		return m.readMounted(found, p, p)
	}
	segments := m.split(nil, p)
	for i, s := range segments {
		segments[i] = unescape(s) // an escaped slash does not separate segments here
	}
	found = m.find(found, segments)
	plain := unescape(p)
	for _, form := range forms(plain) {
		found = m.read(found, form)
	}
	found = m.readMounted(found, p, plain) // mounted on segments of the path as sent
	return m.readMounted(found, plain, plain)
}

// readMounted finds the rules for a path p as read by handlers that are mounted on a prefix
// of it, and unescape and clean the rest. plain is p unescaped, or p itself if escapes are to
// be taken literally.
func (m *matching) readMounted(found []*compiled, p, plain string) []*compiled {
	if !strings.Contains(plain, "/.") && !strings.Contains(plain, "//") &&
		strings.Count(p, "/") == strings.Count(plain, "/") {
		return found // cleaning makes no difference
	}
	if strings.HasPrefix(p, "/") {
		p, plain = p[1:], plain[1:]
	}
	var prefix []string
	for escaped := len(p) > len(plain); len(prefix) < m.depth; {
		s, rest, more := strings.Cut(p, "/")
		if !more {
			break
		}
		if escaped {
			s = unescape(s)
		}
		p, plain = rest, plain[len(s)+1:]
		prefix = append(prefix, s)
		found = m.find(found, m.split(slices.Clone(prefix), path.Clean("/"+plain)))
	}
	return found
}

// read finds the rules for a path, taking escapes literally.
func (m *matching) read(found []*compiled, p string) []*compiled {
	var buf [16]string
	return m.find(found, m.split(buf[:0], p))
}

// split appends the segments of a path. If the path has more segments than any rule, the
// last one appended is the rest of the path. A trailing slash is ignored.
func (m *matching) split(segments []string, p string) []string {
	p = strings.TrimPrefix(p, "/")
	p = strings.TrimSuffix(p, "/")
	if p == "" {
		return segments
	}
	for len(segments) < m.depth {
		s, rest, more := strings.Cut(p, "/")
		segments = append(segments, s)
		if !more {
			return segments
		}
		p = rest
	}
	return append(segments, p)
}

// find finds the rules for segments, both case-sensitively and case-insensitively.
func (m *matching) find(found []*compiled, segments []string) []*compiled {
	found = m.findIn(found, &m.exact, segments)
	lower := make([]string, len(segments))
	for i, s := range segments {
		lower[i] = fold(s)
	}
	return m.findIn(found, &m.folded, lower)
}

func (m *matching) findIn(found []*compiled, t *tree, segments []string) []*compiled {
	found = add(found, t.find(m.upper, segments, m.now))
	if m.method != m.upper {
		found = add(found, t.find(m.method, segments, m.now))
	}
	return found
}

func add(found []*compiled, c *compiled) []*compiled {
	if c == nil || slices.Contains(found, c) {
		return found
	}
	return append(found, c)
}

// unescape replaces the valid escapes in s and keeps invalid ones as they are.
func unescape(s string) string {
	at := strings.IndexByte(s, '%')
	if at < 0 {
		return s
	}
	plain := append(make([]byte, 0, len(s)), s[:at]...)
	for i := at; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if high, low := unhex(s[i+1]), unhex(s[i+2]); high < 16 && low < 16 {
				plain = append(plain, high<<4|low)
				i += 2
				continue
			}
		}
		plain = append(plain, s[i])
	}
	return string(plain)
}

// unhex returns the value of a hexadecimal digit, or 16 if c is not one.
func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 16
}

// fold returns s with one of all the letters that differ only in case. Unlike
// [strings.ToLower], it has one for s and ſ, and for i and ı.
func fold(s string) string {
	return strings.Map(func(r rune) rune { return unicode.ToLower(unicode.ToUpper(r)) }, s)
}
