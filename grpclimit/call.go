package grpclimit

import (
	"context"
	"net/http"
	"net/textproto"
	"net/url"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// A Call is a call, or a message of one. It is what the functions for keys and costs of a [Client]
// decide by. Those of a [Server] get an [http.Request], for which [CallOf] returns the Call.
type Call struct {
	// Context is the context of the call. On a server, it has the metadata
	// ([metadata.FromIncomingContext]) and the peer ([peer.FromContext]).
	Context context.Context

	// Method is the full name of the method: /package.Service/Method.
	Method string

	// Message is the request of a unary call, or the message of a stream whose messages are
	// limited. It is nil for a stream as a whole.
	Message any

	// Target is the target of the client's connection. It is empty on a server.
	Target string
}

type callKey struct{}

// CallOf returns the call that r, a request which a [Server] has made, is about. For other
// requests, it returns nil.
func CallOf(r *http.Request) *Call {
	c, _ := r.Context().Value(callKey{}).(*Call)
	return c
}

// request returns the call as the HTTP request that it is on the wire, without its body.
func (c *Call) request() *http.Request {
	md, _ := metadata.FromIncomingContext(c.Context) // a copy
	r := (&http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Path: c.Method},
		Proto:  "HTTP/2.0", ProtoMajor: 2,
		Header: make(http.Header, len(md)),
		Body:   http.NoBody,
	}).WithContext(context.WithValue(c.Context, callKey{}, c))
	if p, ok := peer.FromContext(c.Context); ok && p.Addr != nil {
		r.RemoteAddr = p.Addr.String()
	}
	for name, values := range md {
		if name == ":authority" {
			if len(values) > 0 {
				r.Host = values[0]
			}
			continue
		}
		r.Header[textproto.CanonicalMIMEHeaderKey(name)] = values // names in md are in lower case
	}
	return r
}
