package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// Farthest is the latest instant that a clock may show, in nanoseconds since 1970.
const Farthest = 1<<62 - 1

// A Setup is what histories are played on.
type Setup struct {
	Algorithm ratelimit.Algorithm
	Tick      time.Duration // of the store's clock; 0 is a nanosecond
	Start     time.Time
	Forgets   bool   // whether the store forgets keys when it is full
	Kept      string // where it keeps states, for the text of a failure

	// Open returns limiters of the same new keys, and their clock, which shows Start.
	Open func() ([]ratelimit.Limiter, Clock)
}

// A Clock is that of a limiter.
type Clock interface{ Set(t time.Time) }

// A Play performs a history, and compares the answers.
type Play struct {
	*Setup
	limiters []ratelimit.Limiter
	limiter  ratelimit.Limiter // that does the present operation
	clock    Clock
	now      int64
	keys     []*Key
	made     map[string]*reservation // by name
	wrong    error                   // the first difference
	traits
}

// A Key is what a Play knows of a key.
type Key struct {
	Name  string
	Model *model.Key
	Last  ratelimit.Decision
	Made  []string // the names of its reservations, oldest first
	Holds []string // those of them that are held

	// When the requests that were denied since the key has changed are granted, as they were told.
	told map[question]int64
	// How many holds have ended by themselves since the store has kept a state of the key.
	ended int
}

// A reservation, which may be a hold, outlives a Reset of its key.
type reservation struct {
	*ratelimit.Reservation
	by    ratelimit.Limiter
	of    *Key
	key   *model.Key // that made it
	model *model.Reservation
	held  *model.Held
	n     int
	due   uint64 // in nanoseconds since 1970
	over  bool   // whether it was settled or cancelled
}

// traits are what is special about an algorithm, or about a part of it.
type traits struct {
	floats bool // a WarmingUp, which may round differently from the model
	counts bool // a log that counts denied events
	flies  bool // an InFlight, so that all reservations are holds
}

func traitsOf(alg ratelimit.Algorithm) (t traits) {
	switch alg := alg.(type) {
	case ratelimit.All:
		for _, part := range alg {
			of := traitsOf(part)
			t = traits{t.floats || of.floats, t.counts || of.counts, t.flies || of.flies}
		}
	case ratelimit.WarmingUp:
		t.floats = true
	case ratelimit.SlidingLog:
		t.counts = alg.CountDenied
	case ratelimit.InFlight:
		t.flies = true
	}
	return t
}

// New begins to play a history.
func (s *Setup) New() *Play {
	p := &Play{Setup: s, now: s.Start.UnixNano(), made: map[string]*reservation{}}
	p.traits = traitsOf(s.Algorithm)
	p.limiters, p.clock = s.Open()
	p.limiter = p.limiters[0]
	return p
}

func (s *Setup) tick() time.Duration { return max(1, s.Tick) }

// Key returns what is known of a key.
func (p *Play) Key(name string) *Key {
	for _, k := range p.keys {
		if k.Name == name {
			return k
		}
	}
	k := &Key{Name: name}
	p.renew(k)
	p.keys = append(p.keys, k)
	return k
}

// Now returns the time, in nanoseconds since 1970.
func (p *Play) Now() int64 { return p.now }

// Size returns how many events a reservation has.
func (p *Play) Size(name string) int { return p.made[name].n }

// Ended reports whether the answers need not agree any more: a WarmingUp may round otherwise.
func (p *Play) Ended() bool {
	for _, k := range p.keys {
		if k.Model.Close() {
			return true
		}
	}
	return false
}

// renew makes k a key of which nothing has happened.
func (p *Play) renew(k *Key) { k.Model, k.told = model.New(p.Algorithm, p.tick()), nil }

// fail notes a difference, unless there was one before.
func (p *Play) fail(format string, args ...any) {
	if p.wrong == nil {
		p.wrong = fmt.Errorf(format, args...)
	}
}

// noError reports whether there was no error.
func (p *Play) noError(err error) bool {
	if err != nil {
		p.fail("an error: %w", err)
	}
	return err == nil
}

