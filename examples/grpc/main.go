// Grpc is a gRPC server with a limit, and two clients that exceed it.
//
//	go run ./examples/grpc -limit 3/2s
//
// The first client is an ordinary one. When the server refuses a call, the client prints the
// reason, and retries after the time that the server has asked for. The second client has the
// interceptor of package grpclimit, which waits instead.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"time"

	"github.com/benbjohnson/clock"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

func main() {
	text := flag.String("limit", "3/2s", "the `rate` that each client is granted")
	flag.Parse()
	rate, err := ratelimit.ParseRate(*text)
	if err != nil {
		log.Fatal(err)
	}
	clk := clock.New()
	if err := run(context.Background(), os.Stdout, rate, clk, clk.Sleep); err != nil {
		log.Fatal(err)
	}
}

// run shows both clients on out.
func run(ctx context.Context, out io.Writer, rate ratelimit.Rate, clk clock.Clock, sleep func(time.Duration)) error {
	limiter, err := ratelimit.New(ratelimit.TokenBucket{Rate: rate}, ratelimit.WithClock(clk))
	if err != nil {
		return err
	}
	limits, err := grpclimit.NewServer(limiter, httplimit.WithKey(key.Header("user")))
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))
	server.RegisterService(&greeter, nil)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "localhost:0")
	if err != nil {
		return err
	}
	go func() { _ = server.Serve(listener) }() // until Stop
	defer server.Stop()
	target := listener.Addr().String()

	fmt.Fprintf(out, "A client that retries by itself. Its limit is %v.\n", rate)
	if err := ordinary(ctx, out, target, 2*rate.Events, sleep); err != nil {
		return err
	}
	fmt.Fprintln(out, "A client with an interceptor that waits.")
	return patient(ctx, out, target, 2*rate.Events, clk)
}

// ordinary makes calls. It retries a call that was refused after the time that the server has asked
// for.
func ordinary(ctx context.Context, out io.Writer, target string, calls int, sleep func(time.Duration)) error {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "user", "ann")
	for i := 0; i < calls; {
		var trailer metadata.MD
		greeting := new(wrapperspb.StringValue)
		err := conn.Invoke(ctx, greet, wrapperspb.String("Ann"), greeting, grpc.Trailer(&trailer))
		fmt.Fprintf(out, "%-17v  ratelimit: %v\n", status.Code(err), trailer.Get("ratelimit"))
		if err == nil {
			i++
			continue
		}
		wait, ok := retryAfter(err)
		if !ok {
			return err
		}
		fmt.Fprintf(out, "%-17s  RetryInfo: %v\n", "", wait.Round(time.Millisecond))
		sleep(wait)
	}
	return nil
}

// retryAfter returns the RetryInfo of a refusal.
func retryAfter(err error) (wait time.Duration, ok bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// patient makes calls through the interceptor of a client, which spaces them out. If a call is
// refused, patient makes the call again at once, and the interceptor waits as long as the server
// has asked.
func patient(ctx context.Context, out io.Writer, target string, calls int, clk clock.Clock) error {
	limiter, err := ratelimit.New(ratelimit.Unlimited{}, ratelimit.WithClock(clk)) // the server's answers set the pace
	if err != nil {
		return err
	}
	limits, err := grpclimit.NewClient(limiter)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(limits.Unary))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "user", "ben")
	refused, begin := 0, clk.Now()
	for i := 0; i < calls; {
		err := conn.Invoke(ctx, greet, wrapperspb.String("Ben"), new(wrapperspb.StringValue))
		switch {
		case err == nil:
			i++
		case status.Code(err) == codes.ResourceExhausted:
			refused++
		default:
			return err
		}
	}
	fmt.Fprintf(out, "%d calls were granted and %d refused in %v.\n", calls, refused, clk.Since(begin).Round(time.Millisecond))
	return nil
}
