// Package fields checks the header fields of package httplimit against a parser
// of structured fields (RFC 9651) that others wrote. It has nothing but tests.
package fields
