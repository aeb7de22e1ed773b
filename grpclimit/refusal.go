package grpclimit

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// statusIn returns the status in the error of a KeyFunc, without the text of errors that wrap it,
// which may contain what the client must not see. It is nil, which is OK, if there is none.
func statusIn(err error) *status.Status {
	type withStatus interface {
		error
		GRPCStatus() *status.Status
	}
	if e, ok := errors.AsType[withStatus](err); ok {
		return e.GRPCStatus()
	}
	return nil
}

// refusal returns the status of a call that has not passed. ctx is that of the call.
func refusal(ctx context.Context, a *httplimit.Admission) error {
	if ended := ctx.Err(); ended != nil && errors.Is(a.Err, ended) {
		return status.FromContextError(ended).Err()
	}
	if a.Err != nil {
		if st := statusIn(a.Err); st.Code() != codes.OK { // a call without a key never passes
			return st.Err()
		}
		return status.Error(codes.InvalidArgument, a.Explain())
	}
	code := codes.ResourceExhausted
	if !a.Decision.Checked() {
		code = codes.Unavailable
	}
	st := status.New(code, a.Detail)
	var details []protoadapt.MessageV1
	if a.RetryAfter < ratelimit.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(a.RetryAfter)})
	}
	if a.Decision.Checked() {
		// Otherwise the store has failed, and no limit is known to be exceeded.
		details = append(details, &errdetails.QuotaFailure{
			Violations: []*errdetails.QuotaFailure_Violation{{
				Subject:     a.Policy, // not the key, which may be a secret
				Description: a.Detail,
				QuotaId:     a.Policy,
				QuotaValue:  int64(a.Decision.Limit),
			}},
		})
	}
	if detailed, err := st.WithDetails(details...); err == nil {
		// It fails only if they cannot be encoded.
		st = detailed
	}
	return st.Err()
}
