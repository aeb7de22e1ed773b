package history

import (
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// A Setup is what histories are played on.
type Setup struct {
	Algorithm ratelimit.Algorithm
	Tick      time.Duration // of the store's clock; 0 is a nanosecond
	Start     time.Time
	Patience  time.Duration // how long a wait for nothing may take in real time; 0 is 10s
	Forgets   bool          // whether the store forgets keys when it is full
	Kept      string        // where it keeps states, for the text of a failure

	// The most events of the one key that may happen within a span of time, unless some are
	// charged, or settled for more than was held. If it is nil, that is not compared.
	Bound func(span time.Duration) int

	// Open returns limiters of the same new keys, and their clock, which shows Start.
	Open func() ([]ratelimit.Limiter, Clock)
}

// String implements [Game].
func (s *Setup) String() string {
	return describe([]ratelimit.Algorithm{s.Algorithm}, s.Kept, s.Start, s.Tick)
}

// A Play performs a history on the limiters of a Setup, and on the model.
type Play struct {
	*Setup
	Past
	*side
	events
	granted map[string]*reservation // by name
	by      int                     // the limiter that does the present operation
}

// A reservation, which may be a hold, outlives a Reset of its key.
type reservation struct {
	of    *Key
	key   *model.Key // that made it
	model *model.Reservation
	held  *model.Held
	due   uint64 // in nanoseconds since 1970
	made  *made
}

// New implements [Game].
func (s *Setup) New() Player { return s.begin() }

func (s *Setup) begin() *Play {
	p := &Play{Setup: s, granted: map[string]*reservation{}}
	limiters, clock := s.Open()
	if s.Patience == 0 {
		s.Patience = patience
	}
	p.side = newSide(limiters, nil, &s.Patience)
	p.Past = newPast(s.Start, s.Tick, func(k *Key) {
		k.Model, k.told = model.New(s.Algorithm, p.tick), nil
	})
	p.clock, p.forget, p.traits = clock, s.Forgets, traitsOf(s.Algorithm)
	return p
}

// Ended implements [Player]: a WarmingUp may round otherwise than the model.
func (p *Play) Ended() bool {
	for _, k := range p.keys {
		if k.Model.Close() {
			return true
		}
	}
	return false
}

// Finish implements [Player].
func (p *Play) Finish() error {
	p.compareBound()
	return p.wrong
}

func (p *Play) waits() bool { return true }

func (p *Play) isNow(k *Key, n int) bool {
	due, _, err := k.Model.Clone().Reserve(p.now, n, 0)
	return err == nil && due == uint64(p.now)
}

// Do implements [Player].
func (p *Play) Do(o Op) (wrong error) {
	defer catch(o, &wrong)
	if wrong := p.do(o); wrong != nil {
		return fmt.Errorf("%v: %w", o, wrong)
	}
	return nil
}

func (p *Play) do(o Op) error {
	p.by = o.By
	switch {
	case o.Verb == Pass:
		p.pass(o.For)
		return p.wrong
	case o.Verb == Limit || o.Verb == Fault || o.And || o.OfSeveral():
		return errors.New("that is for Twins: the model has one key, whose limit does not change")
	case o.isOfName():
		if r := p.granted[o.Name]; r != nil {
			p.notice(r.of)
			r.of.ended = 0
			p.endOf(o, r)
		}
		return p.wrong
	}
	k := p.Key(o.Key)
	p.notice(k)
	if o.Verb != Peek {
		k.ended = 0
	}
	switch {
	case o.N < 0:
		p.invalid(k, o.N)
	case o.makes():
		p.reserve(k, o)
	case o.Verb == Wait:
		p.wait(k, o)
	case o.Verb == Crowd:
		p.crowd(k)
	default:
		p.take(k, o)
	}
	return p.wrong
}

// ask makes a call about k by the limiter that does the present operation.
func (p *Play) ask(k *Key, verb Verb, n int) answer {
	return p.call(Op{Verb: verb, Key: k.Name, N: n, By: p.by}, p.now)
}

// take performs an operation that takes events, or looks at them, and is over then.
func (p *Play) take(k *Key, o Op) {
	got := p.call(o, p.now)
	switch o.Verb {
	case Take:
		if p.noError(got.err) {
			p.compare(k, k.Model.Take(p.now, o.N), got.Decision)
			p.keepPromise(k, takes(o.N), got.Allowed, got.RetryAfter)
			p.happens(o.N, got.Allowed, got.Delay)
		}
	case Allow:
		want := k.Model.Take(p.now, o.N)
		if got.Allowed != want.Allowed {
			p.fail("want %t\n got %t", want.Allowed, got.Allowed)
		}
		p.keepPromise(k, takes(o.N), got.Allowed, p.roundUp(want.RetryAfter))
		p.happens(o.N, got.Allowed, want.Delay)
	case TakeUpTo:
		if !p.noError(got.err) {
			return
		}
		k.told = nil
		want, decision := k.Model.TakeUpTo(p.now, o.N)
		p.compare(k, decision, got.Decision)
		p.happens(got.events, true, got.Delay)
		if got.events != want {
			p.fail("want %d events\n got %d", want, got.events)
		}
	case Peek:
		p.looks(k, got)
	case Charge:
		if !p.isTooMuch(k, got.err) {
			k.told, p.charged = nil, p.charged || o.N > 0
			p.compare(k, k.Model.Charge(p.now, o.N), got.Decision)
		}
	case Reset:
		if p.noError(got.err) {
			p.compareBound()
			p.renew(k)
			p.events = events{}
		}
	}
}

// peek looks at a key.
func (p *Play) peek(k *Key) { p.looks(k, p.ask(k, Peek, 0)) }

// looks compares the answer of a Peek.
func (p *Play) looks(k *Key, got answer) {
	if p.noError(got.err) {
		p.compare(k, k.Model.Peek(p.now), got.Decision)
		p.checkPromise(k, takes(1), got.Allowed, got.RetryAfter)
	}
}

// pass moves the clock. Holds that have ended by then make a difference at once.
func (p *Play) pass(d time.Duration) {
	var open []int
	for _, k := range p.keys {
		open = append(open, k.Model.Holds(p.now))
	}
	if !p.move(d) {
		return
	}
	for i, k := range p.keys {
		if ended := open[i] - k.Model.Holds(p.now); ended > 0 {
			p.ended(k, ended)
		}
	}
}

// ended is called when some holds of k have ended by themselves. In a WarmingUp, it makes a
// difference which of those is ended first that have ended since the store has kept a state: then
// the answers must be no more generous, and the key begins anew.
func (p *Play) ended(k *Key, many int) {
	p.notice(k)
	k.ended += many
	if !p.floats || k.ended == 1 {
		p.peek(k)
		return
	}
	got, want := p.ask(k, Peek, 0), k.Model.Peek(p.now)
	if got.Allowed && !want.Allowed || got.Remaining > want.Remaining ||
		got.RetryAfter < want.RetryAfter {
		p.fail("want no more than %+v\n got %+v", want, got.Decision)
	}
	if p.noError(got.err) && p.noError(p.ask(k, Reset, 0).err) {
		p.renew(k)
	}
}

// notice gives k a new model if the store has forgotten it.
func (p *Play) notice(k *Key) {
	if !p.forget {
		return
	}
	got := p.ask(k, Peek, 0)
	if !p.noError(got.err) {
		return
	}
	fresh := model.New(p.Algorithm, p.tick)
	if got.Decision == fresh.Peek(p.now) && got.Decision != k.Model.Peek(p.now) {
		p.renew(k)
	}
}

// crowd exhausts other keys, if that makes the store forget some.
func (p *Play) crowd(k *Key) {
	for i := 0; p.forget && i < 4; i++ {
		other := &Key{Name: fmt.Sprint("other ", p.now, i)}
		p.noError(p.ask(other, Take, k.Model.Limit()).err)
	}
}

// invalid makes requests for fewer events than none, which change nothing.
func (p *Play) invalid(k *Key, n int) {
	for _, verb := range []Verb{Take, TakeUpTo, Reserve, Wait, Allow} {
		got := p.ask(k, verb, n)
		if verb != Allow {
			p.compareError(ratelimit.ErrInvalid, got.err)
		}
		if got.Allowed {
			p.fail("%s of %d events was allowed", verb, n)
		}
	}
	p.peek(k)
}

// isTooMuch reports whether err is ErrDebt, which must have changed nothing.
func (p *Play) isTooMuch(k *Key, err error) bool {
	if errors.Is(err, ratelimit.ErrDebt) {
		p.peek(k)
		return true
	}
	return !p.noError(err)
}

// wait waits, if that takes no time: the events may happen at once, or the deadline is too near.
func (p *Play) wait(k *Key, o Op) {
	most := o.longestWait()
	due, _, err := k.Model.Clone().Reserve(p.now, o.N, most)
	switch {
	case err == nil && due > uint64(p.now):
		return
	case err != nil && o.N <= k.Model.Limit() && (p.flies || k.Model.Holds(p.now) > 0):
		return // held events may come back, so that this waits until its deadline
	}
	var want error
	if p.flies {
		_, _, want = k.Model.HoldWithin(p.now, o.N, model.Terms{}, most)
	} else {
		_, _, want = k.Model.Reserve(p.now, o.N, most)
	}
	p.compareError(want, p.call(o, p.now).err)
	if want == nil {
		k.told = nil
		p.happens(o.N, true, 0)
	}
}

// happens notes that n events happen after a delay, if they were granted.
func (p *Play) happens(n int, granted bool, delay time.Duration) {
	if granted {
		p.happen("", uint64(p.now)+uint64(delay), n)
	}
}

// compare compares a Decision about k.
func (p *Play) compare(k *Key, want, got ratelimit.Decision) {
	k.Last = got
	want.RetryAfter = p.roundUp(want.RetryAfter)
	want.ResetAfter = p.roundUp(want.ResetAfter)
	want.Delay = p.roundUp(want.Delay)
	if p.floats {
		// A float that should be a whole number may be a little off, and is then rounded up.
		near := func(a, b, most time.Duration) bool { return (a - b).Abs() <= most }
		if near(want.ResetAfter, got.ResetAfter, max(2, p.tick)) {
			want.ResetAfter = got.ResetAfter
		}
		if p.tick > 1 && near(want.RetryAfter, got.RetryAfter, p.tick) {
			want.RetryAfter = got.RetryAfter
		}
	}
	// Part is not defined if all parts wait for a reservation, or if some wait longer than a
	// Duration can express.
	open := k.Model.Ahead(p.now) || want.RetryAfter == ratelimit.Never
	if open && 0 <= got.Part && got.Part < k.Model.Parts() {
		want.Part = got.Part
	}
	if got != want {
		p.fail("want %+v\n got %+v", want, got)
	}
}
