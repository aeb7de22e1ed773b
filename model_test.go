package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/model"
	"github.com/ratelimit-go/ratelimit/internal/race"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestModel runs random schedules on the library and on the reference model,
// which must agree on every answer. To run one schedule again, give its seed
// to runSeed.
func TestModel(t *testing.T) {
	t.Parallel()
	for i, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			skipped := 0
			for seed := range race.Few(schedules) {
				skipped += runSeed(t, kind, uint64(i)<<32+seed)
			}
			require.LessOrEqual(t, skipped, schedules*steps/100)
		})
	}
}

const (
	schedules = 250 // for each kind of algorithm
	steps     = 60  // in a schedule
)

func runSeed(t *testing.T, kind kind, seed uint64) (skipped int) {
	c := &randomChoices{rand.New(rand.NewPCG(seed, 0))}
	s := newSchedule(t, c, kind)
	s.log("seed %#x", seed)
	return s.run(steps)
}

// choices is where a schedule takes its decisions from.
type choices interface {
	below(n int) int                         // a number in 0 ≤ i < n
	within(span time.Duration) time.Duration // a time in 0 ≤ t < span
	more() bool                              // whether there is anything left to decide by
}

type randomChoices struct{ *rand.Rand }

func (c *randomChoices) below(n int) int { return c.IntN(n) }
func (c *randomChoices) within(span time.Duration) time.Duration {
	return time.Duration(c.Int64N(int64(span)))
}
func (c *randomChoices) more() bool { return true }

// farthest is the latest instant that a clock may show.
const farthest = 1<<62 - 1

// A schedule is a sequence of operations on a few keys of one limiter, done on
// the model as well.
type schedule struct {
	t       testing.TB
	choices choices
	trace   []string // what was done so far, for the message of a failure

	alg     ratelimit.Algorithm
	spans   []time.Duration // in which the algorithm counts
	floats  bool            // whether it may round differently from the model
	counts  bool            // whether it counts denied events
	flies   bool            // whether it counts events in flight
	clock   *storetest.Clock
	limiter ratelimit.Limiter
	keys    []*scheduleKey

	now   int64
	marks []int64 // instants at which something is said to change
}

type scheduleKey struct {
	name         string
	model        *model.Key
	reservations []scheduleReservation
	holds        []scheduleHold
	last         ratelimit.Decision
}

// A scheduleHold outlives a reset of its key as well. The model is nil once it is settled.
type scheduleHold struct {
	limiter *ratelimit.Reservation
	n       int
	key     *model.Key
	model   *model.Held
	of      scheduleReservation // that is settled like a hold; zero if it is one
}

// A scheduleReservation outlives a reset of its key.
type scheduleReservation struct {
	due     uint64 // ns since the Unix epoch
	limiter *ratelimit.Reservation
	key     *model.Key
	model   *model.Reservation
}

func newSchedule(t testing.TB, c choices, kind kind) *schedule {
	d := newDrawer(c)
	s := &schedule{t: t, choices: c, alg: kind.draw(d)}
	s.spans, s.floats, s.counts, s.flies = d.spans, d.floats, d.counts, d.flies
	s.now = s.start()
	s.clock = storetest.NewClock(time.Unix(0, s.now))
	s.log("%T%+v from %d", s.alg, s.alg, s.now)

	var err error
	s.limiter, err = ratelimit.New(s.alg, ratelimit.WithClock(s.clock))
	require.NoError(t, err, "%#v", s.alg)
	for _, name := range []string{"", "a key"} {
		s.keys = append(s.keys, &scheduleKey{name: name, model: model.New(s.alg, 1)})
	}
	return s
}

// start chooses the first instant.
func (s *schedule) start() int64 {
	switch s.choices.below(8) {
	case 0:
		return 0
	case 1:
		return 1
	case 2:
		return 1 << 61
	case 3: // the edge of a window
		span := int64(pick(s.choices, s.spans...))
		return max(0, 1_700_000_000_000_000_000/span*span+int64(s.choices.below(3)-1))
	default:
		return 1_700_000_000_000_000_000 + int64(s.choices.below(1_000_000_000))
	}
}

