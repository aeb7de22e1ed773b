// Package keyhint names keys in errors and logs. A key may be a secret, such as an API key, or
// personal data. So no text of an error of package ratelimit, and no line of its logs, has a whole
// key: it has a hint. Only a key below 8 bytes may be in an error of a database that quotes it.
package keyhint

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// longest is the most bytes of a key that a hint has: those that tell kinds of keys apart, such as
// sk_live_.
const longest = 8

// Of returns a hint of key: its beginning, which is at most a quarter of it, quoted as in Go, and
// its length, such as "sk_live_"… (40 bytes). Keys may have the same hint.
func Of(key string) string {
	n := min(longest, len(key)/4)
	for n > 0 && !utf8.RuneStart(key[n]) {
		n--
	}
	return fmt.Sprintf("%q… (%d bytes)", key[:n], len(key))
}

// shortestSecret is the length of the shortest keys that In looks for: shorter ones are parts of
// other words.
const shortestSecret = 8

// In returns an error that wraps err, which is not nil, and whose text has a hint instead of key.
// An error of a database, for one, may quote the parameters of a query. If the text of err does not
// have key, or key is shorter than 8 bytes, In returns err.
func In(err error, key string) error {
	if len(key) < shortestSecret {
		return err
	}
	hint, text := Of(key), err.Error()
	without := text
	for _, quoted := range forms(key) {
		without = strings.ReplaceAll(without, quoted, hint)
	}
	if without == text {
		return err
	}
	return &hidden{err, without}
}

// forms returns key as texts of errors quote it: in Go, in JSON, in a URL and in SQL. A form that
// has another one in it comes before that.
func forms(key string) (all []string) {
	inQuotes := []string{strconv.Quote(key), strconv.QuoteToASCII(key)}
	if text, err := json.Marshal(key); err == nil {
		inQuotes = append(inQuotes, string(text))
	}
	all = append(all, inQuotes...)
	for _, text := range inQuotes {
		all = append(all, text[1:len(text)-1])
	}
	return append(all, url.QueryEscape(key), url.PathEscape(key), strings.ReplaceAll(key, "'", "''"), key)
}

// hidden is an error with another text.
type hidden struct {
	error
	text string
}

func (h *hidden) Error() string { return h.text }

func (h *hidden) Unwrap() error { return h.error }
