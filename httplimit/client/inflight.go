package client

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
)

// wait waits for the turn of a request. If the request is to be released, it returns what
// holds its place.
func (t *Transport) wait(ctx context.Context, key string) (*ratelimit.Reservation, error) {
	if !t.flies {
		return nil, t.Limiter.Wait(ctx, key)
	}
	turn, _, err := t.Limiter.Hold(ctx, key, 1, ratelimit.Waiting())
	return turn, err
}

// release releases turn, unless it is nil or has been released. Nobody can use an error: the
// request is over, and a limiter logs that its store has failed.
func release(ctx context.Context, turn *ratelimit.Reservation) {
	if turn != nil {
		_ = turn.Release(context.WithoutCancel(ctx))
	}
}

// send sends r, and releases turn, if it is not nil, when the request is over.
func (t *Transport) send(r *http.Request, turn *ratelimit.Reservation) (resp *http.Response, err error) {
	if turn == nil {
		return t.base().RoundTrip(r)
	}
	f := &flight{turn: turn, request: r}
	defer func() {
		if !f.hasBody {
			f.land()
		}
	}()
	if resp, err = t.base().RoundTrip(r); err == nil && resp != nil {
		f.follow(resp)
	}
	return resp, err
}

// A flight is a request that is in flight.
type flight struct {
	turn    *ratelimit.Reservation
	request *http.Request
	hasBody bool        // whether it lasts until the body of the response ends
	unwatch func() bool // stops watching the context; nil if it is not watched
}

// land ends the flight. Further calls do nothing.
func (f *flight) land() {
	if f.unwatch != nil {
		f.unwatch()
	}
	release(f.request.Context(), f.turn)
}

// follow makes the flight end with the body of resp, if there is one.
func (f *flight) follow(resp *http.Response) {
	if hasNoBody(f.request.Method, resp) {
		return
	}
	f.hasBody = true
	if conn, ok := resp.Body.(io.ReadWriteCloser); ok { // it outlives the context
		resp.Body = &upgradedBody{conn, f}
		return
	}
	ctx := f.request.Context()
	f.unwatch = context.AfterFunc(ctx, func() { release(ctx, f.turn) })
	resp.Body = &flightBody{resp.Body, f}
}

// hasNoBody reports whether the response to a request never has a body. Callers often do not
// close that of such a response, and with HTTP/2 it is not [http.NoBody].
func hasNoBody(method string, resp *http.Response) bool {
	return resp.Body == nil || resp.Body == http.NoBody || method == http.MethodHead ||
		resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified
}

// A flightBody is the body of a response.
type flightBody struct {
	io.ReadCloser
	flight *flight
}

// Read implements [io.Reader]. At the end, or after an error, the request is over.
func (b *flightBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.flight.land()
	}
	return n, err
}

// Close implements [io.Closer].
func (b *flightBody) Close() error {
	defer b.flight.land()
	return b.ReadCloser.Close()
}

// An upgradedBody is the body of a response of 101: a connection, which can still be written
// to after the last byte was read.
type upgradedBody struct {
	io.ReadWriteCloser
	flight *flight
}

// Close implements [io.Closer].
func (b *upgradedBody) Close() error {
	defer b.flight.land()
	return b.ReadWriteCloser.Close()
}

// CloseWrite is a method of such bodies of net/http, for [net/http/httputil.ReverseProxy].
func (b *upgradedBody) CloseWrite() error {
	if half, ok := b.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("client: CloseWrite: %w", http.ErrNotSupported)
}