// run takes steps, and returns how many it skipped: it ends early if the
// library, which may use floats for a WarmingUp, need not agree any more.
func (s *schedule) run(steps int) (skipped int) {
	defer func() {
		if p := recover(); p != nil {
			s.fail("panic: %v\n%s", p, debug.Stack())
		}
	}()
	for i := range steps {
		if !s.choices.more() {
			return 0
		}
		k := pick(s.choices, s.keys...)
		s.advance(k)
		s.step(k)
		if k.model.Close() {
			return steps - i - 1
		}
	}
	return 0
}

func (s *schedule) step(k *scheduleKey) {
	switch i := s.choices.below(32); {
	case i < 10:
		s.take(k, s.events(k))
	case i < 13:
		s.allow(k, s.events(k))
	case i < 16:
		s.peek(k)
	case i < 21:
		s.reserve(k, s.events(k))
	case i < 23:
		s.cancel(k)
	case i < 24:
		s.queue(k)
	case i < 25:
		s.account(k)
	case i < 27:
		s.wait(k, s.events(k))
	case i < 29:
		s.promiseRetry(k, s.events(k))
	case i < 30:
		s.promiseRemaining(k)
	case i < 31:
		s.negative(k)
	default:
		s.reset(k)
	}
}

// events chooses how many events to ask for.
func (s *schedule) events(k *scheduleKey) int {
	limit := k.model.Limit()
	var n int
	switch s.choices.below(12) {
	case 0:
		return 0
	case 1, 2:
		n = 2
	case 3:
		n = 1 + s.choices.below(max(1, limit))
	case 4:
		n = 1 + s.choices.below(1+limit/4)
	case 5:
		n = limit
	case 6:
		n = min(limit, math.MaxInt-1) + 1
	case 7:
		n = k.last.Remaining
	case 8:
		n = min(k.last.Remaining, math.MaxInt-1) + 1
	default:
		n = 1
	}
	return n
}

// advance moves the clock, mostly to where something may change.
func (s *schedule) advance(k *scheduleKey) {
	to := s.now
	near := int64(s.choices.below(3) - 1)
	switch i := s.choices.below(16); {
	case i < 5:
		return
	case i < 6:
		to++
	case i < 9: // within a span
		span := pick(s.choices, s.spans...)
		to += int64(s.choices.within(span)) / int64(1+s.choices.below(4))
	case i < 11: // the edge of a window
		span := int64(pick(s.choices, s.spans...))
		to = to/span*span + span + near
	case i < 15:
		if len(s.marks) > 0 {
			recent := s.marks[max(0, len(s.marks)-6):]
			to = pick(s.choices, recent...) + near
		}
	default: // many spans
		span := pick(s.choices, s.spans...)
		to += min(int64(span), farthest/16) * int64(s.choices.below(16))
	}
	s.moveTo(to)
}

// moveTo sets the clock, if to is later than it and within what is supported.
func (s *schedule) moveTo(to int64) {
	if to > s.now && to <= farthest {
		s.now = to
		s.clock.Set(time.Unix(0, to))
		s.log("at %d", to)
	}
}

// mark remembers the instant after d for the clock to be moved to.
func (s *schedule) mark(d time.Duration) {
	if d > 0 && d <= time.Duration(farthest-s.now) {
		s.marks = append(s.marks, s.now+int64(d))
	}
}

func (s *schedule) take(k *scheduleKey, n int) ratelimit.Decision {
	s.log("Take(%q, %d)", k.name, n)
	got, err := s.limiter.Take(context.Background(), k.name, n)
	s.noError(err)
	s.compare(k, k.model.Take(s.now, n), got)
	return got
}

