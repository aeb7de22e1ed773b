package client

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Transport is an [http.RoundTripper] that makes each request wait for its turn, so
// that a client stays within a server's limit:
//
//	c := &http.Client{Transport: &client.Transport{Limiter: limiter, Quota: client.RateLimit}}
//
// If the request's deadline is before its turn, it fails at once and uses no quota.
// (The exception: if the server sent Retry-After while the request waited, or said with Quota that
// nothing is left, its turn may already be spent.) It also fails when its context ends while it
// waits.
//
// After a response of 429 or 503 with Retry-After, requests with the same key are held back for
// that time, at most for a day. After a 429 without it, or with one that is over, they are held
// back for a second or, after several such responses in a row, for twice as long each time, up to a
// minute, and up to half of that longer. Each success makes the next such time a fifth shorter,
// except a response from a cache, which has an Age.
//
// After such a rest, one request goes first. If it is granted, the others follow by twos and fours,
// up to as many as were granted after an earlier rest; what comes then is spread over the length of
// the rest, and a fifth faster with each success, until the server refuses a request or 64 may be
// under way. A request that is alone, because no other is under way or waits, is not spread. So
// many callers of a server with a small limit send few requests that it refuses. A request that is
// not answered holds the others back for a second to a minute.
//
// At most 4,096 keys are held back at a time. Transport sends nothing twice:
// responses of 429 are returned to the caller, which may retry. But [http.Transport], the default
// Base, sends a request again if a connection that it has used before fails, as its documentation
// says: such requests neither wait nor count again.
//
// The errors of Transport have the methods Timeout and Temporary, as those of net/http.
// Timeout reports whether a deadline is too near, Temporary whether a later request may
// succeed: after a timeout, or when a queue is full.
//
// With a [ratelimit.InFlight], alone or in a [ratelimit.All], a request is in flight until the
// Body of its response has been read to the end or closed, or the request has failed or its
// context has ended. An upgraded connection (status 101) is in flight until its Body is closed.
// So callers close the Body, as [http.Client] demands: otherwise the request counts for the
// Timeout, and the next one may wait that long. The release calls the store once more.
//
// An observer of the Limiter (see [ratelimit.WithObserver]) sees each wait for a turn, and not the
// time for which requests are held back because the server says so.
//
// The fields must not be changed after first use. A Transport is safe for concurrent
// use by multiple goroutines.
type Transport struct {
	// Limiter decides when a request may be sent. It must not be nil.
	Limiter ratelimit.Limiter

	// Key returns the key of a request. The default is the host of its URL, with the
	// port unless it is the scheme's default port.
	Key key.Func

	// Base sends the requests. The default is [http.DefaultTransport].
	Base http.RoundTripper

	// Quota returns what a response says is left, and whether it says it, to slow down before the
	// server refuses a request: [RateLimit], [XRateLimit], what [Headers] returns, or a function of
	// yours. If it is nil, Transport does not heed what is left.
	//
	// When an eighth of the limit is left, the requests that are left are spread evenly over the
	// time until the reset, if that is five seconds or longer; if the limit is not known, they
	// always are. When none is left, requests with the same key are held back for that time, at
	// most for a day. Afterwards, the whole quota counts as back, until another response says more.
	// If the reset comes before the limit's window is over, only what the limit allows in that time
	// counts as back, and is added to what was left. If a 429 or 503 has Retry-After, that counts
	// instead of the reset. A limit is remembered for ten minutes after the reset.
	//
	// Requests under way count as if they used up what is left, for a window: then the server has
	// counted them in an earlier one, or they are lost. If the window is not known, it is taken
	// from the times until the reset. A request whose turn the Limiter grants when none is left
	// waits for the quota, and then for another turn.
	//
	// A slow response is as old as its request, so that a reset may be over when the response
	// comes. If several requests are under way at once, their responses may speak of two windows,
	// or of quotas of several resources: then a request goes when each of them lets it. A response
	// to a later request replaces them. So give requests with a quota of their own a Key of their
	// own, as [XRateLimit] shows.
	//
	// Most servers say when the whole quota is back, and nothing says when some of it is. A client
	// that always has requests to send gets more than 90 % of the limit if the server has a bucket
	// or a [ratelimit.FixedWindow], even if responses take longer than the window, but less if they
	// take about as long. It gets 70 to 90 % if the quota comes back little by little, as with a
	// [ratelimit.SlidingLog], [ratelimit.SlidingWindow] or [ratelimit.RollingWindow].
	//
	// A response from a cache, which has an Age, says nothing, whatever its value: some caches add
	// it to all responses, and Transport cannot learn from those. Nothing is known before the first
	// response: Limiter bounds how many requests are sent until then.
	Quota func(*http.Response) (Quota, bool)

	// Rest returns for how long a response asks to hold back requests with the same key, if that is
	// not what Transport finds by itself: then it is 0. It is for servers that refuse with another
	// status than 429 or 503, such as 403, 420, 502 or 529; see [RetryAfter]. For GitHub:
	//
	//	Rest: func(resp *http.Response) time.Duration {
	//		if resp.StatusCode == http.StatusForbidden { // a secondary limit, if it has Retry-After
	//			return client.RetryAfter(resp)
	//		}
	//		return 0
	//	},
	Rest func(*http.Response) time.Duration

	// InFlight is for a Limiter whose algorithm is not known (see [ratelimit.Describe]),
	// such as one with limits per key, if some keys have a [ratelimit.InFlight]. It makes
	// Transport release all requests. Without it, those requests count for the Timeout.
	InFlight bool

	prepare sync.Once
	turns   *Turns
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, err := t.keyOf(r)
	var p pass
	var held *ratelimit.Reservation
	if err == nil {
		t.prepare.Do(t.makeTurns)
		p, held, err = t.turns.wait(r.Context(), key, 1)
	}
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, transportError{err}
	}
	var a answer
	defer func() { t.turns.answered(key, p, a) }()
	resp, err := t.send(r, held)
	if err == nil && resp != nil { // net/http reports a nil response
		a = t.read(resp)
	}
	return resp, err
}

