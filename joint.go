package ratelimit

import (
	"context"
	"slices"
	"time"
)

// JointStates are States that decide on several keys at once: they grant a request only if all
// keys grant it, and then spend it in all, atomically. The keys may belong to several limiters.
// [TakeAll] and [HoldAll] use them. They are optional.
type JointStates interface {
	States

	// Group returns the group of a key. ApplyAll is called for keys of equal groups, so a
	// group is to be comparable by ==, and to name the Store that opened the States. It is nil
	// if the key can be decided on only alone.
	Group(key string) any

	// ApplyAll decides on the calls together. There are 2 to 1,024 calls. Their keys are
	// different keys of one group, and the receiver is among their States. The numbers of their
	// events may differ, and a key of which 0 are asked for grants them and does not change. If all
	// keys grant their requests, the Result of each is what Apply would return, and Told is true.
	//
	// If a key refuses, nothing is spent. Told says which of the Results are set, of which at
	// least one is denied: each is that of the request, or of [Request.Refused] if the key
	// itself would have granted it. Then Allowed is true, and the other fields describe the
	// key as it is.
	//
	// If decided is false, ApplyAll has done nothing, and the limiters call Apply for one key
	// after the other. An error means that the store failed for all keys.
	ApplyAll(ctx context.Context, calls []JointCall) (decided bool, err error)
}

// A JointCall is one of the calls that ApplyAll of [JointStates] makes together.
type JointCall struct {
	States     States // of the key, as Open returned them
	Key        string
	Transition *Transition
	Request    Request // an OpTake or an OpHold, as the other calls
	Result     Result  // set by ApplyAll
	Told       bool    // set by ApplyAll: whether Result is set
}

// Refused returns r, an OpTake or OpHold, as a request that is denied because another key
// refuses it, for [JointStates]. [Transition.Apply] then spends nothing. Allowed is whether this
// key would have granted the request. With notes, a [SlidingLog] with CountDenied counts the
// denial in any case, as in an [All]. Like the parts of an All, none should if one of the keys
// never grants as many events.
func (r Request) Refused(notes bool) Request {
	r.refused, r.notes = true, notes
	return r
}

// A joiner is states, made by boundStates, whose calls return in time.
type joiner interface {
	// joint returns the states as the store opened them, or nil if they are not JointStates.
	joint() JointStates

	// patience returns how long a call may take, or 0 if only the states bound it.
	patience() time.Duration

	// applyAll is ApplyAll of joint, which returns after the patience at the latest.
	applyAll(ctx context.Context, calls []JointCall) (decided bool, err error)
}

func (s *trusted) joint() JointStates {
	joint, _ := s.States.(JointStates)
	return joint
}

func (s *trusted) patience() time.Duration { return s.timeout }

func (s *trusted) applyAll(ctx context.Context, calls []JointCall) (decided bool, err error) {
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	return s.joint().ApplyAll(ctx, calls)
}

func (b *bounded) joint() JointStates {
	joint, _ := b.states.(JointStates)
	return joint
}

func (b *bounded) patience() time.Duration { return b.timeout }

func (b *bounded) applyAll(ctx context.Context, calls []JointCall) (decided bool, err error) {
	own, all := slices.Clone(calls), false // an abandoned call may still write to them
	_, err = b.call(ctx, func(ctx context.Context) (_ Result, err error) {
		all, err = b.joint().ApplyAll(ctx, own)
		return Result{}, err
	})
	if err != nil {
		return true, err
	}
	copy(calls, own)
	return all, nil
}
