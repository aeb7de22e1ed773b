package rules

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"
	"time"
)

// Values come from database drivers, and from files as text. A number may be of any Go
// number type, or text; a time may be a number, a time.Time or text. Conversions are
// exact: a value that would have to be rounded is invalid.

// decimal matches the numbers that big.Rat can parse without using much memory.
var decimal = regexp.MustCompile(`^[+-]?[0-9]{1,64}(\.[0-9]{0,64})?([eE][+-]?[0-9]{1,2})?$`)

// exact returns v as an exact number.
func exact(v any) (*big.Rat, bool) {
	switch t := v.(type) {
	case string:
	case []byte:
		v = string(t)
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
	default:
		return nil, false
	}
	text := strings.TrimSpace(fmt.Sprint(v)) // formats a float as the shortest equivalent decimal: 1.9 stays 1.9
	if !decimal.MatchString(text) {
		return nil, false
	}
	return new(big.Rat).SetString(text)
}

// whole returns v as an integer.
func whole(v any) (int64, bool) {
	r, ok := exact(v)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return r.Num().Int64(), true
}

// wantSeconds describes the values that seconds accepts.
const wantSeconds = "more than 0 and at most 9223372036 seconds, in whole nanoseconds"

// seconds returns v, a number of seconds, as a duration.
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

// wantInstant describes the values that instant accepts.
const wantInstant = "in Unix seconds, more than 0 and before the year 10000, or a timestamp after 1970; or null for never"

// lastSecond is the last Unix second before the year 10000. Later ones are rather milliseconds.
const lastSecond = 253402300799

// lastUnix is the last Unix second that a time.Time can hold.
const lastUnix = math.MaxInt64 - 62135596800

// layouts are the layouts of timestamps as text. Those without a time zone are in UTC.
var layouts = []string{
	time.RFC3339,
	"2006-01-02T15:04:05",
	"2006-01-02 15:04:05Z07:00",
	"2006-01-02 15:04:05Z07",
	"2006-01-02 15:04:05 -0700 MST",
	"2006-01-02 15:04:05",
	"2006-01-02",
}

// instant returns v, a timestamp or Unix seconds, as a time. A number of seconds greater than the
// last time.Time means never, and becomes the zero time. A time not after 1970 is an error,
// because it is more often a mistake (-1 or a zero date for never) than an expired rule, and so
// is another number after the year 9999.
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
		if r.Cmp(new(big.Rat).SetInt64(lastSecond)) > 0 {
			return time.Time{}, r.Cmp(new(big.Rat).SetInt64(lastUnix)) > 0
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
	if strings.EqualFold(text, "infinity") || strings.EqualFold(text, ".inf") { // in PostgreSQL, and in YAML
		return time.Time{}, true
	}
	for _, layout := range layouts {
		if t, err := time.Parse(layout, text); err == nil {
			return t, t.Unix() > 0
		}
	}
	return time.Time{}, false
}

// shown returns v in the form used in error messages.
func shown(v any) any {
	if n, ok := whole(v); ok {
		return n
	}
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return v
}
