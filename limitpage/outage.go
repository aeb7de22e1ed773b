package limitpage

import (
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// An outage is a time in which the store of a limiter, or the lookup of its limits, failed. An
// outage is over when nothing has failed for ten seconds and a decision was made since. It is
// forgotten five minutes after the latest failure.
type outage struct {
	mu          sync.Mutex    // protects the fields below
	since, last time.Duration // of the first and the latest failure, since the Unix epoch
	decided     uint64        // by the limiter, before the latest failure
	cause       error         // of the latest failure; nil if there was none
}

func (o *outage) over(now time.Duration, decided uint64) bool {
	return now-o.last > 10*time.Second && decided != o.decided
}

func (o *outage) forgotten(now time.Duration) bool {
	return o.cause == nil || now-o.last > history*time.Second
}

// add adds a failure.
func (o *outage) add(now time.Duration, decided uint64, cause error) {
	if cause == nil { // Take of a full store denies, and returns no error
		cause = ratelimit.ErrFull
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forgotten(now) || o.over(now, decided) {
		o.since = now
	}
	o.last, o.decided, o.cause = now, decided, cause
}

// An outageReport is what the page shows of an outage.
type outageReport struct {
	Since int64  `json:"since"`
	Last  int64  `json:"last"` // the latest failure
	Cause string `json:"cause"`
	Over  bool   `json:"over"`
}

// outageOf returns the latest outage, or nil if there was none or it is forgotten.
func (p *Page) outageOf(w *watchedLimiter, now time.Duration) *outageReport {
	o, decided := &w.outage, w.tally.decided()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forgotten(now) {
		return nil
	}
	return &outageReport{
		o.since.Milliseconds(),
		o.last.Milliseconds(),
		p.errorText(o.cause),
		o.over(now, decided),
	}
}
