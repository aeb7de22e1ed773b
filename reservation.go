package ratelimit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Reservation holds events that [Limiter.Hold] has spent, or that [Limiter.Reserve] has
// spent ahead of time. Any number of goroutines may call its methods at once. The zero
// Reservation is due at once and holds nothing, like those of FailOpen. So does a nil one, which
// comes with a denial: its methods do nothing, so that Release may be deferred before d.Allowed is
// looked at.
type Reservation struct {
	l   *limiter       // nil if nothing is held, and for a HoldAll
	n   int            // the number of events that are held
	due kernel.Instant // when the events may happen
	status

	key    string
	by     *limit.Limit   // that made it; nil if the store failed
	hold   uint64         // the ID of the hold; 0 if there is none
	lasts  time.Duration  // of a Hold: how long it lasts from when the events may happen
	grant  any            // what cancels it, if it is ahead; of a HoldAll, its parts
	resets uint64         // if it is ahead: the limiter's count of resets before the reservation
	line   *pendingLine   // if it is ahead, unless the store has Grants of its own
	waiter *kernel.Waiter // its place in line
}

// A status says what has become of a Reservation, in one word, because the size of a Reservation
// matters.
type status struct{ bits atomic.Uint32 }

const (
	isOver  = 1 << iota // it was cancelled or settled
	isAhead             // it was made ahead of time, so that Cancel may give something back
	isQuiet             // observers are not told of it, because they are told of the whole call
)

func (s *status) is(bit uint32) bool { return s.bits.Load()&bit != 0 }
func (s *status) clear(bit uint32)   { s.bits.And(^bit) }

// set returns whether the bit was set before.
func (s *status) set(bit uint32) (before bool) { return s.bits.Or(bit)&bit != 0 }

// Parts returns the Reservations of the keys of a [HoldAll], in the order of its Bounds, each of which can
// be settled by itself, and has a Token. For a key that was given several times, it is the same one,
// which has the events of all. Any other Reservation is the only part of itself; nil has none.
func (r *Reservation) Parts() []*Reservation {
	all := r.parts()
	switch {
	case r == nil:
		return nil
	case all.of == nil:
		return []*Reservation{r}
	}
	parts := make([]*Reservation, len(all.of))
	for i, p := range all.of {
		parts[i] = all.of[p.first].r
	}
	return parts
}

// parts returns those of a HoldAll, and none for others.
func (r *Reservation) parts() (all parts) {
	if r != nil && r.l == nil {
		all, _ = r.grant.(parts)
	}
	return all
}

// Delay returns the time until the reserved events may happen. 0 means that they
// may happen now.
func (r *Reservation) Delay() time.Duration {
	if r == nil {
		return 0
	}
	if r.l == nil {
		return r.delay()
	}
	return r.l.timeline.Until(r.due)
}

// Cancel says that the events will not happen. Calling it twice is harmless. Cancel of a hold is
// [Reservation.Settle] with 0, before its turn and after. It has no error: observers are told, as of
// every Cancel. But if it is cancelled before its turn while others stand behind it, the key grants nothing
// before their turns, even if these are cancelled as well.
//
// Of other events that were reserved ahead of time, Cancel gives back as many as possible.
// If all later reservations on the key are cancelled as well, in any order, the key
// is as if none of them had been made. A later reservation that is not cancelled
// keeps its time, and no caller is admitted before the latest such time. Until then,
// windows and logs have already given the cancelled events back; [TokenBucket],
// [LeakyBucket] and [WarmingUp] still keep them.
//
// Cancel gives nothing back of a reservation that is no hold:
//   - once the events may happen (Delay is 0 and the clock has moved on), because
//     they then count as having happened,
//   - after a Reset of the key,
//   - if the algorithm has a [SlidingWindow] or a [RollingWindow], and the store has
//     failed to cancel another reservation of the key that was pending at the same time,
//   - if the limit has changed since (see [WithLimits]),
//   - if a [LeakyBucket] has queued events of Allow or Take behind it,
//   - if a hold was settled since, and the algorithm has a bucket or a WarmingUp, or
//   - while a later reservation of another process on the key is pending, which
//     keeps its time as well.
//
// If the key was evicted because of MaxKeys, or another limiter of the same
// name called Reset, windows may give back events that others have spent since. The store of
// package redisstore learns of the Reset, with the exceptions listed there.
//
// Cancel calls the store; [WithStoreTimeout] bounds how long each call waits. Concurrent
// cancellations on a key share a call, up to 200 of them. Cancel takes about 0.1 ms for each
// thousand reservations of this limiter that are pending on the key.
func (r *Reservation) Cancel() {
	if r == nil || r.set(isOver) {
		return
	}
	for _, p := range r.parts().of {
		p.r.Cancel()
	}
	if r.l == nil {
		return
	}
	ctx := context.Background()
	var d Decision
	var err error
	switch {
	case r.hold != 0:
		err = r.settleNow(ctx, 0, &d)
	case r.is(isAhead):
		if err = r.cancelAhead(); err != nil {
			err = r.l.failed(err)
		}
	}
	r.observe(ctx, 0, Decision{}, err)
}