// compareError notes an error that does not match want.
func (p *Play) compareError(want, got error) {
	if !errors.Is(got, want) {
		p.fail("want the error %v\n got %v", want, got)
	}
}

// Do performs an operation, and returns an error if an answer is wrong. It does nothing if the
// operation is about a reservation that was not granted, or would wait.
func (p *Play) Do(o Op) (wrong error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			wrong = fmt.Errorf("panic: %v\n%s", panicked, debug.Stack())
		}
	}()
	p.limiter = p.limiters[o.By%len(p.limiters)]
	switch {
	case o.Verb == Pass:
		p.pass(o.For)
		return p.wrong
	case o.isOfName():
		r := p.made[o.Name]
		if r == nil {
			return nil
		}
		p.notice(r.of)
		r.of.ended = 0
		p.end(o, r)
		return p.wrong
	}
	k := p.Key(o.Key)
	p.notice(k)
	if o.Verb != Peek {
		k.ended = 0
	}
	if o.N < 0 {
		p.invalid(k, o.N)
		return p.wrong
	}
	ctx := context.Background()
	switch o.Verb {
	case Take:
		got, err := p.limiter.Take(ctx, k.Name, o.N)
		if p.noError(err) {
			p.compare(k, k.Model.Take(p.now, o.N), got)
			p.keepPromise(k, takes(o.N), got.Allowed, got.RetryAfter)
		}
	case Allow:
		p.allow(k, o.N)
	case TakeUpTo:
		p.takeUpTo(k, o.N)
	case Peek:
		p.peek(k)
	case Charge:
		got, err := p.limiter.Charge(ctx, k.Name, o.N)
		if !p.isTooMuch(k, err) {
			k.told = nil
			p.compare(k, k.Model.Charge(p.now, o.N), got)
		}
	case Wait:
		p.wait(k, o)
	case Reserve:
		p.reserve(k, o)
	case Hold:
		p.hold(k, o)
	case WaitHold:
		p.waitHold(k, o)
	case Reset:
		if p.noError(p.limiter.Reset(ctx, k.Name)) {
			p.renew(k)
		}
	case Crowd:
		if p.Forgets {
			p.crowd(k)
		}
	}
	return p.wrong
}

// pass moves the clock. Holds that have ended by then make a difference at once.
func (p *Play) pass(d time.Duration) {
	if d <= 0 || d > time.Duration(Farthest-p.now) {
		return
	}
	var open []int
	for _, k := range p.keys {
		open = append(open, k.Model.Holds(p.now))
	}
	p.now += int64(d)
	p.clock.Set(time.Unix(0, p.now))
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
	p.noMoreThan(k)
	if p.noError(p.limiter.Reset(context.Background(), k.Name)) {
		p.renew(k)
	}
}

// noMoreThan compares a key that may be granted less than the model says, but no more.
func (p *Play) noMoreThan(k *Key) {
	got, err := p.limiter.Peek(context.Background(), k.Name)
	if !p.noError(err) {
		return
	}
	want := k.Model.Peek(p.now)
	if got.Allowed && !want.Allowed || got.Remaining > want.Remaining ||
		got.RetryAfter < want.RetryAfter {
		p.fail("want no more than %+v\n got %+v", want, got)
	}
}

// notice gives k a new model if the store has forgotten it.
func (p *Play) notice(k *Key) {
	if !p.Forgets {
		return
	}
	got, err := p.limiter.Peek(context.Background(), k.Name)
	if !p.noError(err) {
		return
	}
	fresh := model.New(p.Algorithm, p.tick())
	if got == fresh.Peek(p.now) && got != k.Model.Peek(p.now) {
		p.renew(k)
	}
}

// crowd exhausts other keys.
func (p *Play) crowd(k *Key) {
	for i := range 4 {
		other := fmt.Sprint("other ", p.now, i)
		_, err := p.limiter.Take(context.Background(), other, k.Model.Limit())
		p.noError(err)
	}
}

