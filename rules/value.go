package rules

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ratelimit-go/ratelimit"
)

// A cell is a value of a row, as it is written: text, nil for null, a [time.Time] of a database, or
// a composite. Numbers are text. They are converted exactly: if a value would have to be rounded,
// it is invalid.
type cell struct{ value any }

// A composite is a value in a file that has others in it. It is never expanded, because a few lines
// of YAML can describe a value that is larger than the memory.
type composite string

const (
	aList    composite = "a list"
	aMapping composite = "a mapping"
)

// GoString returns the kind as it is, for [FieldError].
func (c composite) GoString() string { return string(c) }

// Scan implements [database/sql.Scanner].
func (c *cell) Scan(value any) error {
	switch v := value.(type) {
	case nil, time.Time:
		c.value = v
	case []byte:
		c.value = string(v)
		if len(v) == 1 && v[0] <= 1 { // a BIT(1) of MySQL
			c.value = strconv.Itoa(int(v[0]))
		}
	default:
		c.value = fmt.Sprint(v) // the shortest decimal of a float: 1.9 stays 1.9
	}
	return nil
}

// UnmarshalJSON implements [json.Unmarshaler].
func (c *cell) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '[':
		c.value = aList
	case '{':
		c.value = aMapping
	case '"':
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		c.value = text
	case 'n': // null
		c.value = nil
	default:
		c.value = string(data)
	}
	return nil
}

// UnmarshalYAML implements [yaml.Unmarshaler]. It is not called for null.
func (c *cell) UnmarshalYAML(node *yaml.Node) error {
	switch node.Kind {
	case yaml.SequenceNode:
		c.value = aList
	case yaml.MappingNode:
		c.value = aMapping
	default:
		c.value = node.Value
	}
	return nil
}

// shown returns the value in the form used in error messages.
func (c cell) shown() any {
	if n, ok := c.whole(); ok {
		return n
	}
	return c.value
}

// text returns the value as text, which is empty for null.
func (c cell) text() (text, want string) {
	switch v := c.value.(type) {
	case nil:
		return "", ""
	case composite:
		return "", "text"
	default:
		return strings.TrimRight(fmt.Sprint(v), " "), "" // without the spaces that a char(n) adds
	}
}

// algorithm returns the value as the name of an algorithm, which is empty for null or no text.
func (c cell) algorithm() (name, want string) {
	name, want = c.text()
	if name != "" {
		want = wantAlgorithm(name)
	}
	return name, want
}

// truth returns whether the value means true. Null does not.
func (c cell) truth() (is bool, want string) {
	if n, ok := c.whole(); ok && (n == 0 || n == 1) { // also 1.0
		return n == 1, ""
	}
	text, _ := c.text()
	switch strings.ToLower(text) {
	case "true", "t", "y", "yes":
		return true, ""
	case "false", "f", "n", "no":
		return false, ""
	}
	if c.value == nil {
		return false, ""
	}
	return false, "true or false, or 1 or 0"
}

// number returns the value as a whole number, which is 0 for null.
func (c cell) number() (n int, want string) {
	if c.value == nil {
		return 0, ""
	}
	whole, ok := c.whole()
	if !ok || whole < math.MinInt || whole > math.MaxInt {
		return 0, "a whole number"
	}
	return int(whole), ""
}

// whole returns the value as an integer.
func (c cell) whole() (n int64, ok bool) {
	r, ok := c.exact()
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return r.Num().Int64(), true
}

// decimal matches the numbers that big.Rat can parse without using much memory.
var decimal = regexp.MustCompile(`^[+-]?[0-9]{1,64}(\.[0-9]{0,64})?([eE][+-]?[0-9]{1,2})?$`)

// exact returns the value as an exact number.
func (c cell) exact() (r *big.Rat, ok bool) {
	text, _ := c.value.(string)
	text = strings.TrimSpace(text)
	if !decimal.MatchString(text) {
		return nil, false
	}
	return new(big.Rat).SetString(text)
}

// seconds returns the value, a number of seconds, as a duration.
func (c cell) seconds() (d time.Duration, want string) {
	if r, ok := c.exact(); ok {
		r.Mul(r, big.NewRat(int64(time.Second), 1))
		if r.IsInt() && r.Num().IsInt64() && r.Sign() > 0 {
			return time.Duration(r.Num().Int64()), ""
		}
	}
	return 0, "more than 0 and at most 9223372036 seconds, in whole nanoseconds"
}

// optionalSeconds is seconds for a value that may be left out: null and 0 are no time.
func (c cell) optionalSeconds() (d time.Duration, want string) {
	if n, isWhole := c.whole(); c.value == nil || isWhole && n == 0 {
		return 0, ""
	}
	d, want = c.seconds()
	if want != "" {
		want += "; or left out"
	}
	return d, want
}

// units are the units of calendars.
var units = []ratelimit.CalendarUnit{
	ratelimit.Day,
	ratelimit.Week,
	ratelimit.Month,
	ratelimit.Quarter,
	ratelimit.Year,
}

// unitNames describes the names of units.
const unitNames = "day, week, month, quarter or year"

// unit returns the value, such as month, as a unit of calendars, which is 0 for null or no text.
func (c cell) unit() (unit ratelimit.CalendarUnit, want string) {
	text, wrong := c.text()
	if text == "" && wrong == "" {
		return 0, ""
	}
	for _, u := range units {
		if strings.EqualFold(text, u.String()) {
			return u, ""
		}
	}
	return 0, unitNames
}

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

// instant returns the value, a timestamp or Unix seconds, as a time. The zero time means never. A
// time not after 1970 is invalid, because it is more often a mistake (-1 or a zero date for never)
// than an expired rule, and so is a number between the year 9999 and the last time.Time.
func (c cell) instant() (at time.Time, want string) {
	text, _ := c.value.(string)
	text = strings.TrimSpace(text)
	r, isNumber := c.exact()
	switch {
	case c.value == nil, isInfinite(text), isNumber && r.Cmp(big.NewRat(lastUnix, 1)) > 0:
		return time.Time{}, ""
	case isNumber && r.Cmp(big.NewRat(lastSecond, 1)) <= 0:
		at = unix(r)
	default:
		at, _ = c.value.(time.Time)
		for _, layout := range layouts {
			if t, err := time.Parse(layout, text); err == nil {
				at = t
			}
		}
	}
	if at.Unix() <= 0 { // as the zero time is
		return time.Time{}, "in Unix seconds, more than 0 and before the year 10000, " +
			"or a timestamp after 1970; or null for never"
	}
	return at, ""
}

// isInfinite reports whether text is an infinite time of PostgreSQL, of Go or of YAML.
func isInfinite(text string) bool {
	switch strings.ToLower(text) {
	case "infinity", "+inf", ".inf":
		return true
	}
	return false
}

// unix returns the time that is r seconds after 1970, in whole nanoseconds.
func unix(r *big.Rat) time.Time {
	whole := new(big.Int).Quo(r.Num(), r.Denom())
	rest := new(big.Rat).Sub(r, new(big.Rat).SetInt(whole))
	rest.Mul(rest, big.NewRat(int64(time.Second), 1))
	return time.Unix(whole.Int64(), new(big.Int).Quo(rest.Num(), rest.Denom()).Int64())
}
