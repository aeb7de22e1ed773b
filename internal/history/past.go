package history

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// A Past is what a player knows of what has happened.
type Past struct {
	now      int64
	tick     time.Duration // 1 or more
	clock    Clock
	keys     []*Key
	wrong    error        // the first difference
	renew    func(k *Key) // makes k a key of which nothing has happened
	forget   bool         // whether the store forgets keys when it is full
	promises int          // how many requests were granted because they were told to be
	traits
}

// A Key is what a player knows of a key.
type Key struct {
	Name  string
	Model *model.Key // nil if there is none
	Last  ratelimit.Decision
	Made  []string // the names of its reservations, oldest first
	Holds []string // those of them that are held
	Turns []int64  // when the turn of each of them comes, in nanoseconds since 1970

	// When the requests that were denied since the key has changed are granted, as they were told.
	told map[question]int64
	// How many holds have ended by themselves since the store has kept a state of the key.
	ended int
}

// limit returns the most events that are granted at once.
func (k *Key) limit() int {
	if k.Model != nil {
		return k.Model.Limit()
	}
	return k.Last.Limit
}

// toldLatest returns the latest instant that was told for a request that was denied, or 0.
func (k *Key) toldLatest() (latest int64) {
	for _, at := range k.told {
		latest = max(latest, at)
	}
	return latest
}

// traits are what is special about an algorithm, or about a part of it.
type traits struct {
	floats bool // a WarmingUp, which may round differently from the model
	counts bool // a log that counts denied events
	flies  bool // an InFlight, so that all reservations are holds
}

func traitsOf(alg ratelimit.Algorithm) (t traits) {
	switch alg := alg.(type) {
	case ratelimit.All:
		for _, part := range alg {
			t = t.or(traitsOf(part))
		}
	case ratelimit.WarmingUp:
		t.floats = true
	case ratelimit.SlidingLog:
		t.counts = alg.CountDenied
	case ratelimit.InFlight:
		t.flies = true
	}
	return t
}

func (t traits) or(u traits) traits {
	return traits{t.floats || u.floats, t.counts || u.counts, t.flies || u.flies}
}

func newPast(start time.Time, tick time.Duration, renew func(k *Key)) Past {
	return Past{now: start.UnixNano(), tick: max(1, tick), renew: renew}
}

func (p *Past) past() *Past { return p }

// Key returns what is known of a key.
func (p *Past) Key(name string) *Key {
	for _, k := range p.keys {
		if k.Name == name {
			return k
		}
	}
	k := &Key{Name: name}
	p.renew(k)
	p.keys = append(p.keys, k)
	return k
}

// Promises returns how many requests were granted as an earlier answer had told.
func (p *Past) Promises() int { return p.promises }

// Now returns the time, in nanoseconds since 1970.
func (p *Past) Now() int64 { return p.now }

// move moves the clock, and reports whether the time is one that a clock may show.
func (p *Past) move(d time.Duration) bool {
	if d <= 0 || d > time.Duration(Farthest-p.now) {
		return false
	}
	p.now += int64(d)
	p.clock.Set(time.Unix(0, p.now))
	return true
}

// keep remembers a reservation of k.
func (p *Past) keep(k *Key, o Op, held bool, delay time.Duration) {
	k.told = nil
	k.Turns = append(k.Turns, p.now+int64(min(delay, time.Duration(Farthest-p.now))))
	k.Made = append(k.Made, o.Name)
	if held {
		k.Holds = append(k.Holds, o.Name)
	}
}

// changeAll notes that each key may have changed, so that no answer promises anything any more.
func (p *Past) changeAll() {
	for _, k := range p.keys {
		k.told = nil
	}
}

// fail notes a difference, unless there was one before.
func (p *Past) fail(format string, args ...any) {
	if p.wrong == nil {
		p.wrong = fmt.Errorf(format, args...)
	}
}

// noError reports whether there was no error.
func (p *Past) noError(err error) bool {
	if err != nil {
		p.fail("an error: %w", err)
	}
	return err == nil
}

// compareError notes an error that does not match want.
func (p *Past) compareError(want, got error) {
	if !errors.Is(got, want) {
		p.fail("want the error %v\n got %v", want, got)
	}
}

// roundUp returns d in whole ticks.
func (p *Past) roundUp(d time.Duration) time.Duration {
	if rest := d % p.tick; rest > 0 && d < math.MaxInt64-p.tick {
		return d - rest + p.tick
	}
	return d
}

// A question is what was asked for, so that its answer can be compared with another one.
type question struct {
	verb   Verb // Take, also of what asks for the same, or Reserve
	n      int
	within time.Duration // of a Reserve: the longest wait
}

func takes(n int) question { return question{verb: Take, n: n} }

func (q question) String() string {
	if q.verb == Reserve {
		return fmt.Sprintf("reserve %d within %v", q.n, q.within)
	}
	return fmt.Sprint(q.verb, " ", q.n)
}

// isCounted reports whether a log counts a denial of q.
func (p *Past) isCounted(q question) bool { return p.counts && q.verb == Take }

// checkPromise compares the answer to a question with what an earlier answer has told of it, if
// nothing has changed since: denied with the time that is left, and then granted.
func (p *Past) checkPromise(k *Key, what question, granted bool, retryAfter time.Duration) {
	due, isTold := k.told[what]
	mayBeColder := p.floats && k.Model != nil && k.Model.Holds(p.now) > 0 // when its turn comes
	if !isTold || mayBeColder {
		return
	}
	left := time.Duration(due - p.now)
	switch {
	case left <= 0 && granted:
		p.promises++
	case left <= 0:
		p.fail("%s was told to be granted %v ago", what, -left)
	case left > 0 && granted:
		p.fail("%s was told to be granted in %v", what, left)
	case left > 0 && !p.isCounted(what) && retryAfter != p.roundUp(left):
		p.fail("%s was told to be granted in %v, and is now told %v", what, left, retryAfter)
	}
}

// keepPromise is checkPromise for a request, which changes the key if it is granted. It remembers
// what the answer tells.
func (p *Past) keepPromise(k *Key, what question, granted bool, retryAfter time.Duration) {
	p.checkPromise(k, what, granted, retryAfter)
	if granted || p.isCounted(what) {
		k.told = nil
	}
	isLater := retryAfter > time.Duration(Farthest-p.now)
	if granted || isLater || p.isCounted(what) && what.n != 1 {
		return
	}
	if k.told == nil {
		k.told = map[question]int64{}
	}
	k.told[what] = p.now + int64(retryAfter)
}
