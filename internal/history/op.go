// Package history has histories of keys: what happens to them, one operation after the other. A
// history is text, which a reader understands and a test can play again:
//
//	pass 1.5s
//	take 3
//	hold 2 for 1m back as h1
//	settle h1 for 1 by 1
//	peek of "another key"
//
// That is: 1.5 seconds pass; three events are taken; two are held for a minute, and come back if
// the hold ends by itself; the hold is settled for one by another limiter of the same keys, as of
// process; another key is looked at.
//
// A take of several keys is a TakeAll, and a hold of several is a HoldAll. An operation may be made
// together with the next one: both are under way at the same time, and may share a command.
//
//	take 3 of "a" with 1 of "b"
//	charge 2 of "a" and
//	take 1 of "a"
//
// A history is played on a [Setup], whose limiters must answer as internal/model does, or on
// [Twins], whose limiters on several stores must give the same answers. Both compare with what
// earlier answers have promised. [Run] plays operations that a test chooses. If an answer is wrong,
// Run looks for the shortest history with a wrong answer, and fails with that.
package history

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Verb says what an operation does.
type Verb string

const (
	Pass     Verb = "pass"    // time passes
	Take     Verb = "take"    // Limiter.Take
	Allow    Verb = "allow"   // Limiter.AllowN, which has no other answer than yes or no
	TakeUpTo Verb = "upto"    // Limiter.TakeUpTo
	Peek     Verb = "peek"    // Limiter.Peek
	Charge   Verb = "charge"  // Limiter.Charge
	Wait     Verb = "wait"    // Limiter.WaitN if it returns at once, and else nothing
	Reserve  Verb = "reserve" // Limiter.Reserve
	Hold     Verb = "hold"    // Limiter.Hold
	WaitHold Verb = "await"   // Limiter.Hold with Waiting if it returns at once, and else nothing
	Settle   Verb = "settle"  // Reservation.Settle
	Cancel   Verb = "cancel"  // Reservation.Cancel
	Extend   Verb = "extend"  // Reservation.Extend
	Reset    Verb = "reset"   // Limiter.Reset
	Crowd    Verb = "crowd"   // so many other keys are exhausted that a full store forgets some
	Limit    Verb = "limit"   // a key, or each, has another limit of those of Twins from now on
	Fault    Verb = "fault"   // what OpenTwins.Fault lets happen to the stores
)

// An Op is an operation on a key.
type Op struct {
	Verb Verb
	Key  string
	N    int // how many events; of a Limit, which one

	// For how long: a Pass lasts, events are held (0 is for the usual time), or an Extend lets them
	// be held.
	For time.Duration
	// Of a Reserve and a Wait, if LimitsWait: the longest wait.
	Within     time.Duration
	LimitsWait bool
	Back       bool // whether events that are held come back when their hold ends by itself

	By int // which of several limiters does it, as of several processes

	// The name of the reservation, which may be a hold, that the operation makes or is about; or of
	// the Fault.
	Name string

	// Events of other keys, of a Take or a Hold, or of a Settle that has a number for each key.
	With [2]Share
	And  bool // whether the next operation is made together with this one
}

// A Share is what a Take or Hold of several keys asks of one of them. It is zero if there are not
// so many.
type Share struct {
	Key string
	N   int
}

// shares returns what is asked of other keys.
func (o *Op) shares() (shares []Share) {
	for _, s := range o.With {
		if s != (Share{}) {
			shares = append(shares, s)
		}
	}
	return shares
}

// makes reports whether the operation makes a reservation.
func (o *Op) makes() bool { return o.Verb == Reserve || o.Verb == Hold || o.Verb == WaitHold }

// isOfName reports whether the operation is about a reservation.
func (o *Op) isOfName() bool { return o.Verb == Settle || o.Verb == Cancel || o.Verb == Extend }

// isCall reports whether the operation calls a limiter.
func (o *Op) isCall() bool {
	return o.Verb != Pass && o.Verb != Limit && o.Verb != Fault && o.Verb != Crowd
}

// String returns the operation as a line of text.
func (o Op) String() string {
	words := []string{string(o.Verb)}
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	switch {
	case o.Verb == Pass:
		add("%v", o.For)
		return strings.Join(words, " ")
	case o.isOfName() || o.Verb == Fault:
		add("%s", o.Name)
		switch o.Verb {
		case Settle, Fault:
			add("for %d", o.N)
		case Extend:
			add("for %v", o.For)
		}
	case o.Verb == Peek || o.Verb == Reset || o.Verb == Crowd:
	default:
		add("%d", o.N)
	}
	if o.LimitsWait {
		add("within %v", o.Within)
	}
	if o.makes() && o.For != 0 {
		add("for %v", o.For)
	}
	if o.Back {
		add("back")
	}
	if o.makes() {
		add("as %s", o.Name)
	}
	if o.By > 0 {
		add("by %d", o.By)
	}
	if o.Key != "" {
		add("of %q", o.Key)
	}
	for _, s := range o.shares() {
		add("with %d of %q", s.N, s.Key)
	}
	if o.And {
		add("and")
	}
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

// A parser reads the words of a line.
type parser struct {
	rest string
	err  error
}

// word returns the next word, or "" at the end.
func (p *parser) word() (word string) {
	word, p.rest, _ = strings.Cut(p.rest, " ")
	return word
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

func (p *parser) note(err error) {
	if p.err == nil {
		p.err = err
	}
}

func parse(line string) (o Op, err error) {
	p := &parser{rest: line}
	o.Verb = Verb(p.word())
	switch {
	case o.Verb == Pass:
		o.For = p.duration()
	case o.isOfName() || o.Verb == Fault:
		o.Name = p.word()
	case o.Verb == Peek || o.Verb == Reset || o.Verb == Crowd:
	case o.Verb == Take || o.Verb == Allow || o.Verb == TakeUpTo || o.Verb == Charge ||
		o.Verb == Wait || o.Verb == Limit || o.makes():
		o.N = p.number()
	default:
		return o, fmt.Errorf("there is no verb %q", o.Verb)
	}
	with := 0
	for p.rest != "" && p.err == nil {
		switch word := p.word(); word {
		case "for":
			if o.Verb == Settle || o.Verb == Fault {
				o.N = p.number()
			} else {
				o.For = p.duration()
			}
		case "by":
			o.By = p.number()
		case "within":
			o.Within, o.LimitsWait = p.duration(), true
		case "back":
			o.Back = true
		case "as":
			o.Name = p.word()
		case "of":
			o.Key = p.quoted()
		case "with":
			n := p.number()
			if p.word() != "of" || with == len(o.With) {
				return o, fmt.Errorf("after with, there is a number of a key, %d times at most", len(o.With))
			}
			o.With[with] = Share{N: n, Key: p.quoted()}
			with++
		case "and":
			o.And = true
		default:
			return o, fmt.Errorf("there is no word %q", word)
		}
	}
	return o, p.err
}
