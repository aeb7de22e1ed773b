package grpclimit

import (
	"context"
	"net/http"
	"net/textproto"
	"net/url"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// A Call is a call or, with [WithPerMessage], a message of one. It is what functions for keys
// and costs decide by.
type Call struct {
	// Context is the context of the call. On a server, it has the metadata
	// ([metadata.FromIncomingContext]) and the peer ([peer.FromContext]).
	Context context.Context

	// Method is the full name of the method: /package.Service/Method.
	Method string

	// Message is the request of a unary call, or the message of a stream that is limited per
	// message. It is nil for a stream as a whole.
	Message any

	// Target is the target of the client's connection. It is empty on a server.
	Target string

	request *http.Request // this call as a request, see asRequest
}

type callKey struct{}

// asRequest returns the call as the HTTP request that it is on the wire, for the functions of
// package httplimit. Its context has the call.
func (c *Call) asRequest() *http.Request {
	if c.request != nil {
		return c.request
	}
	r := &http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Path: c.Method},
		Proto:  "HTTP/2.0", ProtoMajor: 2,
	}
	if p, ok := peer.FromContext(c.Context); ok && p.Addr != nil {
		r.RemoteAddr = p.Addr.String()
	}
	md, _ := metadata.FromIncomingContext(c.Context)
	r.Header = make(http.Header, len(md))
	for name, values := range md {
		if name == ":authority" {
			if len(values) > 0 {
				r.Host = values[0]
			}
			continue
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		r.Header[name] = append(r.Header[name], values...)
	}
	c.request = r.WithContext(context.WithValue(c.Context, callKey{}, c))
	return c.request
}

// callOf returns the call that asRequest has made r of.
func callOf(r *http.Request) *Call { return r.Context().Value(callKey{}).(*Call) }
