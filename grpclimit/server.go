package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// A Server limits the calls that a gRPC server handles. Its methods Unary and Stream are
// interceptors. Any number of goroutines, and several servers, may use it at once.
//
// grpc-go calls interceptors when it has received and decoded the request of a unary call, and
// does not call them for methods that the server does not have. So a refusal does not save the
// former, and calls of unknown methods do not count (unless there is a
// [grpc.UnknownServiceHandler]).
type Server struct {
	*config
	limiter  ratelimit.Limiter
	reporter *httplimit.Reporter
	warnings *limitedLog // of errors of the limiter, without WithStoreError
}

// NewServer returns a Server whose calls l limits. If l is nil or an option is invalid, the error
// matches [ratelimit.ErrInvalid].
func NewServer(l ratelimit.Limiter, opts ...Option) (*Server, error) {
	if isNil(l) {
		return nil, invalid("the limiter", nil, "must be a Limiter, such as ratelimit.New returns")
	}
	c, err := newConfig("NewServer", opts)
	if err != nil {
		return nil, err
	}
	if c.key == nil {
		c.key = PeerIP()
	}
	c.inFlight = c.inFlight || flies(l)
	reporter, err := httplimit.NewReporter(l, httplimit.WithHeaders(c.headers), httplimit.WithPolicyName(c.name), httplimit.WithInFlightRetry(c.flightRetry))
	if err != nil {
		return nil, err
	}
	return &Server{config: c, limiter: l, reporter: reporter, warnings: newLimitedLog()}, nil
}

func isNil(l ratelimit.Limiter) bool {
	v := reflect.ValueOf(l)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// flies reports whether l is known to have an InFlight.
func flies(l ratelimit.Limiter) bool {
	switch alg := ratelimit.Describe(l).Algorithm.(type) {
	case ratelimit.InFlight:
		return true
	case ratelimit.All:
		for _, part := range alg {
			if _, ok := part.(ratelimit.InFlight); ok {
				return true
			}
		}
	}
	return false
}

// Unary is a [grpc.UnaryServerInterceptor].
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c := &Call{Context: ctx, Method: info.FullMethod, Message: req}
	if s.skip != nil && s.skip(c) {
		return handler(ctx, req)
	}
	a := s.admit(c)
	if len(a.trailer) > 0 {
		_ = grpc.SetTrailer(ctx, a.trailer) // fails only if the handler is called without a server
	}
	if a.refusal != nil {
		return nil, a.refusal
	}
	if a.turn != nil {
		defer s.release(c, a.turn)
	}
	return handler(ctx, req)
}

// Stream is a [grpc.StreamServerInterceptor].
func (s *Server) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c := &Call{Context: stream.Context(), Method: info.FullMethod}
	if s.skip != nil && s.skip(c) {
		return handler(srv, stream)
	}
	if s.perMessage {
		return s.serveMessages(srv, stream, c, handler)
	}
	a := s.admit(c)
	if len(a.trailer) > 0 {
		stream.SetTrailer(a.trailer)
	}
	if a.refusal != nil {
		return a.refusal
	}
	if a.turn != nil {
		defer s.release(c, a.turn)
	}
	return handler(srv, stream)
}

// An admission is what a Server decides about a call or a message.
type admission struct {
	refusal error                  // the status of the call; nil if it passes
	trailer metadata.MD            // may be nil
	turn    *ratelimit.Reservation // to release; nil if nothing is held
}

// admit decides about c.
func (s *Server) admit(c *Call) admission {
	key, n, err := s.question(c)
	switch {
	case err != nil && s.shadow != nil:
		s.shadow(c, ratelimit.Decision{})
		return admission{}
	case err != nil:
		return admission{refusal: s.refuseKey(c, err)}
	case n == 0:
		return admission{}
	}
	turn, d, err := s.decide(c.Context, key, n)
	admitted := false
	defer func() {
		if !admitted { // a function of the program has panicked, so that no handler releases it
			turn.Cancel()
		}
	}()
	a := s.admission(c, key, turn, d, err)
	admitted = true
	return a
}

// admission returns what follows from d, a decision on c. err is its error.
func (s *Server) admission(c *Call, key string, turn *ratelimit.Reservation, d ratelimit.Decision, err error) admission {
	if err != nil {
		if ended := c.Context.Err(); ended != nil && errors.Is(err, ended) && !d.Degraded {
			if s.shadow != nil {
				return admission{}
			}
			return admission{refusal: status.FromContextError(ended).Err()}
		}
		s.report(c, d, err)
	}
	if s.shadow != nil {
		if !d.Allowed {
			s.shadow(c, d)
		}
		return admission{turn: turn}
	}
	r := s.reporter.Report(c.Context, key, d)
	a := admission{trailer: trailerOf(r.Header), turn: turn}
	if !d.Allowed {
		a.refusal = refusal(d, r)
	}
	return a
}

// question returns the key of c, and how many events it counts as. If that is 0, there is no key.
func (c *config) question(call *Call) (key string, n int, err error) {
	n = 1
	if c.cost != nil {
		if n = c.cost(call); n < 0 {
			return "", 0, fmt.Errorf("grpclimit: the cost of the call is %d: it must be at least 0", n)
		}
	}
	if n == 0 {
		return "", 0, nil
	}
	if key, err = c.key(call); err == nil && key == "" {
		err = fmt.Errorf("%w: the key is empty", ErrNoKey) // clients must not share a key by mistake
	}
	return key, n, err
}

// decide takes n events of key, and holds them if they may have to be released.
func (s *Server) decide(ctx context.Context, key string, n int) (turn *ratelimit.Reservation, d ratelimit.Decision, err error) {
	if s.inFlight {
		return s.limiter.Hold(ctx, key, n)
	}
	d, err = s.limiter.Take(ctx, key, n)
	return nil, d, err
}

// refuseKey returns the status of a call whose key or cost cannot be determined.
func (s *Server) refuseKey(c *Call, err error) error {
	if refusal := s.keyError(c, err); refusal != nil {
		return refusal
	}
	return status.Error(codes.InvalidArgument, noKeyText) // a call without a key never passes
}

// report reports the error that came with d.
func (s *Server) report(c *Call, d ratelimit.Decision, err error) {
	switch {
	case err == nil:
	case s.storeError != nil:
		s.storeError(c, err)
	case !d.Degraded: // a limiter logs that a policy decided
		s.warnings.warn(c.Context, "grpclimit: the limiter failed", err)
	}
}

// release releases what turn holds in flight.
func (s *Server) release(c *Call, turn *ratelimit.Reservation) {
	err := turn.Release(context.WithoutCancel(c.Context))
	s.report(c, ratelimit.Decision{Degraded: true}, err) // only a store fails here
}
