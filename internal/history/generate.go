package history

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// This file chooses operations. They aim at where something may change: at the borders of windows,
// at the times that answers have told, and at as many events as remain.

// Choices is where decisions are taken from: chance, or the bytes of a fuzzer.
type Choices interface {
	Below(n int) int                         // a number in 0 ≤ i < n
	Within(span time.Duration) time.Duration // a time in 0 ≤ t < span
	More() bool                              // whether there is anything left to decide by
}

// Pick chooses one of the values.
func Pick[T any](c Choices, values ...T) T { return values[c.Below(len(values))] }

// Random takes decisions by chance.
type Random struct{ *rand.Rand }

// NewRandom returns decisions that depend on two seeds.
func NewRandom(seed, stream uint64) Random { return Random{rand.New(rand.NewPCG(seed, stream))} }

// Below implements [Choices].
func (r Random) Below(n int) int { return r.IntN(n) }

// Within implements [Choices].
func (r Random) Within(span time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(span)))
}

// More implements [Choices].
func (r Random) More() bool { return true }

// A Generator chooses operations.
type Generator struct {
	Choices
	Keys   []string
	Spans  []time.Duration // in which the algorithm counts
	By     int             // how many processes there are; 0 is one
	Limits int             // how many limits Twins have

	OfSeveral bool // whether some operations are on several keys
	OwnLimits bool // whether the limit of one key changes, and not of all
	Together  bool // whether some are made together

	limit int               // that the keys have
	marks []int64           // instants at which something is said to change
	made  int               // how many reservations it has let make
	by    map[string]int    // who makes each of them
	with  map[string]Shares // of which other keys each of them is
	next  []Step
}

// Next chooses the next operation. It returns false if there is nothing left to decide by.
func (g *Generator) Next(p Player) (Op, bool) {
	for {
		if len(g.next) == 0 {
			if !g.More() {
				return Op{}, false
			}
			g.plan(p)
		}
		step := g.next[0]
		g.next = g.next[1:]
		if o, ok := step(p); ok {
			if o.isCall() && !o.And {
				o.By = g.Below(max(1, g.By))
			}
			if o.makes() {
				g.note(o)
			}
			return o, true
		}
	}
}

// then plans an operation.
func (g *Generator) then(step Step) { g.next = append(g.next, step) }

// plan plans some operations on a key. Before, time may pass, and the limit may change.
func (g *Generator) plan(p Player) {
	if g.Limits > 1 && g.Below(4) == 0 {
		g.changeLimit()
	}
	k := p.Key(Pick(g.Choices, g.Keys...))
	g.mark(p.past(), k.Last.RetryAfter)
	g.mark(p.past(), k.Last.ResetAfter)
	g.then(g.pass)
	switch {
	case g.Together && g.Below(4) == 0:
		g.together(k)
		return
	case g.OfSeveral && g.Below(2) == 0:
		g.several(k)
		return
	}
	total := 0
	for _, of := range plans {
		total += of.weight
	}
	i := g.Below(total)
	for _, of := range plans {
		if i < of.weight {
			of.plan(g, k)
			return
		}
		i -= of.weight
	}
}

// plans are what may be planned for a key, and how often.
var plans = []struct {
	weight int
	plan   func(g *Generator, k *Key)
}{
	{8, func(g *Generator, k *Key) { g.then(g.on(k, Take)) }},
	{3, func(g *Generator, k *Key) { g.then(g.on(k, Allow)) }},
	{3, func(g *Generator, k *Key) { g.then(g.on(k, TakeUpTo)) }},
	{3, func(g *Generator, k *Key) { g.then(g.peek(k)) }},
	{4, func(g *Generator, k *Key) {
		g.then(func(p Player) (Op, bool) { return g.reserve(p, k) })
	}},
	{2, func(g *Generator, k *Key) {
		g.then(func(p Player) (Op, bool) { return g.end(p, k.Name, k.Made, Cancel) })
	}},
	{2, (*Generator).queue},
	{5, (*Generator).account},
	{2, func(g *Generator, k *Key) {
		g.then(func(p Player) (Op, bool) { return g.wait(k), p.waits() })
	}},
	{4, (*Generator).retryTake},
	{3, func(g *Generator, k *Key) {
		g.retry(k, func() Op {
			o := Op{Verb: Reserve, Key: k.Name, N: g.events(k), LimitsWait: true, Name: g.name()}
			o.Within = g.longestWait(k)
			return o
		})
	}},
	{1, func(g *Generator, k *Key) { // fewer events than none
		n := -1 - g.Below(2)*(math.MaxInt-1)
		g.then(func(Player) (Op, bool) { return Op{Verb: Take, Key: k.Name, N: n}, true })
	}},
	{1, func(g *Generator, k *Key) {
		g.then(func(p Player) (Op, bool) { return Op{Verb: Crowd, Key: k.Name}, p.past().forget })
	}},
	{2, func(g *Generator, k *Key) { // what remains, or one more
		g.then(func(Player) (Op, bool) {
			n := min(k.Last.Remaining, math.MaxInt-1) + g.Below(2)
			return Op{Verb: Allow, Key: k.Name, N: n}, true
		})
	}},
	{1, func(g *Generator, k *Key) {
		g.then(func(Player) (Op, bool) { return Op{Verb: Reset, Key: k.Name}, true })
	}},
}

