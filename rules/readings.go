package rules

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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
		found = m.readAll(found, p)
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
	scratch       []byte    // for texts while they are made
}

// A text is what handlers make of a path before they split it. Handlers that are mounted on a
// prefix of the path make an end of the text from the rest, because no step from one text to the
// next depends on what comes before: unescaping does not, and a segment .. removes one before it.
// So a text is made once for all mounts, and the work grows with the length of the path alone.
type text struct {
	path  string
	rests []int // where the end for each mount begins, in the order of the mounts
}

// A mount is the prefixes of a path on which a handler may be mounted after some segments of the
// path: the segments as they are, and unescaped. The first mount has no segments.
type mount [][]string

// readAll finds the rules for all readings of p.
func (m *matching) readAll(found []*compiled, p string) []*compiled {
	whole, mounts := m.mountsOf(p)
	plain := m.unescaped(whole)
	hasEscapes := strings.Contains(p, "%")
	literal := m.forms(nil, whole)
	texts := literal
	if hasEscapes { // which handlers replace before or after they make a form, or in between
		texts = m.forms(slices.Clip(texts), plain)
		texts = m.forms(texts, m.unescaped(m.cleaned(whole)))
		for _, t := range literal {
			texts = addText(texts, m.unescaped(t))
		}
	}
	for i := range mounts {
		if hasEscapes {
			found = m.read(found, i, mounts[i], literal, true)
		}
		found = m.read(found, i, mounts[i], texts, false)
	}
	if plain.path == whole.path {
		return found
	}
	plain, mounts = m.mountsOf(plain.path) // of which the prefix is one of the unescaped path
	texts = m.forms(nil, plain)
	for i := 1; i < len(mounts); i++ {
		found = m.read(found, i, mounts[i], texts, false)
	}
	return found
}

// mountsOf returns a path as a text, and its mounts: those of which the rest has other readings
// than the end of those of the path.
func (m *matching) mountsOf(p string) (whole text, mounts []mount) {
	whole, mounts = text{p, []int{0}}, []mount{{nil}}
	var literal, plain []string
	for at := len(p) - len(strings.TrimPrefix(p, "/")); len(literal) < m.depth; {
		s, rest, more := strings.Cut(p[at:], "/")
		if !more || !cleaningMatters(rest) {
			break
		}
		at += len(s) + 1
		literal, plain = append(literal, s), append(plain, unescape(s))
		its := mount{literal, plain}
		if slices.Equal(literal, plain) {
			its = its[:1]
		}
		whole.rests, mounts = append(whole.rests, at-1), append(mounts, its)
	}
	return whole, mounts
}

