package history

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Twins are limiters on several stores, which must all give the same answers. There is no model, so
// that the limits of keys may change, and operations may be on several keys, or be made together.
type Twins struct {
	Limits []ratelimit.Algorithm // that the keys may have; they begin with the first one
	// Which limiter of a process asks for a key, if a process has several; else nil. A limiter has
	// the number of the limit that its keys begin with.
	Own   map[string]int
	Start time.Time
	Tick  time.Duration // of the stores' clocks; 0 is a nanosecond
	Kept  string        // where each store keeps states, for the text of a failure

	// Open opens the stores. A key has the limit of(key), which changes.
	Open func(of func(key string) ratelimit.Algorithm) OpenTwins
}

// OpenTwins are limiters of the same new keys on several stores.
type OpenTwins struct {
	Stores []Store
	Clock  Clock // of all, which shows Start

	After func(ops []Op) error // if it is not nil, compares more after operations made together
	// Fault lets a Fault happen to all stores, and reports whether that may have damaged a state.
	Fault func(o Op) (damages bool)
	// Whether what a TakeAll denies tells only of the keys that are known to refuse, so that the
	// first store may tell an earlier time.
	Partial bool
}

// A Store has limiters of the same new keys.
type Store struct {
	// Of each process. If a process has several, those of the first process come first, in the
	// order of their numbers in Own, then those of the second one, and so on.
	Limiters []ratelimit.Limiter
	// Together makes calls in their order, and each before the one before has returned. If it is
	// nil, they are made one after the other.
	Together func(calls []func())
	// Whether takes of the same number of events that are made together are one TakeEach.
	TakesEach bool
}

// String implements [Game].
func (s *Twins) String() string { return describe(s.Limits, s.Kept, s.Start, s.Tick) }

// New implements [Game].
func (s *Twins) New() Player {
	p := &match{Twins: s, limits: map[string]int{}, makers: map[string]maker{}}
	p.opened = s.Open(p.limitOf)
	p.Past = newPast(s.Start, s.Tick, func(k *Key) { k.told = nil })
	p.clock = p.opened.Clock
	for _, alg := range s.Limits {
		p.traits = p.or(traitsOf(alg))
	}
	for _, of := range p.opened.Stores {
		p.sides = append(p.sides, newSide(of.Limiters, s.Own, nil))
	}
	return p
}

// A match performs a history on the limiters of Twins.
type match struct {
	*Twins
	Past
	limits map[string]int // which limit a key has, if that has changed; of "", those without an entry
	opened OpenTwins
	sides  []*side
	joined []Op             // that are made together with the next one
	makers map[string]maker // of reservations, by name

	damaged bool // whether a Fault may have damaged a state
	// Whether so much may be owed that a state has no room for more: of many events, or by a bucket
	// that would be paid after Farthest.
	owes bool
}

// A maker says who made a reservation, and under which limit.
type maker struct{ by, limit int }

// maker returns who makes a reservation that an operation makes now.
func (p *match) maker(o *Op) maker { return maker{by: o.By, limit: p.limitNumber(o.Key)} }

// limitOf returns the limit of a key.
func (p *match) limitOf(key string) ratelimit.Algorithm { return p.Limits[p.limitNumber(key)] }

func (p *match) limitNumber(key string) int {
	number, changed := p.limits[key]
	if !changed {
		number, changed = p.limits[""]
	}
	if !changed {
		number = p.Own[key]
	}
	return number % len(p.Limits)
}

// Ended implements [Player].
func (p *match) Ended() bool { return false }

// Finish implements [Player].
func (p *match) Finish() (wrong error) {
	defer catch("the end", &wrong)
	p.perform()
	return p.wrong
}

// Size implements [Player].
func (p *match) Size(name string) int { return p.sides[0].Size(name) }

func (p *match) isOver(name string) bool { return p.sides[0].isOver(name) }

// waits implements [Player]: whether a Wait would return at once is not known without a model.
func (p *match) waits() bool { return false }

// isNow is not known without a model.
func (p *match) isNow(*Key, int) bool { return false }

// Key returns what is known of a key.
func (p *match) Key(name string) *Key {
	k := p.Past.Key(name)
	if k.Last == (ratelimit.Decision{}) && len(p.joined) == 0 {
		p.all([]Op{{Verb: Peek, Key: name}})
	}
	return k
}

// Do implements [Player].
func (p *match) Do(o Op) (wrong error) {
	defer catch(o, &wrong)
	if r := p.sides[0].made[o.Name]; r != nil && o.isOfName() {
		o.Key = r.key
	}
	if !p.joins(&o) {
		p.perform()
	}
	switch o.Verb {
	case Pass:
		p.move(o.For)
	case Limit:
		if o.Key == "" { // each key
			clear(p.limits)
		}
		p.limits[o.Key] = o.N
		p.changeAll()
	case Fault:
		p.damaged = p.opened.Fault(o) || p.damaged
		p.changeAll()
	case Wait, WaitHold, Crowd:
	default:
		p.joined = append(p.joined, o)
		if !o.And {
			p.perform()
		}
	}
	return p.wrong
}

