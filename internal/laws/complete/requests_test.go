package complete_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/calendar"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A stored state is that of a key, in one of the forms in which stores keep it.
type stored interface {
	// apply returns the state after a request, whether it must be stored, and the answer.
	apply(l *limit.Limit, req step.Request) (_ stored, changed bool, _ step.Answer)

	// words returns the words of the state, to name it.
	words() []uint64
}

// inWords is a state as memory keeps it: one word if that has all there is to know, or else a state
// of the limit's loose form. The zero inWords is that of a new key.
type inWords struct {
	of *limit.Limit  // whose state of one word it is, or nil
	by *step.Machine // whose state it is otherwise
	st step.State
}

func (s inWords) apply(l *limit.Limit, req step.Request) (_ stored, changed bool, a step.Answer) {
	if s.of == nil && s.by == nil {
		s = inWords{by: l.Loose().Machine, st: step.PlainState(l.Loose().NewState())}
		if l.Word() != nil {
			s = inWord(l, 0)
		}
	}
	if s.of == l {
		if next, ok := decide(l, s.st.Words[0], &req, &a); ok {
			return inWord(l, next), next != s.st.Words[0], a
		}
	}
	s = s.wide()
	if word := l.Word(); word != nil && s.st.IsPlain() {
		by, st, _ := l.Loose().Reconcile(s.by, s.st, req.Fixed.Now)
		if narrow, fits := word.Narrow(st.Words, req.Fixed.Now); by == l.Loose().Machine && fits {
			if next, ok := decide(l, narrow, &req, &a); ok && next != narrow {
				return inWord(l, next), true, a
			}
		}
	}
	by, st, changed := l.Loose().StepFrom(s.by, s.st, &req, &a)
	return inWords{by: by, st: st}, changed, a
}

// inWord returns a state of one word, which is one of l.
func inWord(l *limit.Limit, word uint64) inWords {
	return inWords{of: l, st: step.PlainState([]uint64{word})}
}

// wide returns a copy of the state as one that is not a word.
func (s inWords) wide() inWords {
	if s.of == nil {
		return inWords{by: s.by, st: s.st.Clone()}
	}
	wide := s.of.Word().Widen(s.st.Words[0])
	return inWords{by: s.of.Loose().Machine, st: step.PlainState(wide[:])}
}

// decide decides on a state of one word as memory does, without a Step, if that is possible.
func decide(l *limit.Limit, word uint64, req *step.Request, a *step.Answer) (next uint64, ok bool) {
	by, n, now := l.Word(), req.N, req.Fixed.Now
	told := word
	var taking step.WordStep
	switch {
	case req.Op == step.OpTake || req.Op == step.OpReserve && req.Hold.For == 0:
		if req.UpTo {
			n = step.UpTo(by, word, now, n)
		}
		taking.Take(by, word, now, n)
	case req.Op == step.OpPeek:
		taking.Charge(by, word, now, 0)
	case req.Op == step.OpCharge:
		if !taking.Charge(by, word, now, n) {
			return word, false
		}
		told = taking.Next
	default:
		return word, false
	}
	l.Tell(&taking, told, req.Fixed, a)
	if req.Op == step.OpReserve && (!taking.Granted || a.Delay > 0) {
		return word, false
	}
	if req.UpTo && a.Allowed {
		a.Granted = n
	}
	return taking.Next, true
}

func (s inWords) words() []uint64 {
	if s.of == nil && s.by == nil {
		return nil
	}
	wide := s.wide()
	words := wide.by.PackIn(wide.st).Words
	if s.of != nil {
		words = append(words, 0) // another state than a wide one of the same words
	}
	return words
}

// inBytes is a state as a database keeps it, or Redis.
type inBytes []byte

func (s inBytes) apply(l *limit.Limit, req step.Request) (_ stored, changed bool, _ step.Answer) {
	next, err := l.Apply(s, req)
	if err != nil {
		panic(err)
	}
	return inBytes(next.State), next.Changed, next.Answer
}

