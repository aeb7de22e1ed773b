package limitpage

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// history is how many seconds a page shows.
const history = 300

// Counts are numbers of decisions by outcome. Charges, settlements and cancellations are no
// decisions, and neither is a call that its caller abandoned.
type counts struct {
	granted  uint64 // at once or after a wait
	denied   uint64
	degraded uint64 // decided by the failure policy, or denied because the store is full
	refused  uint64 // the degraded ones that were not granted
}

// A tally counts the decisions of a limiter, in total and by second. No second has a counter of its
// own. Instead, starts has the totals at the start of each second: the count of a second is the
// difference of two totals. So no counter must be cleared while other goroutines count, and the
// counts of all seconds add up to the totals.
type tally struct {
	granted, denied, degraded, refused atomic.Uint64 // see counts

	delayed  atomic.Uint64 // granted after a wait; counted in granted as well
	withheld atomic.Uint64 // granted here, and denied by another key of TakeAll; not counted above

	eventsGranted, eventsDenied atomic.Uint64

	second atomic.Int64        // the latest second whose totals are in starts; changed under mu
	mu     sync.Mutex          // protects starts
	starts [history + 1]counts // second s is at index s % (history + 1)
	first  int64               // the second in which the tally began; not changed later
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
		t.eventsDenied.Add(uint64(eventsDenied(o)))
	case ratelimit.Withheld:
		t.withheld.Add(1)
	case ratelimit.Failed:
		t.degraded.Add(1)
		if !o.Decision.Allowed {
			t.refused.Add(1)
		}
	}
}

// eventsDenied returns how many events o, which is denied, denies. A TakeUpTo is denied one event,
// however large the N is up to which it would have taken any number.
func eventsDenied(o *ratelimit.Observation) int {
	if o.Call == ratelimit.CallTakeUpTo {
		return 1
	}
	return o.N
}

func (t *tally) totals() counts {
	refused := t.refused.Load() // before degraded, which add increments first: refused ≤ degraded
	return counts{
		granted:  t.granted.Load(),
		denied:   t.denied.Load(),
		degraded: t.degraded.Load(),
		refused:  refused,
	}
}

// decided returns how many decisions were made without a failure.
func (t *tally) decided() uint64 { return t.granted.Load() + t.denied.Load() }

// advance notes the totals at the start of second. It notes the same totals at the start of each
// earlier second that has none yet, because nothing was counted since.
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

// since returns the counts of the whole seconds from since on, and the first of these seconds. The
// second of now is not over, and not among them. At most the last 300 seconds are kept. Other
// goroutines may have counted in later seconds meanwhile.
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