func (s *schedule) allow(k *scheduleKey, n int) bool {
	s.log("AllowN(%q, %d)", k.name, n)
	var got bool
	if n == 1 {
		got = s.limiter.Allow(k.name)
	} else {
		got = s.limiter.AllowN(k.name, n)
	}
	if want := k.model.Take(s.now, n).Allowed; got != want {
		s.fail("want %v, got %v", want, got)
	}
	return got
}

func (s *schedule) peek(k *scheduleKey) ratelimit.Decision {
	s.log("Peek(%q)", k.name)
	got, err := s.limiter.Peek(context.Background(), k.name)
	s.noError(err)
	s.compare(k, k.model.Peek(s.now), got)
	return got
}

func (s *schedule) reserve(k *scheduleKey, n int) {
	s.log("Reserve(%q, %d)", k.name, n)
	toSettle := s.choices.below(2) == 0 // like a hold
	var (
		due     uint64
		want    *model.Reservation
		held    *model.Held
		wantErr error
	)
	if toSettle {
		due, held, wantErr = k.model.HoldWithin(s.now, n, model.Terms{}, ratelimit.Never)
	} else {
		due, want, wantErr = k.model.Reserve(s.now, n, ratelimit.Never)
	}
	got, err := s.limiter.Reserve(context.Background(), k.name, n)
	s.compareError(wantErr, err)
	if err != nil {
		return
	}
	r := scheduleReservation{due, got, k.model, want}
	s.compareDelay(r)
	s.mark(got.Delay())
	if toSettle {
		k.holds = append(k.holds, scheduleHold{got, n, k.model, held, r})
		return
	}
	k.reservations = append(k.reservations, r)
}

// account holds and settles events, charges some, or takes as many as there are.
func (s *schedule) account(k *scheduleKey) {
	for range 1 + s.choices.below(4) {
		s.advance(k)
		switch s.choices.below(8) {
		default:
			s.hold(k, s.events(k))
		case 3, 4, 5:
			s.settle(k)
		case 6:
			s.charge(k, 1+s.choices.below(12))
		case 7:
			s.takeUpTo(k, s.events(k))
		}
	}
}

func (s *schedule) hold(k *scheduleKey, n int) {
	s.log("Hold(%q, %d)", k.name, n)
	held, want := k.model.Hold(s.now, n, model.Terms{})
	r, got, err := s.limiter.Hold(context.Background(), k.name, n)
	s.noError(err)
	s.compare(k, want, got)
	if (r != nil) != got.Allowed {
		s.fail("a Reservation that is nil exactly if it is denied is right")
	}
	if r != nil {
		k.holds = append(k.holds, scheduleHold{r, n, k.model, held, scheduleReservation{}})
	}
}

// settle settles one of the latest holds or reservations of k. It may have been settled or
// cancelled before, or k may have been reset since.
func (s *schedule) settle(k *scheduleKey) {
	if len(k.holds) == 0 {
		return
	}
	i := len(k.holds) - 1 - s.choices.below(min(4, len(k.holds)))
	h := &k.holds[i]
	if h.of.due > uint64(s.now) && h.model != nil {
		s.settleAhead(k, h)
		return
	}
	n := pick(s.choices, 0, 0, h.n, min(h.n, math.MaxInt/4)+s.choices.below(6), s.choices.below(min(h.n, math.MaxInt-1)+1))
	if s.flies && h.key != k.model {
		n = min(n, h.n) // a charge of all parts but that of the events in flight
	}
	if n < h.n && h.model != nil && h.key == k.model && k.model.Rings() && k.model.Ahead(s.now) {
		return // the frontier may then stay where it is, although the model's falls
	}
	s.log("Settle(%q, %d) of hold %d, of %d", k.name, n, i, h.n)
	d, err := h.limiter.Settle(context.Background(), n)
	if h.model == nil {
		s.compareError(ratelimit.ErrSettled, err)
		return
	}
	if s.tooMuch(k, err) {
		return
	}
	held := h.model
	h.model = nil
	if h.key != k.model { // reset since: nothing is given back
		if n > h.n {
			s.charged(k, n-h.n, d, err)
		} else {
			s.noError(err)
			s.compare(k, k.model.Peek(s.now), d)
		}
		return
	}
	s.compare(k, k.model.Settle(s.now, held, n), d)
}