func (s inBytes) words() (words []uint64) {
	if s == nil {
		return nil
	}
	header := len(s) % 8 // at least a part of it: the rest are words like others
	for _, b := range s[:header] {
		words = append(words, uint64(b))
	}
	for ; header < len(s); header += 8 {
		words = append(words, binary.LittleEndian.Uint64(s[header:]))
	}
	return words
}

// A moment is a state and what the definition says of its key at the same instant.
type moment struct {
	path
	st   stored
	idle int // when the store may forget the state
	key  history
	kept history // what the key was before it was asked
	ids  uint64  // how many have been in use
}

// A requestWalk goes through all moments of a key to which any requests lead.
type requestWalk struct {
	*testing.T
	limits []*limit.Limit // of the key, between which it changes, if there are two
	of     *limit.Limit   // which is asked
	namer
	frontier[*moment]
	answers int
	most    int    // holds and turns at once, so that the walk is finite
	lasting bool   // whether reservations are also held after their turn
	fromDue bool   // whether extensions count from when the events may happen, as those of users do
	fresh   stored // the state of a new key
}

// run walks, and returns how many moments there are.
func (w *requestWalk) run(st stored) int {
	w.Helper()
	w.fresh = st
	for phase := range max(1, w.grid) {
		key := history{worlds: []definition{w.definition}, flies: w.limits[0].Releases()}
		w.add(&moment{path: path{now: phase}, st: st, key: key})
	}
	for m, ok := w.next(); ok; m, ok = w.next() {
		w.askAll(m)
		require.Less(w, len(w.seen), mostStates, "%v: is a state named wrongly?", w.of.Spec)
	}
	return len(w.seen)
}

// add goes on to a moment, unless an equal one was there.
func (w *requestWalk) add(m *moment) {
	w.frontier.add(w.name(m.key.key(m.now), &m.path, m.st.words(), m.key.ids()), m)
}

// askAll makes each request in a moment, and goes on to what follows.
func (w *requestWalk) askAll(m *moment) {
	for i, of := range w.limits {
		asked := *m
		w.of, asked.key, asked.kept = of, m.key.as(i, m.now), m.key
		w.ask(&asked)
	}
	if m.key.pending() > 0 { // the present limit settles
		settled, by := *m, 0
		settled.key, by = m.key.asPresent(m.now)
		settled.kept = m.key
		w.of = w.limits[by]
		w.end(&settled)
	}
	w.wait(m)
}

// end settles what is open or ahead.
func (w *requestWalk) end(m *moment) {
	for i, one := range m.key.holds {
		w.settle(m, i, one)
	}
	for i, one := range m.key.turns {
		if !one.final && (i == len(m.key.turns)-1 || !w.drifts(m)) {
			w.settleTurn(m, i, one)
		}
	}
}

// ask makes each request for the limit that is asked.
func (w *requestWalk) ask(m *moment) {
	key, now := m.key, m.now
	w.request(m, "Peek", step.Request{Op: step.OpPeek}, w.peek(key, now), key)
	for n := 1; n <= w.of.Limit(); n++ {
		w.take(m, n)
		w.hold(m, n)
		if !key.flies { // else all are held
			w.reserve(m, n, hold{all: true})
		}
		if w.lasting {
			w.reserve(m, n, hold{end: 2})
			w.reserve(m, n, hold{end: 1, back: true})
		}
	}
	w.upTo(m, w.of.Limit())
	if room := key.room(now); room >= 0 && w.mayCharge(key) { // into debt
		n := room + 1
		after := key.take(now, n)
		w.request(m, fmt.Sprint("Charge ", n), step.Request{Op: step.OpCharge, N: n}, w.peek(after, now), after)
	}
}

func (w *requestWalk) wait(m *moment) {
	if next, goesOn := m.wait(m.key.pending() > 0 || m.key.matters(m.now)); goesOn {
		after := moment{path: next, st: m.st, idle: m.idle, key: m.key.at(next.now), ids: m.ids}
		if len(w.limits) > 1 && after.key.pending() < m.key.pending() {
			after.st = w.ended(&after)
		}
		w.add(&after)
		if m.idle <= next.now {
			forgotten := after
			forgotten.step, forgotten.st = "wait 1 until the key is forgotten", w.fresh
			w.add(&forgotten)
		}
	}
}

