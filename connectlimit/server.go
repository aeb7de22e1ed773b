// Package connectlimit limits the calls that servers of connect-go handle and its clients make, with
// a [ratelimit.Limiter].
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
//	log.Fatal(http.ListenAndServe(":8080", connectlimit.Middleware(limiter)(mux)))
//
// [Middleware] is that of package httplimit, with refusals that clients of Connect, gRPC and gRPC-Web
// understand. [PerMessage] limits the messages of streams. A [Client] is an interceptor that makes
// calls wait for their turn, and heeds servers.
//
// The page [docs/grpc.md] is an introduction.
//
// [docs/grpc.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/grpc.md
package connectlimit

import (
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// Middleware returns a function that wraps a handler, or a mux of handlers, so that l limits its
// calls. It is [httplimit.Middleware] with all its options: [key.Pattern] is the procedure as a
// key (in lower case) if Middleware wraps the mux, and the service if it is inside; a stream is a call
// that is over when its handler returns.
//
// A call over the limit fails with [connect.CodeResourceExhausted], in the protocol that the client
// speaks. The error has two details of google.rpc: RetryInfo, the time after which the same call would
// be granted (absent if no wait helps), and QuotaFailure, which names the limit. If no limit was checked
// ([ratelimit.Decision.Checked]), because the store has failed and [ratelimit.FailClosed] refuses a call,
// it fails with [connect.CodeUnavailable] and a RetryInfo. Health checks count, unless
// httplimit.WithSkip([HealthAndReflection]) is given. Header fields are those
// of httplimit, in each protocol; clients of connect-go find them in [connect.Error.Meta]. A call
// whose key or cost cannot be determined fails with [connect.CodeInvalidArgument], which shows only an
// [key.ErrNone]; other errors are logged as by [httplimit.BadRequest]. With
// [httplimit.WithDenied] or [httplimit.WithKeyError], other functions answer such calls.
// [httplimit.WithStatus] has no effect, because the protocol has a status for each code.
// Middleware panics where httplimit.Middleware does.
func Middleware(l ratelimit.Limiter, opts ...httplimit.Option) func(http.Handler) http.Handler {
	writer := connect.NewErrorWriter()
	answers := []httplimit.Option{
		httplimit.WithDenied(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = writer.Write(w, r, refusal(r)) // fails if the client has left
		})),
		httplimit.WithKeyError(keyError(func(w http.ResponseWriter, r *http.Request, err *connect.Error) {
			_ = writer.Write(w, r, err)
		})),
	}
	return httplimit.Middleware(l, append(answers, opts...)...)
}

// keyError returns a function for [httplimit.WithKeyError], which answers with answer.
func keyError(answer func(http.ResponseWriter, *http.Request, *connect.Error)) func(http.ResponseWriter, *http.Request, error) {
	logged := httplimit.BadRequest()
	return func(w http.ResponseWriter, r *http.Request, err error) {
		if !errors.Is(err, key.ErrNone) { // it may contain what the client must not see
			logged(make(discard), r, err)
			err = errNoKey
		}
		answer(w, r, connect.NewError(connect.CodeInvalidArgument, err))
	}
}

// errNoKey is what a client sees if its key cannot be determined for reasons of the server.
var errNoKey = errors.New("cannot determine the client of this call")

// A discard is the ResponseWriter of an answer that is not sent.
type discard http.Header

func (d discard) Header() http.Header       { return http.Header(d) }
func (discard) WriteHeader(int)             {}
func (discard) Write(p []byte) (int, error) { return len(p), nil }

// refusal returns the error of r, a call over the limit.
func refusal(r *http.Request) *connect.Error {
	d, _ := httplimit.DecisionOf(r)
	report, _ := httplimit.ReportOf(r)
	code := connect.CodeResourceExhausted
	if !d.Checked() {
		code = connect.CodeUnavailable
	}
	err := connect.NewError(code, errors.New(report.Detail))
	if report.RetryAfter < ratelimit.Never {
		addDetail(err, &errdetails.RetryInfo{RetryDelay: durationpb.New(report.RetryAfter)})
	}
	if d.Checked() { // otherwise the store has failed, and no limit is known to be exceeded
		addDetail(err, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject:     report.Policy, // not the key, which may be a secret
			Description: report.Detail,
			QuotaId:     report.Policy,
			QuotaValue:  int64(d.Limit),
		}}})
	}
	return err
}

func addDetail(err *connect.Error, message proto.Message) {
	if detail, failed := connect.NewErrorDetail(message); failed == nil { // it fails only if it cannot be encoded
		err.AddDetail(detail)
	}
}

// HealthAndReflection is a function for [httplimit.WithSkip]. It returns true for calls of the services
// for health checks and reflection that connect-go has: grpc.health.v1.Health,
// grpc.reflection.v1.ServerReflection and grpc.reflection.v1alpha.ServerReflection. It is for
// handlers at the root of the server, where their paths begin with the service.
func HealthAndReflection(r *http.Request) bool {
	service, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch service {
	case "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection":
		return true
	}
	return false
}