// cleaningMatters reports whether a reading of p may have dots or empty segments, or segments that
// are not there if escapes are taken literally.
func cleaningMatters(p string) bool {
	return strings.ContainsAny(p, `%\`) || strings.HasPrefix(p, "/") || strings.HasPrefix(p, ".") ||
		strings.Contains(p, "//") || strings.Contains(p, "/.")
}

// forms adds to texts what handlers make of a text before they split it: nothing, the path cleaned
// as by [path.Clean], without slashes at its ends, or without dots but with empty segments, as
// section 5.2.4 of RFC 3986 says; and all of these with \ as /.
func (m *matching) forms(texts []text, t text) []text {
	for _, t := range [...]text{t, m.slashed(t)} {
		for _, form := range [...]text{t, m.cleaned(t), t.trimmed(), m.dotless(t)} {
			texts = addText(texts, form)
		}
	}
	return texts
}

// addText adds t to texts unless they have it.
func addText(texts []text, t text) []text {
	has := func(other text) bool {
		return other.path == t.path && slices.Equal(other.rests, t.rests)
	}
	if slices.ContainsFunc(texts, has) {
		return texts
	}
	return append(texts, t)
}

// unescaped returns t with its valid escapes replaced.
func (m *matching) unescaped(t text) text {
	if !strings.Contains(t.path, "%") {
		return t
	}
	return m.piecewise(t, appendUnescaped)
}

// slashed returns t with each \ as /, escaped or not.
func (m *matching) slashed(t text) text {
	if !strings.ContainsAny(t.path, `\%`) {
		return t
	}
	return m.piecewise(t, appendSlashed)
}

func appendSlashed(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			b = append(b, '/')
		case s[i] == '%' && i+2 < len(s) && s[i+1] == '5' && s[i+2]|0x20 == 'c':
			b = append(b, '/')
			i += 2
		default:
			b = append(b, s[i])
		}
	}
	return b
}

// piecewise returns what a function makes of t that reads each character, or escape, by itself.
func (m *matching) piecewise(t text, appendMade func(b []byte, s string) []byte) text {
	b := m.scratch[:0]
	rests := make([]int, len(t.rests))
	for i, begin := range t.rests {
		end := len(t.path)
		if i+1 < len(t.rests) {
			end = t.rests[i+1]
		}
		rests[i] = len(b)
		b = appendMade(b, t.path[begin:end])
	}
	m.scratch = b
	return m.textOf(b, rests, t)
}

// textOf returns the text of a path that was made from t.
func (m *matching) textOf(path []byte, rests []int, t text) text {
	if string(path) == t.path {
		return text{t.path, rests}
	}
	return text{string(path), rests}
}

// trimmed returns t without slashes at the ends of its path, and at the beginning of its rests.
func (t text) trimmed() text {
	trimmed := text{strings.TrimRight(t.path, "/"), make([]int, len(t.rests))}
	for i, at := range t.rests {
		at = min(at, len(trimmed.path))
		trimmed.rests[i] = len(trimmed.path) - len(strings.TrimLeft(trimmed.path[at:], "/"))
	}
	return trimmed
}

// cleaned returns t as [path.Clean] makes it, with / before it.
func (m *matching) cleaned(t text) text { return m.withoutDots(t, false) }

// dotless returns t without segments . and .., each .. with the segment before it.
func (m *matching) dotless(t text) text { return m.withoutDots(t, true) }

// withoutDots removes the segments . and .., each .. with the segment before it, and perhaps empty
// segments. It begins at the end: whether a segment stays depends on those behind it only.
func (m *matching) withoutDots(t text, keepsEmpty bool) text {
	size := len(t.path) + 1
	m.scratch = slices.Grow(m.scratch[:0], size)
	b, begin := m.scratch[:size], size // what stays is b[begin:]
	rests, next := make([]int, len(t.rests)), len(t.rests)-1
	note := func(at int) { // the rests that begin at an index of the path, or behind it
		for ; next >= 0 && t.rests[next] >= at; next-- {
			rests[next] = size - begin // from the end
		}
	}
	note(len(t.path))
	removed := 0 // the segments to remove before this one
	for end := len(t.path); end >= 0; {
		slash := strings.LastIndexByte(t.path[:end], '/')
		s := t.path[slash+1 : end]
		switch {
		case s == "..":
			removed++
		case s == "." || s == "" && !keepsEmpty:
		case removed > 0:
			removed--
		default:
			begin -= len(s) + 1
			b[begin] = '/'
			copy(b[begin+1:], s)
		}
		note(slash)
		end = slash
		if slash == 0 {
			break
		}
	}
	for i, fromEnd := range rests {
		rests[i] = size - begin - fromEnd
	}
	return m.textOf(b[begin:], rests, t)
}

// read finds the rules for what handlers on mount i read in texts. If they unescape each segment,
// an escaped slash does not separate segments; otherwise, they take escapes literally.
func (m *matching) read(
	found []*compiled, i int, on mount, texts []text, unescapes bool,
) []*compiled {
	for _, t := range texts {
		for _, prefix := range on {
			var buf [16]string
			segments := m.split(append(buf[:0], prefix...), t.path[t.rests[i]:])
			if unescapes {
				for j := len(prefix); j < min(len(segments), m.depth); j++ {
					segments[j] = unescape(segments[j])
				}
			}
			found = m.find(found, segments)
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
	var buf [16]string
	lower := append(buf[:0], segments...)
	for i, s := range lower[:min(len(lower), m.depth)] { // no rule has a word for what follows
		if len(s) <= m.longest*utf8.UTFMax { // otherwise it is no word
			lower[i] = fold(s)
		}
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
	if !strings.Contains(s, "%") {
		return s
	}
	return string(appendUnescaped(make([]byte, 0, len(s)), s))
}

func appendUnescaped(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if high, low := unhex(s[i+1]), unhex(s[i+2]); high < 16 && low < 16 {
				b = append(b, high<<4|low)
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return b
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
