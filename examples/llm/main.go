// Llm is a gateway to a language model. It limits the tokens that each user, and each
// organisation, spends in a minute. How many a request costs is known only when the answer
// has been streamed. So the gateway holds an estimate before, and settles it afterwards. The
// model is a fake one, in the same program.
//
//	go run ./examples/llm -addr localhost:8080 -user 500/1m -org 800/1m
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5; do curl -sN localhost:8080 -H 'User: ann' -d 'Tell me a story'; done
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	user := flag.String("user", "500/1m", "how many `tokens/span` a user may spend")
	org := flag.String("org", "800/1m", "how many `tokens/span` an organisation may spend")
	flag.Parse()
	perUser, err := ratelimit.ParseRate(*user)
	if err != nil {
		log.Fatalf("-user: %v", err)
	}
	perOrg, err := ratelimit.ParseRate(*org)
	if err != nil {
		log.Fatalf("-org: %v", err)
	}

	backend, front := listen("localhost:0"), listen(*addr)
	go func() { log.Fatal(http.Serve(backend, model{pace: 10 * time.Millisecond})) }()

	g := newGateway("http://"+backend.Addr().String(), perUser, perOrg)
	log.Printf("%v for each user, %v for each organisation, on http://%s", perUser, perOrg, front.Addr())
	server := &http.Server{Handler: g, ReadTimeout: 5 * time.Second}
	log.Fatal(server.Serve(front))
}

func listen(addr string) net.Listener {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		log.Fatal(err)
	}
	return l
}

// A gateway limits the tokens of those who use the model.
type gateway struct {
	model       string            // its URL
	orgOf       map[string]string // by user; a real gateway has a database, and authenticates
	users, orgs ratelimit.Limiter // in tokens
}

func newGateway(model string, perUser, perOrg ratelimit.Rate) *gateway {
	return &gateway{
		model: model,
		orgOf: map[string]string{"ann": "acme", "bob": "acme", "cho": "chess club"},
		users: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: perUser}, ratelimit.WithName("users"))),
		orgs:  ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: perOrg}, ratelimit.WithName("orgs"))),
	}
}

// maxAnswer is the most tokens of an answer. A prompt is at most maxPrompt bytes long.
const (
	maxAnswer = 200
	maxPrompt = 1000
)

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

	// A token is about four bytes. The answer may be as long as an answer can be.
	estimate := len(prompt)/4 + maxAnswer
	hold, d, err := ratelimit.HoldAll(r.Context(), estimate, ratelimit.For(g.users, user), ratelimit.For(g.orgs, org))
	if err != nil {
		log.Print(err) // the FailurePolicy has decided
	}
	if !d.Allowed {
		if d.RetryAfter != ratelimit.Never {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(d.RetryAfter.Seconds()))))
		}
		refusal := fmt.Sprintf("%s has too few tokens left: the request may cost %d", []string{user, org}[d.Part], estimate)
		http.Error(w, refusal, http.StatusTooManyRequests)
		return
	}

	var cost int // what has come so far; all of it is paid for, even if the client leaves
	defer func() {
		d, err := hold.Settle(context.WithoutCancel(r.Context()), cost)
		if err != nil {
			log.Print(err)
		}
		bill := fmt.Sprintf("%d tokens, %d were held; %s has %d left", cost, estimate, []string{user, org}[d.Part], d.Remaining)
		log.Printf("%s: %s", user, bill)
		fmt.Fprintf(w, "\n[%s]\n", bill)
	}()
	if err := g.stream(r.Context(), w, prompt, &cost); err != nil {
		log.Printf("%s: %v", user, err)
		if cost == 0 {
			http.Error(w, "the model does not answer", http.StatusBadGateway)
		}
	}
}

// stream passes the model's answer to w, token by token, and adds each of them to cost.
func (g *gateway) stream(ctx context.Context, w http.ResponseWriter, prompt []byte, cost *int) error {
	ask, err := http.NewRequestWithContext(ctx, http.MethodPost, g.model, bytes.NewReader(prompt))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the model answers %s", answer.Status)
	}
	if *cost, err = strconv.Atoi(answer.Header.Get(promptTokens)); err != nil {
		return err
	}
	words := bufio.NewScanner(answer.Body)
	words.Split(bufio.ScanWords)
	for words.Scan() {
		*cost++
		fmt.Fprintf(w, "%s ", words.Bytes())
		if err := http.NewResponseController(w).Flush(); err != nil {
			return err // the client has left
		}
	}
	return words.Err()
}
