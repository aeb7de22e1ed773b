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
func refusal(ctx context.Context, v *httplimit.Verdict) error {
	if ended := ctx.Err(); ended != nil && errors.Is(v.Err, ended) {
		return status.FromContextError(ended).Err()
	}
	if v.Err != nil {
		if st := statusIn(v.Err); st.Code() != codes.OK { // a call without a key never passes
			return st.Err()
		}
		return status.Error(codes.InvalidArgument, v.Explain())
	}
	code := codes.ResourceExhausted
	if !v.Decision.Checked() {
		code = codes.Unavailable
	}
	st := status.New(code, v.Detail)
	var details []protoadapt.MessageV1
	if v.RetryAfter < ratelimit.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(v.RetryAfter)})
	}
	if v.Decision.Checked() {
		// Otherwise the store has failed, and no limit is known to be exceeded.
		details = append(details, &errdetails.QuotaFailure{
			Violations: []*errdetails.QuotaFailure_Violation{{
				Subject:     v.Policy, // not the key, which may be a secret
				Description: v.Detail,
				QuotaId:     v.Policy,
				QuotaValue:  int64(v.Decision.Limit),
			}},
		})
	}
	if detailed, err := st.WithDetails(details...); err == nil {
		// It fails only if they cannot be encoded.
		st = detailed
	}
	return st.Err()
}
