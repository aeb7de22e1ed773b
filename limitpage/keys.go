package limitpage

// This file decides how the names of keys and limiters are shown: as they are, quoted, shortened or
// hashed.

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// id returns the ID of key: 16 hexadecimal digits, from which nobody can read the key.
func (c *config) id(key string) string {
	mac := hmac.New(sha256.New, c.secret)
	mac.Write([]byte(key))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// mostRunes is how many characters of a key are shown.
const mostRunes = 120

// A keyReport is what the page shows of a key.
type keyReport struct {
	Key string `json:"key"` // as displayed
	// Whether Key is the key itself, neither quoted nor shortened nor hashed.
	Verbatim bool   `json:"verbatim"`
	ID       string `json:"id"` // names the key in a lookup
}

// keyReportOf returns what the page shows of key.
func (p *Page) keyReportOf(key string) keyReport {
	r := keyReport{Key: display(key), ID: p.id(key)}
	if p.hashed {
		r.Key = r.ID
	}
	r.Verbatim = !p.hashed && r.Key == key
	return r
}

// label returns what the page shows of the name of a limiter: the name if it is text, and otherwise
// the name quoted as in Go, because JSON has only valid UTF-8.
func label(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return strconv.Quote(name)
}

// display returns what the page shows of key. It leaves out the middle of a long key. A key that is
// not printable is quoted as in Go, so that it changes neither the direction nor the lines of the
// text around it.
func display(key string) string {
	cut := false
	if utf8.RuneCountInString(key) > mostRunes {
		const tail = mostRunes / 4
		key, cut = firstRunes(key, mostRunes-tail)+"…"+lastRunes(key, tail), true
	}
	plain := utf8.ValidString(key) &&
		strings.IndexFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
	if !plain || !cut && strings.TrimSpace(key) != key {
		return strconv.Quote(key)
	}
	return key
}

func firstRunes(s string, n int) string {
	end := 0
	for ; n > 0; n-- {
		_, size := utf8.DecodeRuneInString(s[end:])
		end += size
	}
	return s[:end]
}

func lastRunes(s string, n int) string {
	start := len(s)
	for ; n > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:start])
		start -= size
	}
	return s[start:]
}
