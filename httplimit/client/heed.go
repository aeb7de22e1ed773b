package client

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"
)

// A server has what the responses to requests with a key say about the requests to come, except
// for how long to hold them back: that is in Transport.held.
type server struct {
	pace    quotaPace     // what the latest response says, less the requests sent since
	until   time.Time     // when there is more quota
	told    uint64        // the number of that response, by Transport.told
	longest time.Duration // the longest reset that a response has said
	next    time.Time     // when the next request may be sent, if they are spread
	waiting int           // requests that wait for their turn, or for the quota
	queued  int64         // requests that have taken their turn, and are not sent yet
	sent    int64         // requests that are sent, and not answered yet

	backoff time.Duration // after the latest 429 without Retry-After, less what successes took off
	since   time.Time     // when that began
}

// Bounds on how long Transport backs off, and how long it remembers that it did.
const (
	firstBackoff   = time.Second
	longestBackoff = time.Minute
	backoffMemory  = 10 * time.Minute
)

// over reports whether s says nothing about requests from now on.
func (s *server) over(now time.Time) bool {
	return s.sent == 0 && s.queued == 0 && s.waiting == 0 && !now.Before(s.until) && (s.backoff == 0 || now.Sub(s.since) > backoffMemory)
}

// renew lets the quota be back if it is time, as far as is known.
func (s *server) renew(now time.Time) {
	p := &s.pace
	if !p.known || now.Before(s.until) {
		return
	}
	if p.window == 0 {
		p.reset = s.longest
	}
	p.known, p.left = p.limit > 0, p.renewed(s.sent)
	s.until, s.next = now.Add(p.reset), now
}

// free returns the pace of requests that have not taken their turn.
func (s *server) free() quotaPace {
	p := s.pace
	p.left = max(0, p.left-s.queued)
	return p
}

// learn notes what a response to a request with the key, sent at the given time, says about the
// requests to come, and reports whether the server has granted it. told is what Transport.told was then.
func (t *Transport) learn(key string, sent time.Time, told uint64, resp *http.Response) (granted bool) {
	now := time.Now()
	refused := resp.StatusCode == http.StatusTooManyRequests
	cached := resp.Header["Age"] != nil // so the server said it earlier, and perhaps to others (RFC 9111, 5.1)
	var pace quotaPace
	if t.Heed && !cached {
		pace = paceOf(resp.Header["Ratelimit"], resp.Header["Ratelimit-Policy"])
	}
	var rest time.Duration // how long to hold requests back
	if t.Rest != nil {
		rest = t.Rest(resp)
	}
	if rest <= 0 && (refused || resp.StatusCode == http.StatusServiceUnavailable) {
		rest = retryAfter(resp.Header, now)
	}
	if rest <= 0 && refused {
		if rest = pace.reset; rest == 0 {
			rest = t.backOff(key, sent, now)
		}
	}
	rest = min(rest, maxRetryAfter)
	t.held.hold(key, rest)
	if !refused && !cached {
		t.recovered(key)
	}
	if pace.known {
		t.heed(key, pace, rest, told, now)
	}
	return !refused && !cached && resp.StatusCode < 500
}

// serverOf returns what is known of the key's server, and nil if there is no room for it. The
// caller holds t.mu.
func (t *Transport) serverOf(key string, now time.Time) *server {
	if s := t.servers[key]; s != nil {
		return s
	}
	if len(t.servers) >= maxHeldKeys {
		for k, s := range t.servers {
			if s.over(now) {
				delete(t.servers, k)
			}
		}
	}
	if len(t.servers) >= maxHeldKeys {
		return nil
	}
	if t.servers == nil {
		t.servers = make(map[string]*server)
	}
	s := new(server)
	t.servers[key] = s
	return s
}

// backOff returns for how long to hold the key back after a 429 without Retry-After: twice as
// long as the last time, and up to half of that longer, so that clients do not return together.
func (t *Transport) backOff(key string, sent, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	backoff := firstBackoff
	if s := t.serverOf(key, now); s != nil {
		if now.Sub(s.since) > backoffMemory {
			s.backoff = 0
		}
		if s.backoff > 0 && sent.Before(s.since) {
			return 0 // it was under way when the backoff began
		}
		backoff = min(max(2*s.backoff, firstBackoff), longestBackoff)
		s.backoff, s.since = backoff, now
	}
	return backoff + rand.N(backoff/2)
}

