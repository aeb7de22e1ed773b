package limitpage

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// history is how many seconds a page shows.
const history = 300

// Counts are the decisions of a limiter, by outcome. A charge, a settlement and a
// cancellation are no decisions, and neither is a call that its caller abandoned.
type counts struct {
	granted  uint64 // at once or after a wait
	denied   uint64
	degraded uint64 // decided by the failure policy, or denied because the store is full
	refused  uint64 // of those degraded, not granted
}

// A tally counts the decisions of a limiter, in total and by second. There is no counter for a
// second: starts has the totals at the start of each second. So no counter need be cleared while
// other goroutines count, and the counts of seconds add up to the totals.
type tally struct {
	granted, denied, degraded, refused atomic.Uint64 // see counts

	// Parts of the above, and what is not in them.
	delayed  atomic.Uint64 // granted after a wait
	withheld atomic.Uint64 // granted here, and denied by another key of TakeAll

	eventsGranted, eventsDenied atomic.Uint64

	second atomic.Int64 // the latest one that has its totals in starts
	mu     sync.Mutex   // protects starts, and second while it changes
	starts [history + 1]counts
	first  int64 // the second in which the tally began; not changed later
}

// begin starts the tally.
func (t *tally) begin(now time.Duration) {
	t.first = int64(now / time.Second)
	t.second.Store(t.first)
}

func (t *tally) add(now time.Duration, o *ratelimit.Observation) {
	t.advance(int64(now / time.Second))
	switch o.Outcome {
	case ratelimit.Delayed:
		t.delayed.Add(1)
		fallthrough
	case ratelimit.Granted:
		t.granted.Add(1)
		t.eventsGranted.Add(uint64(o.Granted))
	case ratelimit.Denied:
		t.denied.Add(1)
		t.eventsDenied.Add(uint64(o.N))
	case ratelimit.Withheld:
		t.withheld.Add(1)
	case ratelimit.Failed:
		t.degraded.Add(1)
		if !o.Decision.Allowed {
			t.refused.Add(1)
		}
	}
}

func (t *tally) totals() counts {
	refused := t.refused.Load() // before those degraded, which add counts first
	return counts{
		granted:  t.granted.Load(),
		denied:   t.denied.Load(),
		degraded: t.degraded.Load(),
		refused:  refused,
	}
}

// decided returns how many decisions the store has made.
func (t *tally) decided() uint64 { return t.granted.Load() + t.denied.Load() }

// advance notes the totals at the start of second and of those before it that were not noted,
// in which nothing was counted.
func (t *tally) advance(second int64) {
	if t.second.Load() >= second {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.second.Load()
	totals := t.totals()
	for s := max(last+1, second-history); s <= second; s++ {
		t.starts[s%(history+1)] = totals
	}
	if last < second {
		t.second.Store(second)
	}
}

// since returns the counts of the whole seconds from since to that of now, exclusively, but of at
// most the last 300 seconds, and the first of these seconds. Others may have counted later ones.
func (t *tally) since(since int64, now time.Duration) (from int64, of []counts) {
	t.advance(int64(now / time.Second))
	t.mu.Lock()
	defer t.mu.Unlock()
	end := int64(now / time.Second)
	from = min(max(since, t.second.Load()-history, t.first), end)
	of = make([]counts, 0, end-from)
	for s := from; s < end; s++ {
		a, b := t.starts[s%(history+1)], t.starts[(s+1)%(history+1)]
		of = append(of, counts{
			granted:  b.granted - a.granted,
			denied:   b.denied - a.denied,
			degraded: b.degraded - a.degraded,
			refused:  b.refused - a.refused,
		})
	}
	return from, of
}