// cancelAhead cancels what was reserved ahead of time, together with others in its line. The error is that of the store.
func (r *Reservation) cancelAhead(with ...*Reservation) (err error) {
	l, ctx := r.l, context.Background()
	defer l.waiters.Wake(r.key)
	switch {
	case r.waiter == nil && !l.resets.since(r.resets, r.key):
		err = l.applyBy(ctx, r.key, r.by, &kernel.Request{Op: kernel.OpCancel, Grant: r.grant, Hold: kernel.Handle{ID: r.hold}}, new(kernel.Answer))
	case r.waiter != nil:
		with = append(with, r)
		err = l.cancel(r.key, r.line, with)
		for _, r := range with {
			if err == nil && r.hold != 0 && !r.undone() { // others stand behind it, or its turn has come
				if err = l.leave(ctx, r.key, r.line, r.waiter); err == nil {
					err = r.settleBy(ctx, r.by, 0, new(kernel.Answer))
				}
			}
		}
	}
	return err
}

// undone reports whether the cancellation has taken all events back.
func (r *Reservation) undone() bool {
	sh := r.l.lines.shard(r.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return r.waiter.Undone()
}

// Wait waits until the reserved events may happen, by the limiter's clock, and
// returns nil when they may. If ctx ends before that, Wait cancels the reservation as
// [Reservation.Cancel] does, and returns ctx's error. A hold is not cancelled, so that it can be
// settled.
func (r *Reservation) Wait(ctx context.Context) error {
	switch {
	case ctx == nil:
		return errNoContext
	case r == nil:
		return nil
	}
	return r.wait(ctx)
}

// wait is Wait with a ctx that is not nil.
func (r *Reservation) wait(ctx context.Context) error {
	err := r.await(ctx)
	if err != nil && r.is(isAhead) {
		r.Cancel()
	}
	return err
}

// await waits until the events may happen, and returns nil when they may.
func (r *Reservation) await(ctx context.Context) error {
	if r.l == nil {
		for _, p := range r.parts().of {
			if err := p.r.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	if err := r.l.sleep(ctx, r.due, nil); err != nil && r.Delay() > 0 { // else both happened at once, and the events are spent
		return err
	}
	now, _ := r.l.timeline.Now()
	r.l.lines.sweep(now)
	return nil
}

// sleep waits until the limiter's clock shows due, or until turn has an element, unless it is nil.
// It returns the error of ctx if that ends first. Every wait sleeps here.
func (l *limiter) sleep(ctx context.Context, due kernel.Instant, turn <-chan struct{}) error {
	for d := l.timeline.Until(due); d > 0; d = l.timeline.Until(due) {
		if woken, err := l.sleepFor(ctx, d, due, turn); woken || err != nil {
			return err
		}
	}
	return nil
}

// sleepFor is sleep for d, the time until due. It may return early. woken says that turn has had
// an element.
func (l *limiter) sleepFor(ctx context.Context, d time.Duration, due kernel.Instant, turn <-chan struct{}) (woken bool, err error) {
	var passed, again <-chan time.Time // nil: never
	if d < Never {
		timer := l.timeline.Clock().Timer(d)
		defer timer.Stop()
		passed = timer.C
		if !l.timeline.Flows() {
			if l.timeline.Until(due) != d {
				return false, nil // the clock was moved before the timer was set, which is late now
			}
			again = time.After(lookAgain)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-turn:
			return true, nil
		case <-passed:
			return false, nil
		case <-again: // once
			if l.timeline.Until(due) == 0 {
				return false, nil
			}
		}
	}
}

// lookAgain is the real time after which a wait looks again at a clock that is moved by hand: a
// mock may have fired its timers just before the wait set one, and show its new time only just
// after.
const lookAgain = 10 * time.Millisecond

// Settle says that n of the held events have happened, which may be fewer or more. It counts
// once: afterwards, or after Cancel, the error matches [ErrEnded], and nothing changes. For a Reservation of
// [HoldAll], ns has a number for each Bound, in the order in which they were given, or one for all.
//
// The key is then as if n events had been taken at the time of the hold, and not as many as were held:
// exactly, whatever else was granted, held and settled since. If n exceeds the number held, Settle
// counts the rest as [Limiter.Charge] does, at the present time. What is not exact:
//
//   - A [WarmingUp] gives events back only if it has granted nothing since.
//   - A [SlidingLog] with CountDenied keeps the denials that it has noted meanwhile.
//   - A window of StartOnFirstEvent and the refills of RefillInterval that the hold began go on as they
//     would have, while anything counts in them.
//   - In an [InFlight], all events are over, whatever n is.
//   - What a [LeakyBucket] has queued behind the held events keeps its Delay.
//
// If the hold is not open any more, what it held counts as it did, or was given back: because it has
// ended by itself (see [HoldFor]), because the key was evicted or reset, or has got another kind of limit
// ([WithLimits]), or because another process has settled the hold. Then Settle counts only what exceeds
// the number held. So it does if nothing is held: of a reservation of Reserve without
// HoldFor and GiveBack, except that Settle with 0 before its turn is Cancel. A reservation that the [FailurePolicy]
// allowed holds nothing, so that Settle counts all of n, except in an InFlight.
//
// The Decision is what Peek returns afterwards. If the limit of the key has changed, WithLimits says
// whose decision it is. If ctx has ended, n is negative, or the error matches [ErrDebt] or
// [ErrFull], nothing was settled, and Settle can be called again. A handler whose client may have
// left passes [context.WithoutCancel] of the request's context. If the store fails, the
// [FailurePolicy] makes the Decision, the error says so, and it is unknown whether Settle took
// effect; it cannot be called again, and unless it did, the hold ends by itself.
//
// Settle costs a call of the store, and takes time in proportion to the number of open holds of the key. In
// memory, it allocates nothing, except if a log grows; settling a Reservation of [HoldAll] allocates once.
func (r *Reservation) Settle(ctx context.Context, ns ...int) (Decision, error) {
	if r == nil && len(ns) > 1 {
		return r.settle(ctx, slices.Min(ns))
	}
	all := r.parts()
	if want := max(1, len(all.of)); len(ns) != want && len(ns) != 1 {
		return Decision{}, param.Invalid("the count of Settle's numbers", len(ns), fmt.Sprintf("must be %d, one for each Bound of HoldAll, or 1 for all", want))
	}
	if len(ns) == 1 {
		return r.settle(ctx, ns[0])
	}
	return r.settleAll(ctx, slices.Min(ns), func(i int, _ *part) int {
		n := 0
		for k := range ns {
			if all.of[k].first == i {
				n = sum(n, ns[k])
			}
		}
		return n
	})
}

// settle is Settle with one number.
func (r *Reservation) settle(ctx context.Context, n int) (d Decision, err error) {
	if r == nil {
		r = new(Reservation)
	}
	if r.parts().of != nil {
		return r.settleAll(ctx, n, func(_ int, p *part) int { return times(p.times, n) })
	}
	if err := r.l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	if r.set(isOver) {
		return Decision{}, errSettled
	}
	if err = r.settleNow(ctx, n, &d); err != nil && isUncounted(err) {
		r.clear(isOver)
	}
	r.observe(ctx, n, d, err)
	return d, err
}

// giveBack settles a Reservation that nobody was given.
func (r *Reservation) giveBack(ctx context.Context) (Decision, error) {
	r.set(isQuiet)
	return r.settle(ctx, 0)
}

// settleNow is Settle without checks. It sets d.
func (r *Reservation) settleNow(ctx context.Context, n int, d *Decision) (err error) {
	l, by := r.l, r.by
	switch {
	case l == nil:
		d.Allowed = true
		return nil
	case n == 0 && r.is(isAhead) && r.Delay() > 0:
		if err = r.cancelAhead(); err != nil {
			*d, err = l.unsettled(ctx, by, err)
		} else {
			*d, err = l.Peek(ctx, r.key)
		}
		return err
	case by == nil: // the store failed, so that nothing is held
		if by, err = l.limitOf(ctx, r.key); err != nil || !by.Flies() {
			*d, err = l.charge(ctx, r.key, n)
			return err
		}
	case by.Stateless() || r.hold == 0 && n <= r.n: // nothing is held, or counts
		*d, err = l.Peek(ctx, r.key)
		return err
	}
	if r.waiter != nil && r.hold != 0 && n < r.n {
		if err = l.leave(ctx, r.key, r.line, r.waiter); err != nil {
			r.clear(isOver)
			return err
		}
	}
	var res kernel.Answer
	if err = r.settleBy(ctx, by, n, &res); err != nil {
		*d, err = l.unsettled(ctx, by, err)
		return err
	}
	*d = l.behind(ctx, r.key, Decision(res.Decision))
	return uncounted(&res, n-r.n)
}

// settleBy has the store settle the hold for n, and sets res. If there is no hold, its ID is 0, and no
// store finds it.
func (r *Reservation) settleBy(ctx context.Context, by *limit.Limit, n int, res *kernel.Answer) error {
	defer r.l.waiters.Wake(r.key) // even if the store fails: it may have given events back
	return r.l.applyBy(ctx, r.key, by, &kernel.Request{Op: kernel.OpSettle, N: n, Of: r.n, Hold: kernel.Handle{ID: r.hold}, Grant: r.grant}, res)
}

// isUncounted reports whether err is that of events that could not be counted.
func isUncounted(err error) bool { return errors.Is(err, ErrDebt) || errors.Is(err, ErrFull) }

// unsettled is degraded after the store failed to settle what it had held, which a fallback does
// not know: that denies.
func (l *limiter) unsettled(ctx context.Context, by *limit.Limit, err error) (Decision, error) {
	return l.degraded(ctx, 1, by, err, func(Limiter) (Decision, error) { return Decision{}, nil })
}

// Release says that what the events were held for is over, and has cost as many as were held. The events of
// an [InFlight] are over; all other algorithms, also in the same [All], keep them. Release is Settle with
// the number of events held, and has its errors. Pass [context.WithoutCancel] of a request's context,
// because Release does nothing after ctx has ended.
func (r *Reservation) Release(ctx context.Context) error {
	if r == nil {
		return nil
	}
	if r.parts().of != nil {
		_, err := r.settleAll(ctx, 0, func(_ int, p *part) int { return p.n })
		return err
	}
	_, err := r.settle(ctx, r.n)
	return err
}

// Extend makes the hold end by itself d from now, or from when its events may happen if that is ahead:
// earlier or later than it would have, for work that takes long. d must be positive, or the error matches
// [ErrInvalid]. If the hold has ended, or its key was forgotten, the error matches [ErrEnded]; if it was
// settled or cancelled, too; if the store fails, it is the error of the store, and the hold may or
// may not end later. Extend of a Reservation that holds nothing, or is no hold, does nothing. It costs a call
// of the store, or one for each key of a [HoldAll]; observers are not told.
func (r *Reservation) Extend(ctx context.Context, d time.Duration) error {
	if r == nil {
		return nil
	}
	if err := r.l.check(ctx, 0); err != nil {
		return err
	}
	switch {
	case d <= 0:
		return param.Invalid("Extend's d", d, "must be positive")
	case r.is(isOver):
		return errSettled
	}
	var errs []error
	for _, p := range r.parts().of {
		errs = append(errs, p.r.Extend(ctx, d))
	}
	if !r.holds() {
		return errors.Join(errs...)
	}
	var res kernel.Answer
	err := r.l.applyBy(ctx, r.key, r.by, &kernel.Request{Op: kernel.OpExtend, Hold: kernel.Handle{ID: r.hold, For: r.fromNow(d)}, Grant: r.grant}, &res)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return r.l.failed(err)
	case !res.Held:
		return ErrEnded
	}
	r.l.waiters.Wake(r.key) // who waits for the end may have to look earlier
	return nil
}

// fromNow returns the time from now until d after the events may happen, or d if they may already.
func (r *Reservation) fromNow(d time.Duration) time.Duration {
	now, _ := r.l.timeline.Now() // which stands still if the clock has stepped back, as for the store
	delay := time.Duration(max(r.due, now) - now)
	return delay + min(d, math.MaxInt64-delay)
}

// A token is base64 of a version (1 byte), the number of events, the instant at which they may happen,
// and the ID of the hold (8 bytes each), and the first bytes of a hash of these and of what the token
// belongs to.
const (
	tokenVersion = 1
	tokenFields  = 1 + 3*8
	tokenSize    = tokenFields + 14 // a multiple of 3, so that no bits are left over
)

// Token returns a short text by which another process can settle the hold: see [Resume]. It holds no
// secret, and does not show the key, but whoever has it can settle the hold. It is empty if there is no
// hold: if r is nil or no events are held. The Reservation of a [HoldAll] has no token, but each of its
// [Reservation.Parts] has one.
func (r *Reservation) Token() string {
	if !r.holds() {
		return ""
	}
	b := make([]byte, 0, tokenSize)
	b = binary.BigEndian.AppendUint64(append(b, tokenVersion), uint64(r.n))
	b = binary.BigEndian.AppendUint64(b, r.due)
	b = binary.BigEndian.AppendUint64(b, r.hold)
	return base64.RawURLEncoding.EncodeToString(append(b, r.l.seal(r.key, b)...))
}

// holds reports whether r has a hold.
func (r *Reservation) holds() bool { return r != nil && r.hold != 0 }

// seal returns the hash of a token's fields, and of what they belong to: a key of a limiter, with its
// name and kind; in memory, one of a store.
func (l *limiter) seal(key string, fields []byte) []byte {
	kind, within := "", uint64(0)
	if l.own == nil {
		kind = l.t.Kind()
	}
	if l.local != nil {
		within = l.local.Store.Fingerprint(key)
	}
	hash := sha256.New()
	hash.Write(fields)
	for _, s := range []string{l.name, kind, key} {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		hash.Write([]byte(s))
	}
	hash.Write(binary.BigEndian.AppendUint64(nil, within))
	return hash.Sum(nil)[:tokenSize-tokenFields]
}

// Resume returns the Reservation whose Token another process has passed on, or this one before it
// crashed, so that it can be settled, released or extended: a worker that takes a job from a queue
// settles what was held when the job was put there. limiter is one with the same name, kind of algorithm
// and store, and key is the key of the hold. A hold must be settled once, by whoever it is: the second
// Settle of two Reservations of one hold changes nothing, except that it counts events that exceed it
// once more.
//
// If token is damaged, or is that of another key or limiter, the error matches [ErrInvalid], and nothing
// changes. Resume does not ask the store, so that it returns a Reservation even if the hold has ended; but
// with [WithLimits], it calls the lookup, and returns its error. A limiter that [New] has not made is
// asked through its method Resume(ctx, key, token) (*Reservation, error), or that of a limiter that it
// unwraps; if there is none, the error matches [ErrInvalid].
func Resume(ctx context.Context, limiter Limiter, key, token string) (*Reservation, error) {
	l, ok := inner[interface {
		Resume(ctx context.Context, key, token string) (*Reservation, error)
	}](limiter)
	if !ok {
		return nil, param.Invalid("Resume's limiter", fmt.Sprintf("a %T", limiter), "must be made by New, or have a method Resume or Unwrap")
	}
	return l.Resume(ctx, key, token)
}

// errToken is the error of a text that is no token.
func errToken(why string, args ...any) error {
	return fmt.Errorf("%w: no token of a hold: "+why, append([]any{ErrInvalid}, args...)...)
}

func (l *limiter) Resume(ctx context.Context, key, token string) (*Reservation, error) {
	if err := l.check(ctx, 0); err != nil {
		return nil, err
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	switch {
	case err != nil:
		return nil, errToken("%w", err)
	case len(b) != tokenSize || b[0] != tokenVersion || base64.RawURLEncoding.EncodedLen(len(b)) != len(token): // the decoder skips line breaks
		return nil, errToken("it has %d bytes", len(token))
	case string(l.seal(key, b[:tokenFields])) != string(b[tokenFields:]):
		return nil, errToken("it is not one of key %q of limiter %q", key, l.name)
	}
	field := func(i int) uint64 { return binary.BigEndian.Uint64(b[1+8*i:]) }
	n, due, id := field(0), field(1), field(2)
	if n > math.MaxInt || due > kernel.MaxInstant || id == 0 || id >= 1<<53 {
		return nil, errToken("it has impossible numbers")
	}
	t, err := l.limitOf(ctx, key)
	if err != nil {
		return nil, err
	}
	return &Reservation{l: l, n: int(n), due: due, key: key, by: t, hold: id}, nil
}

// When a waiter in the middle of a line leaves, those behind it keep the times that they
// were told. Windows and logs give its events back at once, buckets once all behind it
// have left: see [Reservation.Cancel]. internal/kernel computes that; here is what several
// callers at once need.

// lines are the lines of keys with pending reservations. A line exists as long as a
// reservation of its key is pending.
type lines struct {
	count  atomic.Int64               // lines that exist
	deaths atomic.Uint64              // lines removed so far
	swept  atomic.Uint64              // calls of sweep so far
	shards atomic.Pointer[lineShards] // nil until the first line: most limiters have none
}

type lineShards [16]lineShard

type lineShard struct {
	mu   sync.Mutex // protects keys, their lines, and most
	keys map[string]*pendingLine
	most int // the most keys since the map was made: maps do not shrink
}

var lineSeed = maphash.MakeSeed()

func (ls *lines) shard(key string) *lineShard {
	shards := ls.all()
	return &shards[maphash.String(lineSeed, key)%uint64(len(shards))]
}

func (ls *lines) all() *lineShards {
	if ls.shards.Load() == nil {
		ls.shards.CompareAndSwap(nil, new(lineShards))
	}
	return ls.shards.Load()
}

// A pendingLine is the line of reservations of a key. Its shard's lock protects it. That lock is
// never held during a call of a store.
type pendingLine struct {
	kernel.Line
	batches uint64 // batches of cancellations so far
	over    bool   // whether the line was closed: all have left, a reset, or a failed store

	under *batch // the batch being carried out, or nil
	next  *batch // the batch after it, or nil
}

// A batch consists of cancellations that share one call of the store.
type batch struct {
	asked []*kernel.Waiter
	by    []*limit.Limit // those that reserved for them, usually one
	done  chan struct{}  // closed when the batch is done
	err   error          // of the store, if it failed in between; set before done is closed
}

// A mark records the state of a line before a reservation is made.
type mark struct {
	line    *pendingLine
	batches uint64
	busy    bool   // whether a batch was being carried out
	deaths  uint64 // lines.deaths
	resets  uint64 // resets.count
}

// mark must be called before a reservation is made.
func (l *limiter) mark(key string) mark {
	m := mark{deaths: l.lines.deaths.Load(), resets: l.resets.count.Load()}
	if l.lines.count.Load() == 0 {
		return m
	}
	sh := l.lines.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if ln := sh.keys[key]; ln != nil {
		m.line, m.batches, m.busy = ln, ln.batches, ln.under != nil
	}
	return m
}

// enter puts a grant into the line of key. If the key was reset since m, enter drops
// the grant and returns nil.
func (l *limiter) enter(key string, g *kernel.Grant, turn kernel.Instant, m mark) (*pendingLine, *kernel.Waiter) {
	now, _ := l.timeline.Now()
	defer l.lines.sweep(now) // after the lock is released
	sh := l.lines.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l.resets.since(m.resets, key) {
		return nil, nil
	}
	ln := sh.keys[key]
	var unsure bool // whether a cancellation may have happened between the making of g and now
	switch {
	case m.busy || ln != nil && ln.under != nil:
		unsure = true
	case m.line != nil:
		unsure = ln != m.line || ln.batches != m.batches
	default:
		unsure = l.lines.deaths.Load() != m.deaths || ln != nil && ln.batches > 0
	}
	if ln == nil {
		ln = &pendingLine{}
		if sh.keys == nil {
			sh.keys = make(map[string]*pendingLine)
		}
		sh.keys[key] = ln
		sh.most = max(sh.most, len(sh.keys))
		l.lines.count.Add(1)
	}
	w := kernel.NewWaiter(g, turn, unsure)
	ln.Insert(w, now)
	return ln, w
}

// sweep checks a few lines of one shard, each time the next one, and removes those in
// which no reservation is pending.
func (ls *lines) sweep(now kernel.Instant) {
	shards := ls.all()
	sh := &shards[ls.swept.Add(1)%uint64(len(shards))]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	looks := 0
	for key, ln := range sh.keys { // in random order
		if ln.Over(now) && ln.under == nil && ln.next == nil {
			ls.remove(sh, key)
		}
		if looks++; looks == 3 {
			break
		}
	}
	if sh.most > 64 && len(sh.keys) < sh.most/4 {
		few := make(map[string]*pendingLine, len(sh.keys))
		maps.Copy(few, sh.keys)
		sh.keys, sh.most = few, len(few)
	}
}

func (ls *lines) remove(sh *lineShard, key string) {
	delete(sh.keys, key)
	ls.count.Add(-1)
	ls.deaths.Add(1)
}

// end closes the line of key, if there is one: its reservations can no longer be
// cancelled. It waits for a cancellation in progress, until ctx ends.
func (l *limiter) end(ctx context.Context, key string) {
	sh := l.lines.shard(key)
	sh.mu.Lock()
	ln := sh.keys[key]
	var under *batch
	if ln != nil {
		ln.over, under = true, ln.under
		l.lines.remove(sh, key)
	}
	sh.mu.Unlock()
	if under != nil {
		select {
		case <-under.done:
		case <-ctx.Done():
		}
	}
}

// cancel cancels reservations in a line. Those that are cancelled during another cancellation of the key
// are cancelled together, after it. The error is that of the store.
func (l *limiter) cancel(key string, ln *pendingLine, rs []*Reservation) error {
	sh := l.lines.shard(key)
	sh.mu.Lock()
	b := ln.next
	leads := b == nil
	if leads {
		b = &batch{done: make(chan struct{})}
		ln.next = b
	}
	for _, r := range rs {
		b.asked = append(b.asked, r.waiter)
		if !slices.Contains(b.by, r.by) {
			b.by = append(b.by, r.by)
		}
	}
	under := ln.under
	sh.mu.Unlock()
	if !leads {
		<-b.done
		return b.err
	}
	if under != nil {
		<-under.done
	}
	l.carryOut(sh, key, ln, b)
	return b.err
}

// manyTogether bounds the cancellations in one call of the store, so that a long batch does
// not exceed the timeout of a call: with 10,000 reservations of an All of four pending, such a
// call usually takes Redis 1 to 5 ms. The call for the last reservation of a line takes longer,
// because it undoes what could not be undone before: 1 to 3 ms for each thousand.
const manyTogether = 200

// carryOut carries out a batch. The previous one must be done.
func (l *limiter) carryOut(sh *lineShard, key string, ln *pendingLine, b *batch) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	defer close(b.done)
	ln.next, ln.under = nil, b
	defer func() { ln.under = nil }()
	// From the end of the line, because buckets are undone from there.
	kernel.SortLine(b.asked)
	together := manyTogether
	for from := len(b.asked); from > 0 && !ln.over; {
		to := from
		from = max(0, to-together)
		if err := l.carryOutSome(sh, key, ln, b.by, b.asked[from:to]); err != nil {
			b.err = err
			together = from // the rest at once, so that a batch does not wait for many timeouts
		}
	}
	if ln.Len() == 0 && ln.next == nil {
		l.lines.close(sh, key, ln)
	}
}

// carryOutSome cancels some waiters of a batch in one call of the store. The caller holds the
// lock of sh, which carryOutSome releases during the call. The error is that of the call.
func (l *limiter) carryOutSome(sh *lineShard, key string, ln *pendingLine, by []*limit.Limit, asked []*kernel.Waiter) (err error) {
	now, _ := l.timeline.Now()
	cancellation := ln.Cancel(asked, now)
	if cancellation == nil {
		return nil
	}
	cancellation.Local = l.local != nil && !l.local.Shared.Load()
	ln.batches++
	var out *kernel.Undone
	sh.mu.Unlock()
	defer func() {
		sh.mu.Lock()
		ln.Release()
		switch {
		case out != nil:
			ln.Settle(cancellation, out)
		case !ln.Forsake(cancellation): // the store may or may not have cancelled
			l.lines.close(sh, key, ln)
		}
	}()
	out, err = l.undo(key, by, cancellation)
	return err
}

// undo has the store carry out a cancellation of reservations that were made by one of the
// limits. The state is of one of them, so the call with that one does something. If a call
// fails, out is nil, and the events stay spent, which never grants too much.
func (l *limiter) undo(key string, by []*limit.Limit, c *kernel.Cancellation) (out *kernel.Undone, err error) {
	for _, t := range by {
		var res kernel.Answer
		if err = l.applyBy(context.Background(), key, t, &kernel.Request{Op: kernel.OpCancel, Grant: c}, &res); err != nil {
			return nil, err
		}
		if out, _ = res.Grant.(*kernel.Undone); out == nil || out.Any() {
			break
		}
	}
	return out, nil
}

// leave removes a waiter from its line before some of its events are given back on their own.
// It waits for a cancellation in progress, which counts on them.
func (l *limiter) leave(ctx context.Context, key string, ln *pendingLine, w *kernel.Waiter) error {
	sh := l.lines.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for ln.under != nil {
		under := ln.under
		sh.mu.Unlock()
		var err error
		select {
		case <-under.done:
		case <-ctx.Done():
			err = ctx.Err()
		}
		sh.mu.Lock()
		if err != nil {
			return err
		}
	}
	ln.Leave(w)
	return nil
}

// close removes a line. Its reservations can no longer be cancelled.
func (ls *lines) close(sh *lineShard, key string, ln *pendingLine) {
	ln.over = true
	if sh.keys[key] == ln {
		ls.remove(sh, key)
	}
}

// resets remembers which keys were reset recently, so that a reservation made before a
// reset does not enter a line made after it.
type resets struct {
	count atomic.Uint64 // resets so far

	mu   sync.Mutex // protects seed, last and lost
	seed maphash.Seed
	last map[uint64]uint64 // by the hash of a key: the count at its latest reset
	lost uint64            // the count up to which last has been dropped
}

// manyResets bounds the memory of resets. If more resets happen while a store makes a
// reservation, cancelling that gives nothing back, which never grants too much.
const manyResets = 1024

func (r *resets) note(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || len(r.last) >= manyResets {
		r.seed, r.last, r.lost = maphash.MakeSeed(), make(map[uint64]uint64), r.count.Load()
	}
	r.last[maphash.String(r.seed, key)] = r.count.Add(1)
}

// since reports whether key may have been reset after the count of resets was count.
func (r *resets) since(count uint64, key string) bool {
	if count == r.count.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return count < r.last[maphash.String(r.seed, key)] || count < r.lost
}
