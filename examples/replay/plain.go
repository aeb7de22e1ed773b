package main

import (
	"bytes"
	"strconv"
	"time"
)

// A plainReader reads lines of 'time key [n]', with the time in RFC 3339 or as a
// Unix time, and n 1 if it is left out:
//
//	1772442001.25 some-key 3
//
// The key may be any text.
type plainReader struct{ wantPath bool }

func (p plainReader) read(line []byte) (record, error) {
	var fields [3][]byte
	n := 0
	for f := range bytes.FieldsSeq(line) {
		if n == len(fields) {
			return record{}, skipForeign
		}
		fields[n] = f
		n++
	}
	if n < 2 {
		return record{}, skipForeign
	}
	var at int64
	var err error
	switch {
	case isRFC3339(fields[0]):
		at, err = rfc3339(fields[0])
	case isUnixTime(fields[0]):
		at, err = unixTime(fields[0])
	default:
		return record{}, skipForeign
	}
	if err != nil {
		return record{}, err
	}
	if p.wantPath {
		return record{}, skipPlainPath
	}
	r := record{at: at, client: fields[1], n: 1}
	if n == 3 {
		count, err := strconv.ParseInt(string(fields[2]), 10, 32)
		if err != nil || count < 1 {
			return record{}, skipCount
		}
		r.n = int32(count)
	}
	return r, nil
}

func rfc3339(s []byte) (int64, error) {
	t, err := time.Parse(time.RFC3339, string(bytes.ToUpper(s)))
	if err != nil {
		return 0, skipTime
	}
	at, ok := unixNano(t)
	if !ok {
		return 0, skipTimeRange
	}
	return at, nil
}
