package memory

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A Joint is described in together.go.

// An Asked is a key that a Joint decides on.
type Asked struct {
	// One of these is set.
	Tables *Tables
	Logs   *Logs

	Limit  *Limit           // for Tables
	Kernel *kernel.Compiled // for Logs
	Clock  *kernel.Timeline
	Key    string
	N      int           // the events
	Hold   kernel.Handle // of these, for OpHold
	Index  int           // for the caller

	// Answer says what this key does; what all do is up to the caller. If the request is denied,
	// Allowed is whether this key would have granted it.
	Answer kernel.Answer

	// If a key was given several times, First is the index of the first time. Times is how often it
	// was given, and 0 except in the first one. The request is applied to the state for the Sum of
	// their events, and the Answer of the first one is for all.
	First, Times, Sum int

	id      identity
	refused bool // whether its store has no room for it

	// For one attempt:
	now     kernel.Instant // the reading of the clock
	lag     uint64
	sh      *shard // its shards, locked; nil if the space has none
	t       *table
	ls      *logShard
	logged  bool // whether the state is, or is to be, in the logs
	found   bool
	at      place            // if found: where it is, in the tables
	slot    int              // or in the logs
	k       *kernel.Compiled // what decides
	word    kernel.Word      // k, if the state is a word in the tables; else nil
	old     uint64           // the word, before the decision
	owned   bool             // whether it is Gone, and only this Joint may change it
	next    [1]uint64        // the word after the decision
	decided bool             // whether next and Answer are those of a grant
	fresh   []uint64         // the state of a new key that is not a word
	entered bool             // whether it is inserted now
}

// A Joint decides on several keys. Its memory is used again: see NewJoint.
type Joint struct {
	Asked []Asked
	Delay time.Duration // until the events of all keys may happen, for OpHold: the caller sets that of other keys

	req     kernel.Request // for one of the keys at a time: see as
	reading kernel.Reading // its fixed time
	locks   []jointLock
	granted bool
	moved   bool // whether a key was moved, and the clocks are to be read again
	notes   bool // whether the logs note a denial: not if more events are asked for than a key ever grants
}

// joints keeps the memory of Joints.
var joints = sync.Pool{New: func() any {
	j := new(Joint)
	j.req.Fixed, j.reading.Own = &j.reading, true
	return j
}}

// NewJoint returns a Joint without keys. The caller adds them, calls Decide once, and then
// Close.
func NewJoint() *Joint { return joints.Get().(*Joint) }

// Add adds a key, whose exported fields the caller sets.
func (j *Joint) Add() *Asked {
	if len(j.Asked) < cap(j.Asked) {
		j.Asked = j.Asked[:len(j.Asked)+1] // Close has cleared it
	} else {
		j.Asked = append(j.Asked, Asked{})
	}
	return &j.Asked[len(j.Asked)-1]
}

// Close ends the use of j.
func (j *Joint) Close() {
	if cap(j.Asked) <= mostKept {
		clear(j.Asked)
		clear(j.locks[:cap(j.locks)])
		j.Asked, j.Delay, j.locks = j.Asked[:0], 0, j.locks[:0]
		joints.Put(j)
	}
}

// mostKept is the most keys of a Joint whose memory is kept.
const mostKept = 64

// ErrTooMany says that a store may not hold as many keys as a Joint has.
var ErrTooMany = errors.New("more keys of a store than it may hold")

// Decide spends the events of each key, if all grant them, with op, which is OpTake or OpHold. It
// sets the answers.
func (j *Joint) Decide(op kernel.Op) (granted bool, err error) {
	j.req.Op = op
	for i := range j.Asked {
		e := &j.Asked[i]
		e.id = e.store().identify(e.Key)
		if e.Tables != nil && !e.Limit.places(&j.req) {
			e.Tables.makeLogs()
		}
	}
	j.readOutside()
	j.group()
	if j.tooMany() {
		return false, ErrTooMany
	}
	if lacks := j.try(); lacks != nil {
		j.admit(lacks)
	}
	return j.granted, nil
}

// readOutside reads the clocks of users. The caller holds no lock.
func (j *Joint) readOutside() {
	j.moved = false
	for i := range j.Asked {
		e := &j.Asked[i]
		if same := j.sameClock(i); same != nil {
			e.now, e.lag = same.now, same.lag
		} else {
			e.now, e.lag = e.Clock.Outside()
		}
	}
}

// as returns the request to e.
func (j *Joint) as(e *Asked) *kernel.Request {
	j.req.N, j.req.Clock, j.req.Hold = e.Sum, e.Clock, e.Hold
	j.reading.Now, j.reading.Lag = e.now, e.lag
	return &j.req
}

// sameClock returns an earlier key with the clock of the i-th, or nil.
func (j *Joint) sameClock(i int) *Asked {
	for f := range j.Asked[:i] {
		if e := &j.Asked[f]; e.Clock == j.Asked[i].Clock {
			return e
		}
	}
	return nil
}

// logs returns the logs in which the key may be, or nil.
func (e *Asked) logs() *Logs {
	if e.Tables != nil {
		return e.Tables.logs.Load()
	}
	return e.Logs
}

func (e *Asked) store() *Store {
	if e.Tables != nil {
		return e.Tables.store
	}
	return e.Logs.store
}

// kernel returns what decides on a new key.
func (e *Asked) kernel() *kernel.Compiled {
	if e.Tables != nil {
		return e.Limit.loose
	}
	return e.Kernel
}

// leads reports whether the i-th key is the first of equal ones, so that it is decided on.
func (j *Joint) leads(i int) bool { return j.Asked[i].First == i && !j.Asked[i].refused }

// group finds keys that were given several times.
func (j *Joint) group() {
	for i := range j.Asked {
		e := &j.Asked[i]
		e.First, e.Times, e.Sum = i, 1, e.N
		for f := range j.Asked[:i] {
			first := &j.Asked[f]
			if first.First != f || first.id != e.id || first.Tables != e.Tables || first.Logs != e.Logs {
				continue
			}
			e.First, e.Times = f, 0
			first.Times++
			if first.Sum += e.N; first.Sum < 0 {
				first.Sum = math.MaxInt // it is too many
			}
			first.Limit = e.Limit // it was looked up later
			break
		}
	}
}

// tooMany reports whether a store may not hold as many keys.
func (j *Joint) tooMany() bool {
	for i := range j.Asked {
		s := j.Asked[i].store()
		if s.MaxKeys == 0 || s.MaxKeys >= int64(len(j.Asked)) {
			continue
		}
		keys := int64(0)
		for f := range j.Asked {
			if j.leads(f) && j.Asked[f].store() == s {
				keys++
			}
		}
		if keys > s.MaxKeys {
			return true
		}
	}
	return false
}

// time returns the present instant, without a call of the user's clock.
func (e *Asked) time() (now kernel.Instant, lag uint64) { return e.Clock.Inside(e.now, e.lag) }
