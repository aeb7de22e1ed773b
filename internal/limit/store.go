package limit

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
)

// A Store keeps the states of limiters.
type Store interface {
	// Open returns the states of the limiter called name, which has l for keys without a limit of
	// their own. A call of the States fails after the timeout, or after that of the store if the
	// timeout is 0.
	Open(name string, l *Limit, timeout time.Duration) (States, error)
}

// Strays are holds that a store may have although nobody got its answer.
type Strays = stray.List

// States are the states of a limiter's keys in a store. Any number of goroutines may call the
// methods at once. They return in time: at the latest when the timeout has passed with which the
// store opened the States, or when ctx ends.
type States interface {
	// Apply applies req to the state of key with l, atomically: concurrent calls have the same
	// results as if they were made one after another. With limits of keys' own, l may differ from
	// the one passed to Open. An error means that the store failed, never that a request was
	// denied. After an error, the state may or may not have changed: see [NotExecuted]. If the
	// error matches [ErrState], it could not be read, and the key has begun afresh. l is never
	// stateless.
	Apply(ctx context.Context, key string, l *Limit, req step.Request) (step.Answer, error)

	// Reset forgets key of this limiter.
	Reset(ctx context.Context, key string) error

	// Timeout is how long a call takes at most, or 0 if none waits for anything.
	Timeout() time.Duration

	// Lines are those who wait for keys of all limiters of this name in the process.
	Lines() *line.Lines

	// Strays are the holds of which the store may not know that they are over. A store tells them
	// when it answers a call, and closes them when it is closed. They are nil if a store always
	// answers.
	Strays() *Strays
}

// NotExecuted returns err, which says why a store has not answered a call, for a call that has
// certainly not changed a state and will not do so.
func NotExecuted(err error) error { return notExecuted{err} }

// WasNotExecuted reports whether NotExecuted has returned err, or an error that err wraps.
func WasNotExecuted(err error) bool {
	_, is := errors.AsType[notExecuted](err)
	return is
}

type notExecuted struct{ error }

func (e notExecuted) Unwrap() error { return e.error }

// Repeating returns a context for a call that repeats one that has failed. Nobody waits for it, so
// that it is neither a decision nor another failure in the counters of a store.
func Repeating() context.Context {
	return context.WithValue(context.Background(), repeats{}, true)
}

// Repeats reports whether ctx is of Repeating.
func Repeats(ctx context.Context) bool { return ctx.Value(repeats{}) != nil }

type repeats struct{}

// A Call is one of several that a store makes at once.
type Call struct {
	States  States // of the key, as Open returned them
	Key     string
	Limit   *Limit
	Request step.Request // of the same Op as the other calls

	// Set by the store:
	Answer   step.Answer
	Err      error // by ApplyEach
	Answered bool  // by ApplyAll: whether Answer is set
}

// Granted returns how many events the call was granted.
func (c *Call) Granted() int {
	switch {
	case !c.Answer.Allowed:
		return 0
	case c.Request.UpTo:
		return c.Answer.Granted
	}
	return c.Request.N
}

// EachStates are States that make many calls in less time than a loop of Apply, for example in one
// round trip.
type EachStates interface {
	States

	// ApplyEach sets the Answer and Err of each call, an OpTake, to what Apply would return. The
	// calls are independent: one that fails does not affect the others. Those on the same key take
	// effect in their order. The timeout is for all of them together.
	ApplyEach(ctx context.Context, calls []Call)
}

// JointStates are States that decide on several keys at once: they grant a request only if all
// keys grant it, and then spend it in all, atomically. The keys may belong to several limiters.
type JointStates interface {
	States

	// Group returns the group of a key. ApplyAll is called for keys of equal groups, so a
	// group is to be comparable by ==, and to name the store. It is nil
	// if the key can be decided on only alone.
	Group(key string) any

	// ApplyAll decides on the calls together. There are 2 to 1,024 calls, or any number in memory.
	// Their keys are different keys of one group, and the receiver is among their States. The
	// numbers of their events may differ, and a key of which 0 are asked for grants them and does
	// not change. If all keys grant their requests, the Answer of each is what Apply would return,
	// and Answered is true.
	//
	// If a key refuses, nothing is spent. Answered says which of the Answers are set, of which at
	// least one is denied: each is that of the request, or of a Refused one if the key
	// itself would have granted it. Then Allowed is true, and the other fields describe the
	// key as it is.
	//
	// If no Answer is denied, keys that are not Answered have spent nothing, because their states
	// cannot be read. The limiters call Apply for them.
	//
	// If decided is false, ApplyAll has done nothing, and the limiters call Apply for one key after
	// the other. An error means that the store failed for all keys. The shortest timeout of the
	// States holds.
	ApplyAll(ctx context.Context, calls []Call) (decided bool, err error)
}
