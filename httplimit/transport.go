package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A Transport is an [http.RoundTripper] that makes each request wait for its
// turn, so that a client keeps to a server's limit:
//
//	client := &http.Client{Transport: &httplimit.Transport{Limiter: limiter}}
//
// A request whose context ends before its turn fails: at once, if its deadline
// says so already, and it has not taken anybody's place, unless its turn had come and
// the server asked for a rest meanwhile. After an answer of 429
// or 503 with Retry-After, no request of the same key is sent until that time has
// passed, or a day; 4,096 keys are held back at a time. Nothing is sent twice: an
// answer of 429 is the caller's to handle, or a retrying client's around this one.
//
// It must not be changed once it is used. It may be used by any number of
// goroutines.
type Transport struct {
	// Limiter says when. It must not be nil.
	Limiter ratelimit.Limiter

	// Key says whose limit a request counts against. The default is the host
	// that it is for, and the port unless it is that of the scheme.
	Key KeyFunc

	// Base sends the requests. The default is [http.DefaultTransport].
	Base http.RoundTripper

	mu     sync.Mutex           // protects closed
	closed map[string]time.Time // until when keys are held back
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, err := t.await(r)
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	resp, err := t.base().RoundTrip(r)
	if err == nil && (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable) {
		if until, ok := retryAt(resp.Header.Get("Retry-After"), time.Now()); ok {
			t.close(key, until)
		}
	}
	return resp, err
}

// await waits for the turn of r, and returns its key.
func (t *Transport) await(r *http.Request) (key string, err error) {
	if isNil(t.Limiter) {
		return "", fmt.Errorf("httplimit: Transport.Limiter is nil: make one with ratelimit.New")
	}
	if r.URL == nil {
		return "", errors.New("httplimit: the request has no URL")
	}
	key = host(r.URL)
	if t.Key != nil {
		if key, err = t.Key(r); err != nil {
			return "", err
		}
		if key == "" {
			return "", fmt.Errorf("%w: it is empty", ErrNoKey) // and must not be every request's
		}
	}
	for {
		if wait := t.heldFor(key); wait > 0 {
			if err := sleep(r.Context(), wait); err != nil {
				return "", err
			}
			continue
		}
		if err := t.Limiter.Wait(r.Context(), key); err != nil {
			return "", err
		}
		if t.heldFor(key) <= 0 { // or the server has asked for a rest meanwhile
			return key, nil
		}
	}
}

// host returns whom a URL leads to.
func host(u *url.URL) string {
	name, port := strings.ToLower(u.Hostname()), u.Port()
	if port == "" || u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		return name
	}
	return net.JoinHostPort(name, port)
}

// CloseIdleConnections closes those of Base, if it has such a method.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if !isNil(t.Base) {
		return t.Base
	}
	return http.DefaultTransport
}

// sleep waits for d, or fails: at once if ctx ends before by its deadline.
func sleep(ctx context.Context, d time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		return tooLong(d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A tooLong is the error of a wait of that length that no deadline allows. To net/http
// and who uses it, it is a timeout.
type tooLong time.Duration

func (e tooLong) Error() string {
	return fmt.Sprintf("httplimit: a wait of %v is longer than the deadline allows: %v", time.Duration(e), context.DeadlineExceeded)
}

func (tooLong) Unwrap() error   { return context.DeadlineExceeded }
func (tooLong) Timeout() bool   { return true }
func (tooLong) Temporary() bool { return true }

// heldFor returns for how long a key is held back.
func (t *Transport) heldFor(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.closed[key]
	if !ok {
		return 0
	}
	wait := time.Until(until)
	if wait <= 0 {
		delete(t.closed, key)
	}
	return wait
}

// What servers may ask for in Retry-After.
const (
	longestRest = 24 * time.Hour
	mostResting = 4096 // keys at a time; more are not held back
)

// close holds a key back, and forgets those that need no longer be.
func (t *Transport) close(key string, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed == nil {
		t.closed = make(map[string]time.Time)
	}
	now := time.Now()
	for k, u := range t.closed {
		if !u.After(now) {
			delete(t.closed, k)
		}
	}
	if limit := now.Add(longestRest); until.After(limit) {
		until = limit
	}
	held, known := t.closed[key]
	if until.After(now) && until.After(held) && (known || len(t.closed) < mostResting) {
		t.closed[key] = until
	}
}

// retryAt returns the time that a Retry-After tells, which is a number of seconds
// or a date.
func retryAt(value string, now time.Time) (time.Time, bool) {
	s, err := strconv.ParseUint(value, 10, 32)
	if err == nil || errors.Is(err, strconv.ErrRange) { // then s is the most: 136 years
		return now.Add(time.Duration(s) * time.Second), true
	}
	at, err := http.ParseTime(value)
	return at, err == nil
}
