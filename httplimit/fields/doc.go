// Package fields checks the header fields of package httplimit with a third-party
// parser of structured fields (RFC 9651). It contains only tests.
package fields
