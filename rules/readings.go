package rules

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/clock"
)

// Handlers do not agree on what a path is. For /a%2Fb/../c, net/http's ServeMux looks
// at the segments of the clean path, and unescapes each; http.FileServer unescapes the
// whole first, and then cleans it, so that %2F and %2e%2e count; some routers do not
// clean, some do not unescape, and most heed upper and lower case. A handler that is
// mounted on a prefix may do with the rest what it likes: http.FileServer behind
// http.StripPrefix cleans it alone, so that .. in it leads no further up than that. A client that knows
// which rules there are could write a path that its handler reads in one way and that
// is counted in another. So a call counts against the rule of every way to read its
// path: whichever the handler's is, the rule for it is among them.

// match appends to found each rule that a call may be meant by, once: first those that
// refuse, then the shadows.
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
		found = m.readEscaped(found, p)
		if clean := path.Clean("/" + p); clean != p {
			found = m.readEscaped(found, clean)
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

// plain appends the segments of a path as split does, if it reads the same unescaped,
// cleaned, and in lower case, except for a slash at its end.
func (t *index) plain(segments []string, p string) (_ []string, ok bool) {
	if p == "" || p[0] != '/' {
		return segments, p == ""
	}
	begin := 1
	for i := 1; i < len(p); i++ {
		switch c := p[i]; {
		case c == '%' || c >= 0x80 || 'A' <= c && c <= 'Z':
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

// A matching finds the rules of the ways to read a call. Its methods append to found
// those that are not there yet.
type matching struct {
	*index
	method, upper string
	now           time.Time // if it matters
}

// readEscaped reads a path that may have escapes.
func (m *matching) readEscaped(found []*compiled, p string) []*compiled {
	found = m.read(found, p)
	if !strings.Contains(p, "%") {
		return m.readMounted(found, p, p)
	}
	segments := m.split(nil, p)
	for i, s := range segments {
		segments[i] = unescape(s) // a slash in it does not divide it
	}
	found = m.find(found, segments)
	plain := unescape(p)
	found = m.read(found, plain)
	found = m.read(found, path.Clean("/"+plain))
	found = m.readMounted(found, p, plain) // on segments of the path as it was sent
	return m.readMounted(found, plain, plain)
}

// readMounted reads a path as handlers do that are mounted on a prefix of it, and clean
// the rest, unescaped. plain is the path, unescaped: the same if its segments are to be
// taken as they are.
func (m *matching) readMounted(found []*compiled, p, plain string) []*compiled {
	if !strings.Contains(plain, "/.") && !strings.Contains(plain, "//") && strings.Count(p, "/") == strings.Count(plain, "/") {
		return found // it makes no difference
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

// read reads a path without escapes, or as if it had none.
func (m *matching) read(found []*compiled, p string) []*compiled {
	var buf [16]string
	return m.find(found, m.split(buf[:0], p))
}

// split appends the segments of a path. If they are more than any rule has, the last
// one is the rest. A slash at the end begins no segment.
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

// find finds the rules for segments, whether or not a handler heeds their case.
func (m *matching) find(found []*compiled, segments []string) []*compiled {
	found = m.findIn(found, &m.exact, segments)
	lower := make([]string, len(segments))
	for i, s := range segments {
		lower[i] = strings.ToLower(s)
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

// unescape returns s without its escapes, where they are right.
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

// unhex returns the value of a hexadecimal digit, or more than 15.
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
