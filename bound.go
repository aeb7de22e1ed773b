package ratelimit

import (
	"context"
	"time"
)

// A Bound is a limiter and one of its keys. Its methods are those of the [Limiter] without the
// key: what code that has one limiter for each user wants.
type Bound struct {
	limiter Limiter
	key     string
}

// For returns l bound to key.
func For(l Limiter, key string) Bound { return Bound{l, key} }

// Limiter returns the limiter.
func (b Bound) Limiter() Limiter { return b.limiter }

// Key returns the key.
func (b Bound) Key() string { return b.key }

// Allow is [Limiter.Allow] for the key.
func (b Bound) Allow() bool { return b.limiter.Allow(b.key) }

// AllowN is [Limiter.AllowN] for the key.
func (b Bound) AllowN(n int) bool { return b.limiter.AllowN(b.key, n) }

// Take is [Limiter.Take] for the key.
func (b Bound) Take(ctx context.Context, n int) (Decision, error) {
	return b.limiter.Take(ctx, b.key, n)
}

// TakeUpTo is [Limiter.TakeUpTo] for the key.
func (b Bound) TakeUpTo(ctx context.Context, n int) (granted int, _ Decision, _ error) {
	return b.limiter.TakeUpTo(ctx, b.key, n)
}

// Wait is [Limiter.Wait] for the key.
func (b Bound) Wait(ctx context.Context) error { return b.limiter.Wait(ctx, b.key) }

// WaitN is [Limiter.WaitN] for the key.
func (b Bound) WaitN(ctx context.Context, n int) error { return b.limiter.WaitN(ctx, b.key, n) }

// Reserve is [Limiter.Reserve] for the key.
func (b Bound) Reserve(ctx context.Context, n int) (*Reservation, error) {
	return b.limiter.Reserve(ctx, b.key, n)
}

// ReserveWithin is [Limiter.ReserveWithin] for the key.
func (b Bound) ReserveWithin(ctx context.Context, n int, maxWait time.Duration) (*Reservation, Decision, error) {
	return b.limiter.ReserveWithin(ctx, b.key, n, maxWait)
}

// Hold is [Limiter.Hold] for the key.
func (b Bound) Hold(ctx context.Context, n int) (*Reservation, Decision, error) {
	return b.limiter.Hold(ctx, b.key, n)
}

// Charge is [Limiter.Charge] for the key.
func (b Bound) Charge(ctx context.Context, n int) (Decision, error) {
	return b.limiter.Charge(ctx, b.key, n)
}

// Peek is [Limiter.Peek] for the key.
func (b Bound) Peek(ctx context.Context) (Decision, error) { return b.limiter.Peek(ctx, b.key) }

// Reset is [Limiter.Reset] for the key.
func (b Bound) Reset(ctx context.Context) error { return b.limiter.Reset(ctx, b.key) }
