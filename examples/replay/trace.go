package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A request is a request of the log. It counts as n events.
type request struct {
	at  int64 // nanoseconds since the Unix epoch
	key int32 // index into trace.keys
	n   int32 // at least 1
}

// A trace is a log that has been read. It takes 16 bytes for each request, and has the text of each
// key once.
type trace struct {
	source   string    // the name of the log, for people
	title    string    // the name of its format, for people
	oneKey   string    // the word for a key
	oneEvent string    // the word for an event
	requests []request // by time; requests of the same time are in the order of the log
	keys     []string  // in the order in which the log has them first

	lines     int // all lines of the log, the skipped ones included
	skips     []skip
	late      int   // requests that came after a later one in the log
	total     int64 // events: the sum of all n
	subsecond bool  // whether any time is not a whole second
	damage    error // the error that ended a compressed file early, or nil
}

// A skip counts the lines that were left out for one reason.
type skip struct {
	reason skipReason
	count  int
	line   int    // the number of the first such line
	text   string // the text of that line
}

func (t *trace) first() time.Time { return time.Unix(0, t.requests[0].at).UTC() }
func (t *trace) last() time.Time  { return time.Unix(0, t.requests[len(t.requests)-1].at).UTC() }

// The values of -key, and the word for each kind of key.
const byIP, byPath, byIPPath = "ip", "path", "ip+path"

var keyNouns = map[string]string{byIP: "client", byPath: "path", byIPPath: "pair"}

// readOptions are the options for reading a log.
type readOptions struct {
	by      string   // ip, path or ip+path
	layouts []string // of times
	format  *format  // nil means that the first line decides
}

// A loader builds a trace from lines.
type loader struct {
	*trace
	readOptions
	ids    map[string]int32 // the index of each key in trace.keys
	latest int64            // the latest time so far
}

// readTrace reads a log, which may be compressed with gzip.
func readTrace(r io.Reader, source string, o readOptions) (*trace, error) {
	file := bufio.NewReader(r)
	contents, packed := io.Reader(file), false
	if magic, _ := file.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(file)
		if err != nil {
			return nil, fmt.Errorf("%s begins like a gzip file and is none: %w", source, err)
		}
		contents, packed = unzipped, true
	}
	t := &trace{source: source, oneKey: keyNouns[o.by], oneEvent: "request"}
	l := &loader{trace: t, readOptions: o, ids: make(map[string]int32)}
	buf := bufio.NewReaderSize(contents, 1<<20)
	for {
		line, err := readLine(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && packed && !errors.As(err, new(*fs.PathError)) && !errors.Is(err, errTooLong) {
			l.damage = err // the incomplete last line is left out
			break
		}
		l.lines++
		text := strings.TrimSpace(strings.TrimPrefix(string(line), "\ufeff"))
		if err == nil {
			err = l.add(text)
		}
		var reason skipReason
		switch {
		case errors.As(err, &reason):
			l.skip(reason, text)
		case err != nil:
			return nil, fmt.Errorf("%s: line %d: %w", source, l.lines, err)
		}
	}
	return l.trace, l.finish()
}

// readLine returns the next line without its line break. The line is valid until the next call.
// After the last line, the error is io.EOF. Other errors are errTooLong and those of the reader.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = errTooLong
		}
		return nil, err
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return line, err
}

// add adds the request of a line. The first line with text decides the format, unless it is set.
func (l *loader) add(line string) error {
	if line == "" || line[0] == '#' {
		return errBlank
	}
	if l.format == nil {
		i := slices.IndexFunc(known, func(f format) bool { _, ok := f.read(line); return ok })
		if i < 0 {
			return fmt.Errorf("not a common or combined log, JSON lines, or 'time key [n]':\n    %s%s", safeText(line, 300), howToRead)
		}
		l.format = &known[i]
	}
	f, ok := l.format.read(line)
	if !ok {
		return errForeign
	}
	at, err := parseTime(f.time, l.layouts)
	if err != nil {
		return err
	}
	n := int64(1)
	if f.n != "" {
		n, err = strconv.ParseInt(f.n, 10, 32)
		if err != nil || n < 1 {
			return errCount
		}
	}
	key, err := l.key(f)
	if err != nil {
		return err
	}
	id, ok := l.ids[key]
	if !ok {
		id = int32(len(l.keys))
		l.keys = append(l.keys, key)
		l.ids[key] = id
	}
	if at < l.latest {
		l.late++
	}
	l.latest = max(l.latest, at)
	l.requests = append(l.requests, request{at, id, int32(n)})
	l.total += n
	if n > 1 {
		l.oneEvent = "event"
	}
	l.subsecond = l.subsecond || at%int64(time.Second) != 0
	return nil
}

// key returns the key of a request.
func (l *loader) key(f fields) (string, error) {
	path, _, _ := strings.Cut(f.path, "?")
	switch {
	case path == "" && l.by != byIP:
		return "", errPath
	case l.by == byPath:
		return path, nil
	case f.key == "" || f.key == "-":
		return "", errKey
	}
	if l.by == byIPPath {
		return keyOf(f.key) + " " + path, nil
	}
	return keyOf(f.key), nil
}

func (t *trace) skip(why skipReason, text string) {
	i := slices.IndexFunc(t.skips, func(s skip) bool { return s.reason == why })
	if i < 0 {
		i = len(t.skips)
		t.skips = append(t.skips, skip{reason: why, line: t.lines, text: text})
	}
	t.skips[i].count++
}

// finish completes the trace after the last line.
func (l *loader) finish() error {
	if len(l.requests) == 0 {
		return fmt.Errorf("%s has no request:\n%s%s", l.source, strings.Join(l.problems(), "\n"), howToRead)
	}
	if l.format.keys {
		l.oneKey = "key"
	}
	l.title = l.format.title
	if l.late > 0 {
		slices.SortStableFunc(l.requests, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	}
	return nil
}

// problems returns sentences about the lines that were left out, and about the log.
func (t *trace) problems() []string {
	var ps []string
	for _, s := range t.skips {
		p := fmt.Sprintf("skipped %s of %s lines: %s; the first is line %d", comma(int64(s.count)), comma(int64(t.lines)), s.reason, s.line)
		if s.text != "" {
			p += ": " + safeText(s.text, 160)
		}
		ps = append(ps, p)
	}
	if t.damage != nil {
		ps = append(ps, fmt.Sprintf("the compressed file is damaged or cut off after line %s (%v)", comma(int64(t.lines)), t.damage))
	}
	if t.late > 0 {
		ps = append(ps, fmt.Sprintf("sorted %s of %s lines that came after a later one", comma(int64(t.late)), comma(int64(t.lines))))
	}
	if t.lines == 0 {
		ps = append(ps, "it is empty")
	}
	return ps
}

// howToRead says what to do if replay cannot read a log.
const howToRead = `
Use -pattern to say where a line has the time and the key. If a line may count as several events, add a group n. For example:
    go run ./examples/replay -pattern '(?<key>[0-9a-f.:]+) .*\[(?<time>[^]]+)\]' -time '02/Jan/2006:15:04:05 -0700' access.log
For JSON lines, give the names of the fields: -json TIME,KEY
docs/replay.md has patterns for Envoy, HAProxy, IIS, AWS, Docker and others. If the log begins with a line of titles, remove it: tail -n +2`
