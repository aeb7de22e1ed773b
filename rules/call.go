package rules

import (
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// A call is the parsed Call of a rule.
type call struct {
	methods  []string // "" is every method
	segments []segment
	below    bool // whether it matches all paths below as well
}

// A segment is a part of the path of a call.
type segment struct {
	kind kind
	word string // unescaped, if kind is word
}

type kind int

const (
	word     kind = iota
	number        // #
	wildcard      // {name}
)

// parseCall parses the Call of a rule. If it can never match a request, want describes
// a valid one.
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
	c.methods, want = parseMethods(methods)
	if want != "" {
		return call{}, want
	}
	if before, _, ok := strings.Cut(p, "?"); ok {
		return call{}, quote(methods+before) +
			": queries are not matched; write a ? in the path as %3F"
	}
	p, c.below = cutBelow(p)
	p = strings.TrimSuffix(p, "/{$}")
	p = path.Clean("/" + p)
	if p == "/" {
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

// cutBelow removes the suffix of a path that stands for everything below it.
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

// parseSegment parses s. If it is invalid, want describes a valid call.
func parseSegment(s string) (_ segment, want string) {
	switch {
	case s == "**" || s == "{$}" || strings.HasSuffix(s, "...}"):
		return segment{}, "a call with ** only at its end"
	case s == "#":
		return segment{kind: number}, ""
	case s[0] == '{' && strings.Contains(s, ":"):
		return segment{}, "a call with # for a number, or {name} for any segment: a name, without a pattern"
	case len(s) > 2 && s[0] == '{' && s[len(s)-1] == '}' && !strings.ContainsAny(s[1:len(s)-1], "{}"):
		return segment{kind: wildcard}, ""
	case len(s) > 1 && s[0] == ':':
		return segment{}, "a call with {" + s[1:] + "} for any segment; write a : at the start of a word as %3A"
	case strings.ContainsAny(s, `{}*#<>[]\^|`):
		return segment{}, "a call whose segments are words, # or {name}; escape special characters in words as in URLs, such as # as %23"
	}
	plain, err := url.PathUnescape(s)
	switch {
	case err != nil:
		return segment{}, "a call with each % that does not start an escape written as %25"
	case plain == "." || plain == "..":
		return segment{}, "a call without . and .."
	}
	return segment{word: plain}, ""
}

// known are the methods that a call may name: those in the IANA registry, and some that
// are widely used but not registered.
var known = []string{
	"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY",
	"ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LOCK", "MERGE",
	"MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "ORDERPATCH", "PRI",
	"PROPFIND", "PROPPATCH", "REBIND", "REPORT", "SEARCH", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK",
	"UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL",
	"BAN", "LIST", "M-SEARCH", "NOTIFY", "PURGE", "REFRESH", "SOURCE", "SUBSCRIBE", "UNSUBSCRIBE", "VIEW",
}

// parseMethods parses the methods before the path of a call.
func parseMethods(text string) (methods []string, want string) {
	text = strings.TrimSpace(text)
	if text == "" || text == "*" {
		return []string{""}, ""
	}
	for m := range strings.SplitSeq(text, ",") {
		m = strings.ToUpper(strings.TrimSpace(m))
		if !slices.Contains(known, m) {
			return nil, "a path alone, for every method, or after methods with commas between them, of " +
				strings.Join(known, ", ")
		}
		if !slices.Contains(methods, m) {
			methods = append(methods, m)
		}
	}
	return methods, ""
}

func quote(s string) string { return `"` + s + `"` }

// isNumber reports whether s consists of digits 0 to 9. An empty segment does, too: chi serves
// /user//photos by the route /user/{id:[0-9]+}/photos.
func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }
