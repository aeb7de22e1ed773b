package grpclimit_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// A server that grants 60 calls a minute to each client.
func Example() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
	limits, err := grpclimit.NewServer(limiter)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))
	defer server.Stop()
}

// A server that grants two calls a minute to each client.
func ExampleServer() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 2, Window: time.Minute, Start: ratelimit.StartOnFirstEvent}))
	limits, err := grpclimit.NewServer(limiter)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))

	grpc_health_v1.RegisterHealthServer(server, health.NewServer()) // your services
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	for range 3 {
		_, err := client.Check(context.Background(), new(grpc_health_v1.HealthCheckRequest))
		fmt.Println(status.Code(err))
		for _, detail := range status.Convert(err).Details() {
			if retry, ok := detail.(*errdetails.RetryInfo); ok {
				fmt.Println("retry within a minute:", retry.GetRetryDelay().AsDuration() <= time.Minute)
			}
		}
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
	// retry within a minute: true
}

// An answers is a service whose calls cost what is known only afterwards, such as tokens of a
// model.
type answers struct {
	grpc_health_v1.UnimplementedHealthServer // your service
}

func (answers) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	tokens := 120 // that the answer has taken
	httplimit.Cost(ctx, tokens)
	return new(grpc_health_v1.HealthCheckResponse), nil
}

// A server that holds an estimate while a call runs, and settles it with what the call has cost.
func ExampleServer_settle() {
	tokens := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10_000, Window: 24 * time.Hour}))
	limits, err := grpclimit.NewServer(tokens,
		httplimit.WithKey(key.Header("x-user")),
		httplimit.WithCost(func(*http.Request) int { return 500 }), // an estimate
		httplimit.WithSettleAtEnd(httplimit.ByCost))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary), grpc.StreamInterceptor(limits.Stream))

	grpc_health_v1.RegisterHealthServer(server, answers{})
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-user", "ann")
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, new(grpc_health_v1.HealthCheckRequest)); err != nil {
		log.Fatal(err)
	}
	d, err := tokens.Peek(ctx, "ann")
	fmt.Println(d.Remaining, "tokens left", err)
	// Output: 9880 tokens left <nil>
}

// A client that makes at most ten calls a second to each target.
func ExampleClient() {
	credentials := grpc.WithTransportCredentials(insecure.NewCredentials())
	limiter := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 1000}))

	limits, err := grpclimit.NewClient(limiter)
	if err != nil {
		log.Fatal(err)
	}
	conn, err := grpc.NewClient("dns:///localhost:8080", credentials,
		grpc.WithUnaryInterceptor(limits.Unary), grpc.WithStreamInterceptor(limits.Stream))

	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(conn.Target())
	defer conn.Close()
	// Output: dns:///localhost:8080
}

// Ten calls a second for each user and method, and a hundred at once for the whole server. Health
// checks do not count.
func Example_keys() {
	limits, err := grpclimit.NewServer(
		ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)})),
		httplimit.WithKey(key.Join(key.Header("x-user"), key.Pattern())),
		httplimit.WithSkip(grpclimit.HealthAndReflection))
	if err != nil {
		log.Fatal(err)
	}
	whole, err := grpclimit.NewServer(
		ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 100, Timeout: time.Hour})),
		httplimit.WithKey(key.Everybody()),
		httplimit.WithPolicyName("server"))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limits.Unary, whole.Unary),
		grpc.ChainStreamInterceptor(limits.Stream, whole.Stream))
	defer server.Stop()
}
