package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ends"
)

// This file makes the calls of operations.

// A side has limiters of the same keys, and the reservations that they have made.
type side struct {
	limiters []ratelimit.Limiter // of each process; or of each process those of all own keys
	own      map[string]int      // which limiter of a process asks for a key, if they are several
	made     map[string]*made    // by name
	patience *time.Duration      // how long a wait may take in real time; nil if none waits
}

// A made reservation was made by a limiter. Another one can resume it.
type made struct {
	*ratelimit.Reservation
	by   ratelimit.Limiter
	key  string
	n    int
	all  bool // whether it holds events of several keys
	over bool // whether it was settled or cancelled
}

// patience is how long a call that waits may take, if a Setup does not say so.
const patience = 10 * time.Second

func newSide(
	limiters []ratelimit.Limiter, own map[string]int, patience *time.Duration,
) *side {
	return &side{limiters, own, map[string]*made{}, patience}
}

// An answer is what the call of an operation returns.
type answer struct {
	ratelimit.Decision
	events int // that a TakeUpTo took
	made   *ratelimit.Reservation
	err    error
}

// Size implements [Player].
func (s *side) Size(name string) int { return s.made[name].n }

func (s *side) isOver(name string) bool {
	r := s.made[name]
	return r != nil && r.over
}

// limiter returns that of a process which asks for a key.
func (s *side) limiter(by int, key string) ratelimit.Limiter {
	each := 1 // how many limiters a process has
	for _, number := range s.own {
		each = max(each, number+1)
	}
	return s.limiters[(by*each+s.own[key])%len(s.limiters)]
}

// bounds returns the keys of an operation on several, or nothing.
func (s *side) bounds(o Op) (bounds []ratelimit.Bound) {
	for _, share := range o.shares() {
		b := ratelimit.For(s.limiter(o.By, share.Key), share.Key)
		if share.N != o.N {
			b = b.N(share.N)
		}
		bounds = append(bounds, b)
	}
	if len(bounds) == 0 {
		return nil
	}
	return append(bounds, ratelimit.For(s.limiter(o.By, o.Key), o.Key))
}

// call makes the call of an operation at a time, and remembers the reservation that it makes.
func (s *side) call(o Op, now int64) answer {
	a := s.ask(o, now)
	s.remember(o, a)
	return a
}

// remember remembers the reservation that an operation has made.
func (s *side) remember(o Op, a answer) {
	if a.made != nil {
		r := &made{Reservation: a.made, by: s.limiter(o.By, o.Key), key: o.Key, n: o.N}
		r.all = o.OfSeveral()
		s.made[o.Name] = r
	}
}

// ask makes the call of an operation at a time. Several may be made at once, unless they are about
// the same reservation.
func (s *side) ask(o Op, now int64) (a answer) {
	ctx, l, several := context.Background(), s.limiter(o.By, o.Key), s.bounds(o)
	switch {
	case several != nil && o.Verb == Take:
		a.Decision, a.err = ratelimit.TakeAll(ctx, o.N, several...)
		return a
	case several != nil && o.Verb == Hold:
		a.made, a.Decision, a.err = ratelimit.HoldAll(ctx, o.N, several...)
		return a
	}
	switch o.Verb {
	case Take:
		a.Decision, a.err = l.Take(ctx, o.Key, o.N)
	case Allow:
		if o.N == 1 {
			a.Allowed = l.Allow(o.Key)
		} else {
			a.Allowed = l.AllowN(o.Key, o.N)
		}
	case TakeUpTo:
		a.events, a.Decision, a.err = l.TakeUpTo(ctx, o.Key, o.N)
	case Peek:
		a.Decision, a.err = l.Peek(ctx, o.Key)
	case Charge:
		a.Decision, a.err = l.Charge(ctx, o.Key, o.N)
	case Wait:
		ctx, done := s.hurry(waiting(o, now))
		defer done()
		if o.N == 1 {
			a.err = l.Wait(ctx, o.Key)
		} else {
			a.err = l.WaitN(ctx, o.Key, o.N)
		}
	case Reserve:
		var within []ratelimit.ReserveOption
		if o.LimitsWait {
			within = append(within, ratelimit.Within(o.Within))
		}
		all := ends.OfReserve(o.ends(), within...)
		a.made, a.Decision, a.err = l.Reserve(ctx, o.Key, o.N, all...)
	case Hold:
		a.made, a.Decision, a.err = l.Hold(ctx, o.Key, o.N, ends.OfHold(o.ends())...)
	case WaitHold:
		ctx, done := s.hurry(ctx)
		defer done()
		all := ends.OfHold(o.ends(), ratelimit.Waiting())
		a.made, a.Decision, a.err = l.Hold(ctx, o.Key, o.N, all...)
	case Reset:
		a.err = l.Reset(ctx, o.Key)
	default:
		return s.end(o)
	}
	return a
}

