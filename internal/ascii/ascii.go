// Package ascii reports which characters a string consists of: digits, printable ASCII characters,
// or those of a token.
package ascii

import "strings"

// IsNumber reports whether s has at least one character, and only digits from 0 to 9.
func IsNumber(s string) bool { return all(s, '0', '9') }

// IsPrintable reports whether s has at least one character, and only printable ones. Then s may be
// a string of a structured field (RFC 9651, 3.3.3).
func IsPrintable(s string) bool { return all(s, ' ', '~') }

// IsToken reports whether s is a token (RFC 9110, 5.6.2). Then s may be the name of a header field
// or of a cookie.
func IsToken(s string) bool {
	for i := range len(s) {
		if !InToken(s[i]) {
			return false
		}
	}
	return s != ""
}

// InToken reports whether c may occur in a token.
func InToken(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func all(s string, from, to byte) bool {
	for i := range len(s) {
		if s[i] < from || s[i] > to {
			return false
		}
	}
	return s != ""
}