// joins reports whether an operation can be made together with those before it, so that it is known
// in which order a store decides on them.
func (p *match) joins(o *Op) bool {
	return !p.isAlone(o) && !slices.ContainsFunc(p.joined, func(before Op) bool {
		isSame := o.isOfName() && o.Name == before.Name
		return before.By != o.By || isSame || p.isAlone(&before)
	})
}

// isAlone reports whether an operation is not made together with others: it is no call, or is about
// several keys, or about a reservation of another process or of another limit than the present one.
func (p *match) isAlone(o *Op) bool {
	isOther := o.isOfName() && p.makers[o.Name] != p.maker(o)
	return !o.isCall() || o.Verb == Reset || o.OfSeveral() || isOther
}

// perform performs the operations that are made together.
func (p *match) perform() {
	ops := p.joined
	p.joined = nil
	ops = slices.DeleteFunc(ops, func(o Op) bool {
		return o.isOfName() && p.sides[0].isLost(o.Name)
	})
	if len(ops) == 0 || p.wrong != nil {
		return
	}
	p.all(ops)
	if p.opened.After != nil && p.wrong == nil {
		p.wrong = p.opened.After(ops)
	}
	if p.wrong != nil {
		p.wrong = fmt.Errorf("after %v: %w", ops[len(ops)-1], p.wrong)
	}
}

// all performs operations together on each store.
func (p *match) all(ops []Op) {
	over := make([]bool, len(ops)) // whether the reservation of each had been settled or cancelled
	for i, o := range ops {
		over[i] = p.isOver(o.Name)
	}
	got := p.call(0, ops)
	for i := 1; i < len(p.sides); i++ {
		other := p.call(i, ops)
		for j, o := range ops {
			if said(other[j]) != said(got[j]) && !p.isPartial(&o, got[j], other[j]) {
				p.fail("to %v\nstore 0 answers %s\nstore %d answers %s",
					o, said(got[j]), i, said(other[j]))
			}
		}
	}
	for i, o := range ops {
		p.note(o, over[i], got[i])
		if o.makes() && (got[i].made != nil) != got[i].Allowed {
			p.fail("want a Reservation exactly if it is granted\n got %s", said(got[i]))
		}
	}
}

// isPartial reports whether answers of a store may differ so, because the first one tells only of
// some keys.
func (p *match) isPartial(o *Op, first, other answer) bool {
	return p.opened.Partial && o.OfSeveral() && !first.Allowed && !other.Allowed &&
		first.err == nil && other.err == nil && first.RetryAfter <= other.RetryAfter
}

// call makes the calls of operations on a store.
func (p *match) call(store int, ops []Op) (answers []answer) {
	of, s := p.opened.Stores[store], p.sides[store]
	answers = make([]answer, len(ops))
	switch {
	case of.TakesEach && len(ops) > 1 && s.isEach(ops):
		s.takeEach(ops, answers)
	case of.Together != nil && len(ops) > 1:
		calls := make([]func(), len(ops))
		for i, o := range ops {
			calls[i] = func() { answers[i] = s.ask(o, p.Now()) }
		}
		of.Together(calls)
	default:
		for i, o := range ops {
			answers[i] = s.ask(o, p.Now())
		}
	}
	for i, o := range ops {
		s.remember(o, answers[i])
	}
	return answers
}

// note notes what the answers to an operation have told.
func (p *match) note(o Op, over bool, got answer) {
	k := p.Past.Key(o.Key)
	if got.made != nil {
		p.makers[o.Name] = p.maker(&o)
		p.keep(k, o, o.Verb == Hold || len(o.ends()) > 0 || p.flies, got.made.Delay())
	}
	p.owes = p.owes || max(o.N, k.limit()) >= leastDebt || Farthest-p.now < int64(24*time.Hour)
	switch {
	case got.err != nil:
		p.expectError(o, over, got.err)
	case over && o.Verb == Settle:
		p.compareError(ratelimit.ErrEnded, nil)
	case p.isOfSeveral(o):
		p.changeAll()
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

// isOfSeveral reports whether an operation is about several keys.
func (p *match) isOfSeveral(o Op) bool {
	r := p.sides[0].made[o.Name]
	return o.OfSeveral() || r != nil && r.all
}

// expectError notes an error, unless the operation may have that one.
func (p *match) expectError(o Op, over bool, err error) {
	switch {
	case p.damaged && errors.Is(err, ratelimit.ErrState):
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
		text += ", the error " + stateInError.ReplaceAllString(a.err.Error(), "(state)")
	}
	return text
}

// stateInError matches what an error says of a state that could not be read. A store may have used
// a damaged state before.
var stateInError = regexp.MustCompile(`the \d+ bytes begin with [0-9a-f]+`)
