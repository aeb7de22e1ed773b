package keyhint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOf(t *testing.T) {
	for key, want := range map[string]string{
		"":                           `""… (0 bytes)`,
		"ann":                        `""… (3 bytes)`,
		"203.0.113.7":                `"20"… (11 bytes)`,
		"sk_live_" + secret:          `"sk_live_"… (40 bytes)`,
		"\n\x00\xff\n" + secret[:12]: `"\n\x00\xff\n"… (16 bytes)`,
		"aaaé" + secret[:11]:         `"aaa"… (16 bytes)`,
		strings.Repeat("\x80", 40):   `""… (40 bytes)`,
	} {
		assert.Equal(t, want, Of(key))
	}
}

const secret = "0123456789abcdef0123456789ABCDEF"

func TestIn(t *testing.T) {
	err := fmt.Errorf("no plan of %q, nor of %s: %w", secret, secret, fs.ErrNotExist)
	hidden := In(err, secret)
	assert.EqualError(t, hidden,
		`no plan of "01234567"… (32 bytes), nor of "01234567"… (32 bytes): file does not exist`)
	assert.ErrorIs(t, hidden, fs.ErrNotExist)
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v", hidden, hidden, hidden.Error()), secret)

	err = fmt.Errorf("no plan of %q", "\n"+secret)
	assert.EqualError(t, In(err, "\n"+secret), `no plan of "\n0123456"… (33 bytes)`)

	key := "c2VjcmV0+a2V5/<'\"é\n\t>G9rZW4="
	inJSON, err := json.Marshal(key)
	assert.NoError(t, err)
	for name, text := range map[string]string{
		"plain":        key,
		"Go":           fmt.Sprintf("%q", key),
		"Go in ASCII":  fmt.Sprintf("%+q", key),
		"part of Go":   fmt.Sprintf("%q", "the key "+key+" is wrong"),
		"JSON":         string(inJSON),
		"part of JSON": string(inJSON[:len(inJSON)-1]) + `, and more"`,
		"a query":      "https://example.com/?" + url.Values{"key": {key}}.Encode(),
		"a path":       "https://example.com/" + url.PathEscape(key),
		"SQL":          "SELECT '" + strings.ReplaceAll(key, "'", "''") + "'",
	} {
		hidden := In(errors.New(text), key).Error()
		assert.NotContains(t, hidden, "G9rZW4", name)
		assert.NotContains(t, hidden, "cmV0", name)
	}

	other := errors.New("connection refused")
	assert.Same(t, other, In(other, secret))
	assert.Same(t, other, In(other, "on"), "short keys are parts of words")

	quotes := errors.New(`no plan of "sk_live8"`)
	assert.Same(t, quotes, In(quotes, "sk_live"), "a key of 7 bytes is short")
	assert.EqualError(t, In(quotes, "sk_live8"), `no plan of "sk"… (8 bytes)`)
}