// recovered notes that the server has answered with another status than 429: the next backoff is a
// fifth shorter.
func (t *Transport) recovered(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.servers[key]; s != nil {
		if s.backoff -= s.backoff / 5; s.backoff < firstBackoff/8 {
			s.backoff = 0
		}
	}
}

// heed notes how many requests the server would still grant, according to a response to a request
// that was sent when Transport.told was told. If there is a rest, it grants none before.
func (t *Transport) heed(key string, pace quotaPace, rest time.Duration, told uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.serverOf(key, now)
	if s == nil {
		return
	}
	s.longest = max(s.longest, pace.reset)
	if rest > 0 {
		pace.left, pace.reset = 0, rest
	}
	pace.left = max(0, pace.left-s.sent)
	if s.pace.known && now.Before(s.until) && told < s.told {
		// The server may have said this before or after what it said last.
		s.pace.left = min(s.pace.left, pace.left)
		if until := now.Add(pace.reset); until.After(s.until) {
			s.until = until
		}
		return
	}
	s.pace, s.until, s.told = pace, now.Add(pace.reset), t.told.Add(1)
	if next := now.Add(s.free().every()); s.waiting == 0 || s.next.Before(next) { // otherwise it is the turn after those that wait
		s.next = next
	}
}

// takeTurn waits until the server would grant another request. It fails at once if that is after
// the deadline of ctx. If it succeeds, the caller calls depart or forgo.
func (t *Transport) takeTurn(ctx context.Context, key string) error {
	for {
		s, wait, taken, err := t.nextTurn(ctx, key)
		if err != nil {
			return err
		}
		if wait > 0 {
			err = sleep(ctx, wait)
			t.mu.Lock()
			s.waiting--
			t.mu.Unlock()
		}
		if err != nil && taken {
			t.forgo(key)
		}
		if err != nil || taken {
			return err
		}
	}
}

// nextTurn returns the time until the server would grant another request. If taken, that is the
// caller's turn. Otherwise none is left, and the caller asks again after that time.
func (t *Transport) nextTurn(ctx context.Context, key string) (s *server, wait time.Duration, taken bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if s = t.serverOf(key, now); s == nil {
		return nil, 0, true, nil
	}
	s.renew(now)
	p := s.free()
	turn, taken := now, true
	if p.known && !p.enough() {
		if s.next.After(now) {
			turn = s.next
		}
		if p.left == 0 || !turn.Before(s.until) {
			turn, taken = s.until, false
		}
	}
	if wait = turn.Sub(now); wait > 0 {
		if deadline, ok := ctx.Deadline(); ok && deadline.Before(turn) {
			return s, 0, false, tooLong(wait)
		}
		s.waiting++
	}
	if taken {
		s.queued++
		s.next = turn.Add(s.until.Sub(turn) / time.Duration(max(1, p.left)))
	}
	return s, wait, taken, nil
}

// depart reports whether a request whose turn has come may be sent: whether the server has not asked
// for a rest, or used up its quota, while the request waited in the Limiter. If it is sent, the caller
// calls answered when it is over.
func (t *Transport) depart(key string, epoch uint64) bool {
	now := time.Now()
	rests := !t.held.current(key, epoch)
	if !t.Heed {
		return !rests
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.servers[key]
	if s == nil {
		return !rests
	}
	s.renew(now)
	p := &s.pace
	s.queued = max(0, s.queued-1)
	if rests || p.known && p.left == 0 && p.reset > 0 {
		return false
	}
	p.left = max(0, p.left-1)
	s.sent++
	return true
}

// forgo notes that a request which has taken its turn will not be sent.
func (t *Transport) forgo(key string) { t.less(key, 1, 0) }

// answered notes that a request which was sent is over.
func (t *Transport) answered(key string) { t.less(key, 0, 1) }

// less counts so many requests less that are queued, and that are sent.
func (t *Transport) less(key string, queued, sent int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.servers[key]; s != nil {
		s.queued, s.sent = max(0, s.queued-queued), max(0, s.sent-sent)
		if s.over(time.Now()) {
			delete(t.servers, key)
		}
	}
}
