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

// lastNode returns the node that the last element of a Forwarded line names, see forNode.
func lastNode(line string) (node, rest string, more bool) {
	rest, element, more := cutLast(line, ',')
	return forNode(element), rest, more
}

// cutLast cuts s at the last sep outside double quotes. Without one, after is s.
//
// It reads from the right, because the element that a proxy added is complete even if the client
// before the proxy sent a string that never ends. So only the elements of proxies are read. A quote
// after a backslash does not end a string, but cutLast takes it for the end: forNode refuses the
// element then.
func cutLast(s string, sep byte) (before, after string, found bool) {
	quoted := false
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == sep && !quoted:
			return s[:i], s[i+1:], true
		}
	}
	return "", s, false
}

// forNode returns the node that the "for" parameter of an element of Forwarded names (RFC 7239).
// The node is "" if the element does not have exactly one such parameter, or is malformed.
//
// An element with a backslash counts as malformed. No proxy needs one for an address, and without
// backslashes each double quote begins a string or ends it. So an element with an odd number of
// quotes is malformed, too: one of its parameters has a string that does not end.
func forNode(element string) (node string) {
	if strings.Contains(element, `\`) {
		return ""
	}
	found := 0
	for more := true; more; {
		var parameter string
		element, parameter, more = cutLast(element, ';')
		parameter = strings.Trim(parameter, " \t")
		if parameter == "" {
			continue
		}
		name, value, _ := strings.Cut(parameter, "=")
		value, ok := unquoted(value)
		if !ok || !ascii.IsToken(name) {
			return ""
		}
		if strings.EqualFold(name, "for") {
			node, found = value, found+1
		}
	}
	if found != 1 {
		return ""
	}
	return node
}

// inAddresses removes what IPv6 addresses and ports have and tokens have not.
var inAddresses = strings.NewReplacer(":", "", "[", "", "]", "")

// unquoted returns the value of a parameter without its quotes. ok reports whether value is a
// quoted string or a token. A token may have colons and brackets: an address with a port should be
// quoted, but often is not.
func unquoted(value string) (text string, ok bool) {
	text, quoted := strings.CutPrefix(value, `"`)
	if !quoted {
		return value, ascii.IsToken(inAddresses.Replace(value))
	}
	text, ended := strings.CutSuffix(text, `"`)
	return text, ended && !strings.Contains(text, `"`)
}
