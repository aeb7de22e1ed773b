package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// BenchmarkUnary measures what an interceptor adds to a call, without a network.
func BenchmarkUnary(b *testing.B) {
	for name, key := range map[string]key.Func{
		"key=peer":   clientip.Of(),
		"key=method": key.Pattern(),
		"key=join":   key.Join(clientip.Of(), key.Header("x-user"), key.Pattern()),
	} {
		b.Run(name, func(b *testing.B) {
			l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1 << 30)})
			if err != nil {
				b.Fatal(err)
			}
			s := newServer(b, l, httplimit.WithKey(key))
			ctx := peer.NewContext(b.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4711}})
			ctx = metadata.NewIncomingContext(ctx,
				metadata.Pairs(":authority", "localhost", "content-type", "application/grpc", "user-agent",
					"grpc-go/1.85.0", "x-user", "ann"))
			ctx = grpc.NewContextWithServerTransportStream(ctx, transport{})
			info := &grpc.UnaryServerInfo{FullMethod: "/example.Service/Method"}
			handler := func(context.Context, any) (any, error) { return nil, nil }
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Unary(ctx, nil, info, handler); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A transport forgets trailers.
type transport struct{ grpc.ServerTransportStream }

func (transport) SetTrailer(metadata.MD) error { return nil }
