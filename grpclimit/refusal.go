package grpclimit

import (
	"net/http"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// refusal returns the status of a call that d refuses.
func refusal(d ratelimit.Decision, r httplimit.Report) error {
	code := codes.ResourceExhausted
	if !d.Checked() {
		code = codes.Unavailable
	}
	st := status.New(code, r.Detail)
	var details []protoadapt.MessageV1
	if r.RetryAfter < ratelimit.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)})
	}
	if d.Checked() { // otherwise the store has failed, and no limit is known to be exceeded
		details = append(details, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject:     r.Policy, // not the key, which may be a secret
			Description: r.Detail,
			QuotaId:     r.Policy,
			QuotaValue:  int64(d.Limit),
		}}})
	}
	if detailed, err := st.WithDetails(details...); err == nil { // it fails only if they cannot be encoded
		st = detailed
	}
	return st.Err()
}

// trailerOf returns header fields as metadata, whose names are in lower case.
func trailerOf(h http.Header) metadata.MD {
	if len(h) == 0 {
		return nil
	}
	md := make(metadata.MD, len(h))
	for name, values := range h {
		md[strings.ToLower(name)] = values
	}
	return md
}
