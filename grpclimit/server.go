package grpclimit

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// A Server limits the calls that a gRPC server handles. Its methods Unary, Stream and Messages are
// interceptors. Any number of goroutines, and several servers, may use it at once.
//
// grpc-go calls interceptors when it has received and decoded the request of a unary call, and
// does not call them for methods that the server does not have. So a refusal does not save the
// former, and calls of unknown methods do not count (unless there is a
// [grpc.UnknownServiceHandler]).
type Server struct{ gate *httplimit.Gate }

// NewServer returns a Server whose calls l limits. If l is nil or an option is invalid, the error
// matches [ratelimit.ErrInvalid].
//
// The options are those of [httplimit.Middleware]. Their functions get the call as an HTTP request:
// its path is the method, its header the metadata, its RemoteAddr the peer, and its context that of
// the call. It has no body; [CallOf] returns the call, which has the message. So the default key is
// the client's address, [key.Header] is a metadata field, and [key.Pattern] is the method (in lower
// case).
//
//   - The fields of [httplimit.WithHeaders] are trailers, in lower case.
//   - If a KeyFunc fails with a status, such as one of [codes.Unauthenticated], the call fails with
//     that. Otherwise it fails with [codes.InvalidArgument] and what [httplimit.Verdict.Explain]
//     says.
//   - [httplimit.WithSettle] gets status 200 if the handler returns no error, and otherwise 500;
//     so does [httplimit.WithSettleAtEnd], and written is 0. A handler tells [httplimit.Cost] what
//     its call has cost, with its context. A unary call is settled before its response is sent. A
//     client that does not read a stream keeps its call held, so do not add [ratelimit.GiveBack].
//   - [httplimit.WithStatus] and [httplimit.WithRefusal] have no effect.
func NewServer(l ratelimit.Limiter, opts ...httplimit.Option) (*Server, error) {
	gate, err := httplimit.NewGate(l, opts...)
	if err != nil {
		return nil, err
	}
	return &Server{gate}, nil
}

// Unary is a [grpc.UnaryServerInterceptor].
func (s *Server) Unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (resp any, err error) {
	c := &Call{Context: ctx, Method: info.FullMethod, Message: req}
	a := s.gate.Admit(c.request())
	if trailer := trailerOf(&a); trailer != nil {
		_ = grpc.SetTrailer(ctx, trailer) // fails only if the handler is called without a server
	}
	if !a.Passed {
		return nil, refusal(ctx, &a.Verdict)
	}
	hasReturned := false
	defer func() { done(&a, hasReturned, err) }()
	resp, err = handler(a.Context(), req)
	hasReturned = true
	return resp, err
}

// Stream is a [grpc.StreamServerInterceptor]. It limits streams as calls, however many messages
// they have.
func (s *Server) Stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) (err error) {
	c := &Call{Context: stream.Context(), Method: info.FullMethod}
	a := s.gate.Admit(c.request())
	if trailer := trailerOf(&a); trailer != nil {
		stream.SetTrailer(trailer)
	}
	if !a.Passed {
		return refusal(stream.Context(), &a.Verdict)
	}
	hasReturned := false
	defer func() { done(&a, hasReturned, err) }()
	err = handler(srv, &contextStream{stream, a.Context()})
	hasReturned = true
	return err
}

// A contextStream is a stream with another context.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements [grpc.ServerStream].
func (s *contextStream) Context() context.Context { return s.ctx }

// done says that a call is done, whose handler has returned err or, if hasReturned is false,
// panicked.
func done(a *httplimit.Admission, hasReturned bool, err error) {
	code := http.StatusOK
	if !hasReturned || err != nil {
		code = http.StatusInternalServerError
	}
	a.Done(code, 0)
}

// trailerOf returns what the client is told, as metadata, whose names are in lower case.
func trailerOf(a *httplimit.Admission) metadata.MD {
	header := make(http.Header)
	a.SetHeader(header)
	header.Del("Access-Control-Expose-Headers") // tells browsers of header fields, not of trailers
	if len(header) == 0 {
		return nil
	}
	md := make(metadata.MD, len(header))
	for name, values := range header {
		md[strings.ToLower(name)] = values
	}
	return md
}

// HealthAndReflection is a function for [httplimit.WithSkip]. It returns true for calls of the
// services that grpc-go has for health checks and reflection: grpc.health.v1.Health,
// grpc.reflection.v1.ServerReflection and grpc.reflection.v1alpha.ServerReflection. Without it,
// health checks count, and fail when the limit of the prober's address is exceeded.
func HealthAndReflection(r *http.Request) bool {
	service, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	return slices.Contains([]string{
		"grpc.health.v1.Health",
		"grpc.reflection.v1.ServerReflection",
		"grpc.reflection.v1alpha.ServerReflection",
	}, service)
}
