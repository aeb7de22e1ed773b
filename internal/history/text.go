package history

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// This file is the text of histories. A line has a verb, what follows it, and options.

// What follows a verb.
type following int

const (
	nothing  following = iota
	number             // Op.N
	duration           // Op.For
	name               // Op.Name, and what it is about
)

var verbs = map[Verb]following{
	Pass:     duration,
	Take:     number,
	Allow:    number,
	TakeUpTo: number,
	Peek:     nothing,
	Charge:   number,
	Wait:     number,
	Reserve:  number,
	Hold:     number,
	WaitHold: number,
	Settle:   name,
	Cancel:   name,
	Extend:   name,
	Reset:    nothing,
	Crowd:    nothing,
	Limit:    number,
	Fault:    name,
}

// isForNumber reports whether "for" comes before Op.N. Otherwise, it comes before Op.For.
func (o *Op) isForNumber() bool { return o.Verb == Settle || o.Verb == Fault }

// String returns the operation as a line of text.
func (o Op) String() string {
	words := []string{string(o.Verb)}
	add := func(is bool, format string, args ...any) {
		if is {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	of := verbs[o.Verb]
	add(of == number, "%d", o.N)
	add(of == duration, "%v", o.For)
	add(of == name, "%s", o.Name)
	add(o.isForNumber(), "for %d", o.N)
	add(o.LimitsWait, "within %v", o.Within)
	add(o.Verb == Extend || o.makes() && o.For != 0, "for %v", o.For)
	add(o.Back, "back")
	add(o.makes(), "as %s", o.Name)
	add(o.By > 0, "by %d", o.By)
	add(o.Key != "", "of %q", o.Key)
	for _, s := range o.shares() {
		add(true, "with %d of %q", s.N, s.Key)
	}
	add(o.And, "and")
	return strings.Join(words, " ")
}

// Text returns a history as text.
func Text(ops []Op) string {
	var text strings.Builder
	for _, o := range ops {
		text.WriteString("\t" + o.String() + "\n")
	}
	return text.String()
}

// Parse is the reverse of Text. Indentation and empty lines do not matter.
func Parse(text string) (ops []Op, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		o, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		ops = append(ops, o)
	}
	return ops, nil
}

func parse(line string) (o Op, err error) {
	p := &parser{rest: line}
	o.Verb = Verb(p.word())
	of, known := verbs[o.Verb]
	if !known {
		return o, fmt.Errorf("there is no verb %q", o.Verb)
	}
	switch of {
	case number:
		o.N = p.number()
	case duration:
		o.For = p.duration()
	case name:
		o.Name = p.word()
	}
	for p.rest != "" && p.err == nil {
		p.option(&o)
	}
	return o, p.err
}

// A parser reads the words of a line.
type parser struct {
	rest string
	with int // how many options "with" it has read
	err  error
}

// option reads an option of o.
func (p *parser) option(o *Op) {
	switch word := p.word(); {
	case word == "for" && o.isForNumber():
		o.N = p.number()
	case word == "for":
		o.For = p.duration()
	case word == "within":
		o.Within, o.LimitsWait = p.duration(), true
	case word == "back":
		o.Back = true
	case word == "as":
		o.Name = p.word()
	case word == "by":
		o.By = p.number()
	case word == "of":
		o.Key = p.quoted()
	case word == "with" && p.with < len(o.With):
		n := p.number()
		p.expect("of")
		o.With[p.with] = Share{N: n, Key: p.quoted()}
		p.with++
	case word == "and":
		o.And = true
	default:
		p.note(fmt.Errorf("the word %q does not belong there", word))
	}
}

// word returns the next word, or "" at the end.
func (p *parser) word() (word string) {
	word, p.rest, _ = strings.Cut(p.rest, " ")
	return word
}

func (p *parser) expect(want string) {
	if word := p.word(); word != want {
		p.note(fmt.Errorf("want the word %q, got %q", want, word))
	}
}

func (p *parser) number() int {
	n, err := strconv.Atoi(p.word())
	p.note(err)
	return n
}

func (p *parser) duration() time.Duration {
	d, err := time.ParseDuration(p.word())
	p.note(err)
	return d
}

// quoted returns the next text, in quotes.
func (p *parser) quoted() string {
	quoted, err := strconv.QuotedPrefix(p.rest)
	p.note(err)
	p.rest = strings.TrimPrefix(p.rest[len(quoted):], " ")
	text, err := strconv.Unquote(quoted)
	p.note(err)
	return text
}

// note keeps the first error.
func (p *parser) note(err error) {
	if p.err == nil {
		p.err = err
	}
}