// settleAhead settles a reservation with 0 before its turn, which cancels it.
func (s *schedule) settleAhead(k *scheduleKey, h *scheduleHold) {
	s.log("Settle(%q, 0) of %d that are due at %d", k.name, h.n, h.of.due)
	d, err := h.limiter.Settle(context.Background(), 0)
	s.noError(err)
	held := h.model
	h.model = nil
	h.key.Settle(s.now, held, 0)
	s.compare(k, k.model.Peek(s.now), d)
}

func (s *schedule) charge(k *scheduleKey, n int) {
	s.log("Charge(%q, %d)", k.name, n)
	d, err := s.limiter.Charge(context.Background(), k.name, n)
	s.charged(k, n, d, err)
}

// charged compares the results of a charge of n events.
func (s *schedule) charged(k *scheduleKey, n int, d ratelimit.Decision, err error) {
	if !s.tooMuch(k, err) {
		s.compare(k, k.model.Charge(s.now, n), d)
	}
}

// tooMuch reports whether err is ErrDebt, which must have changed nothing.
func (s *schedule) tooMuch(k *scheduleKey, err error) bool {
	if !errors.Is(err, ratelimit.ErrDebt) {
		s.noError(err)
		return false
	}
	s.log("%v", err)
	s.peek(k)
	return true
}

func (s *schedule) takeUpTo(k *scheduleKey, n int) {
	s.log("TakeUpTo(%q, %d)", k.name, n)
	wantGranted, want := k.model.TakeUpTo(s.now, n)
	granted, got, err := s.limiter.TakeUpTo(context.Background(), k.name, n)
	s.noError(err)
	s.compare(k, want, got)
	if granted != wantGranted {
		s.fail("granted: want %d, got %d", wantGranted, granted)
	}
}

// queue makes reservations one after another, and cancels some of them in any
// order.
func (s *schedule) queue(k *scheduleKey) {
	s.take(k, s.peek(k).Remaining)
	for range 2 + s.choices.below(3) {
		s.reserve(k, s.events(k))
	}
	for range 1 + s.choices.below(4) {
		s.cancel(k)
	}
}

// cancel cancels one of the latest reservations made on k. It may have been
// cancelled before, its time may have come, or k may have been reset since.
func (s *schedule) cancel(k *scheduleKey) {
	if len(k.reservations) == 0 {
		return
	}
	i := len(k.reservations) - 1 - s.choices.below(min(4, len(k.reservations)))
	r := k.reservations[i]
	s.compareDelay(r)
	s.log("Cancel(%q), reservation %d", k.name, i)
	r.key.Cancel(s.now, r.model)
	r.limiter.Cancel()
	s.peek(k)
}

// wait waits, if that takes no time: the events may happen at once, or the
// deadline is too near.
func (s *schedule) wait(k *scheduleKey, n int) {
	maxWait := ratelimit.Never
	ctx := context.Background()
	if s.choices.below(4) > 0 {
		maxWait = min(k.last.RetryAfter, farthest) / time.Duration(1+s.choices.below(2))
		maxWait = max(0, maxWait+time.Duration(s.choices.below(3)-1))
		ctx = deadlineContext{ctx, time.Unix(0, s.now).Add(maxWait)}
	}
	due, _, err := k.model.Clone().Reserve(s.now, n, maxWait)
	switch {
	case err == nil && due > uint64(s.now):
		return
	case err != nil && s.flies && n <= k.model.Limit():
		return // events in flight may be released, so that this waits until its deadline
	}
	_, _, want := k.model.Reserve(s.now, n, maxWait)
	s.log("WaitN(%q, %d) for at most %d", k.name, n, maxWait)
	if n == 1 {
		s.compareError(want, s.limiter.Wait(ctx, k.name))
	} else {
		s.compareError(want, s.limiter.WaitN(ctx, k.name, n))
	}
}

