package complete_test

import "fmt"

// A path is how a walk came to an instant.
type path struct {
	now  int   // after the base of the walk
	idle int   // for how many ticks nothing has counted
	past *path // before the last step
	step string
}

// after returns the path to what a step leads to at the same instant.
func (p *path) after(step string) path { return path{now: p.now, past: p, step: step} }

// wait returns the path to the next instant. counts says whether anything counts now: if nothing
// does, a walk goes on only until the state has expired, which goesOn reports.
func (p *path) wait(counts bool) (next path, goesOn bool) {
	next = path{now: p.now + 1, past: p, step: "wait 1"}
	if !counts {
		next.idle = p.idle + 1
	}
	return next, next.idle <= expired
}

// expired is for how many ticks a walk goes on with a state of which nothing counts any more. It is
// that of a new key then, whatever its words are.
const expired = 2

// String returns the steps of the path: a test formats it only if it fails.
func (p *path) String() (text string) {
	for ; p.past != nil; p = p.past {
		text = fmt.Sprintf("at %d: %s\n%s", p.past.now, p.step, text)
	}
	return text
}

// A frontier is what a walk has found, and has not gone on from. The first found come first, so that
// the histories of failures are short.
type frontier[T any] struct {
	seen  map[string]bool // by their names
	ahead []T
}

// mostStates bounds a walk: a name of states that tells equal ones apart runs for ever.
const mostStates = 1 << 17

// add adds one, unless one of that name was there.
func (f *frontier[T]) add(name []byte, one T) {
	if f.seen == nil {
		f.seen = make(map[string]bool)
	}
	if !f.seen[string(name)] {
		f.seen[string(name)] = true
		f.ahead = append(f.ahead, one)
	}
}

// next returns the next one, if any is left.
func (f *frontier[T]) next() (one T, ok bool) {
	if len(f.ahead) == 0 {
		return one, false
	}
	one, f.ahead = f.ahead[0], f.ahead[1:]
	return one, true
}
