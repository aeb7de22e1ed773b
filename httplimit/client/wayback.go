package client

import "time"

// A wayBack is the latest rest that a server has asked for, and the way back from it. After the
// rest, one request goes first. Each success lets another one be under way, so that the others
// follow by twos and fours, up to as many as the server granted after the rest before. What comes
// then is spread, at first over the length of the rest, and with each success a fifth faster,
// unless it comes alone.
type wayBack struct {
	number  int           // of the rest; 0 if there was none
	until   time.Time     // when the rest ends
	rest    time.Duration // how long it is; 0 if the way back has ended
	most    int           // how many requests may be under way afterwards
	granted int           // how many succeeded, up to quota
	quota   int           // how many did after an earlier rest; 0 if it is not known
	gap     time.Duration // between requests, once quota is granted
	next    time.Time     // when the next one may go then, and before, if nobody has been answered
}

const (
	longestRest = 24 * time.Hour
	freely      = 64 // requests under way with which the way back ends
)

// begin begins a rest.
func (b *wayBack) begin(d time.Duration, now time.Time) {
	if !now.Before(b.until) && b.granted > 0 { // otherwise it is one of several refusals
		if b.quota == 0 || b.granted < b.quota {
			b.quota = b.granted
		}
	}
	b.number++
	b.until, b.rest = now.Add(d), d
	b.most, b.granted, b.gap = 1, 0, 0
}

// opens returns when the next request may go, if so many that went after the rest are not answered,
// and others have come with it.
func (b *wayBack) opens(now time.Time, out int, isCrowd bool) time.Time {
	switch {
	case now.Before(b.until):
		return b.until
	case b.gap > 0 && isCrowd, b.gap == 0 && b.rest > 0 && b.isFull(out):
		return b.next
	}
	return time.Time{}
}

// pass notes that a request goes.
func (b *wayBack) pass(now time.Time) {
	b.next = now.Add(b.gap)
	if b.gap == 0 { // those that went seem to be lost then
		b.next = now.Add(min(max(b.rest, firstBackoff), longestBackoff))
	}
}

// isFull reports whether those that went may be all that the server grants for now.
func (b *wayBack) isFull(out int) bool {
	return out >= b.most || b.quota > 0 && b.granted+out >= b.quota
}

// step notes that the server has granted a request which went after the rest.
func (b *wayBack) step(now time.Time) {
	if b.rest == 0 {
		return
	}
	b.most++
	if b.gap > 0 {
		b.gap -= b.gap / 5
	} else if b.granted++; b.granted == b.quota {
		b.gap = max(1, b.rest/time.Duration(b.quota))
		b.next = now.Add(b.gap)
	}
	if b.gap == 0 && b.most >= freely || b.gap > 0 && b.gap < b.rest/freely/time.Duration(b.quota) {
		*b = wayBack{number: b.number, until: b.until}
	}
}
