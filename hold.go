package ratelimit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Handle names an open hold of a key, in a [Request]. The zero Handle names none.
type Handle struct {
	ID       uint64        // random, and less than 2⁵³
	For      time.Duration // until the hold ends by itself: for OpHold and OpExtend from now on, for OpReserve from the turn
	GiveBack bool          // whether its events are given back then, and do not count as they were held
}

// newID returns the ID of a new hold. No other hold has it: among the holds that a key may have open,
// the chance that two have the same one is below 10⁻⁹.
func newID() uint64 { return 1 + rand.Uint64N(1<<53-1) }

func (h Handle) toKernel() kernel.Handle {
	return kernel.Handle{ID: h.ID, For: h.For, Back: h.GiveBack}
}

// A HoldOption says what becomes of a hold that nobody settles.
type HoldOption func(*holding)

// A holding has the values of options.
type holding struct {
	holds   bool // whether the events are held
	last    time.Duration
	lastSet bool
	back    bool
}

// usualHold is how long a hold lasts without HoldFor.
const usualHold = 10 * time.Minute

// HoldFor makes a hold end by itself after d; that of a reservation, d after its turn. The default is
// ten minutes or, with an [InFlight], the longest Timeout. d must be positive. It should exceed the time
// that a request takes: a hold that has ended cannot be settled any more. [Reservation.Extend] moves the
// end.
func HoldFor(d time.Duration) HoldOption {
	return func(h *holding) { h.last, h.lastSet = d, true }
}

// GiveBack gives the events of a hold back if it ends by itself, because its holder has crashed before
// they happened. Without GiveBack, they count as they were held. The events of an [InFlight] are over
// in either case.
func GiveBack() HoldOption { return func(h *holding) { h.back = true } }

// newHolding returns the values of options. Without any, holds says whether the events are held.
func newHolding(holds bool, opts []HoldOption) (holding, error) {
	if len(opts) == 0 {
		return holding{holds: holds}, nil
	}
	return withOptions(opts)
}

// withOptions is newHolding for options, whose result is allocated.
func withOptions(opts []HoldOption) (holding, error) {
	h := holding{holds: true}
	for i, opt := range opts {
		if opt == nil {
			return h, param.Invalid(fmt.Sprintf("option %d of a hold", i), nil, "must be the result of HoldFor or GiveBack")
		}
		opt(&h)
	}
	if h.lastSet && h.last <= 0 {
		return h, param.Invalid("HoldFor's d", h.last, "must be positive")
	}
	return h, nil
}

// handle returns the Handle of a new hold of events that t grants, or none if they are not held. Those
// of an InFlight always are.
func (t *Transition) handle(h holding) Handle {
	if !h.holds && !t.flies {
		return Handle{}
	}
	last := h.last
	if !h.lastSet {
		last = t.holdFor
	}
	return Handle{newID(), last, h.back}
}

// holdFor returns how long a hold of events that alg grants lasts without HoldFor.
func holdFor(alg Algorithm) (last time.Duration) {
	parts, ok := alg.(All)
	if !ok {
		parts = All{alg}
	}
	for _, part := range parts {
		if flight, ok := part.(InFlight); ok {
			last = max(last, flight.Timeout)
		}
	}
	if last == 0 {
		return usualHold
	}
	return last
}

// Extend makes the hold end by itself d from now, earlier or later than it would have, for work that
// takes long. d must be positive, or the error matches [ErrInvalid]. If the hold has ended, or its key
// was forgotten, the error matches [ErrEnded]; if it was settled or cancelled, [ErrSettled]; if the store
// fails, it is the error of the store, and the hold may or may not end later. Extend of a Reservation
// that holds nothing, or is no hold, does nothing. It costs a call of the store, or one for each key of a
// [HoldAll]; observers are not told.
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
		return ErrSettled
	}
	var errs []error
	for _, p := range r.parts().of {
		errs = append(errs, p.r.Extend(ctx, d))
	}
	c := r.claim
	if r.l == nil || c == nil || c.hold == 0 {
		return errors.Join(errs...)
	}
	res, err := r.l.applyBy(ctx, c.key, c.by, Request{Op: OpExtend, Hold: Handle{ID: c.hold, For: d}, Grant: c.grant})
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return r.l.failed(err)
	case !res.Held:
		return ErrEnded
	}
	return nil
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
// hold: if r is nil, no events are held, or r is that of a [HoldAll], whose keys can be held one by one
// instead; and if a full [MemoryStore] with ShareUnseen had no place for the key.
func (r *Reservation) Token() string {
	if r == nil || r.l == nil || r.claim == nil || r.claim.hold == 0 || memory.Shared(r.claim.grant) {
		return ""
	}
	b := make([]byte, 0, tokenSize)
	b = binary.BigEndian.AppendUint64(append(b, tokenVersion), uint64(r.n))
	b = binary.BigEndian.AppendUint64(b, r.due)
	b = binary.BigEndian.AppendUint64(b, r.claim.hold)
	return base64.RawURLEncoding.EncodeToString(append(b, r.l.seal(r.claim.key, b)...))
}

// seal returns the hash of a token's fields, and of what they belong to: a key of a limiter, with its
// name and kind; in memory, one of a store.
func (l *limiter) seal(key string, fields []byte) []byte {
	kind, within := "", uint64(0)
	if l.own == nil {
		kind = l.t.kernel.Kind()
	}
	if l.local != nil {
		within = l.local.engine.Fingerprint(key)
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
// If token is damaged, or is that of another key or limiter, the error matches [ErrToken], and nothing
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

func (l *limiter) Resume(ctx context.Context, key, token string) (*Reservation, error) {
	if err := l.check(ctx, 0); err != nil {
		return nil, err
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrToken, err)
	case len(b) != tokenSize || b[0] != tokenVersion:
		return nil, fmt.Errorf("%w: it has %d bytes", ErrToken, len(b))
	case string(l.seal(key, b[:tokenFields])) != string(b[tokenFields:]):
		return nil, fmt.Errorf("%w: it is not one of key %q of limiter %q", ErrToken, key, l.name)
	}
	field := func(i int) uint64 { return binary.BigEndian.Uint64(b[1+8*i:]) }
	n, due, id := field(0), field(1), field(2)
	if n > math.MaxInt || due > kernel.MaxInstant || id == 0 || id >= 1<<53 {
		return nil, fmt.Errorf("%w: it has impossible numbers", ErrToken)
	}
	t, err := l.transitionOf(ctx, key)
	if err != nil {
		return nil, err
	}
	return l.newReservation(int(n), due, claim{key: key, by: t, hold: id}), nil
}
