package main

import (
	"bytes"
	"fmt"
)

// A keyKind says what the key of a request is.
type keyKind string

const (
	byIP     keyKind = "ip"
	byPath   keyKind = "path"
	byIPPath keyKind = "ip+path"
)

func parseKeyKind(s string) (keyKind, error) {
	switch k := keyKind(s); k {
	case byIP, byPath, byIPPath:
		return k, nil
	}
	return "", fmt.Errorf("-key %q: must be ip, path or ip+path", s)
}

// A skipReason is why a line is left out of the replay.
type skipReason string

func (r skipReason) Error() string { return string(r) }

const (
	skipBlank     skipReason = "blank or a comment"
	skipTooLong   skipReason = "longer than 1 MiB"
	skipForeign   skipReason = "not in the log's format"
	skipTime      skipReason = "the time cannot be read"
	skipTimeRange skipReason = "the time is before 1678 or after 2261"
	skipNoTime    skipReason = "the time is missing"
	skipCount     skipReason = "n is not an integer from 1 to 2147483647"
	skipNoClient  skipReason = "the client's address is missing"
	skipNoPath    skipReason = "the request has no path"
	skipPlainPath skipReason = "'time key [n]' has no path, which -key requires"
	skipNoFields  skipReason = "the #Fields line before it lacks one of date, time, c-ip and, for a path, cs-uri-stem"
)

// A record is the request of a line. Its slices are valid until the next line is read.
type record struct {
	at     int64  // nanoseconds since the Unix epoch
	client []byte // the client's text in the line
	path   []byte // without the query; nil if the path is not needed
	n      int32  // the number of events, at least 1
}

// requestPath returns the path of the request line at the start of s, which is
// "GET /path?query HTTP/1.1" in quotes.
func requestPath(s []byte) ([]byte, bool) {
	s, ok := bytes.CutPrefix(s, []byte{'"'})
	if !ok {
		return nil, false
	}
	method, s, ok := bytes.Cut(s, []byte{' '})
	if !ok || len(method) == 0 || bytes.IndexByte(method, '"') >= 0 {
		return nil, false
	}
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++ // the next character is escaped
		case ' ', '"':
			path := uriPath(s[:i])
			return path, len(path) > 0
		}
	}
	return nil, false // cut off inside the path
}

// quotedRequestPath is like requestPath for the first quoted field of a line.
func quotedRequestPath(s []byte) ([]byte, bool) {
	i := bytes.Index(s, []byte(` "`))
	if i < 0 {
		return nil, false
	}
	return requestPath(s[i+1:])
}

// uriPath returns the path of a URI, without the query and without the scheme and host of
// an absolute URI.
func uriPath(uri []byte) []byte {
	if i := bytes.IndexByte(uri, '?'); i >= 0 {
		uri = uri[:i]
	}
	if len(uri) == 0 || uri[0] == '/' {
		return uri
	}
	_, rest, absolute := bytes.Cut(uri, []byte("://"))
	if !absolute {
		return uri
	}
	if i := bytes.IndexByte(rest, '/'); i >= 0 {
		return rest[i:]
	}
	return []byte{'/'}
}

// cutField returns the first field of s, up to a space or tab, and the rest of s. It skips
// space before the field.
func cutField(s []byte) (field, rest []byte) {
	s = bytes.TrimLeft(s, " \t")
	if i := bytes.IndexAny(s, " \t"); i >= 0 {
		return s[:i], s[i+1:]
	}
	return s, nil
}
