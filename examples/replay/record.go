package main

import (
	"bytes"
	"fmt"
)

// A keyKind says what has a limit of its own.
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
	return "", fmt.Errorf("-key %q: want ip, path or ip+path", s)
}

// A skipReason is why a line is left out of the replay.
type skipReason string

func (r skipReason) Error() string { return string(r) }

const (
	skipBlank     skipReason = "blank, or a comment"
	skipTooLong   skipReason = "longer than 1 MiB"
	skipForeign   skipReason = "not in the log's format"
	skipTime      skipReason = "the time cannot be read"
	skipTimeRange skipReason = "the time is before 1678 or after 2261"
	skipNoTime    skipReason = "the time is missing"
	skipCount     skipReason = "n is not a whole number from 1 to 2147483647"
	skipNoClient  skipReason = "the client's address is missing"
	skipNoPath    skipReason = "the request has no path"
	skipPlainPath skipReason = "has no path, which -key asks for: it is 'time key [n]'"
	skipNoFields  skipReason = "the #Fields line before it does not name all of date, time, c-ip and, for a path, cs-uri-stem"
)

// A record is what a line says about a request. Its slices are valid until the
// next line is read.
type record struct {
	at     int64  // nanoseconds since the Unix epoch
	client []byte // who sent it, as the line has it
	path   []byte // what it asked for, without the query; nil if none was asked for
	n      int32  // how many events it stands for; at least 1
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
			i++ // what follows is escaped
		case ' ', '"':
			path := uriPath(s[:i])
			return path, len(path) > 0
		}
	}
	return nil, false // cut off inside the path
}

// quotedRequestPath is requestPath for the first quoted field of a line.
func quotedRequestPath(s []byte) ([]byte, bool) {
	i := bytes.Index(s, []byte(` "`))
	if i < 0 {
		return nil, false
	}
	return requestPath(s[i+1:])
}

// uriPath returns the path of a URI: without its query and, if it is absolute,
// without scheme and host.
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

// cutField returns the first field of s, up to a space or tab, and what follows
// that. Space before the field is passed over.
func cutField(s []byte) (field, rest []byte) {
	s = bytes.TrimLeft(s, " \t")
	if i := bytes.IndexAny(s, " \t"); i >= 0 {
		return s[:i], s[i+1:]
	}
	return s, nil
}
