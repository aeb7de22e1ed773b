package rules

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"
	"time"
)

// Values come from database drivers and from the parser of files: a number may be any
// of Go's, or text, and a time may be a number, a time.Time or text. What is read from
// them is exact; what would have to be rounded is refused.

// decimal is the text of a number that big.Rat can take without using much memory.
var decimal = regexp.MustCompile(`^[+-]?[0-9]{1,64}(\.[0-9]{0,64})?([eE][+-]?[0-9]{1,2})?$`)

// exact returns v as a number.
func exact(v any) (*big.Rat, bool) {
	switch t := v.(type) {
	case string:
	case []byte:
		v = string(t)
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
	default:
		return nil, false
	}
	text := strings.TrimSpace(fmt.Sprint(v)) // a float is the shortest text that makes it: 1.9 is 1.9
	if !decimal.MatchString(text) {
		return nil, false
	}
	return new(big.Rat).SetString(text)
}

// whole returns v as a whole number.
func whole(v any) (int64, bool) {
	r, ok := exact(v)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return r.Num().Int64(), true
}

// wantSeconds says what seconds takes.
const wantSeconds = "more than 0 and at most 9223372036 seconds, in whole nanoseconds"

// seconds returns that many seconds, if they are a duration.
func seconds(v any) (time.Duration, bool) {
	r, ok := exact(v)
	if !ok {
		return 0, false
	}
	r.Mul(r, big.NewRat(int64(time.Second), 1))
	if !r.IsInt() || !r.Num().IsInt64() || r.Sign() <= 0 {
		return 0, false
	}
	return time.Duration(r.Num().Int64()), true
}

// wantInstant says what instant takes.
const wantInstant = "in Unix seconds, more than 0, or a timestamp after 1970; or null for never"

// lastUnix is the last Unix second that a time.Time can hold.
const lastUnix = math.MaxInt64 - 62135596800

// layouts are those of timestamps as text. Where they have no time zone, it is UTC.
var layouts = []string{
	time.RFC3339,
	"2006-01-02T15:04:05",
	"2006-01-02 15:04:05Z07:00",
	"2006-01-02 15:04:05Z07",
	"2006-01-02 15:04:05 -0700 MST",
	"2006-01-02 15:04:05",
	"2006-01-02",
}

// instant returns v, a timestamp or Unix seconds, as a time. One that is later than a
// time.Time can hold is never, the zero time. One that is not after 1970 is an error:
// it is more often a mistake (-1, or a zero date, for never) than a rule that has ended.
func instant(v any) (time.Time, bool) {
	if t, ok := v.(time.Time); ok {
		return t, t.Unix() > 0
	}
	if f, ok := v.(float64); ok && math.IsInf(f, 1) {
		return time.Time{}, true
	}
	if r, ok := exact(v); ok {
		if r.Sign() <= 0 {
			return time.Time{}, false
		}
		if r.Cmp(new(big.Rat).SetInt64(lastUnix)) > 0 {
			return time.Time{}, true
		}
		sec := new(big.Int).Quo(r.Num(), r.Denom())
		r.Sub(r, new(big.Rat).SetInt(sec)).Mul(r, big.NewRat(int64(time.Second), 1))
		return time.Unix(sec.Int64(), new(big.Int).Quo(r.Num(), r.Denom()).Int64()), true
	}
	text := ""
	switch t := v.(type) {
	case string:
		text = strings.TrimSpace(t)
	case []byte:
		text = strings.TrimSpace(string(t))
	}
	if strings.EqualFold(text, "infinity") { // in PostgreSQL
		return time.Time{}, true
	}
	for _, layout := range layouts {
		if t, err := time.Parse(layout, text); err == nil {
			return t, t.Unix() > 0
		}
	}
	return time.Time{}, false
}

// A composite is a value that holds others, of which a few lines of YAML can make more
// than memory has: it is shown by its kind.
type composite string

// GoString is for [FieldError].
func (c composite) GoString() string { return string(c) }

// shown returns v as an error shows it.
func shown(v any) any {
	switch v.(type) {
	case []any:
		return composite("a list")
	case map[string]any:
		return composite("a mapping")
	}
	if n, ok := whole(v); ok {
		return n
	}
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return v
}
