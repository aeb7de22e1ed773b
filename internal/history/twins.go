package history

import (
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Twins are limiters on several stores, which must all give the same answers. There is no model, so
// that the limit of the keys may change.
type Twins struct {
	Limits []ratelimit.Algorithm // that the keys may have; they begin with the first one
	Start  time.Time
	Tick   time.Duration // of the stores' clocks; 0 is a nanosecond
	Kept   string        // where each store keeps states, for the text of a failure

	// Open opens the stores. Keys have the limit *of, which changes.
	Open func(of *ratelimit.Algorithm) OpenTwins
}

// OpenTwins are limiters of the same new keys on several stores.
type OpenTwins struct {
	Stores [][]ratelimit.Limiter // of each store
	Clock  Clock                 // of all, which shows Start
	After  func(o Op) error      // if it is not nil, compares more after each operation
}

// String implements [Game].
func (s *Twins) String() string {
	return describe(s.Limits, s.Kept, s.Start, s.Tick)
}

// New implements [Game].
func (s *Twins) New() Player {
	p := &match{Twins: s, limit: s.Limits[0], patience: patience}
	p.opened = s.Open(&p.limit)
	p.Past = newPast(s.Start, s.Tick, func(k *Key) { k.told = nil })
	p.clock = p.opened.Clock
	for _, alg := range s.Limits {
		p.traits = p.or(traitsOf(alg))
	}
	for _, of := range p.opened.Stores {
		p.sides = append(p.sides, newSide(of, &p.patience))
	}
	return p
}

// A match performs a history on the limiters of Twins.
type match struct {
	*Twins
	Past
	limit  ratelimit.Algorithm // of the keys
	opened OpenTwins
	sides  []*side

	patience time.Duration
	owes     bool // whether so much may be owed that a state has no room for more
}

// Ended implements [Player].
func (p *match) Ended() bool { return false }

// Finish implements [Player].
func (p *match) Finish() error { return p.wrong }

// Size implements [Player].
func (p *match) Size(name string) int { return p.sides[0].Size(name) }

func (p *match) isOver(name string) bool { return p.sides[0].isOver(name) }

// isNow is not known without a model. So Twins never wait.
func (p *match) isNow(*Key, int) bool { return false }

// Key returns what is known of a key.
func (p *match) Key(name string) *Key {
	k := p.Past.Key(name)
	if k.Last == (ratelimit.Decision{}) {
		p.all(Op{Verb: Peek, Key: name})
	}
	return k
}

// Do implements [Player].
func (p *match) Do(o Op) (wrong error) {
	defer catch(&wrong)
	switch o.Verb {
	case Pass:
		p.move(o.For)
	case Limit:
		p.limit = p.Limits[o.N%len(p.Limits)]
		for _, k := range p.keys {
			k.told = nil
		}
	case Wait, WaitHold, Crowd:
	default:
		p.all(o)
		if p.opened.After != nil && p.wrong == nil {
			p.wrong = p.opened.After(o)
		}
	}
	return p.wrong
}

// all performs an operation on each store.
func (p *match) all(o Op) {
	if o.isOfName() && p.sides[0].made[o.Name] == nil {
		return
	}
	over := p.isOver(o.Name)
	k := p.Past.Key(o.Key)
	var got answer
	for i, s := range p.sides {
		a := s.call(o, p.Now())
		if i > 0 && said(a) != said(got) {
			p.fail("store 0 answers %s\nstore %d answers %s", said(got), i, said(a))
		}
		got = a
	}
	if got.made != nil {
		p.keep(k, o, o.Verb == Hold || len(o.ends()) > 0 || p.flies, got.made.Delay())
	}
	p.owes = p.owes || max(o.N, k.limit()) >= leastDebt
	switch {
	case got.err != nil:
		p.expectError(o, over, got.err)
	case over && o.Verb == Settle:
		p.compareError(ratelimit.ErrEnded, nil)
	case o.Verb == Take || o.Verb == Hold:
		k.Last = got.Decision
		p.keepPromise(k, takes(o.N), got.Allowed, got.RetryAfter)
	case o.Verb == Peek:
		k.Last = got.Decision
		p.checkPromise(k, takes(1), got.Allowed, got.RetryAfter)
	case o.Verb == Reserve && !got.Allowed:
		p.keepPromise(k, question{Reserve, o.N, o.longestWait()}, false, got.RetryAfter)
	default:
		k.told = nil
	}
}

// expectError notes an error, unless the operation may have that one.
func (p *match) expectError(o Op, over bool, err error) {
	switch {
	case o.N < 0:
		p.compareError(ratelimit.ErrInvalid, err)
	case over && o.Verb == Settle || o.Verb == Extend: // a hold that has ended cannot be extended
		p.compareError(ratelimit.ErrEnded, err)
	case p.owes && (o.Verb == Charge || o.Verb == Settle):
		p.compareError(ratelimit.ErrDebt, err)
	default:
		p.noError(err)
	}
}

// leastDebt is how many events, or how great a limit, may leave no room in a state.
const leastDebt = 1 << 10

// said returns an answer as text. A reservation says when its turn is.
func said(a answer) string {
	text := fmt.Sprintf("%+v", a.Decision)
	if a.events > 0 {
		text += fmt.Sprintf(", %d events", a.events)
	}
	if a.made != nil {
		text += fmt.Sprintf(", reserved in %v", a.made.Delay())
	}
	if a.err != nil {
		text += fmt.Sprintf(", the error %v", a.err)
	}
	return text
}
