package decide_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/model"
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
			schedules := budget.Histories(40, 250)
			for seed := range budget.Seeds(t, schedules) {
				skipped += runSeed(t, kind, uint64(i)<<32+seed)
			}
			require.LessOrEqual(t, skipped, steps+int(schedules)*steps/100) // one schedule, and a hundredth
		})
	}
}

const steps = 60 // in a schedule

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
	flies   bool            // whether it counts events in flight, so that all reservations are holds
	evicts  bool            // whether the store has room for few keys
	clock   *storetest.Clock
	limiter ratelimit.Limiter
	keys    []*scheduleKey

	now   int64
	marks []int64 // instants at which something is said to change
}

type scheduleKey struct {
	name         string
	model        *model.Key
	reservations []*scheduleReservation
	holds        []*scheduleReservation
	last         ratelimit.Decision
}

// A scheduleReservation, which may be a hold, outlives a reset of its key.
type scheduleReservation struct {
	limiter *ratelimit.Reservation
	key     *model.Key
	model   *model.Reservation
	held    *model.Held
	n       int
	due     uint64 // ns since the Unix epoch
	over    bool   // whether it was settled or cancelled
}

func newSchedule(t testing.TB, c choices, kind kind) *schedule {
	d := newDrawer(c)
	s := &schedule{t: t, choices: c, alg: kind.draw(d)}
	s.spans, s.floats, s.counts, s.flies = d.spans, d.floats, d.counts, d.flies
	s.now = s.start()
	s.clock = storetest.NewClock(time.Unix(0, s.now))
	s.log("%T %v from %d", s.alg, s.alg, s.now)

	opts := []ratelimit.Option{ratelimit.WithClock(s.clock), ratelimit.WithName("test"), ratelimit.WithStoreTimeout(time.Hour)}
	switch keeping := pick(c, "memory", "memory", "limits", "bytes", "evictions"); {
	case keeping == "bytes" && uint64(s.most()) > 1<<61: // a state in bytes counts no more
	case keeping == "evictions":
		s.evicts = true
		s.log("in a store of few keys")
		opts = append(opts, ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: 3}))
	default:
		s.log("in %s", keeping)
		opts = append(opts, fakes.Keepings[keeping]()...)
	}
	var err error
	s.limiter, err = ratelimit.New(s.alg, opts...)
	require.NoError(t, err, "%#v", s.alg)
	for _, name := range []string{"", "a key"} {
		s.keys = append(s.keys, &scheduleKey{name: name, model: model.New(s.alg, 1)})
	}
	return s
}

// most returns the most events that a part of the algorithm grants at once.
func (s *schedule) most() (most int) {
	parts, ok := s.alg.(ratelimit.All)
	if !ok {
		parts = ratelimit.All{s.alg}
	}
	for _, part := range parts {
		most = max(most, model.New(part, 1).Limit())
	}
	return most
}

// start chooses the first instant. With an InFlight, that is no earlier than a Timeout after the
// epoch: until then, a state does not tell when a shorter hold ends.
func (s *schedule) start() int64 {
	earliest := int64(0)
	if s.flies {
		earliest = int64(slices.Max(s.spans))
	}
	switch i := s.choices.below(8); {
	case i < 3 && s.flies:
		return max(1<<60, earliest)
	case i == 0:
		return 0
	case i == 1:
		return 1
	case i == 2:
		return 1 << 61
	case i == 3: // the edge of a window
		span := int64(pick(s.choices, s.spans...))
		edge := 1_700_000_000_000_000_000 / span * span
		return max(earliest, edge+int64(s.choices.below(3)-1))
	default:
		return max(earliest, 1_700_000_000_000_000_000+int64(s.choices.below(1_000_000_000)))
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
	s.notice(k)
	switch i := s.choices.below(39); {
	case i < 8:
		s.take(k, s.events(k))
	case i < 11:
		s.allow(k, s.events(k))
	case i < 14:
		s.peek(k)
	case i < 18:
		s.reserve(k, s.events(k))
	case i < 20:
		s.cancel(k)
	case i < 22:
		s.queue(k)
	case i < 27:
		s.account(k)
	case i < 29:
		s.wait(k, s.events(k))
	case i < 31:
		s.promiseRetry(k, s.events(k))
	case i < 33:
		s.promiseRemaining(k)
	case i < 34:
		s.negative(k)
	case i < 35:
		s.forget(k)
	case i < 38:
		s.takeUpTo(k, s.events(k))
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
	if to <= s.now || to > farthest {
		return
	}
	var open []int
	for _, k := range s.keys {
		open = append(open, k.model.Holds(s.now))
	}
	s.now = to
	s.clock.Set(time.Unix(0, to))
	s.log("at %d", to)
	for i, k := range s.keys {
		if ended := open[i] - k.model.Holds(to); ended > 0 {
			s.ended(k, ended)
		}
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

func (s *schedule) takeUpTo(k *scheduleKey, n int) {
	s.log("TakeUpTo(%q, %d)", k.name, n)
	got, d, err := s.limiter.TakeUpTo(context.Background(), k.name, n)
	s.noError(err)
	want, decision := k.model.TakeUpTo(s.now, n)
	s.compare(k, decision, d)
	if got != want {
		s.fail("%d events are right, got %d", want, got)
	}
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

// promiseRetry checks the promise of RetryAfter: one tick before RetryAfter has passed, the request
// is denied again, and once it has passed, the request is granted.
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
	surprises := s.surprises(k)
	if !surprises {
		s.moveTo(due - 1)
		if d := ask(); d.Allowed || !s.counts && d.RetryAfter != 1 {
			s.fail("denied until the next instant is right")
		}
	}
	s.moveTo(due)
	if d := ask(); !d.Allowed && !surprises {
		s.fail("allowed is right")
	}
}

// promiseRemaining checks the promise of Remaining: a request for one event more than Remaining is
// denied, and one for Remaining events is granted.
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
	s.compareError(ratelimit.ErrInvalid, err)
	_, _, err = s.limiter.TakeUpTo(context.Background(), k.name, n)
	s.compareError(ratelimit.ErrInvalid, err)
	_, _, err = s.limiter.Reserve(context.Background(), k.name, n)
	s.compareError(ratelimit.ErrInvalid, err)
	s.compareError(ratelimit.ErrInvalid, s.limiter.WaitN(context.Background(), k.name, n))
	if d.Allowed || s.limiter.AllowN(k.name, n) {
		s.fail("denied is right")
	}
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

func (s *schedule) log(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *schedule) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\n%s", strings.Join(s.trace, "\n"), fmt.Sprintf(format, args...))
}

// pick chooses one of the values.
func pick[T any](c choices, values ...T) T { return values[c.below(len(values))] }
