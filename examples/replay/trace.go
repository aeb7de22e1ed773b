package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// A request is one event, or n at once, of the log.
type request struct {
	at  int64 // nanoseconds since the Unix epoch
	key int32 // index into trace.keys
	n   int32 // at least 1
}

// A trace is a log that has been read: 16 bytes for a request, and each key
// once.
type trace struct {
	source   string    // what was read, for people
	requests []request // by time; those of the same time in the order of the log
	keys     []string  // in the order of the log
	by       keyKind

	lines     int    // of the log, the skipped ones included
	skips     []skip // by count, descending
	late      int    // requests that stood behind a later one in the log
	lateLine  int    // the line of the first of them
	latest    int64  // the greatest time so far
	total     int64  // events: the sum of all n
	plain     bool   // whether any line is 'time key [n]', so that a key may be anything
	weighted  bool   // whether any n is greater than 1
	subsecond bool   // whether any time is not a whole second
}

// A skip counts the lines that were left out for one reason.
type skip struct {
	reason skipReason
	count  int
	line   int // the number of the first of them
}

// first and last are the times of the first and the last request.
func (t *trace) first() time.Time { return time.Unix(0, t.requests[0].at).UTC() }
func (t *trace) last() time.Time  { return time.Unix(0, t.requests[len(t.requests)-1].at).UTC() }

// span is the time from the first request to the last.
func (t *trace) span() time.Duration { return t.last().Sub(t.first()) }

// noun says what is counted, for n of it.
func (t *trace) noun(n int) string {
	if t.weighted {
		return plural("event", n)
	}
	return plural("request", n)
}

// keyNoun says what has a limit of its own, for n of it.
func (t *trace) keyNoun(n int) string {
	switch {
	case t.plain:
		return plural("key", n)
	case t.by == byPath:
		return plural("path", n)
	case t.by == byIPPath:
		return plural("pair", n) + " of address and path"
	}
	if n == 1 {
		return "address"
	}
	return "addresses"
}

// readTrace reads a log, compressed with gzip or not.
func readTrace(r io.Reader, source string, by keyKind) (*trace, error) {
	buf := bufio.NewReaderSize(r, 1<<20)
	if magic, _ := buf.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(buf)
		if err != nil {
			return nil, fmt.Errorf("%s: begins like a gzip file but is none: %w", source, err)
		}
		buf = bufio.NewReaderSize(z, 1<<20)
	}
	if bom, _ := buf.Peek(3); bytes.Equal(bom, []byte("\ufeff")) {
		buf.Discard(3)
	}

	t := &trace{source: source, by: by}
	ids := make(map[string]int32)
	skips := make(map[skipReason]*skip)
	parser := lineParser{by: by}
	for {
		line, err := readLine(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		t.lines++
		var e entry
		if err == nil {
			e, err = parser.parse(line)
		}
		var why skipReason
		switch {
		case err == nil:
			t.add(e, ids)
		case errors.As(err, &why):
			if skips[why] == nil {
				skips[why] = &skip{reason: why, line: t.lines}
			}
			skips[why].count++
		default:
			return nil, fmt.Errorf("%s: line %d: %w", source, t.lines, err)
		}
	}

	for _, s := range skips {
		t.skips = append(t.skips, *s)
	}
	slices.SortFunc(t.skips, func(a, b skip) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.line, b.line))
	})
	if len(t.requests) == 0 {
		return nil, t.emptyError()
	}
	if t.late > 0 {
		slices.SortStableFunc(t.requests, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	}
	return t, nil
}

// add appends a request, which may be out of order.
func (t *trace) add(e entry, ids map[string]int32) {
	id, ok := ids[string(e.key)]
	if !ok {
		id = int32(len(t.keys))
		t.keys = append(t.keys, string(e.key))
		ids[t.keys[id]] = id
	}
	if len(t.requests) == 0 || e.at > t.latest {
		t.latest = e.at
	}
	if e.at < t.latest {
		t.late++
		if t.lateLine == 0 {
			t.lateLine = t.lines
		}
	}
	t.requests = append(t.requests, request{at: e.at, key: id, n: e.n})
	t.total += int64(e.n)
	t.plain = t.plain || e.plain
	t.weighted = t.weighted || e.n > 1
	t.subsecond = t.subsecond || e.at%int64(time.Second) != 0
}

func (t *trace) emptyError() error {
	const want = "want an access log in Common or Combined Log Format, or lines of 'time key [n]'"
	if t.lines == 0 {
		return fmt.Errorf("%s: the log is empty; %s", t.source, want)
	}
	s := t.skips[0]
	return fmt.Errorf("%s: no request in %d lines; line %d, and %d in all: %w; %s",
		t.source, t.lines, s.line, s.count, s.reason, want)
}

// readLine returns the next line without its line break, valid until the next
// call. The error is io.EOF after the last line, or skipTooLong, or the
// reader's.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = skipTooLong
		}
		return nil, err
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return bytes.TrimSuffix(line, []byte{'\n'}), err
}