// ended returns the state without holds that have ended by themselves: to settle what is not open
// changes nothing else. So a denial changes the state only if the store keeps the limit that denies.
func (w *requestWalk) ended(m *moment) stored {
	at := step.Reading{Now: kernel.Instant(w.instant(m.now)), Own: true}
	st, _, _ := m.st.apply(w.limits[m.key.latest()], step.Request{Op: step.OpSettle, Fixed: &at, Hold: step.Handle{ID: m.unused()}})
	return st
}

func (w *requestWalk) take(m *moment, n int) {
	req := step.Request{Op: step.OpTake, N: n}
	if len(m.key.turns) > 0 || m.key.room(m.now) < n {
		w.denied(m, fmt.Sprint("Take ", n), req, n)
		return
	}
	after := m.key.take(m.now, n)
	w.request(m, fmt.Sprint("Take ", n), req, w.granted(after, m.now, m.key.delay(m.now)), after)
}

func (w *requestWalk) upTo(m *moment, n int) {
	req := step.Request{Op: step.OpTake, N: n, UpTo: true}
	granted := min(n, m.key.remaining(m.now))
	if granted == 0 {
		w.denied(m, fmt.Sprint("TakeUpTo ", n), req, 1)
		return
	}
	after := m.key.take(m.now, granted)
	want := w.granted(after, m.now, m.key.delay(m.now))
	want.Granted = granted
	w.request(m, fmt.Sprint("TakeUpTo ", n), req, want, after)
}

// denied makes a request that is denied like one of n events.
func (w *requestWalk) denied(m *moment, what string, req step.Request, n int) {
	after := m.key.noted(m.now, n)
	w.request(m, what, req, w.denial(after, m.now, n), after.denied(m.now, after.ready(m.now, n)))
}

func (w *requestWalk) hold(m *moment, n int) {
	if m.key.pending() == w.most || w.drifts(m) && len(m.key.turns) > 0 {
		return
	}
	for _, back := range []bool{true, false} {
		if len(w.limits) > 1 && (!back || n > 1) {
			continue // one hold of one event, that comes back, is enough
		}
		last := 2
		if back {
			last = 1
		}
		what := fmt.Sprintf("Hold %d for %d, back: %v", n, last, back)
		one := hold{id: m.unused(), n: n, back: back}
		req := step.Request{
			Op: step.OpHold, N: n,
			Hold: step.Handle{ID: one.id, For: w.duration(last), Back: back},
		}
		if len(m.key.turns) > 0 || m.key.room(m.now) < n {
			w.denied(m, what, req, n)
			continue
		}
		delay := m.key.delay(m.now)
		one.due = m.now + delay
		one.end = one.due + last
		after := m.key.open(m.now, one)
		w.request(m, what, req, w.granted(after, m.now, delay), after)
	}
}

// firstID is before all IDs, which are unlike all other words.
const firstID = 1 << 44

// unused returns an odd ID that no hold had. One that is less by 1 is for a turn.
func (m *moment) unused() uint64 {
	m.ids += 2
	return firstID + m.ids + 1
}

func (w *requestWalk) settle(m *moment, i int, one hold) {
	for n := range one.n + 2 {
		if n > 0 && one.all || n > one.n && (m.key.end(i, one.n).room(m.now) < 0 || !w.mayCharge(m.key)) {
			continue
		}
		after := m.key.end(i, min(n, one.n))
		if n > one.n && !m.key.flies {
			after = after.take(m.now, n-one.n)
		}
		w.request(m, fmt.Sprintf("Settle %d for %d", one.id, n),
			step.Request{Op: step.OpSettle, N: n, Of: one.n, Hold: step.Handle{ID: one.id}},
			w.peek(after, m.now), after)
	}
	if one.all || len(w.limits) > 1 {
		return
	}
	after := m.key
	after.holds = slices.Clone(after.holds)
	last := w.extension(m, one)
	after.holds[i].end = m.now + last
	w.extend(m, one, last, after)
}