// makeTurns sets what RoundTrip uses.
func (t *Transport) makeTurns() {
	t.turns, _ = NewTurns(t.Limiter, t.InFlight) // there is a Limiter
	t.turns.heeds = t.Quota != nil
}

// read returns what a response says about the requests to come.
func (t *Transport) read(resp *http.Response) (a answer) {
	a.refused = resp.StatusCode == http.StatusTooManyRequests
	// So the server said it earlier, and perhaps to others (RFC 9111, 5.1).
	isCached := resp.Header["Age"] != nil
	a.granted = !a.refused && !isCached && resp.StatusCode < http.StatusInternalServerError
	if t.Quota != nil && !isCached {
		if q, ok := t.Quota(resp); ok {
			a.quota, a.known = q.bounded()
		}
	}
	if t.Rest != nil {
		a.rest = t.Rest(resp)
	}
	if a.rest <= 0 && (a.refused || resp.StatusCode == http.StatusServiceUnavailable) {
		a.rest = retryAfter(resp.Header, t.turns.clk.Now())
	}
	return a
}

// keyOf returns the key of r.
func (t *Transport) keyOf(r *http.Request) (key string, err error) {
	if param.IsNil(t.Limiter) {
		return "", param.InvalidIn("client", "Transport.Limiter", nil,
			"must be a Limiter, such as ratelimit.New returns")
	}
	if r.URL == nil {
		return "", errors.New("client: the request has no URL")
	}
	if t.Key == nil {
		return host(r.URL), nil
	}
	key, err = t.Key(r)
	if err == nil && key == "" {
		err = errEmptyKey
	}
	return key, err
}

// errEmptyKey refuses an empty key, which hosts would share by mistake.
var errEmptyKey = fmt.Errorf("%w: the key is empty", key.ErrNone)

// host returns the host of u in lower case, with the port unless it is the scheme's
// default port.
func host(u *url.URL) string {
	name, port := strings.ToLower(u.Hostname()), u.Port()
	if port == "" || u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		return name
	}
	return net.JoinHostPort(name, port)
}

// CloseIdleConnections calls the method of that name of Base, if there is one. It
// makes [http.Client.CloseIdleConnections] work.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if !param.IsNil(t.Base) {
		return t.Base
	}
	return http.DefaultTransport
}
