package ratelimit

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
)

// What a store does when it is full is in this file: who gets a seat, and what
// becomes of those for whom there is none. Who loses a seat is in memoryevict.go.

// WithMaxKeys bounds the number of keys that a store holds, over all of its
// limiters, to n; 0, the default, sets no bound. When a further key comes, and
// no idle one is found, the store evicts the key whose loss forgives least:
// the one with the most Remaining, and among equals the one that resets
// soonest. So a flood of new keys pushes out its own, and not a key that has used
// up its limit; unless each new key uses up its own limit at once, as with a
// limit of 1, since then they are equals. [WithFullPolicy] chooses otherwise.
//
// With up to 512 keys, the store compares all of them. With more, it compares a
// sample of 64; if several keys in the sample tie for the most Remaining, up to 16
// of them are evicted one after the other within the next second. While all keys in
// the sample are used up, the sample is enlarged, to at most 16,384 keys. If still
// all of them are used up, the 1/64 of them that have something left soonest are
// evicted at once, since to look at so many takes a millisecond or two, for which
// new keys wait. (They are also evicted if there are more keys, and fewer than 16 in
// the sample have something left.)
//
// Each loss is counted in [MemoryStats].Evictions. A negative n is an error that
// [New] returns.
func WithMaxKeys(n int) MemoryOption {
	return func(c *memoryConfig) { c.maxKeys = int64(n) }
}

// A FullPolicy says what a store does with a new key when it is full, and finds
// no idle key among those that it looks at.
type FullPolicy int

const (
	// EvictLeast forgets the key whose loss forgives least, see [WithMaxKeys].
	EvictLeast FullPolicy = iota

	// RefuseUnseen denies the new key. RetryAfter is the time until the first of the
	// keys that the store has looked at lately is idle, if it is not used until
	// then. Wait and Reserve fail with [ErrFull]. Nothing is ever evicted. The store
	// looks at up to 16,384 keys at a time, and at all keys at most once a second,
	// or each time that 1/64 of them have become idle.
	RefuseUnseen

	// ShareUnseen lets all new keys share one state, as if they were one key
	// more, for as long as the store is full. Nothing is ever evicted.
	ShareUnseen
)

// WithFullPolicy says what a store with [WithMaxKeys] does when it is full. The
// default is EvictLeast.
func WithFullPolicy(p FullPolicy) MemoryOption {
	return func(c *memoryConfig) { c.full = p }
}

// ErrFull says that a [MemoryStore] with [RefuseUnseen] has no room for the key
// of a Wait or a Reserve.
var ErrFull = errors.New("ratelimit: the store is full")

// A seated is how many keys a space has, if there is a bound.
type seated struct {
	keys atomic.Int64
	more atomic.Bool // whether several limiters have it
}

func (of *seated) share()       { of.more.Store(true) }
func (of *seated) shared() bool { return of.more.Load() }

func (of *seated) vacant() bool { return of.keys.Load() == 0 }

// takeSeat counts a further key in, unless the store is full.
func (s *MemoryStore) takeSeat(of *seated) bool {
	if s.maxKeys == 0 {
		return true
	}
	for {
		n := s.seats.Load()
		if n >= s.maxKeys {
			return false
		}
		if s.seats.CompareAndSwap(n, n+1) {
			of.keys.Add(1)
			return true
		}
	}
}

// leaveSeat counts a key out.
func (s *MemoryStore) leaveSeat(of *seated) {
	if s.maxKeys > 0 {
		of.keys.Add(-1)
		s.seats.Add(-1)
	}
}

// An overflow decides on the requests of new keys for which there is no room.
type overflow struct {
	store  *MemoryStore
	shared States // with ShareUnseen: of the one key that they all are, see kind
}

// count adds the memory of the shared state.
func (o *overflow) count(stats *MemoryStats) {
	if o.shared != nil {
		var shared MemoryStats
		o.shared.(space).count(&shared)
		stats.Bytes += shared.Bytes
	}
}

func newOverflow(s *MemoryStore, t *Transition) overflow {
	o := overflow{store: s}
	if s.full == ShareUnseen {
		o.shared, _ = NewMemoryStore().Open("", t) // which never fails
	}
	return o
}

// A sharedGrant is one that was made in an overflow.
type sharedGrant struct{ grant any }

// cancels reports whether req is to cancel a grant that was made here, and does.
func (o *overflow) cancels(t *Transition, req *Request) (res Result, ok bool) {
	g, ok := req.Grant.(sharedGrant)
	if !ok || o.shared == nil {
		return Result{}, false
	}
	of := *req
	of.Grant = g.grant
	res, _ = o.shared.Apply(context.Background(), kind(t), t, of)
	return res, true
}

// kind names the algorithm of t, if keys have others of their own: those of
// different kinds cannot share a state.
func kind(t *Transition) string {
	if !t.Varies() {
		return ""
	}
	if parts, ok := t.alg.(All); ok {
		var names []string
		for _, part := range parts {
			names = append(names, reflect.TypeOf(part).Name())
		}
		return strings.Join(names, " ")
	}
	return reflect.TypeOf(t.alg).Name()
}

// apply decides on req, whose key found no room. Another may be idle at an
// instant.
func (o *overflow) apply(t *Transition, req *Request, idle instant) Result {
	if req.Op != OpPeek {
		o.store.turned.Add(1)
	}
	if o.shared != nil {
		res, _ := o.shared.Apply(context.Background(), kind(t), t, *req) // memory does not fail
		if res.Grant != nil {
			res.Grant = sharedGrant{res.Grant}
		}
		return res
	}
	v := view{kernel: t.kernel, tick: 1}
	v.now, v.lag = req.now()
	wait := v.until(max(idle, v.now+1))
	return Result{
		Decision: Decision{Limit: v.limit(), RetryAfter: wait},
		Wait:     wait,
		Full:     true,
	}
}
