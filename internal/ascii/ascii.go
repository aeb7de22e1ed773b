// Package ascii reports whether a string has only digits, or only printable ASCII characters.
package ascii

// IsNumber reports whether s has at least one character, and only digits from 0 to 9.
func IsNumber(s string) bool { return all(s, '0', '9') }

// IsPrintable reports whether s has at least one character, and only printable ones. Then s may be
// a string of a structured field (RFC 9651, 3.3.3).
func IsPrintable(s string) bool { return all(s, ' ', '~') }

func all(s string, from, to byte) bool {
	for i := range len(s) {
		if s[i] < from || s[i] > to {
			return false
		}
	}
	return s != ""
}
