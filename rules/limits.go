package rules

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit"
)

// All rules share one limiter, whose keys are made of a subject and a rule. This file has these
// keys and, for the limiter, their limits.

// keyOf returns the key of subject in a rule. Different subjects and rules make different keys.
func (c *compiled) keyOf(subject string) string {
	return strconv.Itoa(len(subject)) + ":" + subject + c.ID
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

// A matchedContext is that of a call, and carries the rules that the call counts against.
type matchedContext struct {
	context.Context
	rules []*compiled
}

// newMatched returns nil if ctx is nil, for which the limiter returns an error.
func newMatched(ctx context.Context, rules []*compiled) context.Context {
	if ctx == nil {
		return nil
	}
	return &matchedContext{ctx, rules}
}

func (m *matchedContext) Value(key any) any {
	if key == (matchedKey{}) {
		return m
	}
	return m.Context.Value(key)
}

type matchedKey struct{}

// matchedIn returns the rules in a context that newMatched has made, and otherwise none.
func matchedIn(ctx context.Context) []*compiled {
	if m, ok := ctx.Value(matchedKey{}).(*matchedContext); ok {
		return m.rules
	}
	return nil
}

// limitOf returns the limit of the rule in key: as it was when the call was matched, even if
// another version has been loaded since. What settles a call has no such context. Then it is the
// limit of the rule in force.
func (s *Set) limitOf(ctx context.Context, key string) (ratelimit.Algorithm, error) {
	id := ruleOf(key)
	for _, rule := range matchedIn(ctx) {
		if rule.ID == id {
			return rule.alg, nil
		}
	}
	if f := s.force.Load(); f != nil {
		i, ok := slices.BinarySearchFunc(f.rules, id, func(c *compiled, id string) int {
			return strings.Compare(c.ID, id)
		})
		if ok {
			return f.rules[i].alg, nil
		}
	}
	return nil, fmt.Errorf("rules: no rule %q is in force", id)
}