// A deadlineContext has a deadline by the clock of the test.
type deadlineContext struct {
	context.Context
	deadline time.Time
}

func (c deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }

// promiseRetry holds the library against its own word: one tick before
// RetryAfter is over the request is denied again, and then it is granted.
func (s *schedule) promiseRetry(k *scheduleKey, n int) {
	d := s.take(k, n)
	if d.Allowed || d.RetryAfter > time.Duration(farthest-s.now) {
		return
	}
	due := s.now + int64(d.RetryAfter)
	ask := func() ratelimit.Decision { return s.take(k, n) }
	if s.counts {
		if n != 1 {
			return // a question that is asked too early has consequences
		}
		ask = func() ratelimit.Decision { return s.peek(k) }
	}
	s.moveTo(due - 1)
	if d := ask(); d.Allowed || !s.counts && d.RetryAfter != 1 {
		s.fail("denied until the next instant is right")
	}
	s.moveTo(due)
	if d := ask(); !d.Allowed {
		s.fail("allowed is right")
	}
}

// promiseRemaining holds the library against its own word: one event more than
// Remaining is denied, and Remaining are granted.
func (s *schedule) promiseRemaining(k *scheduleKey) {
	remaining := s.peek(k).Remaining
	if !s.counts && remaining < math.MaxInt && s.allow(k, remaining+1) {
		s.fail("denied is right")
	}
	if !s.allow(k, remaining) {
		s.fail("allowed is right")
	}
}

func (s *schedule) negative(k *scheduleKey) {
	n := -1 - s.choices.below(2)*(math.MaxInt-1)
	s.log("%d events of %q", n, k.name)
	d, err := s.limiter.Take(context.Background(), k.name, n)
	s.compareError(ratelimit.ErrNegative, err)
	_, err = s.limiter.Reserve(context.Background(), k.name, n)
	s.compareError(ratelimit.ErrNegative, err)
	s.compareError(ratelimit.ErrNegative, s.limiter.WaitN(context.Background(), k.name, n))
	if d.Allowed || s.limiter.AllowN(k.name, n) {
		s.fail("denied is right")
	}
}

func (s *schedule) reset(k *scheduleKey) {
	s.log("Reset(%q)", k.name)
	s.noError(s.limiter.Reset(context.Background(), k.name))
	k.model = model.New(s.alg, 1)
}

func (s *schedule) compare(k *scheduleKey, want, got ratelimit.Decision) {
	k.last = got
	s.mark(got.RetryAfter)
	s.mark(got.ResetAfter)

	// A float that should be a whole number may be a little off, and is then
	// rounded up to the next.
	if off := got.ResetAfter - want.ResetAfter; s.floats && -2 <= off && off <= 2 {
		got.ResetAfter = want.ResetAfter
	}
	// Part is not defined if all parts wait for a reservation, or if some wait longer
	// than a Duration can express.
	open := k.model.Ahead(s.now) || want.RetryAfter == ratelimit.Never
	if parts := k.model.Parts(); open && 0 <= got.Part && got.Part < parts {
		got.Part = want.Part
	}
	if got != want {
		s.fail("want %+v\n got %+v", want, got)
	}
}

func (s *schedule) compareError(want, got error) {
	if !errors.Is(got, want) {
		s.fail("want %v\n got %v", want, got)
	}
}

func (s *schedule) noError(err error) {
	if err != nil {
		s.fail("%v", err)
	}
}

func (s *schedule) compareDelay(r scheduleReservation) {
	want := time.Duration(max(r.due, uint64(s.now)) - uint64(s.now))
	if got := r.limiter.Delay(); got != want {
		s.fail("Delay: want %d, got %d", want, got)
	}
}

func (s *schedule) log(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *schedule) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\n%s", strings.Join(s.trace, "\n"), fmt.Sprintf(format, args...))
}

// pick chooses one of the values.
func pick[T any](c choices, values ...T) T { return values[c.below(len(values))] }
