package rules

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit"
)

// limitOf returns the limit in the context of a request: that of the rule that the
// request was matched with, even if another version has been loaded since. What settles a
// request has no such context. Then it is the limit of the rule in force that is in the key.
func (s *Set) limitOf(ctx context.Context, key string) (ratelimit.Algorithm, error) {
	if alg, ok := ctx.Value(ruleKey{}).(ratelimit.Algorithm); ok {
		return alg, nil
	}
	id := ruleOf(key)
	if f := s.force.Load(); f != nil {
		if i, ok := slices.BinarySearchFunc(f.rules, id, func(c *compiled, id string) int { return strings.Compare(c.ID, id) }); ok {
			return f.rules[i].alg, nil
		}
	}
	return nil, fmt.Errorf("rules: no rule %q is in force", id)
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

// ruleOf returns the ID of the rule in a key.
func ruleOf(key string) string {
	length, rest, _ := strings.Cut(key, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) {
		return ""
	}
	return rest[n:]
}

func (l limiterOf) in(ctx context.Context) context.Context {
	if ctx == nil {
		return nil // the limiter returns an error for it
	}
	return ruled{ctx, l.rule.alg}
}

// Describe implements what [ratelimit.Describe] looks for: the algorithm is that of the rule.
func (l limiterOf) Describe() ratelimit.Info {
	i := ratelimit.Describe(l.set.limiter)
	i.Algorithm, i.Lookup = l.rule.alg, nil
	return i
}

func (l limiterOf) Allow(subject string) bool { return l.AllowN(subject, 1) }

func (l limiterOf) AllowN(subject string, n int) bool {
	d, _ := l.Take(context.Background(), subject, n)
	return d.Allowed
}

// ask is Take, or with hold, Hold.
func (l limiterOf) ask(ctx context.Context, subject string, n int, hold bool, opts ...ratelimit.HoldOption) (v verdict) {
	if hold {
		v.held, v.Decision, v.err = l.Hold(ctx, subject, n, opts...)
	} else {
		v.Decision, v.err = l.Take(ctx, subject, n)
	}
	return v
}

// joint returns the request that counts against l's rule and others, or nil.
func (l limiterOf) joint(ctx context.Context) *joint {
	if l.within == nil {
		return nil
	}
	return l.within.jointOf(ctx)
}

func (l limiterOf) Take(ctx context.Context, subject string, n int) (ratelimit.Decision, error) {
	if j := l.joint(ctx); j != nil {
		v := j.ask(ctx, l, subject, n, false)
		return v.Decision, v.err
	}
	return l.set.limiter.Take(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) Wait(ctx context.Context, subject string) error { return l.WaitN(ctx, subject, 1) }

func (l limiterOf) WaitN(ctx context.Context, subject string, n int) error {
	return l.set.limiter.WaitN(l.in(ctx), l.key(subject), n)
}

func (l limiterOf) Reserve(ctx context.Context, subject string, n int, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return l.set.limiter.Reserve(l.in(ctx), l.key(subject), n, opts...)
}

func (l limiterOf) Hold(ctx context.Context, subject string, n int, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	if j := l.joint(ctx); j != nil {
		v := j.ask(ctx, l, subject, n, true, opts...)
		return v.held, v.Decision, v.err
	}
	return l.set.limiter.Hold(l.in(ctx), l.key(subject), n, opts...)
}

// Resume implements what [ratelimit.Resume] looks for.
func (l limiterOf) Resume(ctx context.Context, subject, token string) (*ratelimit.Reservation, error) {
	return ratelimit.Resume(l.in(ctx), l.set.limiter, l.key(subject), token)
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
