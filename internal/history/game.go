package history

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Farthest is the latest instant that a clock may show, in nanoseconds since 1970.
const Farthest = 1<<62 - 1

// A Clock is that of a limiter.
type Clock interface{ Set(t time.Time) }

// A Game is what histories are played on: a [Setup], or [Twins].
type Game interface {
	New() Player // begins a history
	fmt.Stringer // says on what it is played
}

// A Player performs a history, and compares the answers.
type Player interface {
	// Do performs an operation, and returns an error that names it if an answer is wrong. It does
	// nothing if the operation is about a reservation that was not granted, or would wait.
	Do(o Op) error
	// Finish compares what can be compared when all operations are done.
	Finish() error
	Key(name string) *Key
	// Now returns the time, in nanoseconds since 1970.
	Now() int64
	// Size returns how many events a reservation has.
	Size(name string) int
	// Promises returns how many requests were granted as an earlier answer had told.
	Promises() int
	// Ended reports whether the answers need not agree any more.
	Ended() bool

	past() *Past
	// isOver reports whether a reservation was settled or cancelled.
	isOver(name string) bool
	// waits reports whether the player performs operations that wait.
	waits() bool
	// isNow reports whether events that are reserved now need not wait.
	isNow(k *Key, n int) bool
}

// A Step chooses the next operation of a history, or none.
type Step func(p Player) (o Op, ok bool)

// describe says on what histories of some limits are played.
func describe(
	limits []ratelimit.Algorithm, kept string, start time.Time, tick time.Duration,
) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, from time.Unix(0, %d) on, in ticks of %v",
		kept, start.UnixNano(), max(1, tick))
	for i, alg := range limits {
		fmt.Fprintf(&text, "\nlimit %d: %#v", i, alg)
	}
	return text.String()
}

// catch lets a panic in what is done be a wrong answer. It must be deferred.
func catch(what any, wrong *error) {
	if panicked := recover(); panicked != nil {
		*wrong = fmt.Errorf("%v: panic: %v\n%s", what, panicked, debug.Stack())
	}
}

// AtMost returns next, which chooses no more than so many operations.
func AtMost(many int, next Step) Step {
	return func(p Player) (o Op, ok bool) {
		if many == 0 {
			return o, false
		}
		many--
		return next(p)
	}
}

// Before2100 returns next with a Peek for each Pass that ends later. A clock that a process reads
// for the first time after 2100 is taken to be wrong, and near the end of time states have less
// room.
func Before2100(next Step) Step {
	end := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	return func(p Player) (Op, bool) {
		o, ok := next(p)
		if o.Verb == Pass && o.For >= time.Duration(end-p.Now()) {
			o = Op{Verb: Peek}
			if keys := p.past().keys; len(keys) > 0 {
				o.Key = keys[0].Name
			}
		}
		return o, ok
	}
}

// Run plays the operations that next chooses, until it chooses none. If an answer is wrong, Run
// fails the test with a short history. It returns how many operations it has played.
func Run(t testing.TB, g Game, next Step) (played int) {
	t.Helper()
	played, wrong := Try(g, next)
	if wrong != nil {
		t.Fatal(wrong)
	}
	return played
}

// Try is Run that returns an error with the short history.
func Try(g Game, next Step) (played int, wrong error) {
	p := g.New()
	var ops []Op
	for o, ok := next(p); ok && !p.Ended(); o, ok = next(p) {
		ops = append(ops, o)
		if wrong := p.Do(o); wrong != nil {
			return len(ops), errors.New(Explain(g, ops, wrong))
		}
	}
	if wrong := p.Finish(); wrong != nil {
		return len(ops), errors.New(Explain(g, ops, wrong))
	}
	return len(ops), nil
}

// Replay plays a history, and returns an error if an answer is wrong.
func Replay(g Game, ops []Op) error {
	p := g.New()
	for _, o := range ops {
		if wrong := p.Do(o); wrong != nil {
			return wrong
		}
		if p.Ended() {
			break
		}
	}
	return p.Finish()
}

// Explain returns a text about a history with a wrong answer: the shortest one that it finds.
func Explain(g Game, ops []Op, wrong error) string {
	short := Shrink(ops, func(ops []Op) bool { return Replay(g, ops) != nil })
	if again := Replay(g, short); again != nil {
		wrong = again
	}
	return fmt.Sprintf("a wrong answer to a history in %s\nwhich Check can play again:\n%s%v",
		g, Text(short), wrong)
}

// Check plays a history that is written down, and fails the test if an answer is wrong.
func Check(t testing.TB, g Game, text string) {
	t.Helper()
	ops, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := Replay(g, ops); wrong != nil {
		t.Fatal(Explain(g, ops, wrong))
	}
}
