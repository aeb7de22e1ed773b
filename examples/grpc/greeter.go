package main

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// greet is the full name of the method of the greeter.
const greet = "/example.Greeter/Greet"

// greeter is a service with one method, which takes a name and returns a greeting. A service that
// is compiled from a .proto file looks the same.
var greeter = grpc.ServiceDesc{
	ServiceName: "example.Greeter",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Greet",
		Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			name := new(wrapperspb.StringValue)
			if err := decode(name); err != nil {
				return nil, err
			}
			info := &grpc.UnaryServerInfo{Server: srv, FullMethod: greet}
			return interceptor(ctx, name, info, func(_ context.Context, req any) (any, error) {
				return wrapperspb.String("Hello, " + req.(*wrapperspb.StringValue).GetValue() + "!"), nil
			})
		},
	}},
}