// extension returns for how long an extended hold lasts, from now on.
func (w *requestWalk) extension(m *moment, one hold) int {
	if w.fromDue {
		return max(0, one.due-m.now) + longer
	}
	return longer
}

func (w *requestWalk) extend(m *moment, one hold, last int, after history) {
	w.request(m, fmt.Sprintf("Extend %d to %d", one.id, last),
		step.Request{Op: step.OpExtend, Hold: step.Handle{ID: one.id, For: w.duration(last)}},
		w.peek(after, m.now), after)
}

// longer is for how many ticks holds are extended.
const longer = 2

// farthest is how far ahead turns may be, in ticks.
const farthest = 6

// reserve reserves events, and holds them from then on for as long as of says.
func (w *requestWalk) reserve(m *moment, n int, of hold) {
	if len(w.limits) > 1 || m.key.pending() == w.most || w.drifts(m) && len(m.key.holds) > 0 {
		return
	}
	_, queues := m.key.decides().(queue)
	if queues && m.key.room(m.now) < n {
		return // it has no room, so that the reservation is denied
	}
	at := m.key.turn(m.now, n)
	if at > m.now+farthest {
		return // as one could reserve behind a reservation, cancel that, and so on
	}
	last := of.end
	of.id, of.n, of.due = m.unused(), n, at+m.key.delay(at)
	of.end += of.due
	if of.all {
		of.id--
	}
	after := m.key
	switch {
	case at > m.now:
		after.turns = append(slices.Clip(after.turns), turn{hold: of, at: at})
	case of.end > m.now:
		after = after.open(m.now, of)
	default:
		after = after.take(m.now, n)
	}
	want := w.described(after, m.now)
	want.Allowed, want.Wait = true, w.duration(of.due-m.now)
	w.request(m, fmt.Sprintf("Reserve %d for %d, back: %v", n, last, of.back),
		step.Request{
			Op: step.OpReserve, N: n, MaxWait: w.duration(horizon),
			Hold: step.Handle{ID: of.id, For: w.duration(last), Back: of.back},
		}, want, after)
}

// drifts reports whether a turn may depend on what was held or reserved before. It is not walked what
// is settled then: docs/holds.md says only that the key grants later, and never more.
func (w *requestWalk) drifts(m *moment) bool {
	_, drifts := m.key.decides().(fact)
	return drifts
}

// settleTurn settles a reservation that is ahead, for no events or, if they are held afterwards, for
// any number of them.
func (w *requestWalk) settleTurn(m *moment, i int, one turn) {
	for n := range one.n + 1 {
		if n > 0 && one.all {
			break
		}
		after := m.key
		after.turns = slices.Clone(after.turns)
		after.turns[i].n, after.turns[i].final = n, true
		switch {
		case n == 0:
			after.turns = slices.Delete(after.turns, i, i+1)
		case m.key.flies: // the events are over, but nothing is granted before that time
			after.turns[i].n = 0
		}
		w.request(m, fmt.Sprintf("Settle %d for %d", one.id, n),
			step.Request{Op: step.OpSettle, N: n, Of: one.n, Hold: step.Handle{ID: one.id}},
			w.peek(after, m.now), after)
	}
	if !one.all {
		after := m.key
		after.turns = slices.Clone(after.turns)
		last := w.extension(m, one.hold)
		after.turns[i].end = max(one.at, m.now+last)
		w.extend(m, one.hold, last, after)
	}
}

// mayCharge reports whether the definition says what follows from a charge: events that are counted
// while held ones lock a key join the count, as docs/holds.md says.
func (w *requestWalk) mayCharge(key history) bool {
	_, locks := key.decides().(lockout)
	return !locks || len(key.holds) == 0
}

// described returns what an answer says of a key whatever was asked.
func (w *requestWalk) described(key history, now int) (a step.Answer) {
	a.Limit, a.Remaining = w.of.Limit(), key.remaining(now)
	a.ResetAfter = w.duration(key.fresh(now) - now)
	return a
}

func (w *requestWalk) granted(after history, now, delay int) (a step.Answer) {
	a = w.described(after, now)
	a.Allowed, a.Delay = true, w.duration(delay)
	return a
}