// isLost reports whether a reservation was not made, or only by a limiter that a Fault has
// replaced, so that nobody has it any more.
func (s *side) isLost(name string) bool {
	r := s.made[name]
	return r == nil || r.Token() == "" && !slices.Contains(s.limiters, r.by)
}

// isEach reports whether operations are what a TakeEach does: takes of the same number of events,
// by one limiter.
func (s *side) isEach(ops []Op) bool {
	first := ops[0]
	return !slices.ContainsFunc(ops, func(o Op) bool {
		isSame := s.limiter(o.By, o.Key) == s.limiter(first.By, first.Key)
		return o.Verb != Take || o.N != first.N || !isSame
	})
}

// takeEach makes takes of the same number of events as one call.
func (s *side) takeEach(ops []Op, answers []answer) {
	keys := make([]string, len(ops))
	for i, o := range ops {
		keys[i] = o.Key
	}
	first := ops[0]
	l := s.limiter(first.By, first.Key)
	all, err := l.TakeEach(context.Background(), keys, first.N, nil)
	if len(all) != len(keys) {
		err = errors.Join(err, fmt.Errorf("%d Decisions on %d keys", len(all), len(keys)))
	}
	for i := range answers {
		answers[i].err = err
		if i < len(all) {
			answers[i].Decision = all[i]
		}
	}
}

// end settles, cancels or extends a reservation. If another limiter than the one that has made it
// does so, it has its token.
func (s *side) end(o Op) (a answer) {
	ctx, r := context.Background(), s.made[o.Name]
	l := s.limiter(o.By, r.key)
	if l != r.by && !r.all && !r.over && r.Token() != "" {
		resumed, err := l.Resume(ctx, r.key, r.Token())
		if err != nil {
			return answer{err: err}
		}
		r.Reservation, r.by = resumed, l
	}
	switch o.Verb {
	case Settle:
		a.Decision, a.err = r.Settle(ctx, o.parts()...)
		// A state that cannot be read has no holds any more.
		r.over = r.over || a.err == nil || errors.Is(a.err, ratelimit.ErrState)
	case Extend:
		a.err = r.Extend(ctx, o.For)
	case Cancel:
		r.Cancel()
		r.over = true
	}
	return a
}

// parts returns for how many events a Settle is: one number, or one for each of several keys, in
// the order of bounds.
func (o *Op) parts() (parts []int) {
	for _, share := range o.shares() {
		parts = append(parts, share.N)
	}
	return append(parts, o.N)
}

// ends returns how a hold ends by itself.
func (o *Op) ends() (opts []ratelimit.EndOption) {
	if o.For != 0 {
		opts = append(opts, ratelimit.HoldFor(o.For))
	}
	if o.Back {
		opts = append(opts, ratelimit.GiveBack())
	}
	return opts
}

// longestWait returns for how long an operation may wait.
func (o *Op) longestWait() time.Duration {
	if o.LimitsWait {
		return o.Within
	}
	return ratelimit.Never
}

// waiting returns the context of a Wait.
func waiting(o Op, now int64) context.Context {
	if !o.LimitsWait {
		return context.Background()
	}
	return deadlineContext{context.Background(), time.Unix(0, now).Add(o.Within)}
}

// hurry returns a context of a call that waits. It ends when the patience does: a history waits
// only for what is granted at once, but a broken limiter may wait until its clock is moved, which
// is never. Once it has ended, there is less of it, because the search for a short history waits
// often.
func (s *side) hurry(ctx context.Context) (bounded context.Context, done func()) {
	bounded, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(*s.patience, cancel)
	return bounded, func() {
		if isOver := !timer.Stop(); isOver {
			*s.patience = min(*s.patience, 50*time.Millisecond)
		}
		cancel()
	}
}

// A deadlineContext has a deadline by the clock of the limiter.
type deadlineContext struct {
	context.Context
	deadline time.Time
}

func (c deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }
