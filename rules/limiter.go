package rules

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// limitOf returns the limit in the context of a request: that of the rule that the
// request was matched with, even if another version has been loaded since.
func limitOf(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
	alg, ok := ctx.Value(ruleKey{}).(ratelimit.Algorithm)
	if !ok {
		return nil, errors.New("rules: the context has no rule")
	}
	return alg, nil
}

type ruleKey struct{}

// A ruled context carries the limit of a rule.
type ruled struct {
	context.Context
	alg ratelimit.Algorithm
}

func (c ruled) Value(key any) any {
	if key == (ruleKey{}) {
		return c.alg
	}
	return c.Context.Value(key)
}

// A limiterOf is the limiter of one rule. Its keys are subjects.
type limiterOf struct {
	set    *Set
	rule   *compiled
	within *middleware // if not nil, its requests count against several rules
}

// key joins a subject and the rule so that different ones make different keys.
func (l limiterOf) key(subject string) string {
	return strconv.Itoa(len(subject)) + ":" + subject + l.rule.ID
}

func (l limiterOf) in(ctx context.Context) context.Context {
	if ctx == nil {
		return nil // the limiter returns an error for it
	}
	return ruled{ctx, l.rule.alg}
}

// Algorithm implements what [ratelimit.AlgorithmOf] looks for.
func (l limiterOf) Algorithm() ratelimit.Algorithm { return l.rule.alg }

func (l limiterOf) Allow(subject string) bool { return l.AllowN(subject, 1) }

func (l limiterOf) AllowN(subject string, n int) bool {
	d, _ := l.Take(context.Background(), subject, n)
	return d.Allowed
}

func (l limiterOf) Take(ctx context.Context, subject string, n int) (ratelimit.Decision, error) {
	if l.within != nil {
		if j := l.within.jointOf(ctx); j != nil {
			return j.take(ctx, l, subject, n)
		}
	}
	return l.set.limiter.Take(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) Wait(ctx context.Context, subject string) error { return l.WaitN(ctx, subject, 1) }

func (l limiterOf) WaitN(ctx context.Context, subject string, n int) error {
	return l.set.limiter.WaitN(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) Reserve(ctx context.Context, subject string, n int) (*ratelimit.Reservation, error) {
	return l.set.limiter.Reserve(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) ReserveWithin(ctx context.Context, subject string, n int, maxWait time.Duration) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return l.set.limiter.ReserveWithin(l.in(ctx), l.key(subject), n, maxWait)
}

func (l limiterOf) TakeUpTo(ctx context.Context, subject string, n int) (int, ratelimit.Decision, error) {
	return l.set.limiter.TakeUpTo(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) Hold(ctx context.Context, subject string, n int) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return l.set.limiter.Hold(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) WaitHold(ctx context.Context, subject string, n int) (*ratelimit.Reservation, error) {
	return l.set.limiter.WaitHold(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) Charge(ctx context.Context, subject string, n int) (ratelimit.Decision, error) {
	return l.set.limiter.Charge(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) Peek(ctx context.Context, subject string) (ratelimit.Decision, error) {
	return l.set.limiter.Peek(l.in(ctx), l.key(subject))
}

func (l limiterOf) Reset(ctx context.Context, subject string) error {
	return l.set.limiter.Reset(ctx, l.key(subject))
}
