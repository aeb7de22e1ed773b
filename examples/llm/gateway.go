package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A gateway limits how much the users of the model spend.
type gateway struct {
	model                   model
	orgOf                   map[string]string // by user; a real gateway authenticates, and asks a database
	requests, tokens, money ratelimit.Limiter // the first two for users, the last for organisations
}

func newGateway(
	m model,
	requests, tokens ratelimit.Rate,
	money int, // in millionths of a dollar
	opts ...ratelimit.Option,
) (*gateway, error) {
	orgOf := map[string]string{"ann": "acme", "bob": "acme", "cho": "chess club"}
	g := &gateway{model: m, orgOf: orgOf}
	for _, limit := range []struct {
		limiter *ratelimit.Limiter
		name    string
		alg     ratelimit.Algorithm
	}{
		{&g.requests, "requests", ratelimit.TokenBucket{Rate: requests}},
		{&g.tokens, "tokens", ratelimit.TokenBucket{Rate: tokens}},
		{&g.money, "dollars", ratelimit.CalendarWindow{Limit: money, Every: ratelimit.Month}},
	} {
		l, err := ratelimit.New(limit.alg, append(opts, ratelimit.WithName(limit.name))...)
		if err != nil {
			return nil, fmt.Errorf("-%s: %w", limit.name, err)
		}
		*limit.limiter = l
	}
	return g, nil
}

// maxAnswer is the most tokens of an answer. maxPrompt is the most bytes of a prompt. A token of a
// prompt has about four bytes.
const (
	maxAnswer = 200
	maxPrompt = 1000
)

// Money is counted in millionths of a dollar.
const dollar = 1_000_000

// price returns the cost of tokens, far above real prices so that limits are soon reached.
func price(tokens int) int { return tokens * dollar / 1000 }

// inDollars returns an amount of money in words.
func inDollars(money int) string { return fmt.Sprintf("%.3f dollars", float64(money)/dollar) }

// longest is how long an answer may take to be written, to a client that reads slowly.
const longest = 5 * time.Minute

// held says how long an estimate is held: longer than an answer takes. The hold of a gateway that
// has died ends by itself, and the estimate counts. If it came back then, as with
// ratelimit.GiveBack, a client that reads slowly enough would pay nothing.
var held = ratelimit.HoldFor(2 * longest)

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user := r.Header.Get("User")
	org, ok := g.orgOf[user]
	if !ok {
		http.Error(w, "the field User must be ann, bob or cho", http.StatusUnauthorized)
		return
	}
	prompt, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPrompt))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	estimate := len(prompt)/4 + maxAnswer // the answer may have its greatest length
	hold, d, err := ratelimit.HoldAll(r.Context(), 1,
		ratelimit.For(g.requests, user, held),
		ratelimit.For(g.tokens, user, held).N(estimate),
		ratelimit.For(g.money, org, held).N(price(estimate)))
	if err != nil {
		log.Print(err) // the FailurePolicy has decided
	}
	if !d.Allowed {
		if d.RetryAfter != ratelimit.Never {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(d.RetryAfter.Seconds()))))
		}
		refusal := []string{
			user + " may send no more requests now",
			fmt.Sprintf("%s has too few tokens left: the request may cost %d", user, estimate),
			fmt.Sprintf("%s has too little left of this month's budget: the request may cost %s",
				org, inDollars(price(estimate))),
		}[d.Part]
		status := http.StatusTooManyRequests
		if d.Part == 2 {
			status = http.StatusPaymentRequired
		}
		http.Error(w, refusal, status)
		return
	}

	var cost int // tokens so far; all of them are paid for, even if the client leaves
	defer func() {
		if _, err := hold.Settle(context.WithoutCancel(r.Context()), 1, cost, price(cost)); err != nil {
			log.Print(err)
		}
		bill := fmt.Sprintf("%d tokens for %s, %d were held", cost, inDollars(price(cost)), estimate)
		log.Printf("%s: %s", user, bill)
		fmt.Fprintf(w, "\n[%s]\n", bill)
	}()
	if err := g.stream(r.Context(), w, string(prompt), &cost); err != nil {
		log.Printf("%s: %v", user, err)
		if cost == 0 {
			http.Error(w, "the model does not answer", http.StatusBadGateway)
		}
	}
}

// stream passes the model's answer to w, token by token. It sets cost to the tokens of the prompt,
// and adds each token of the answer.
func (g *gateway) stream(ctx context.Context, w http.ResponseWriter, prompt string, cost *int) error {
	n, answer, err := g.model(ctx, prompt)
	if err != nil {
		return err
	}
	*cost = n
	for token := range answer {
		*cost++
		fmt.Fprintf(w, "%s ", token)
		if err := http.NewResponseController(w).Flush(); err != nil {
			return err // the client has left
		}
	}
	return ctx.Err()
}