func (w *requestWalk) denial(after history, now, n int) (a step.Answer) {
	a = w.described(after, now)
	a.RetryAfter = w.duration(after.ready(now, n) - now)
	return a
}

func (w *requestWalk) peek(key history, now int) step.Answer {
	if key.remaining(now) > 0 {
		return w.granted(key, now, key.delay(now))
	}
	return w.denial(key.noted(now, 1), now, 1)
}

// request makes a request, compares the answer, and goes on.
func (w *requestWalk) request(m *moment, what string, req step.Request, want step.Answer, after history) {
	w.answers++
	now := kernel.Instant(w.instant(m.now))
	req.Fixed = &step.Reading{Now: now, Own: true}
	next, changed, got := m.st.apply(w.of, req)
	if got.Excess { // the form of the state has no room for the debt
		after, want = m.key, w.peek(m.key, m.now)
	}
	got.Part = 0 // of which the definition of an All does not speak
	isSame := want.Decision == got.Decision && want.Wait == got.Wait && want.Granted == got.Granted
	if !isSame {
		require.Fail(w, "another answer",
			"%v: %s at %d is\n%+v instead of\n%+v after\n%s\nwords %v\n%s", w.of.Spec, what, m.now, got, want,
			&m.path, m.st.words(), m.key.key(m.now))
	}
	if req.Op != step.OpPeek {
		if !changed && !got.Allowed && req.Op != step.OpSettle && req.Op != step.OpExtend && after.mayForget(m.kept, m.now) {
			after = m.kept
		}
		if len(w.limits) > 1 {
			what = fmt.Sprint(what, " of ", w.of.Spec)
		}
		idle := m.idle
		if changed {
			idle = m.now + int(kernel.CeilDiv(uint64(got.IdleAfter()), uint64(w.duration(1))))
		}
		w.add(&moment{path: m.after(what), st: next, idle: idle, key: after, ids: m.ids})
	}
}

// A requested limit is a small one, as stores get it.
type requested struct {
	spec limit.Spec
	small
	most    int  // holds and turns at once
	lasting bool // whether reservations are also held after their turn
}

// base returns the instant at which a walk begins. The seconds of a calendar, which are a word in
// memory, look like an instant of the first years.
func (r *requested) base(enc kernel.Encoding) int64 {
	switch {
	case r.lasts == 0:
		return bases[1]
	case enc.Portable:
		return firstMonday + bases[1]/week*week
	}
	return firstMonday + bases[2]/week*week
}

func numbers(kind limit.Kind, numbers ...uint64) (s limit.Spec) {
	s.Kind = kind
	copy(s.Numbers[:], numbers)
	return s
}

// dayOfUTC is the limit of two events in each day.
var dayOfUTC = limit.Spec{Kind: limit.CalendarWindow, Numbers: [4]uint64{2, uint64(calendar.Day)}, Text: calendar.UTC}

