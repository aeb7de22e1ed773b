package limitpage

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// id returns 16 hexadecimal digits that identify key to those who do not know it.
func (c *config) id(key string) string {
	mac := hmac.New(sha256.New, c.secret)
	mac.Write([]byte(key))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// mostRunes is how much of a key is shown.
const mostRunes = 120

// A keyReport is what the page shows of a key.
type keyReport struct {
	Key string `json:"key"` // as displayed
	// Whether Key is the key itself, neither quoted nor shortened nor hashed.
	Verbatim bool   `json:"verbatim"`
	ID       string `json:"id"` // to look it up
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

// label returns what the page shows of the name of a limiter. It may be any text, and nothing else.
func label(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return strconv.Quote(name)
}

// display returns key if it is short and printable. Otherwise it is quoted as in Go, so that it
// changes neither the direction nor the lines of the text around it, and its middle is left
// out.
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
