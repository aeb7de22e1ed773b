package client

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
)

// send sends r, and releases held, if it is not nil, when the request is over.
func (t *Transport) send(
	r *http.Request,
	held *ratelimit.Reservation,
) (resp *http.Response, err error) {
	if held == nil {
		return t.base().RoundTrip(r)
	}
	f := &flight{held: held, request: r}
	defer func() {
		if !f.hasBody {
			f.land()
		}
	}()
	resp, err = t.base().RoundTrip(r)
	if err == nil && resp != nil {
		f.follow(resp)
	}
	return resp, err
}

// A flight is a request that is in flight.
type flight struct {
	held    *ratelimit.Reservation
	request *http.Request
	hasBody bool        // whether it lasts until the body of the response ends
	unwatch func() bool // stops watching the context; nil if it is not watched
}

// land ends the flight. Further calls do nothing.
func (f *flight) land() {
	if f.unwatch != nil {
		f.unwatch()
	}
	release(f.request.Context(), f.held)
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
	f.unwatch = context.AfterFunc(ctx, func() { release(ctx, f.held) })
	resp.Body = &flightBody{resp.Body, f}
}

// hasNoBody reports whether the response to a request has no body. Callers often do not close that
// of such a response, and with HTTP/2 it is not [http.NoBody]. There a length of 0 is known, while
// Transports of programs may leave it at 0 because they do not know it.
func hasNoBody(method string, resp *http.Response) bool {
	return resp.Body == nil || resp.Body == http.NoBody || method == http.MethodHead ||
		resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified ||
		resp.ProtoMajor >= 2 && resp.ContentLength == 0
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