var requestedLimits = map[string]requested{
	"FixedWindow": {numbers(limit.FixedWindow, 2, 2),
		small{definition: fixedWindow{limit: 2, window: 2}, grid: 2, memory: 2}, 2, false},
	"TokenBucket": {numbers(limit.TokenBucket, 1, 1, 2),
		small{definition: tokenBucket{events: 1, per: 1, burst: 2}, unit: 1, memory: 4}, 2, false},
	"LeakyBucket": {numbers(limit.LeakyBucket, 1, 2, 2),
		small{definition: leakyBucket{tokenBucket{events: 1, per: 2, burst: 2}}, unit: 1, memory: 4}, 1, true},
	"SlidingLog": {numbers(limit.SlidingLog, 2, 2),
		small{definition: slidingLog{limit: 2, window: 2}, memory: 2}, 2, false},
	"CalendarWindow": {dayOfUTC,
		small{definition: fixedWindow{limit: 2, window: 3}, lasts: 8 * time.Hour, grid: 3, memory: 3}, 1, true},
	"SlidingWindow": {numbers(limit.SlidingWindow, 2, 2, 1),
		small{definition: slidingWindow{limit: 2, segments: 1, length: 2}, grid: 4, memory: 4, segment: 2}, 1, true},
	"SlidingWindow, a word": {numbers(limit.SlidingWindow, 1, 2, 1),
		small{definition: slidingWindow{limit: 1, segments: 1, length: 2}, grid: 4, memory: 4, segment: 2}, 1, true},
	"RollingWindow": {numbers(limit.RollingWindow, 2, 2, 1),
		small{definition: rollingWindow{quota: 2, periods: 2, length: 1}, grid: 2, memory: 2, segment: 1}, 1, true},
	"FixedWindow, StartOnFirstEvent": {numbers(limit.FixedWindow, 2, 2, 1),
		small{definition: eventWindow{limit: 2, window: 2}, memory: 2}, 2, false},
	"TokenBucket, RefillInterval": {numbers(limit.TokenBucket, 1, 2, 2, 1),
		small{definition: intervalBucket{events: 1, per: 2, burst: 2, tokens: 2}, memory: 6}, 1, false},
	"Lockout": {numbers(limit.Lockout, 2, 2, 1, 2),
		small{definition: lockout{limit: 2, window: 2, shortest: 1, longest: 2}, memory: 6}, 1, false},
	"All of two": {
		limit.Spec{Kind: limit.All, Parts: []limit.Spec{numbers(limit.TokenBucket, 1, 2, 2), numbers(limit.SlidingLog, 2, 3)}},
		small{
			definition: both{tokenBucket{events: 1, per: 2, burst: 2}, slidingLog{limit: 2, window: 3}},
			unit:       1, memory: 4,
		}, 1, false},
	"SlidingLog, CountDenied": {numbers(limit.SlidingLog, 2, 2, 1),
		small{definition: countingLog{slidingLog: slidingLog{limit: 2, window: 2}}, memory: 2}, 1, true},
	"InFlight": {numbers(limit.InFlight, 2, 2),
		small{definition: slidingLog{limit: 2, window: 2}, memory: 2}, 2, false},
	"InFlight, reserved": {numbers(limit.InFlight, 2, 2),
		small{definition: slidingLog{limit: 2, window: 2}, memory: 2}, 1, true},
	"FixedWindow, held from a turn on": {numbers(limit.FixedWindow, 2, 2),
		small{definition: fixedWindow{limit: 2, window: 2}, grid: 2, memory: 2}, 1, true},
	"TokenBucket, held from a turn on": {numbers(limit.TokenBucket, 1, 2, 2),
		small{definition: tokenBucket{events: 1, per: 2, burst: 2}, unit: 1, memory: 4}, 1, true},
	"SlidingLog, held from a turn on": {numbers(limit.SlidingLog, 2, 2),
		small{definition: slidingLog{limit: 2, window: 2}, memory: 2}, 1, true},
}

// forms are those in which stores keep states.
var forms = map[string]func(l *limit.Limit) (*limit.Limit, stored){
	"in words": func(l *limit.Limit) (*limit.Limit, stored) { return l, inWords{} },
	"in bytes": func(l *limit.Limit) (*limit.Limit, stored) { return l, inBytes(nil) },
	"portable": func(l *limit.Limit) (*limit.Limit, stored) {
		l, err := l.Portable(1)
		if err != nil {
			panic(err)
		}
		return l, inBytes(nil)
	},
}

// TestComplete_Requests: a key is granted, denied, charged, held and reserved for as docs/holds.md says, in
// every state to which any requests lead, however its holds are settled, extended or end by themselves.
func TestComplete_Requests(t *testing.T) {
	budget.Alone(t)
	for name, one := range requestedLimits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			states, answers := 0, 0
			for _, of := range forms {
				l, err := limit.New(one.spec, kernel.InMemory, nil)
				require.NoError(t, err)
				l, st := of(l)
				w := requestWalk{T: t, limits: []*limit.Limit{l},
					namer: namer{machine: l.Machine, base: one.base(l.Encoding), small: one.small},
					most:  one.most, lasting: one.lasting}
				states += w.run(st)
				answers += w.answers
			}
			t.Logf("complete: %d states, %d answers", states, answers)
		})
	}
}
