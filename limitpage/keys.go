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

// show returns what the page shows of key.
func (p *Page) show(key string) string {
	if p.hashed {
		return p.id(key)
	}
	return display(key)
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
	plain := utf8.ValidString(key) && strings.IndexFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
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
