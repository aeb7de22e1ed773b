package connectlimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimit-go/ratelimit/connectlimit"
	"github.com/ratelimit-go/ratelimit/internal/laws/frontend"
)

// TestFrontEnd_Laws runs the laws of front ends in each protocol, on unary calls and on streams,
// without a network. The status of a stream, and of a call in other protocols than Connect's own,
// does not say whether it has failed.
func TestFrontEnd_Laws(t *testing.T) {
	for protocol, opts := range protocols {
		t.Run(protocol, func(t *testing.T) {
			const byStatus = "settles by the status"
			var except []string
			if protocol != "connect" {
				except = append(except, byStatus)
			}
			t.Run("unary", func(t *testing.T) { frontend.Run(t, frontEnd(callUnary, opts), except...) })
			t.Run("stream", func(t *testing.T) { frontend.Run(t, frontEnd(callStream, opts), byStatus) })
		})
	}
}

// frontEnd returns the front end whose calls are made by call, with a client of connect-go.
func frontEnd(call func(*direct, http.Header, []connect.ClientOption) (http.Header, error), opts []connect.ClientOption) frontend.FrontEnd {
	return func(c *frontend.Config) (frontend.Server, error) {
		l, err := c.NewLimiter()
		if err != nil {
			return nil, err
		}
		handle := func(ctx context.Context) error {
			if c.Handle(ctx) != nil {
				return connect.NewError(connect.CodeInternal, errors.New("the handler has failed"))
			}
			return nil
		}
		mux := http.NewServeMux()
		mux.Handle(unaryPath, connect.NewUnaryHandler(unaryPath,
			func(ctx context.Context, _ *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
				return connect.NewResponse(new(emptypb.Empty)), handle(ctx)
			}))
		mux.Handle(streamPath, connect.NewBidiStreamHandler(streamPath, func(ctx context.Context, _ *connect.BidiStream[emptypb.Empty, emptypb.Empty]) error {
			return handle(ctx)
		}))
		limited := connectlimit.Middleware(l, c.HTTPOptions()...)(unending(mux))
		return func(asked frontend.Call) frontend.Answer {
			d := &direct{handler: limited, ctx: asked.Context}
			header, err := call(d, asked.Header(), opts)
			if d.panicked != nil {
				panic(d.panicked)
			}
			return answerOf(header, err)
		}, nil
	}
}

// unending lets h handle requests whose context has ended, which connect-go would refuse by itself
// after the middleware has let them pass.
func unending(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Err() != nil {
			r = r.WithContext(context.WithoutCancel(r.Context()))
		}
		h.ServeHTTP(w, r)
	})
}

func callUnary(d *direct, header http.Header, opts []connect.ClientOption) (http.Header, error) {
	r := connect.NewRequest(new(emptypb.Empty))
	for name := range header {
		r.Header().Set(name, header.Get(name))
	}
	resp, err := connect.NewClient[emptypb.Empty, emptypb.Empty](d, "http://laws"+unaryPath, opts...).CallUnary(context.Background(), r)
	if err != nil {
		return nil, err
	}
	return resp.Header(), nil
}

func callStream(d *direct, header http.Header, opts []connect.ClientOption) (http.Header, error) {
	stream := connect.NewClient[emptypb.Empty, emptypb.Empty](d, "http://laws"+streamPath, opts...).CallBidiStream(context.Background())
	for name := range header {
		stream.RequestHeader().Set(name, header.Get(name))
	}
	_ = stream.Send(nil) // Receive says what is wrong
	_ = stream.CloseRequest()
	_, err := stream.Receive()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	h := stream.ResponseHeader()
	return h, errors.Join(err, stream.CloseResponse())
}

// A direct client calls a handler, with the context of the call.
type direct struct {
	handler  http.Handler
	ctx      context.Context
	panicked any // the value with which the handler has panicked
}

// Do implements [connect.HTTPClient].
func (d *direct) Do(r *http.Request) (_ *http.Response, err error) {
	defer func() {
		if d.panicked = recover(); d.panicked != nil {
			err = errors.New("the handler has panicked")
		}
	}()
	asked := r.Clone(d.ctx)
	asked.Proto, asked.ProtoMajor, asked.ProtoMinor = "HTTP/2.0", 2, 0
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, asked)
	resp := w.Result()
	resp.Proto, resp.ProtoMajor, resp.ProtoMinor = asked.Proto, 2, 0
	return resp, nil
}

// outcomes are what the codes of calls say.
var outcomes = map[connect.Code]frontend.Outcome{
	connect.CodeInternal:          frontend.Failed,
	connect.CodeResourceExhausted: frontend.Refused,
	connect.CodeUnavailable:       frontend.Unchecked,
	connect.CodeInvalidArgument:   frontend.NoKey,
	connect.CodeCanceled:          frontend.Ended,
	connect.CodeDeadlineExceeded:  frontend.Ended,
}

// answerOf reads what a client gets.
func answerOf(header http.Header, err error) frontend.Answer {
	if err == nil {
		return frontend.Answer{Outcome: frontend.Handled, Fields: header}
	}
	a := frontend.Answer{Outcome: outcomes[connect.CodeOf(err)], Text: err.Error(), Fields: make(http.Header)}
	refusal, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return a
	}
	a.Fields = refusal.Meta()
	for _, detail := range refusal.Details() {
		value, err := detail.Value()
		if err != nil {
			a.Text = err.Error()
		}
		switch d := value.(type) {
		case *errdetails.RetryInfo:
			a.RetryAfter = d.GetRetryDelay().AsDuration()
		case *errdetails.QuotaFailure:
			a.Policy = d.GetViolations()[0].GetSubject()
		}
	}
	return a
}
