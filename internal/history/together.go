package history

import (
	"math"
	"slices"
	"time"
)

// This file chooses operations on several keys, and such that are made together.

// several takes or holds events of several keys, and may settle the hold soon.
func (g *Generator) several(k *Key) {
	g.then(func(Player) (Op, bool) {
		o := Op{Verb: Pick(g.Choices, Take, Hold), Key: k.Name, N: g.events(k)}
		for i := range 1 + g.Below(len(o.With)) {
			o.With[i] = Share{Pick(g.Choices, g.Keys...), Pick(g.Choices, 0, 1, 1, o.N, o.N, o.N)}
		}
		if o.Verb == Hold {
			o.Name = g.name()
		}
		return o, true
	})
	if g.Below(2) == 0 {
		g.then(g.pass)
		g.then(func(p Player) (Op, bool) { return g.settle(p, k, k.Holds) })
	}
}

// together makes some operations together, by one process, a few times. Little time passes between,
// so that turns are ahead.
func (g *Generator) together(k *Key) {
	by := g.Below(max(1, g.By))
	and := func(step Step) {
		g.then(func(p Player) (Op, bool) {
			o, ok := step(p)
			o.And, o.By = true, by
			return o, ok
		})
	}
	turn := func(Player) (Op, bool) {
		n := Pick(g.Choices, 1, 1, g.events(k))
		return Op{Verb: Reserve, Key: k.Name, N: n, Name: g.name()}, true
	}
	own := func(names []string) []string {
		isOther := func(name string) bool { return g.by[name] != by }
		return slices.DeleteFunc(slices.Clone(names), isOther)
	}
	cancel := func(p Player) (Op, bool) { return g.end(p, k.Name, own(k.Made), Cancel) }
	if g.Below(4) == 0 { // what may be a TakeEach
		n := g.events(k)
		for range 2 + g.Below(4) {
			and(func(Player) (Op, bool) { return Op{Verb: Take, Key: k.Name, N: n}, true })
		}
		g.then(g.pass)
		return
	}
	for range 1 + g.Below(4) {
		for range 1 + g.Below(6) {
			and(Pick(g.Choices,
				g.on(k, Take), g.on(k, Take), g.on(k, TakeUpTo), turn, turn,
				cancel, cancel, g.peek(k),
				func(p Player) (Op, bool) {
					return Op{Verb: Charge, Key: k.Name, N: g.debt(p)}, true
				},
				func(Player) (Op, bool) { return g.held(Hold, k), true },
				func(Player) (Op, bool) { return g.held(Reserve, k), true },
				func(p Player) (Op, bool) { return g.settle(p, k, own(k.Holds)) },
			))
		}
		g.then(g.peek(k))
		g.untilTurn(k)
	}
}

// untilTurn lets time pass until a turn of k, or for a part of a span, or not at all.
func (g *Generator) untilTurn(k *Key) {
	g.then(func(p Player) (Op, bool) {
		to := p.Now()
		switch g.Below(4) {
		case 0:
			to += int64(g.Within(Pick(g.Choices, g.Spans...))) / 4
		case 1:
			if len(k.Turns) > 0 {
				to = Pick(g.Choices, k.Turns...) + int64(g.Below(2))
			}
		}
		return until(p.past(), to)
	})
}

// TakesOfMany chooses takes of up to 200 keys that are made together. The keys have numbers below
// 100, some occur several times, and time below a span passes between.
func TakesOfMany(c Choices, span time.Duration, key func(i int) string) Step {
	left, n := 0, 1
	return func(p Player) (Op, bool) {
		if left == 0 {
			left, n = 1+c.Below(Pick(c, 4, 50, 200)), 1
			if c.Below(3) == 0 {
				n = c.Below(min(p.Key(key(0)).limit(), math.MaxInt-2) + 2)
			}
			return Op{Verb: Pass, For: p.past().roundUp(1 + c.Within(span))}, true
		}
		left--
		k := key(c.Below(1 + c.Below(100)))
		return Op{Verb: Take, Key: k, N: n, And: left > 0}, true
	}
}
