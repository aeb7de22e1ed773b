package ratelimit

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A Lockout locks a key for a while when Limit events were counted within Window, and for longer
// each time: failed logins, or calls of a client that does not keep to its limit.
//
// It decides by these rules:
//
//   - While the key is not locked, n events are granted if count + n ≤ Limit. The count begins with
//     the first event that is counted. If it has not reached Limit when Window has passed since
//     then, it is forgotten.
//   - When the count has reached Limit, the key is locked: from the latest event on, for First.
//     Nothing is granted until then, and RetryAfter says when that is.
//   - Each lock lasts twice as long as the one before, but no longer than Longest. If Longest is 0,
//     each lasts for First.
//   - After a lock, the count is 0. When Longest has passed since the end of a lock, and no other
//     lock has begun, the next one lasts for First again.
//   - A denial changes nothing. So whoever keeps trying does not make a lock longer.
//   - An event that [Reservation.Settle] takes back has never locked the key, unless others are
//     charged while it does: see [docs/holds.md].
//
// The Limit-th event is granted, and locks. So to lock out whoever sends an eleventh request within
// a second, set Limit to 11: a client that keeps to ten is never locked.
//
// For logins, hold an event while the password is checked, with [Waiting], and take it back if the
// password is right: then many right passwords at once lock nobody out, and of many wrong ones at
// once no more than Limit are checked. [Limiter.Reset] ends a lock, and forgets the doubling.
//
// A span as long as Window has fewer than 2·Limit events, because a new count may begin in the
// span, and Limit more for each lock that ends in it. A key has a state of five words.
//
// [docs/holds.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/holds.md
type Lockout struct {
	Limit   int           // how many events lock the key
	Window  time.Duration // for how long events count that do not
	First   time.Duration // how long the first lock lasts
	Longest time.Duration // how long a lock lasts at most; 0 if all last as long as the first
}

// String returns the limit in words, such as "locked for 1m by 5 within 15m, doubling up to 1d".
func (a Lockout) String() string { return inWords(a) }

func (a Lockout) normalized() Algorithm { return a }

func (a Lockout) share(by divisor) Algorithm {
	a.Limit = by.events(a.Limit)
	return a
}

func (a Lockout) spec() limit.Spec {
	return limit.Spec{
		Kind:    limit.Lockout,
		Numbers: [4]uint64{uint64(a.Limit), uint64(a.Window), uint64(a.First), uint64(a.Longest)},
	}
}

func (Lockout) of(s *limit.Spec) Algorithm {
	return Lockout{
		Limit: s.Int(0), Window: s.Duration(1), First: s.Duration(2), Longest: s.Duration(3),
	}
}
