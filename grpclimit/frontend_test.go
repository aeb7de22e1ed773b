package grpclimit_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/internal/laws/frontend"
)

// TestFrontEnd_Laws runs the laws of front ends on each of a Server's interceptors, without a
// network. A message of a stream is not settled with what the handler tells of the stream.
func TestFrontEnd_Laws(t *testing.T) {
	t.Run("unary", func(t *testing.T) {
		frontend.Run(t, frontEnd(func(s *grpclimit.Server, called *calledStream, handle func(context.Context) error) error {
			ctx := grpc.NewContextWithServerTransportStream(called.ctx, called)
			_, err := s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: called.Method()}, func(ctx context.Context, _ any) (any, error) {
				return nil, handle(ctx)
			})
			return err
		}))
	})
	t.Run("stream", func(t *testing.T) {
		frontend.Run(t, frontEnd(func(s *grpclimit.Server, called *calledStream, handle func(context.Context) error) error {
			return s.Stream(nil, serverStream{calledStream: called},
				&grpc.StreamServerInfo{FullMethod: called.Method()}, func(_ any, stream grpc.ServerStream) error {
					return handle(stream.Context())
				})
		}))
	})
	t.Run("messages", func(t *testing.T) {
		frontend.Run(t, frontEnd(func(s *grpclimit.Server, called *calledStream, handle func(context.Context) error) error {
			return s.Messages(nil, serverStream{calledStream: called},
				&grpc.StreamServerInfo{FullMethod: called.Method()}, func(_ any, stream grpc.ServerStream) error {
					if err := stream.RecvMsg(nil); err != nil {
						return nil //nolint:nilerr // the call fails in any case
					}
					return handle(stream.Context())
				})
		}), "settles what a call has cost", "settles by the status")
	})
}

// frontEnd returns the front end of a Server that is asked by call.
func frontEnd(call func(s *grpclimit.Server, called *calledStream, handle func(context.Context) error) error) frontend.FrontEnd {
	return func(c *frontend.Config) (frontend.Server, error) {
		l, err := c.NewLimiter()
		if err != nil {
			return nil, err
		}
		s, err := grpclimit.NewServer(l, c.HTTPOptions()...)
		return func(asked frontend.Call) frontend.Answer {
			md := make(metadata.MD)
			for name, values := range asked.Header() {
				md.Append(name, values...)
			}
			called := &calledStream{ctx: metadata.NewIncomingContext(asked.Context, md)}
			err := call(s, called, func(ctx context.Context) error {
				if c.Handle(ctx) != nil {
					return status.Error(codes.Internal, "the handler has failed")
				}
				return nil
			})
			return answerOf(err, called.trailer)
		}, err
	}
}

// A calledStream is a call as grpc-go shows it to interceptors, and keeps its trailer.
type calledStream struct {
	grpc.ServerTransportStream
	ctx     context.Context
	trailer metadata.MD
}

func (*calledStream) Method() string { return "/laws.Service/Call" }

func (s *calledStream) SetTrailer(md metadata.MD) error {
	s.trailer = metadata.Join(s.trailer, md)
	return nil
}

// A serverStream is a calledStream with messages, all of them empty.
type serverStream struct {
	grpc.ServerStream
	*calledStream
}

func (s serverStream) Context() context.Context   { return s.ctx }
func (s serverStream) SetTrailer(md metadata.MD)  { _ = s.calledStream.SetTrailer(md) }
func (serverStream) SetHeader(metadata.MD) error  { return nil }
func (serverStream) SendHeader(metadata.MD) error { return nil }
func (serverStream) RecvMsg(any) error            { return nil }

// outcomes are what the codes of calls say.
var outcomes = map[codes.Code]frontend.Outcome{
	codes.OK:                frontend.Handled,
	codes.Internal:          frontend.Failed,
	codes.ResourceExhausted: frontend.Refused,
	codes.Unavailable:       frontend.Unchecked,
	codes.InvalidArgument:   frontend.NoKey,
	codes.Canceled:          frontend.Ended,
	codes.DeadlineExceeded:  frontend.Ended,
}

// answerOf reads what a client gets.
func answerOf(err error, trailer metadata.MD) frontend.Answer {
	st := status.Convert(err)
	a := frontend.Answer{Outcome: outcomes[st.Code()], Text: st.Message(), Fields: make(http.Header)}
	for name, values := range trailer {
		if name != strings.ToLower(name) {
			panic("names of metadata are in lower case, and not " + name)
		}
		for _, value := range values {
			a.Fields.Add(name, value)
		}
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			a.RetryAfter = d.GetRetryDelay().AsDuration()
		case *errdetails.QuotaFailure:
			a.Policy = d.GetViolations()[0].GetSubject()
		}
	}
	return a
}
