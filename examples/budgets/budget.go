package main

import (
	"context"
	"errors"
	"slices"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
)

// A model answers a call, which costs tokens: also a call that fails, or whose client leaves.
type model func(ctx context.Context) (tokens int, err error)

// A budget bounds what calls of a model spend: tokens in a minute, and money in a month.
type budget struct {
	ofUsers, ofTeams ratelimit.Limiter // tokens
	money            ratelimit.Limiter // of teams, in millionths of a dollar
}

// price is what a token costs, in millionths of a dollar.
const price = 30

func dollars(millionths int) float64 { return float64(millionths) / 1e6 }

// newBudget returns the budget of teams that may spend some dollars a month. It calls alert once a
// month for each team that has spent 80 % of them.
func newBudget(perMonth int, alert ratelimit.Observer, opts ...ratelimit.Option) (*budget, error) {
	var failed error
	limiter := func(
		name string, alg ratelimit.Algorithm, own ...ratelimit.Option,
	) ratelimit.Limiter {
		own = append(own, ratelimit.WithName(name))
		l, err := ratelimit.New(alg, slices.Concat(opts, own)...)
		failed = errors.Join(failed, err)
		return l
	}
	inMonth := func(limit int) ratelimit.CalendarWindow {
		return ratelimit.CalendarWindow{
			Limit: limit, Every: ratelimit.Month, Zone: "Europe/London",
		}
	}
	alerts := limiter("alerts", inMonth(1))
	crossed := observe.Crossed(0.8, func(ctx context.Context, o ratelimit.Observation) {
		if alerts.Allow(o.Key) { // what is held and comes back may cross 80 % again
			alert(ctx, o)
		}
	})
	b := &budget{
		ofUsers: limiter("users", ratelimit.TokenBucket{Rate: ratelimit.PerMinute(20_000)}),
		ofTeams: limiter("teams", ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1_000_000)}),
		money:   limiter("money", inMonth(perMonth*1e6), ratelimit.WithObserver(crossed)),
	}
	return b, failed
}

// ofMonth is the Part of a decision of the month's budget.
const ofMonth = 2

// call holds the most that a call may cost, for the user, the team and the month in one decision.
// If all grant it, call makes the call, and settles the hold with what the call has cost.
func (b *budget) call(
	ctx context.Context, user, team string, most int, m model,
) (ratelimit.Decision, error) {
	hold, d, err := ratelimit.HoldAll(ctx, most,
		ratelimit.For(b.ofUsers, user),
		ratelimit.For(b.ofTeams, team),
		ratelimit.For(b.money, team).N(most*price))
	if !d.Allowed {
		return d, err // Part says which of them refuses, and RetryAfter for how long
	}
	used, err := m(ctx)
	// Even if the client has left, which has ended ctx, the call is paid for.
	_, failed := hold.Settle(context.WithoutCancel(ctx), used, used, used*price)
	return d, errors.Join(err, failed)
}
