package rules

import (
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// A call is what a rule applies to.
type call struct {
	methods  []string // "" is every method
	segments []segment
	below    bool // whether it is also everything below
}

// A segment is a part of the path of a call.
type segment struct {
	kind kind
	word string // if it is one: as in a path without escapes
}

type kind int

const (
	word   kind = iota
	number      // #
	anyone      // {name}
)

// parseCall takes the Call of a rule apart. If it can never match a request, it
// returns what is right instead.
func parseCall(text string) (c call, want string) {
	text = strings.TrimSpace(text)
	if !utf8.ValidString(text) {
		return call{}, "valid UTF-8"
	}
	slash := strings.Index(text, "/")
	if slash < 0 {
		return call{}, `a path such as "/user/#", or a method and a path, "GET /user/#"`
	}
	methods, p := text[:slash], text[slash:]
	if c.methods, want = parseMethods(methods, p); want != "" {
		return call{}, want
	}
	if before, _, ok := strings.Cut(p, "?"); ok {
		return call{}, quote(methods+before) + ": a query makes no difference; a ? in the path is %3F"
	}
	p, c.below = cutBelow(p)
	p = strings.TrimSuffix(p, "/{$}")
	if p = path.Clean("/" + p); p == "/" {
		return c, ""
	}
	for s := range strings.SplitSeq(p[1:], "/") {
		seg, want := parseSegment(s)
		if want != "" {
			return call{}, want
		}
		c.segments = append(c.segments, seg)
	}
	return c, ""
}

// cutBelow cuts off the end of a path that stands for everything below it.
func cutBelow(p string) (_ string, below bool) {
	if strings.Trim(p, "/") == "" { // the root
		return p, false
	}
	if before, ok := strings.CutSuffix(p, "/**"); ok {
		return before, true
	}
	if before, ok := strings.CutSuffix(p, "/"); ok {
		return before, true
	}
	if last := path.Base(p); strings.HasPrefix(last, "{") && strings.HasSuffix(last, "...}") {
		return path.Dir(p), true
	}
	return p, false
}

// parseSegment returns the segment that s is, or what is right instead.
func parseSegment(s string) (_ segment, want string) {
	switch {
	case s == "**" || s == "{$}" || strings.HasSuffix(s, "...}"):
		return segment{}, "a call with ** at its end only"
	case s == "#":
		return segment{kind: number}, ""
	case s[0] == '{' && strings.Contains(s, ":"):
		return segment{}, "a call with # for a number, or {name} for any segment: a name, without a pattern"
	case len(s) > 2 && s[0] == '{' && s[len(s)-1] == '}' && !strings.ContainsAny(s[1:len(s)-1], "{}"):
		return segment{kind: anyone}, ""
	case len(s) > 1 && s[0] == ':':
		return segment{}, "a call with {" + s[1:] + "} for any segment; a : at the start of a word is %3A"
	case strings.ContainsAny(s, `{}*#<>[]\^|`):
		return segment{}, "a call whose segments are words, # or {name}; in a word, such a character is written as in URLs, # as %23"
	}
	plain, err := url.PathUnescape(s)
	switch {
	case err != nil:
		return segment{}, "a call with %25 for each % that is not followed by two hexadecimal digits"
	case plain == "." || plain == "..":
		return segment{}, "a call without . and .."
	case isNumber(plain):
		return segment{kind: number}, "" // as in the path of a request
	}
	return segment{word: plain}, ""
}

// known are the methods that a call may name: those that are registered for HTTP, and
// some that are widely used without.
var known = []string{
	"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY",
	"ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LOCK", "MERGE",
	"MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "ORDERPATCH", "PRI",
	"PROPFIND", "PROPPATCH", "REBIND", "REPORT", "SEARCH", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK",
	"UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL",
	"BAN", "LIST", "M-SEARCH", "NOTIFY", "PURGE", "REFRESH", "SOURCE", "SUBSCRIBE", "UNSUBSCRIBE", "VIEW",
}

// parseMethods returns the methods that stand before the path p of a call.
func parseMethods(text, p string) (methods []string, want string) {
	text = strings.TrimSpace(text)
	if text == "" || text == "*" {
		return []string{""}, ""
	}
	for m := range strings.SplitSeq(text, ",") {
		m = strings.ToUpper(strings.TrimSpace(m))
		if !slices.Contains(known, m) {
			if near := nearest(m); near != "" {
				return nil, quote(near + " " + p)
			}
			return nil, "a path, after a method such as GET, several such as GET,POST, or none for all of them"
		}
		if !slices.Contains(methods, m) {
			methods = append(methods, m)
		}
	}
	return methods, ""
}

// nearest returns the method that was probably meant by m, or "".
func nearest(m string) (near string) {
	if len(m) > 20 {
		return ""
	}
	best := 3 // changes of a letter, which are too many
	for _, k := range known {
		if d := distance(m, k); d < best && d < len(k) {
			near, best = k, d
		}
	}
	return near
}

// distance returns how many letters are to be inserted, deleted or replaced to make b
// of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func quote(s string) string { return `"` + s + `"` }

// isNumber reports whether s is one digit or more, 0 to 9.
func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
