package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A loader builds a trace from lines.
type loader struct {
	trace  *trace
	opts   readOptions
	source *source    // nil until the format is known
	held   []heldLine // the lines held until then
	bytes  int        // in held

	clients clients
	ids     map[string]int32 // of keys
	joined  []byte           // a buffer for ip+path keys
	skips   map[skipReason]*skip
	named   []byte // the first line whose client is not an address
}

func newLoader(source string, o readOptions) *loader {
	return &loader{
		trace:   &trace{source: source, by: o.by},
		opts:    o,
		clients: newClients(),
		ids:     make(map[string]int32),
		skips:   make(map[skipReason]*skip),
	}
}

// line processes a line, which is valid until the next one.
func (l *loader) line(line heldLine) {
	if l.source != nil {
		l.use(l.source, line)
		return
	}
	line.text = bytes.Clone(line.text)
	l.held = append(l.held, line)
	l.bytes += len(line.text)
	if len(l.held) >= maxHeld || l.bytes >= maxHeldBytes {
		l.decide()
	}
}

// decide detects the format of the held lines and processes them. If they have no request,
// for example because a service writes other lines while it starts, they are skipped, and
// the format is detected from later lines.
func (l *loader) decide() {
	if len(l.held) == 0 {
		return
	}
	s, e := detect(l.held, l.opts)
	found := e.clients+e.names > 0
	if found {
		l.source = s
		l.trace.format = s.String()
		l.trace.free = s.format.free
	}
	for _, line := range l.held {
		if !found && e.broken == 0 {
			l.skipUnknown(line)
			continue
		}
		l.use(s, line)
	}
	l.held, l.bytes = nil, 0
}

// skipUnknown skips a line whose format is not known.
func (l *loader) skipUnknown(line heldLine) {
	text := bytes.TrimSpace(line.text)
	if len(text) == 0 || text[0] == '#' {
		l.skip(skipBlank, line)
		return
	}
	l.skip(skipForeign, line)
}

// use processes a line with s.
func (l *loader) use(s *source, line heldLine) {
	r, err := s.parse(line.text)
	if err == nil {
		err = l.add(s, r, line)
	}
	var why skipReason
	if errors.As(err, &why) {
		l.skip(why, line)
	}
}

func (l *loader) skip(why skipReason, line heldLine) {
	if l.skips[why] == nil {
		l.skips[why] = &skip{reason: why, line: line.number, text: string(line.text)}
	}
	l.skips[why].count++
}

// add appends a request, which may be out of order. The error is a skipReason.
func (l *loader) add(s *source, r record, line heldLine) error {
	t := l.trace
	key := r.path
	if t.by != byPath {
		c := client{addr: true}
		if !s.format.free {
			if c = l.clients.of(r.client); c.key == "" {
				return skipNoClient
			}
		}
		if !c.addr {
			if t.names == 0 {
				t.name, t.nameLine, l.named = c.key, line.number, bytes.Clone(line.text)
			}
			t.names++
		}
		switch {
		case s.format.free:
			key = r.client
		case t.by == byIPPath:
			l.joined = append(append(append(l.joined[:0], c.key...), ' '), r.path...)
			key = l.joined
		default:
			l.joined = append(l.joined[:0], c.key...)
			key = l.joined
		}
	}
	id, ok := l.ids[string(key)]
	if !ok {
		id = int32(len(t.keys))
		t.keys = append(t.keys, string(key))
		l.ids[t.keys[id]] = id
	}
	if len(t.requests) == 0 || r.at > t.latest {
		t.latest = r.at
	}
	if r.at < t.latest {
		t.late++
		if t.lateLine == 0 {
			t.lateLine = line.number
		}
	}
	t.requests = append(t.requests, request{at: r.at, key: id, n: r.n})
	t.total += int64(r.n)
	t.weighted = t.weighted || r.n > 1
	t.subsecond = t.subsecond || r.at%int64(time.Second) != 0
	return nil
}

// finish completes the trace after the last line.
func (l *loader) finish() error {
	l.decide()
	t := l.trace
	for _, s := range l.skips {
		t.skips = append(t.skips, *s)
	}
	slices.SortFunc(t.skips, func(a, b skip) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.line, b.line))
	})
	if len(t.requests) == 0 {
		return l.emptyError()
	}
	// If the format was detected, another field was probably mistaken for the client.
	if l.opts.format == nil && t.names > len(t.requests)/2 {
		return l.namesError()
	}
	if t.late > 0 {
		slices.SortStableFunc(t.requests, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	}
	return nil
}

func (l *loader) namesError() error {
	f := l.source.format
	return fmt.Errorf("read as %s, the client is not an IP address in %s of %s requests; in line %d it is %q:\n    %s\n"+
		"If that is the client, use -format %s. If not, set the format with -format (%s), or remove the text before the address",
		f.title, comma(int64(l.trace.names)), comma(int64(len(l.trace.requests))), l.trace.nameLine,
		safeKey(l.trace.name, 60), safeKey(string(l.named), 160), f.id, formatNames())
}

func (l *loader) emptyError() error {
	t := l.trace
	damage := ""
	if t.damage != nil {
		damage = fmt.Sprintf(", and the compressed file ends early (%v)", t.damage)
	}
	if t.lines == 0 {
		return fmt.Errorf("the log is empty%s", damage)
	}
	s := t.skips[0]
	for _, other := range t.skips {
		if s.reason == skipBlank {
			s = other
		}
	}
	text := ""
	if s.text != "" {
		text = ":\n    " + safeKey(s.text, 160)
	}
	return fmt.Errorf("no request in %s%s; %s skipped (%s %d): %w%s\nSet the format of the log with -format: %s",
		count(t.lines, func(n int) string { return plural("line", n) }), damage, comma(int64(s.count)), lineOrFirst(s.count), s.line, s.reason, text, formatNames())
}
