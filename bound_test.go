package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// The methods of a Bound without a limiter return errors.
func TestBoundWithoutLimiter(t *testing.T) {
	ctx := context.Background()
	for _, b := range []ratelimit.Bound{{}, ratelimit.For(nil, "k")} {
		assert.False(t, b.Allow())
		assert.False(t, b.AllowN(0))
		_, err := b.Take(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		_, _, err = b.TakeUpTo(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		require.ErrorIs(t, b.Wait(ctx), ratelimit.ErrInvalid)
		require.ErrorIs(t, b.WaitN(ctx, 1), ratelimit.ErrInvalid)
		_, err = b.WaitHold(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		_, err = b.Reserve(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		_, _, err = b.ReserveWithin(ctx, 1, 0)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		_, _, err = b.Hold(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		_, err = b.Charge(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		_, err = b.Peek(ctx)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		require.ErrorIs(t, b.Reset(ctx), ratelimit.ErrInvalid)
		assert.Nil(t, b.Limiter())
	}
}

// asked records the last call of a Limiter, with its arguments after the context.
type asked struct{ call string }

func (a *asked) note(method string, args ...any) { a.call = fmt.Sprint(method, args) }

func (a *asked) Allow(key string) bool {
	a.note("Allow", key)
	return true
}

func (a *asked) AllowN(key string, n int) bool {
	a.note("AllowN", key, n)
	return true
}

func (a *asked) Take(_ context.Context, key string, n int) (d ratelimit.Decision, _ error) {
	a.note("Take", key, n)
	return d, nil
}

func (a *asked) TakeUpTo(_ context.Context, key string, n int) (_ int, d ratelimit.Decision, _ error) {
	a.note("TakeUpTo", key, n)
	return n, d, nil
}

func (a *asked) Wait(_ context.Context, key string) error {
	a.note("Wait", key)
	return nil
}

func (a *asked) WaitN(_ context.Context, key string, n int) error {
	a.note("WaitN", key, n)
	return nil
}

func (a *asked) Reserve(_ context.Context, key string, n int) (*ratelimit.Reservation, error) {
	a.note("Reserve", key, n)
	return nil, nil
}

func (a *asked) ReserveWithin(_ context.Context, key string, n int, maxWait time.Duration, _ ...ratelimit.HoldOption) (_ *ratelimit.Reservation, d ratelimit.Decision, _ error) {
	a.note("ReserveWithin", key, n, maxWait)
	return nil, d, nil
}

func (a *asked) Hold(_ context.Context, key string, n int, _ ...ratelimit.HoldOption) (_ *ratelimit.Reservation, d ratelimit.Decision, _ error) {
	a.note("Hold", key, n)
	return nil, d, nil
}

func (a *asked) WaitHold(_ context.Context, key string, n int, _ ...ratelimit.HoldOption) (*ratelimit.Reservation, error) {
	a.note("WaitHold", key, n)
	return nil, nil
}

func (a *asked) Charge(_ context.Context, key string, n int) (d ratelimit.Decision, _ error) {
	a.note("Charge", key, n)
	return d, nil
}

func (a *asked) Peek(_ context.Context, key string) (d ratelimit.Decision, _ error) {
	a.note("Peek", key)
	return d, nil
}

func (a *asked) Reset(_ context.Context, key string) error {
	a.note("Reset", key)
	return nil
}

// The methods of a Bound are those of its limiter, with its key.
func TestBoundForwards(t *testing.T) {
	ctx := context.Background()
	var a asked
	b := ratelimit.For(&a, "k")
	for want, call := range map[string]func(){
		"Allow[k]":              func() { b.Allow() },
		"AllowN[k 3]":           func() { b.AllowN(3) },
		"Take[k 3]":             func() { _, _ = b.Take(ctx, 3) },
		"TakeUpTo[k 3]":         func() { _, _, _ = b.TakeUpTo(ctx, 3) },
		"Wait[k]":               func() { _ = b.Wait(ctx) },
		"WaitN[k 3]":            func() { _ = b.WaitN(ctx, 3) },
		"Reserve[k 3]":          func() { _, _ = b.Reserve(ctx, 3) },
		"ReserveWithin[k 3 2s]": func() { _, _, _ = b.ReserveWithin(ctx, 3, 2*time.Second) },
		"Hold[k 3]":             func() { _, _, _ = b.Hold(ctx, 3) },
		"WaitHold[k 3]":         func() { _, _ = b.WaitHold(ctx, 3) },
		"Charge[k 3]":           func() { _, _ = b.Charge(ctx, 3) },
		"Peek[k]":               func() { _, _ = b.Peek(ctx) },
		"Reset[k]":              func() { _ = b.Reset(ctx) },
		"AllowN[k 7]":           func() { b.N(7).Allow() },
		"WaitN[k 0]":            func() { _ = b.N(0).Wait(ctx) },
		"Hold[k 4]":             func() { _, _, _ = b.N(7).Hold(ctx, 4) },
	} {
		call()
		assert.Equal(t, want, a.call)
	}
}
