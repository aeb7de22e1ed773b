package history

import (
	"fmt"
	"slices"
	"time"
)

// These bound how many histories Shrink plays, and how many operations: on a store that is slow,
// each takes a while.
const (
	mostTries  = 3000
	mostPlayed = 100_000
)

// Shrink returns a history that fails as ops does, with as few operations as it can find, and small
// numbers. It plays histories to find out.
func Shrink(ops []Op, fails func([]Op) bool) []Op {
	s := &shrinker{ops: ops, fails: fails, tries: mostTries, played: mostPlayed}
	for s.once() && s.tries > 0 {
	}
	s.try(onOneKey(s.ops))
	s.try(renamed(s.ops))
	return s.ops
}

// onOneKey returns the history with all that happens to any key happening to the first one.
func onOneKey(ops []Op) []Op {
	ops = slices.Clone(ops)
	of := slices.IndexFunc(ops, func(o Op) bool { return o.isCall() })
	for i := range ops {
		if of >= 0 && ops[i].isCall() {
			ops[i].Key = ops[of].Key
		}
	}
	return ops
}

// renamed returns the history with reservations named h1, h2 and so on, in their order.
func renamed(ops []Op) []Op {
	ops = slices.Clone(ops)
	names := map[string]string{}
	for i := range ops {
		o := &ops[i]
		if o.makes() {
			names[o.Name] = fmt.Sprint("h", len(names)+1)
		}
		if o.Verb != Fault {
			o.Name = names[o.Name]
		}
	}
	return ops
}

type shrinker struct {
	ops    []Op
	fails  func([]Op) bool
	tries  int // how many histories it may still play
	played int // how many operations
}

// once tries all ways to make the history shorter once, and reports whether one has done so.
func (s *shrinker) once() (shorter bool) {
	for size := max(1, len(s.ops)/2); size > 0; size /= 2 {
		for from := len(s.ops) - size; from >= 0; from -= size {
			shorter = s.try(without(s.ops, from, size)) || shorter
		}
	}
	for i := range s.ops {
		for _, simpler := range simplerThan(s.ops[i]) {
			with := slices.Clone(s.ops)
			with[i] = simpler
			if s.try(with) {
				shorter = true
				break
			}
		}
	}
	return shorter
}

// try replaces the history if the other one fails, too.
func (s *shrinker) try(other []Op) bool {
	if s.tries == 0 || s.played < 0 || len(other) == 0 || len(other) > len(s.ops) {
		return false
	}
	s.tries--
	s.played -= len(other)
	if !s.fails(other) {
		return false
	}
	s.ops = other
	return true
}

// without returns a history without some operations. The time that they let pass passes before the
// next one, so that all others stay where they are.
func without(ops []Op, from, size int) (left []Op) {
	var passed time.Duration
	left = append(left, ops[:from]...)
	for _, o := range ops[from : from+size] {
		if o.Verb == Pass {
			passed += o.For
		}
	}
	for _, o := range ops[from+size:] {
		if passed > 0 && o.Verb == Pass {
			o.For, passed = o.For+passed, 0
		}
		left = append(left, o)
	}
	return left
}

// simplerThan returns operations that are simpler than o, the simplest first.
func simplerThan(o Op) (simpler []Op) {
	add := func(change func(o *Op)) {
		with := o
		change(&with)
		if with != o {
			simpler = append(simpler, with)
		}
	}
	switch o.Verb {
	case Pass:
		units := []time.Duration{time.Hour, time.Minute, time.Second, time.Millisecond}
		for _, unit := range units {
			if d := o.For.Truncate(unit); d > 0 {
				add(func(o *Op) { o.For = d })
			}
		}
		return simpler
	case Allow, TakeUpTo:
		add(func(o *Op) { o.Verb = Take })
	case WaitHold:
		add(func(o *Op) { o.Verb = Hold })
	case Cancel:
		add(func(o *Op) { o.Verb = Settle })
	}
	if o.N > 1 {
		for _, n := range []int{1, o.N / 2, o.N - 1} {
			add(func(o *Op) { o.N = n })
		}
	}
	for last := len(o.With); last > 0; last-- {
		add(func(o *Op) { clear(o.With[last-1:]) })
	}
	for i := range o.With {
		add(func(o *Op) { o.With[i].N = min(1, o.With[i].N) })
	}
	add(func(o *Op) { o.And = false })
	add(func(o *Op) { o.By = 0 })
	add(func(o *Op) { o.Back = false })
	if o.makes() {
		add(func(o *Op) { o.For = 0 })
	}
	if o.For > time.Second {
		add(func(o *Op) { o.For = o.For.Truncate(time.Second) })
	}
	return simpler
}