// retryTake retries a take of mostly too many events.
func (g *Generator) retryTake(k *Key) {
	g.retry(k, func() Op { return Op{Verb: Take, Key: k.Name, N: g.tooMany(k)} })
}

// on returns a step that asks for events of k.
func (g *Generator) on(k *Key, verb Verb) Step {
	return func(Player) (Op, bool) { return Op{Verb: verb, Key: k.Name, N: g.events(k)}, true }
}

// changeLimit plans that keys have another limit from now on.
func (g *Generator) changeLimit() {
	g.limit = (g.limit + 1 + g.Below(g.Limits-1)) % g.Limits
	o := Op{Verb: Limit, N: g.limit}
	if g.OwnLimits {
		o.Key = Pick(g.Choices, g.Keys...)
	}
	g.then(func(Player) (Op, bool) { return o, true })
}

// note remembers who makes a reservation, and what of other keys.
func (g *Generator) note(o Op) {
	if g.by == nil {
		g.by, g.with = map[string]int{}, map[string]Shares{}
	}
	g.by[o.Name], g.with[o.Name] = o.By, o.With
}

// peek returns a step that looks at k.
func (g *Generator) peek(k *Key) Step {
	return func(Player) (Op, bool) { return Op{Verb: Peek, Key: k.Name}, true }
}

// name returns the name of a new reservation.
func (g *Generator) name() string {
	g.made++
	return fmt.Sprint("r", g.made)
}

// mark remembers the instant after d for the clock to be moved to.
func (g *Generator) mark(p *Past, d time.Duration) {
	if d > 0 && d <= time.Duration(Farthest-p.now) {
		g.marks = append(g.marks, p.now+int64(d))
	}
}

// pass lets time pass, mostly until something may change.
func (g *Generator) pass(player Player) (Op, bool) {
	p := player.past()
	to, tick := p.now, int64(p.tick)
	near := tick * Pick[int64](g.Choices, -1, 0, 0, 1)
	switch i := g.Below(16); {
	case i < 5:
		return Op{}, false
	case i < 6:
		to += tick
	case i < 9: // within a span
		to += int64(g.Within(Pick(g.Choices, g.Spans...))) / int64(1+g.Below(4))
	case i < 11: // the edge of a window
		span := int64(Pick(g.Choices, g.Spans...))
		to = to/span*span + span + near
	case i < 15:
		if len(g.marks) > 0 {
			latest := Pick(g.Choices, 2, 6) // two are of this key
			to = Pick(g.Choices, g.marks[max(0, len(g.marks)-latest):]...) + near
		}
	default: // many spans
		span := min(Pick(g.Choices, g.Spans...), Farthest/16)
		to += int64(span) * int64(g.Below(16))
	}
	return until(p, to)
}

// until lets time pass until an instant, in whole ticks, if that is ahead.
func until(p *Past, to int64) (Op, bool) {
	d := p.roundUp(time.Duration(to - p.now))
	return Op{Verb: Pass, For: d}, to > p.now && d <= time.Duration(Farthest-p.now)
}

// events chooses how many events to ask for.
func (g *Generator) events(k *Key) int {
	limit := k.limit()
	switch g.Below(12) {
	case 0:
		return 0
	case 1, 2:
		return 2
	case 3:
		return 1 + g.Below(max(1, limit))
	case 4:
		return 1 + g.Below(1+limit/4)
	case 5:
		return limit
	case 6:
		return min(limit, math.MaxInt-1) + 1
	case 7:
		return k.Last.Remaining
	case 8:
		return min(k.Last.Remaining, math.MaxInt-1) + 1
	}
	return 1
}

// lasting chooses how long a hold lasts.
func (g *Generator) lasting() time.Duration {
	span := Pick(g.Choices, g.Spans...)
	switch g.Below(6) {
	case 0:
		return span
	case 1:
		return math.MaxInt64
	case 2:
		return 1 + g.Within(span)/16
	}
	return 1 + g.Within(span)
}

// held returns an operation that makes a reservation.
func (g *Generator) held(verb Verb, k *Key) Op {
	o := Op{Verb: verb, Key: k.Name, N: g.events(k), Name: g.name()}
	if g.Below(2) == 0 {
		o.For = g.lasting()
	}
	o.Back = g.Below(3) == 0
	return o
}

func (g *Generator) reserve(p Player, k *Key) (Op, bool) {
	o := g.held(Reserve, k)
	if p.isNow(k, o.N) {
		o.Verb = Pick(g.Choices, Reserve, WaitHold)
	}
	return o, true
}

// end chooses one of the latest reservations, and ends it.
func (g *Generator) end(p Player, key string, names []string, verb Verb) (Op, bool) {
	if g.Below(8) > 0 { // mostly one of which there is something left to end
		names = slices.DeleteFunc(slices.Clone(names), p.isOver)
	}
	if len(names) == 0 {
		return Op{}, false
	}
	name := names[len(names)-1-g.Below(min(4, len(names)))]
	return Op{Verb: verb, Key: key, Name: name}, true
}

