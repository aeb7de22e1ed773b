// Package connectlimit limits the calls that servers of connect-go handle and its clients make,
// with a [ratelimit.Limiter].
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
//	log.Fatal(http.ListenAndServe(":8080", connectlimit.Middleware(limiter)(mux)))
//
// [Middleware] is that of package httplimit, with refusals that clients of Connect, gRPC and
// gRPC-Web understand. [PerMessage] limits the messages of streams. A [Client] is an interceptor
// that makes calls wait for their turn, and heeds servers.
//
// The page [docs/grpc.md] is an introduction.
//
// [docs/grpc.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/grpc.md
package connectlimit

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// Middleware returns a function that wraps a handler, or a mux of handlers, so that l limits its
// calls. It is [httplimit.Middleware] with all its options: [key.Pattern] is the procedure as a key
// (in lower case) if Middleware wraps the mux, and the service if it is inside; a stream is a call
// that is over when its handler returns.
//
// A call over the limit fails with [connect.CodeResourceExhausted], in the protocol that the client
// speaks. The error has two details of google.rpc: RetryInfo, the time after which the same call
// would be granted (absent if no wait helps), and QuotaFailure, which names the limit. If no limit
// was checked ([ratelimit.Decision.Checked]), because the store has failed and
// [ratelimit.FailClosed] refuses a call, it fails with [connect.CodeUnavailable] and a RetryInfo. A
// call to whose context an outer handler has given a deadline that passes before the decision fails
// with [connect.CodeDeadlineExceeded], without details.
// Health checks count, unless httplimit.WithSkip([HealthAndReflection]) is given. Header fields are
// those of httplimit, in each protocol; clients of connect-go find them in [connect.Error.Meta]. A
// call whose key or cost cannot be determined fails with [connect.CodeInvalidArgument], which shows
// only an [key.ErrNone]; other errors are logged as by [httplimit.Verdict.Explain]. If a KeyFunc
// fails with a [connect.Error], such as one of [connect.CodeUnauthenticated], the call fails with
// that. With [httplimit.WithRefusal], another handler answers such calls.
// [httplimit.WithStatus] has no effect, because the protocol has a status for each code. The status
// that the function of [httplimit.WithSettle] gets is that of HTTP. It says only of unary calls in
// the protocol of Connect whether they have failed: otherwise it is 200. So let handlers tell
// [httplimit.Cost] what a call has cost, with [httplimit.WithSettleAtEnd]. Middleware panics where
// httplimit.Middleware does.
func Middleware(l ratelimit.Limiter, opts ...httplimit.Option) func(http.Handler) http.Handler {
	writer := connect.NewErrorWriter()
	refuse := func(w http.ResponseWriter, r *http.Request) {
		v, _ := httplimit.VerdictOf(r.Context())
		_ = writer.Write(w, r, refusal(r.Context(), &v)) // fails if the client has left
	}
	answer := httplimit.WithRefusal(http.HandlerFunc(refuse))
	return httplimit.Middleware(l, append([]httplimit.Option{answer}, opts...)...)
}

// refusal returns the error of a call that has not passed. ctx is that of the call. If a KeyFunc
// has failed with a [connect.Error], that is the error.
func refusal(ctx context.Context, v *httplimit.Verdict) *connect.Error {
	if ended := ctx.Err(); ended != nil && errors.Is(v.Err, ended) {
		return connect.NewError(codeOfEnd(ended), ended)
	}
	if v.Err != nil {
		if err, ok := errors.AsType[*connect.Error](v.Err); ok {
			return err
		}
		return connect.NewError(connect.CodeInvalidArgument, errors.New(v.Explain()))
	}
	code := connect.CodeResourceExhausted
	if !v.Decision.Checked() {
		code = connect.CodeUnavailable
	}
	err := connect.NewError(code, errors.New(v.Detail))
	if v.RetryAfter < ratelimit.Never {
		addDetail(err, &errdetails.RetryInfo{RetryDelay: durationpb.New(v.RetryAfter)})
	}
	if v.Decision.Checked() {
		// Otherwise the store has failed, and no limit is known to be exceeded.
		addDetail(err, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject:     v.Policy, // not the key, which may be a secret
			Description: v.Detail,
			QuotaId:     v.Policy,
			QuotaValue:  int64(v.Decision.Limit),
		}}})
	}
	return err
}

// codeOfEnd returns the code of a call whose context has ended with err.
func codeOfEnd(err error) connect.Code {
	if errors.Is(err, context.DeadlineExceeded) {
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeCanceled
}

func addDetail(err *connect.Error, message proto.Message) {
	if detail, failed := connect.NewErrorDetail(message); failed == nil {
		// It fails only if it cannot be encoded.
		err.AddDetail(detail)
	}
}

// HealthAndReflection is a function for [httplimit.WithSkip]. It returns true for calls of the
// services for health checks and reflection that connect-go has: grpc.health.v1.Health,
// grpc.reflection.v1.ServerReflection and grpc.reflection.v1alpha.ServerReflection. It is for
// handlers at the root of the server, where their paths begin with the service.
func HealthAndReflection(r *http.Request) bool {
	service, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch service {
	case "grpc.health.v1.Health",
		"grpc.reflection.v1.ServerReflection",
		"grpc.reflection.v1alpha.ServerReflection":
		return true
	}
	return false
}
