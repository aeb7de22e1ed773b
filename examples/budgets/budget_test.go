package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// newTestBudget returns a budget of 20 dollars a month, and how many alerts it has sent.
func newTestBudget(t *testing.T, opts ...ratelimit.Option) (*budget, *atomic.Int64) {
	t.Helper()
	alerts := new(atomic.Int64)
	b, err := newBudget(20, func(context.Context, ratelimit.Observation) { alerts.Add(1) }, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return b, alerts
}

// spent returns how many millionths of a dollar the team "research" has spent this month.
func spent(t *testing.T, b *budget) int {
	t.Helper()
	d, err := b.money.Peek(t.Context(), "research")
	if err != nil {
		t.Fatal(err)
	}
	return d.Limit - d.Remaining
}

// 200 agents at once do not overspend the budget, and leave less than one call may cost. One alert is sent.
func TestAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, alerts := newTestBudget(t)
		var paid atomic.Int64
		refused := agents(t.Context(), b, 200, func(ctx context.Context) (int, error) {
			tokens, err := think(ctx)
			paid.Add(int64(tokens * price))
			return tokens, err
		})
		got := spent(t, b)
		if refused != 200 || int64(got) != paid.Load() || got > 20e6 || got <= 20e6-1_000*price {
			t.Errorf("%d agents were refused, %d of %d are spent", refused, got, paid.Load())
		}
		if alerts.Load() != 1 {
			t.Errorf("%d alerts", alerts.Load())
		}
	})
}

// at returns a clock that shows a time in London.
func at(t *testing.T, text string) *clock.Mock {
	t.Helper()
	london, err := time.LoadLocation("Europe/London")
	if err != nil {
		t.Fatal(err)
	}
	now, err := time.ParseInLocation(time.DateTime, text, london)
	if err != nil {
		t.Fatal(err)
	}
	clk := clock.NewMock()
	clk.Set(now)
	return clk
}

// A call over the end of the month is paid for by the month in which it was held. What exceeds the hold
// counts in the month of its settlement.
func TestCallOverMidnight(t *testing.T) {
	for _, tt := range []struct{ tokens, ofJuly int }{{700, 0}, {1_200, 200 * price}} {
		clk := at(t, "2026-06-30 23:59:59")
		b, _ := newTestBudget(t, ratelimit.WithClock(clk))
		before := 0
		_, err := b.call(t.Context(), "ann", "research", 1_000, func(context.Context) (int, error) {
			before = spent(t, b)
			clk.Add(time.Minute)
			return tt.tokens, nil
		})
		if err != nil || before < 1_000*price || spent(t, b) != tt.ofJuly {
			t.Errorf("%d are held, and July has spent %d of %d, %v", before, spent(t, b), tt.ofJuly, err)
		}
	}
}

// A stream whose client leaves costs what it has cost until then, and a call that fails what it has cost.
func TestClientLeaves(t *testing.T) {
	b, _ := newTestBudget(t)
	ctx, leave := context.WithCancel(t.Context())
	_, err := b.call(ctx, "ann", "research", 1_000, func(ctx context.Context) (int, error) {
		leave()
		return 123, ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || spent(t, b) != 123*price {
		t.Errorf("%v, %d are spent", err, spent(t, b))
	}
	_, err = b.call(ctx, "ann", "sales", 1_000, nil)
	if !errors.Is(err, context.Canceled) || spent(t, b) != 123*price {
		t.Errorf("%v, %d are spent", err, spent(t, b))
	}
}

// An answer that is settled after its hold has ended counts as it was held, and what exceeds that.
func TestLateAnswer(t *testing.T) {
	clk := at(t, "2026-06-01 12:00:00")
	for tokens, want := range map[int]int{10: 1_000 * price, 1_500: 1_500 * price} {
		b, _ := newTestBudget(t, ratelimit.WithClock(clk))
		_, err := b.call(t.Context(), "ann", "research", 1_000, func(context.Context) (int, error) {
			clk.Add(11 * time.Minute)
			return tokens, nil
		})
		if err != nil || spent(t, b) != want {
			t.Errorf("%d tokens: %v, %d are spent, want %d", tokens, err, spent(t, b), want)
		}
	}
}

// A refusal says who refuses, and for how long.
func TestRefusals(t *testing.T) {
	b, _ := newTestBudget(t, ratelimit.WithClock(at(t, "2026-06-01 12:00:00")))
	free := func(context.Context) (int, error) { return 0, nil }
	if d, err := b.call(t.Context(), "ann", "research", 20_001, free); d.Allowed || d.Part != 0 || d.RetryAfter != ratelimit.Never || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := b.money.Charge(t.Context(), "research", 20e6); err != nil {
		t.Fatal(err)
	}
	d, err := b.call(t.Context(), "ann", "research", 1_000, free)
	if d.Allowed || d.Part != ofMonth || d.RetryAfter != 29*24*time.Hour+12*time.Hour || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
}