// settle settles one of the latest of some holds of k.
func (g *Generator) settle(p Player, k *Key, holds []string) (Op, bool) {
	o, ok := g.end(p, k.Name, holds, Settle)
	if !ok {
		return o, false
	}
	size := p.Size(o.Name)
	more := min(size, math.MaxInt/4) + g.Below(6)
	o.N = Pick(g.Choices, 0, 0, size, more, g.Below(min(size, math.MaxInt-1)+1))
	if o.N == 0 && g.Below(2) == 0 {
		o.Verb = Cancel
		return o, true
	}
	if g.Below(2) == 0 { // a number for each key
		o.With = g.with[o.Name]
		for i := range o.With {
			if o.With[i] != (Share{}) {
				o.With[i].N = g.Below(min(o.With[i].N, math.MaxInt-2) + 2)
			}
		}
	}
	return o, true
}

// queue makes reservations one after the other, and cancels some of them in any order, while the
// turns of others pass.
func (g *Generator) queue(k *Key) {
	g.then(g.peek(k))
	g.then(func(Player) (Op, bool) {
		return Op{Verb: Take, Key: k.Name, N: k.Last.Remaining}, true
	})
	for range 2 + g.Below(3) {
		g.then(func(p Player) (Op, bool) { return g.reserve(p, k) })
	}
	for range 1 + g.Below(6) {
		if g.Below(3) > 0 {
			g.then(func(p Player) (Op, bool) { return g.end(p, k.Name, k.Made, Cancel) })
			continue
		}
		g.then(func(p Player) (Op, bool) {
			if len(k.Turns) == 0 {
				return Op{}, false
			}
			return until(p.past(), Pick(g.Choices, k.Turns...)+int64(g.Below(2)))
		})
	}
}

// account holds and settles events, and charges some.
func (g *Generator) account(k *Key) {
	for range 1 + g.Below(4) {
		g.then(g.pass)
		switch g.Below(8) {
		default:
			g.then(func(Player) (Op, bool) { return g.held(Hold, k), true })
		case 3, 4, 5:
			g.then(func(p Player) (Op, bool) { return g.settle(p, k, k.Holds) })
		case 6:
			g.then(func(p Player) (Op, bool) {
				return Op{Verb: Charge, Key: k.Name, N: g.debt(p)}, true
			})
		case 7:
			g.then(func(p Player) (Op, bool) {
				o, ok := g.end(p, k.Name, k.Holds, Extend)
				o.For = g.lasting()
				return o, ok
			})
		}
	}
}

// debt chooses how many events to charge: sometimes more than a state can hold, unless a float
// has no room for their exact cost.
func (g *Generator) debt(p Player) int {
	switch i := g.Below(16); {
	case i == 0:
		return 1 + g.Below(1000)
	case i == 1 && !p.past().floats:
		return math.MaxInt >> g.Below(strconv.IntSize-1)
	}
	return 1 + g.Below(12)
}

// longestWait chooses how long a caller waits at most.
func (g *Generator) longestWait(k *Key) time.Duration {
	span := g.Within(Pick(g.Choices, g.Spans...))
	return Pick(g.Choices, 0, 1, k.Last.RetryAfter/2, span, ratelimit.Never)
}

func (g *Generator) wait(k *Key) Op {
	o := Op{Verb: Wait, Key: k.Name, N: g.events(k)}
	if g.Below(4) > 0 {
		o.LimitsWait = true
		o.Within = min(k.Last.RetryAfter, Farthest) / time.Duration(1+g.Below(2))
		o.Within = max(0, o.Within+time.Duration(g.Below(3)-1))
	}
	return o
}

// tooMany chooses how many events to ask for: mostly one more than remain, if that may be granted
// later.
func (g *Generator) tooMany(k *Key) int {
	if k.Last.Remaining < k.limit() && g.Below(3) > 0 {
		return k.Last.Remaining + 1
	}
	return g.events(k)
}

// retry makes a request, makes it again one tick before it was told that it is granted, and then or
// later.
func (g *Generator) retry(k *Key, request func() Op) {
	o := request()
	again := o
	if o.Verb == Take && o.N == 1 && g.Below(2) == 0 {
		again = Op{Verb: Peek, Key: k.Name} // which no algorithm counts
	}
	due := int64(0)
	g.then(func(Player) (Op, bool) { return o, true })
	wait := func(before time.Duration) Step {
		return func(p Player) (Op, bool) {
			if due == 0 {
				due = k.toldLatest()
			}
			return until(p.past(), due-int64(before))
		}
	}
	g.then(func(p Player) (Op, bool) { return wait(p.past().tick)(p) })
	ask := func(Player) (Op, bool) {
		if again.Verb == Reserve {
			again.Name = g.name()
		}
		return again, true
	}
	g.then(ask)
	if g.Below(3) > 0 {
		g.then(wait(0))
	} else {
		g.then(wait(-g.Within(Pick(g.Choices, g.Spans...))))
	}
	g.then(ask)
}