func (p *Play) allow(k *Key, n int) {
	var got bool
	if n == 1 {
		got = p.limiter.Allow(k.Name)
	} else {
		got = p.limiter.AllowN(k.Name, n)
	}
	want := k.Model.Take(p.now, n)
	if got != want.Allowed {
		p.fail("want %t\n got %t", want.Allowed, got)
	}
	p.keepPromise(k, takes(n), got, p.roundUp(want.RetryAfter))
}

func (p *Play) takeUpTo(k *Key, n int) {
	got, d, err := p.limiter.TakeUpTo(context.Background(), k.Name, n)
	if !p.noError(err) {
		return
	}
	k.told = nil
	want, decision := k.Model.TakeUpTo(p.now, n)
	p.compare(k, decision, d)
	if got != want {
		p.fail("want %d events\n got %d", want, got)
	}
}

func (p *Play) peek(k *Key) {
	got, err := p.limiter.Peek(context.Background(), k.Name)
	if p.noError(err) {
		p.compare(k, k.Model.Peek(p.now), got)
		p.checkPromise(k, takes(1), got.Allowed, got.RetryAfter)
	}
}

// invalid makes requests for fewer events than none, which change nothing.
func (p *Play) invalid(k *Key, n int) {
	ctx := context.Background()
	d, err := p.limiter.Take(ctx, k.Name, n)
	p.compareError(ratelimit.ErrInvalid, err)
	_, _, err = p.limiter.TakeUpTo(ctx, k.Name, n)
	p.compareError(ratelimit.ErrInvalid, err)
	_, _, err = p.limiter.Reserve(ctx, k.Name, n)
	p.compareError(ratelimit.ErrInvalid, err)
	p.compareError(ratelimit.ErrInvalid, p.limiter.WaitN(ctx, k.Name, n))
	if d.Allowed || p.limiter.AllowN(k.Name, n) {
		p.fail("%d events were allowed", n)
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
	ctx, most := p.waiting(o)
	due, _, err := k.Model.Clone().Reserve(p.now, o.N, most)
	switch {
	case err == nil && due > uint64(p.now):
		return
	case err != nil && o.N <= k.Model.Limit() && (p.flies || k.Model.Holds(p.now) > 0):
		return // held events may come back, so that this waits until its deadline
	}
	var want, got error
	if p.flies {
		_, _, want = k.Model.HoldWithin(p.now, o.N, model.Terms{}, most)
	} else {
		_, _, want = k.Model.Reserve(p.now, o.N, most)
	}
	if o.N == 1 {
		got = p.limiter.Wait(ctx, k.Name)
	} else {
		got = p.limiter.WaitN(ctx, k.Name, o.N)
	}
	p.compareError(want, got)
	if want == nil {
		k.told = nil
	}
}

// waiting returns the context of an operation that waits, and for how long it may wait.
func (p *Play) waiting(o Op) (ctx context.Context, most time.Duration) {
	if !o.LimitsWait {
		return context.Background(), ratelimit.Never
	}
	return deadlineContext{context.Background(), time.Unix(0, p.now).Add(o.Within)}, o.Within
}

// A deadlineContext has a deadline by the clock of the limiter.
type deadlineContext struct {
	context.Context
	deadline time.Time
}

func (c deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }

// compare compares a Decision about k.
func (p *Play) compare(k *Key, want, got ratelimit.Decision) {
	k.Last = got
	want.RetryAfter = p.roundUp(want.RetryAfter)
	want.ResetAfter = p.roundUp(want.ResetAfter)
	want.Delay = p.roundUp(want.Delay)
	if p.floats {
		// A float that should be a whole number may be a little off, and is then rounded up.
		near := func(a, b, most time.Duration) bool { return (a - b).Abs() <= most }
		if near(want.ResetAfter, got.ResetAfter, max(2, p.Tick)) {
			want.ResetAfter = got.ResetAfter
		}
		if p.Tick > 1 && near(want.RetryAfter, got.RetryAfter, p.Tick) {
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

// roundUp returns d in whole ticks.
func (p *Play) roundUp(d time.Duration) time.Duration {
	tick := p.tick()
	if rest := d % tick; rest > 0 && d < math.MaxInt64-tick {
		return d - rest + tick
	}
	return d
}

// A question is what was asked for, so that its answer can be compared with another one.
type question struct {
	verb   Verb // Take, also of what asks for the same, or Reserve
	n      int
	within time.Duration // of a Reserve: the longest wait
}

func takes(n int) question { return question{verb: Take, n: n} }

func (q question) String() string {
	if q.verb == Reserve {
		return fmt.Sprintf("reserve %d within %v", q.n, q.within)
	}
	return fmt.Sprint(q.verb, " ", q.n)
}

// isCounted reports whether a log counts a denial of q.
func (p *Play) isCounted(q question) bool { return p.counts && q.verb == Take }

// checkPromise compares the answer to a question with what an earlier answer has told of it, if
// nothing has changed since: denied with the time that is left, and then granted.
func (p *Play) checkPromise(k *Key, what question, granted bool, retryAfter time.Duration) {
	due, isTold := k.told[what]
	if !isTold || p.floats && k.Model.Holds(p.now) > 0 { // a turn may find it colder
		return
	}
	left := time.Duration(due - p.now)
	switch {
	case left <= 0 && !granted:
		p.fail("%s was told to be granted %v ago", what, -left)
	case left > 0 && granted:
		p.fail("%s was told to be granted in %v", what, left)
	case left > 0 && !p.isCounted(what) && retryAfter != p.roundUp(left):
		p.fail("%s was told to be granted in %v, and is now told %v", what, left, retryAfter)
	}
}

// keepPromise is checkPromise for a request, which changes the key if it is granted. It remembers
// what the answer tells.
func (p *Play) keepPromise(k *Key, what question, granted bool, retryAfter time.Duration) {
	p.checkPromise(k, what, granted, retryAfter)
	if granted || p.isCounted(what) {
		k.told = nil
	}
	isLater := retryAfter > time.Duration(Farthest-p.now)
	if granted || isLater || p.isCounted(what) && what.n != 1 {
		return
	}
	if k.told == nil {
		k.told = map[question]int64{}
	}
	k.told[what] = p.now + int64(retryAfter)
}

// Run plays the operations that next chooses, until it chooses none. If an answer is wrong, Run
// fails the test with a short history. It returns how many operations it has played.
func Run(t testing.TB, s *Setup, next func(p *Play) (o Op, ok bool)) (played int) {
	t.Helper()
	played, wrong := s.Play(next)
	if wrong != nil {
		t.Fatal(wrong)
	}
	return played
}

// Play is Run that returns an error with the short history.
func (s *Setup) Play(next func(p *Play) (o Op, ok bool)) (played int, wrong error) {
	p := s.New()
	var ops []Op
	for o, ok := next(p); ok && !p.Ended(); o, ok = next(p) {
		ops = append(ops, o)
		if wrong := p.Do(o); wrong != nil {
			return len(ops), errors.New(s.Explain(ops, wrong))
		}
	}
	return len(ops), nil
}

// Replay plays a history, and returns an error if an answer is wrong.
func (s *Setup) Replay(ops []Op) error {
	p := s.New()
	for _, o := range ops {
		if wrong := p.Do(o); wrong != nil {
			return fmt.Errorf("%v: %w", o, wrong)
		}
		if p.Ended() {
			return nil
		}
	}
	return nil
}

// Explain returns a text about a history with a wrong answer: the shortest one that it finds.
func (s *Setup) Explain(ops []Op, wrong error) string {
	short := Shrink(ops, func(ops []Op) bool { return s.Replay(ops) != nil })
	if again := s.Replay(short); again != nil {
		wrong = again
	}
	const form = "a wrong answer to a history of %#v, in %s, from time.Unix(0, %d) on, in ticks of " +
		"%v, which TestTraces can play again:\n%s%v"
	return fmt.Sprintf(form, s.Algorithm, s.Kept, s.Start.UnixNano(), s.tick(), Text(short), wrong)
}

// Check plays a history that is written down, and fails the test if an answer is wrong.
func Check(t testing.TB, s *Setup, text string) {
	t.Helper()
	ops, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := s.Replay(ops); wrong != nil {
		t.Fatal(s.Explain(ops, wrong))
	}
}
