package main

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"time"
)

// stamps reads times in one layout. It caches the last time, because neighbouring lines of
// a log mostly have the same one.
type stamps struct {
	layout string
	last   []byte
	at     int64
}

// read returns a time in nanoseconds since the Unix epoch. A time without a zone is UTC.
// The error is a skipReason.
func (s *stamps) read(text []byte) (int64, error) {
	if len(s.last) > 0 && bytes.Equal(text, s.last) {
		return s.at, nil
	}
	t, err := time.Parse(s.layout, string(text))
	if err != nil {
		return 0, skipTime
	}
	at, ok := unixNano(t)
	if !ok {
		return 0, skipTimeRange
	}
	s.last, s.at = append(s.last[:0], text...), at
	return at, nil
}

// textLayouts are the layouts of times in formats that do not specify one. The seconds may
// have a fraction. A time without a zone is UTC.
var textLayouts = []string{
	time.RFC3339,
	"2006-01-02T15:04:05Z0700",
	"2006-01-02 15:04:05Z07:00",
	"2006-01-02 15:04:05 -0700",
	"2006-01-02T15:04:05",
	"2006-01-02 15:04:05",
	"2006/01/02 15:04:05",
	clfTime,
	"02/Jan/2006:15:04:05",
}

// A textTime reads times in any of textLayouts and as Unix times.
type textTime struct{ last int } // the layout of the previous time

func (t *textTime) read(text string) (int64, error) {
	if isUnixTime([]byte(text)) {
		return unixTime([]byte(text))
	}
	for i := range textLayouts {
		i = (i + t.last) % len(textLayouts)
		when, err := time.Parse(textLayouts[i], text)
		if err != nil {
			continue
		}
		t.last = i
		if at, ok := unixNano(when); ok {
			return at, nil
		}
		return 0, skipTimeRange
	}
	return 0, skipTime
}

// isRFC3339 reports whether s has the shape of an RFC 3339 time.
func isRFC3339(s []byte) bool {
	return len(s) >= len("2006-01-02T15:04:05Z") && s[4] == '-' && (s[10] == 'T' || s[10] == 't')
}

// isUnixTime reports whether s is a number, possibly negative or with a fraction.
func isUnixTime(s []byte) bool {
	dots, digits := 0, 0
	for i, c := range s {
		switch {
		case c == '.' && i > 0:
			dots++
		case c == '-' && i == 0:
		case c < '0' || c > '9':
			return false
		default:
			digits++
		}
	}
	return digits > 0 && dots <= 1
}

// unixUnits are the units of Unix times. The magnitude of a number determines its unit: in
// seconds, times up to the year 5138 are below 100,000,000,000; in milliseconds, times
// since 1973 are not; and so on.
var unixUnits = []struct{ below, perSecond uint64 }{
	{1e11, 1},
	{1e14, 1e3},
	{1e17, 1e6},
	{math.MaxUint64, 1e9},
}

// unixTime parses a number that isUnixTime accepts.
func unixTime(s []byte) (int64, error) {
	s, negative := bytes.CutPrefix(s, []byte{'-'})
	whole, fraction, _ := bytes.Cut(s, []byte{'.'})
	n, err := strconv.ParseUint(string(whole), 10, 63)
	if errors.Is(err, strconv.ErrRange) {
		return 0, skipTimeRange
	}
	if err != nil {
		return 0, skipTime
	}
	perSecond := uint64(1)
	for _, u := range unixUnits {
		perSecond = u.perSecond
		if n < u.below {
			break
		}
	}
	// Billionths of the unit. Further digits are less than a nanosecond.
	var billionths uint64
	for i := range 9 {
		billionths *= 10
		if i < len(fraction) {
			billionths += uint64(fraction[i] - '0')
		}
	}
	seconds := int64(n / perSecond)
	nanos := int64(n%perSecond*(1e9/perSecond) + billionths/perSecond)
	if negative {
		seconds, nanos = -seconds, -nanos
	}
	at, ok := unixNano(time.Unix(seconds, nanos))
	if !ok {
		return 0, skipTimeRange
	}
	return at, nil
}

var (
	earliest = time.Unix(0, math.MinInt64).AddDate(0, 1, 0).Unix()
	latest   = time.Unix(0, math.MaxInt64).AddDate(-1, 0, 0).Unix()
)

// unixNano returns t in nanoseconds since the Unix epoch. ok is false if an int64 cannot
// hold that with some margin for a limit's window.
func unixNano(t time.Time) (int64, bool) {
	if s := t.Unix(); s < earliest || s > latest {
		return 0, false
	}
	return t.UnixNano(), true
}
