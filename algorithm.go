package ratelimit

import (
	"fmt"
	"math"
	"reflect"
	"time"
)

// An Algorithm is the kind of a limit together with its parameters. It is
// implemented by [TokenBucket], [LeakyBucket], [FixedWindow], [SlidingWindow],
// [SlidingLog], [RollingWindow], [WarmingUp] and [All], which are plain data:
// they hold no state, can be copied and printed, and but for All compared.
type Algorithm interface {
	// compile checks the parameters and returns the arithmetic they ask for.
	compile(form) (kernel, error)
}

// An instant is a number of ticks since the Unix epoch; a tick is a nanosecond in
// memory, and what a store's clock counts elsewhere. Readings of the
// clock are at most maxInstant; what is computed from them may lie beyond it,
// up to forever, to which sums saturate.
type instant = uint64

const (
	maxInstant instant = 1<<62 - 1 // 2116-02-20
	forever    instant = math.MaxUint64
)

// after returns t + d, at most forever.
func after(t instant, d uint64) instant {
	if t > forever-d {
		return forever
	}
	return t + d
}

// A form is what a kernel's states look like.
type form struct {
	tick uint64 // the nanoseconds in a tick

	// portable says that each word of a state is to be a number that a double
	// holds exactly, up to a few times portableMost, but for its top byte, which has the marks.
	// Nothing is packed then, and there is no waste.
	portable bool
}

// inMemory is the form of the states in memory.
var inMemory = form{tick: 1}

// portableMost bounds what users may ask of a portable form: the sum of an instant
// in the 21st century, in microseconds, and a few of these stays below 2⁵³.
const portableMost = 1 << 51

// portableSlots bounds the counts of a ring in a portable form: a script reads all of
// them for each decision.
const portableSlots = 4096

// slots checks the number of counts in a ring.
func (f form) slots(n uint64, field string) error {
	if f.portable && n > portableSlots {
		return invalid(field, n, fmt.Sprintf("must be at most %d in this store, which reads all of them for each decision", portableSlots))
	}
	return nil
}

// ticks returns d in ticks.
func (f form) ticks(d time.Duration, field string) (uint64, error) {
	n := uint64(d) / f.tick
	switch {
	case n*f.tick != uint64(d):
		return 0, invalid(field, d, fmt.Sprintf("must be a multiple of %v, which this store's clock counts in", time.Duration(f.tick)))
	case f.portable && n > portableMost:
		return 0, invalid(field, d, fmt.Sprintf("must be at most %v in this store", time.Duration(portableMost*f.tick)))
	}
	return n, nil
}

// count checks a number of events.
func (f form) count(n int, field string) error {
	if f.portable && uint64(n) > portableMost {
		return invalid(field, n, "must be at most 2⁵¹ in this store")
	}
	return nil
}

// A kernel is the arithmetic of an algorithm: pure functions of a key's state.
//
// The state is a few 64-bit words; all zero is that of a key never seen, and
// so is a state at or after the instant that fresh returns for it. A kernel
// may change the words that it is given in place, and returns them; those of
// fixed width never move.
//
// There is one question that decides everything else, ready: when would n
// events be granted? A request is granted if the answer is now, is told to
// come back then if not, and is reserved by spending at the instant answered.
// It never answers an instant before that of a reservation already in the
// state, which is what makes reservations first come, first served.
//
// Preconditions: now ≤ maxInstant, and not before an earlier now; n from 1 to
// limit().
type kernel interface {
	// limit returns the most events that a fresh key is granted at once.
	limit() int

	// width returns the number of words of a state, or 0 if it grows with use.
	width() int

	// ready returns the first instant, now or later, at which n events are
	// granted if nothing else happens to the key.
	ready(st []uint64, now instant, n int) instant

	// spend records n events at the instant that ready returned, which is now.
	spend(st []uint64, at instant, n int) []uint64

	// reserve is spend at an instant that may be after now, and appends what
	// cancel needs, for each part.
	reserve(st []uint64, now, at instant, n int, to []trace) ([]uint64, []trace)

	// room returns the most events that are granted at now.
	room(st []uint64, now instant) int

	// fresh returns the first instant at which st equals the zero state.
	fresh(st []uint64) instant

	// hold returns how many nanoseconds events granted at an instant are to
	// be held so that they leave evenly. st is the state before they are spent.
	hold(st []uint64, at instant) uint64

	// full reports whether n events find no room in a bounded queue.
	full(st []uint64, now instant, n int) bool

	// notes reports whether refuse ever changes anything.
	notes() bool

	// refuse records that n events were refused at now, and reports whether
	// that changed anything.
	refuse(st []uint64, now instant, n int) ([]uint64, bool)

	// valid reports whether st may be a state that this kernel made, or at
	// least one that it can work with. It is for states that were stored
	// where others may write.
	valid(st []uint64) bool

	// cancel takes back what can be taken back of the cancelled grants in a line.
	cancel(st []uint64, u *undoing) []uint64

	// giveBack takes back, at now, n events that were granted at an instant, and did
	// not happen.
	giveBack(st []uint64, at, now instant, n int) []uint64

	// part returns the index of the part that refuses n events at now for the
	// longest, or if n is 0 of the one with the least room.
	part(st []uint64, now instant, n int) int
}

// plain is what most kernels have in common: no holding, no queue, no record
// of refusals, no parts.
type plain struct{}

func (plain) hold([]uint64, instant) uint64    { return 0 }
func (plain) full([]uint64, instant, int) bool { return false }
func (plain) notes() bool                      { return false }
func (plain) part([]uint64, instant, int) int  { return 0 }

func (plain) giveBack(st []uint64, _, _ instant, _ int) []uint64 { return st }

func (plain) refuse(st []uint64, _ instant, _ int) ([]uint64, bool) { return st, false }

// cancel gives back what nothing came after: whoever came after was told an instant
// that counts on these events.
func (plain) cancel(st []uint64, u *undoing) []uint64 { return u.unwind(st) }

// compile checks alg, which a user gave, and returns it as plain values that
// nobody can change later, with its kernel. An All becomes a list of its leaves.
func compile(alg Algorithm, f form) (Algorithm, kernel, error) {
	alg, err := value(alg)
	if err != nil {
		return nil, nil, err
	}
	if a, ok := alg.(All); ok {
		if alg, err = a.leaves(nil, f, "All", 1); err != nil {
			return nil, nil, err
		}
	}
	alg = normalized(alg)
	k, err := alg.compile(f)
	return alg, k, err
}

// value returns alg, or what it points at.
func value(alg Algorithm) (Algorithm, error) {
	v := reflect.ValueOf(alg)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if !v.IsValid() || v.Kind() == reflect.Pointer {
		return nil, invalid("Algorithm", nil, "must be one such as TokenBucket{Rate: PerSecond(10)}")
	}
	switch alg := v.Interface().(type) {
	case TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog, RollingWindow, WarmingUp, All:
		return alg.(Algorithm), nil
	}
	// It embeds one, and so has its methods. Nothing is known of its other fields.
	return nil, invalid("Algorithm", fmt.Sprintf("a %v", v.Type()), "must be one of this package's own, such as TokenBucket, not a type that embeds one")
}
