// Package grpclimit limits the calls that gRPC servers handle and gRPC clients make, with a
// [ratelimit.Limiter].
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
//	limits, err := grpclimit.NewServer(limiter)
//	if err != nil {
//		log.Fatal(err)
//	}
//	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))
//
// A [Server] takes one event of the client's key for each call. The key is the client's IP address
// (see package httplimit/clientip) unless [httplimit.WithKey] sets another one. With
// [Server.Messages] in place of [Server.Stream], each message that a client sends on a stream
// counts.
//
// A call over the limit fails with [codes.ResourceExhausted]. Its status has two details of
// google.rpc: RetryInfo, the time after which the same call would be granted (absent if no wait
// helps), and QuotaFailure, which names the limit. Clients in every language can read them.
// Trailers have the fields that package httplimit sends over HTTP: ratelimit, ratelimit-policy and,
// after a refusal, retry-after in whole seconds. Calls that are granted have the first two as well.
// The fields have the meanings that [httplimit.Standard] describes. If no limit was checked
// ([ratelimit.Decision.Checked]), because the store has failed and [ratelimit.FailClosed] refuses a
// call, it fails with [codes.Unavailable] and a RetryInfo. A call, or a message, whose deadline
// passes before the decision fails with [codes.DeadlineExceeded], whatever the FailurePolicy is.
//
// With a [ratelimit.InFlight], alone or in a [ratelimit.All], a call is in flight until its
// handler returns or panics, even if its client has left. If the keys have limits of their own,
// see [httplimit.WithInFlight].
//
// A [Client] makes calls wait for their turn, and heeds the RetryInfo of servers.
//
// The page [docs/grpc.md] is an introduction.
//
// [docs/grpc.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/grpc.md
package grpclimit
