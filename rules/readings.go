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
		found = m.readEscaped(found, p, nil)
		found = m.readMounted(found, p, true)
		if plain := unescape(p); plain != p {
			found = m.readMounted(found, plain, false)
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

// forms returns what handlers make of a path before they split it: nothing, the path cleaned as by
// [path.Clean], without slashes at its ends, or without dots but with empty segments, as section
// 5.2.4 of RFC 3986 says; and all of these with \ as /.
func forms(p string) []string {
	all := make([]string, 0, 8)
	for _, p := range []string{p, backslashes.Replace(p)} {
		all = append(all, p, path.Clean("/"+p), strings.Trim(p, "/"), withoutDots(p))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var backslashes = strings.NewReplacer(`\`, "/", "%5C", "/", "%5c", "/")

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

// readEscaped finds the rules for the readings of p, which follows one of some prefixes: a handler
// takes the escapes of p literally, or unescapes p before or after it makes a form of it, or
// unescapes each segment, where an escaped slash does not separate segments.
func (m *matching) readEscaped(found []*compiled, p string, prefixes ...[]string) []*compiled {
	if !strings.Contains(p, "%") {
		return m.readPlain(found, p, prefixes...)
	}
	literal := forms(p)
	for _, form := range literal {
		for _, prefix := range prefixes {
			segments := m.split(slices.Clone(prefix), form)
			for i := len(prefix); i < len(segments); i++ {
				segments[i] = unescape(segments[i])
			}
			found = m.find(found, segments)
		}
	}
	all := slices.Concat(literal, forms(unescape(p)), forms(unescape(path.Clean("/"+p))))
	for _, form := range literal {
		all = append(all, unescape(form))
	}
	return m.read(found, all, prefixes)
}

// readPlain finds the rules for the forms of p, which has no escapes, or none that a handler
// unescapes.
func (m *matching) readPlain(found []*compiled, p string, prefixes ...[]string) []*compiled {
	return m.read(found, forms(p), prefixes)
}

// readMounted finds the rules for p as read by handlers that are mounted on a prefix of it, whose
// segments they compare as they are or unescaped, and that read the rest as a path of its own. They
// unescape the rest only if p is escaped.
func (m *matching) readMounted(found []*compiled, p string, escaped bool) []*compiled {
	var literal, plain []string
	for rest := strings.TrimPrefix(p, "/"); len(literal) < m.depth; {
		s, after, more := strings.Cut(rest, "/")
		if !more || !cleaningMatters(after) {
			break
		}
		rest, literal, plain = after, append(literal, s), append(plain, unescape(s))
		prefixes := [][]string{literal, plain}
		if slices.Equal(literal, plain) {
			prefixes = prefixes[:1]
		}
		if escaped {
			found = m.readEscaped(found, "/"+rest, prefixes...)
		} else {
			found = m.readPlain(found, "/"+rest, prefixes...)
		}
	}
	return found
}

// cleaningMatters reports whether a reading of p may have dots or empty segments, or segments that
// are not there if escapes are taken literally.
func cleaningMatters(p string) bool {
	return strings.ContainsAny(p, `%\`) || strings.HasPrefix(p, "/") || strings.HasPrefix(p, ".") ||
		strings.Contains(p, "//") || strings.Contains(p, "/.")
}

// read finds the rules for paths that follow one of some prefixes, taking escapes literally.
func (m *matching) read(found []*compiled, paths []string, prefixes [][]string) []*compiled {
	slices.Sort(paths)
	for _, p := range slices.Compact(paths) {
		for _, prefix := range prefixes {
			var buf [16]string
			found = m.find(found, m.split(append(buf[:0], prefix...), p))
		}
	}
	return found
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
	lower := slices.Clone(segments)
	for i, s := range lower[:min(len(lower), m.depth)] { // no rule has a word for what follows
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
