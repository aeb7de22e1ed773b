package main

import (
	"bytes"
	"cmp"
	"errors"
)

// A source is a way to read the lines of a log.
type source struct {
	format *format
	prefix prefix
	reader lineReader
}

// parse reads one line, without its line break. The error is a skipReason.
func (s *source) parse(line []byte) (record, error) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return record{}, skipBlank
	}
	line, ok := s.prefix.cut(line)
	switch {
	case !ok:
		return record{}, skipForeign
	case len(line) == 0:
		return record{}, skipBlank
	case line[0] == '#':
		if d, ok := s.reader.(director); ok {
			d.directive(line)
		}
		return record{}, skipBlank
	}
	return s.reader.read(line)
}

// String describes the source.
func (s *source) String() string {
	text := s.format.title
	if l, ok := s.reader.(learner); ok {
		text += " (" + l.String() + ")"
	}
	if s.prefix.title != "" {
		text += ", wrapped by " + s.prefix.title
	}
	return text
}

// A heldLine is a line that is kept until the format of the log is known.
type heldLine struct {
	number int
	text   []byte
}

// Lines are held until there are this many of them, or they have this many bytes.
const (
	maxHeld      = 1000
	maxHeldBytes = 1 << 20
)

// evidence counts the lines that suit a source, the strongest evidence first.
type evidence struct {
	clients int // requests of an address, or of any key if the format has no addresses
	names   int // requests of a client that is not an address
	broken  int // lines in the format that cannot be used
}

func (e evidence) compare(f evidence) int {
	return cmp.Or(cmp.Compare(e.clients, f.clients), cmp.Compare(e.names, f.names), cmp.Compare(e.broken, f.broken))
}

// detect returns the source that reads the most lines, and its evidence. A format in which
// a key may be any text must read more than half of the lines, because otherwise noise
// would be read as requests.
func detect(lines []heldLine, o readOptions) (best *source, most evidence) {
	wanted := formats
	if o.format != nil {
		wanted = []*format{o.format}
	}
	known := newClients()
	for _, p := range prefixes {
		var behind [][]byte // the lines without the prefix
		for _, line := range lines {
			if text := bytes.TrimSpace(line.text); len(text) > 0 {
				if rest, ok := p.cut(text); ok && len(rest) > 0 {
					behind = append(behind, rest)
				}
			}
		}
		for _, f := range wanted {
			s := &source{format: f, prefix: p, reader: f.new(o)}
			if l, ok := s.reader.(learner); ok {
				l.learn(behind)
			}
			if e := s.evidence(lines, &known, o); best == nil || e.compare(most) > 0 {
				best, most = s, e
			}
		}
	}
	return best, most
}

func (s *source) evidence(lines []heldLine, known *clients, o readOptions) (e evidence) {
	foreign := 0
	for _, line := range lines {
		r, err := s.parse(line.text)
		switch {
		case errors.Is(err, skipForeign):
			foreign++
		case errors.Is(err, skipBlank):
		case err != nil:
			e.broken++
		case s.format.free:
			e.clients++
		default:
			switch c := known.of(r.client); {
			case c.addr:
				e.clients++
			case c.key != "" || o.by == byPath:
				e.names++
			default:
				e.broken++
			}
		}
	}
	if s.format.free && o.format == nil && e.clients < foreign {
		return evidence{}
	}
	return e
}
