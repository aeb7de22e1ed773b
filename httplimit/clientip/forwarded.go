package clientip

import (
	"net/http"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/ascii"
)

// A walk iterates over the entries of a header field from right to left, all its
// lines joined.
type walk struct {
	lines []string // that the walk has not reached yet
	line  string   // the unread part of the current line
	in    bool     // whether there is a current line

	// last returns the last entry of a line, the rest of the line before it, and
	// whether there is such a rest, which may be empty.
	last func(line string) (entry, rest string, more bool)
}

// Fields that have a list of addresses, in the canonical form of net/http.
const (
	fieldForwarded     = "Forwarded"
	fieldXForwardedFor = "X-Forwarded-For"
)

// fieldCloudFront has an address with a port, and no brackets around an IPv6 address.
const fieldCloudFront = "Cloudfront-Viewer-Address"

func (c *config) newWalk(h http.Header) walk {
	switch lines := h[c.field]; {
	case c.field == fieldForwarded:
		return walk{lines: lines, last: lastNode}
	case c.field == fieldXForwardedFor:
		return walk{lines: lines, last: lastAddress}
	case len(lines) == 1 && c.field == fieldCloudFront:
		return walk{lines: lines, last: viewerAddress}
	case len(lines) == 1:
		return walk{lines: lines, last: onlyAddress}
	}
	return walk{} // nobody knows which of the lines the proxy wrote
}

// next returns the next entry, or false after the last one.
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

// longestEntry bounds an entry of X-Forwarded-For with the spaces around it.
const longestEntry = 2 * longestAddr

// lastAddress returns the last entry of a line, or "" if it is too long for an address.
func lastAddress(line string) (entry, rest string, more bool) {
	from := max(0, len(line)-longestEntry)
	cut := strings.LastIndexByte(line[from:], ',')
	if cut < 0 && from > 0 {
		return "", "", false
	}
	cut += from
	return strings.TrimSpace(line[cut+1:]), line[:max(cut, 0)], cut >= 0
}

// onlyAddress returns the line as its only entry, or "" if it is too long for an address.
func onlyAddress(line string) (entry, rest string, more bool) {
	if len(line) > longestEntry {
		return "", "", false
	}
	return strings.TrimSpace(line), "", false
}

// viewerAddress is onlyAddress for CloudFront-Viewer-Address. The entry is "" if what follows
// the last colon is no port.
func viewerAddress(line string) (entry, rest string, more bool) {
	entry, _, _ = onlyAddress(line)
	port := strings.LastIndexByte(entry, ':')
	switch {
	case port < 0 || strings.HasPrefix(entry, "["):
		return entry, "", false
	case !isPort(entry[port+1:]):
		return "", "", false
	}
	return entry[:port], "", false
}

// lastNode returns the node that the "for" parameter of the last element of a
// Forwarded line names. It is "" if the element is malformed, or does not have
// exactly one such parameter.
func lastNode(line string) (node, rest string, more bool) {
	start := lastElement(line)
	node, _ = forNode(line[start:])
	return node, line[:max(0, start-1)], start > 0
}

// lastElement returns the start of the last element of a Forwarded line: the
// position after the last comma outside quotes.
//
// It reads from the right, because the element that a proxy added is complete even
// if the client before it sent an unterminated string. Reading that way, a quote ends
// a string, and the next quote that is not escaped begins it: all quotes inside a
// string are escaped.
func lastElement(line string) (start int) {
	for i := len(line) - 1; i >= 0; i-- {
		switch line[i] {
		case ',':
			return i + 1
		case '"':
			i = strings.LastIndexByte(line[:i], '"')
			for i > 0 && escaped(line[:i]) {
				i = strings.LastIndexByte(line[:i], '"')
			}
		}
	}
	return 0
}

// escaped reports whether the character that follows s in a quoted string is escaped.
func escaped(s string) bool {
	n := len(s) - len(strings.TrimRight(s, `\`))
	return n%2 == 1
}

// unescaped returns s, the content of a quoted string, without its escapes.
func unescaped(s string) string {
	var b []byte
	for {
		before, rest, found := strings.Cut(s, `\`)
		if !found && b == nil {
			return s
		}
		b = append(b, before...)
		if !found || rest == "" {
			return string(b)
		}
		b, s = append(b, rest[0]), rest[1:]
	}
}

// forNode returns the node that an element of Forwarded names, or "" if it does not
// have exactly one "for". ok reports whether the element is well-formed (RFC 7239).
func forNode(element string) (node string, ok bool) {
	found := 0
	for rest := element; ; {
		name, value, end, ok := forwardedPair(rest)
		if !ok || end < len(rest) && rest[end] == ',' {
			return "", false
		}
		if strings.EqualFold(name, "for") {
			node, found = unescaped(value), found+1
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

// forwardedPair returns the first parameter of s, which may be empty, and the
// position of its end: a comma, a semicolon or the end of s. ok reports whether it is
// well-formed.
func forwardedPair(s string) (name, value string, end int, ok bool) {
	i := skipBlanks(s, 0)
	from := i
	for i < len(s) && ascii.InToken(s[i]) {
		i++
	}
	if name = s[from:i]; name != "" {
		if i == len(s) || s[i] != '=' {
			return "", "", 0, false
		}
		i++
		from = i
		if i < len(s) && s[i] == '"' {
			if i = endOfString(s, i+1); i < 0 {
				return "", "", 0, false
			}
			value = s[from+1 : i]
			i++
		} else {
			for i < len(s) && (ascii.InToken(s[i]) || s[i] == ':') { // an address with a port should be quoted, but often is not
				i++
			}
			value = s[from:i]
		}
	}
	i = skipBlanks(s, i)
	return name, value, i, i == len(s) || s[i] == ',' || s[i] == ';'
}

// endOfString returns the position of the quote that ends the string whose content
// begins at i, or -1.
func endOfString(s string, i int) int {
	for end := i; ; end++ {
		next := strings.IndexByte(s[end:], '"')
		if next < 0 {
			return -1
		}
		if end += next; !escaped(s[i:end]) {
			return end
		}
	}
}

func skipBlanks(s string, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\t') {
		i++
	}
	return i
}
