package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// TestMain runs the program itself if a test has started this binary for that.
func TestMain(m *testing.M) {
	if os.Getenv("LLM_PROGRAM") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program returns the program with the given arguments, to be started.
func program(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "LLM_PROGRAM=1")
	return cmd
}

// run starts the program on a free port, with limits of which nothing comes back meanwhile. It returns
// the URL, and what kills the program.
func run(t *testing.T, args ...string) (url string, kill func()) {
	cmd := program(t, append(args, "-addr", "localhost:0", "-requests", "20/d", "-tokens", "500/d")...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	lines := bufio.NewScanner(said)
	if !lines.Scan() {
		t.Fatal("it says nothing")
	}
	limits, url, _ := strings.Cut(lines.Text(), ", on ")
	if !strings.Contains(limits, "20/d requests and 500/d tokens for each user, 5 dollars for each organisation") {
		t.Error(lines.Text())
	}
	return url, kill
}

// TestProgram starts the program as its documentation says, and asks it what that says.
func TestProgram(t *testing.T) {
	url, _ := run(t)
	resp := ask(t.Context(), t, url, "ann", "Tell me a story")
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.HasSuffix(string(body), "\n[84 tokens for 0.084 dollars, 203 were held]\n") {
		t.Errorf("%q, %v", body, err)
	}
}

// TestKilled kills the program while it streams an answer. What that held is still held, and counts, also
// when the hold has ended by itself.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	url, kill := run(t, "-dir", dir)
	resp := ask(t.Context(), t, url, "ann", "Tell me a story")
	defer resp.Body.Close()
	if word, err := bufio.NewReader(resp.Body).ReadString(' '); err != nil || word != "Once " {
		t.Fatal(word, err)
	}
	kill()

	clk := clock.NewMock()
	clk.Set(time.Now())
	next, err := newGateway(nil, ratelimit.PerDay(20), ratelimit.PerDay(500), 5*dollar, ratelimit.WithStore(newFiles(dir)), ratelimit.WithClock(clk))
	if err != nil {
		t.Fatal(err)
	}
	next.left(t, "ann", 19, 297, "acme", 4_797_000)
	left, month := 4_797_000, clk.Now().UTC().Month()
	clk.Add(time.Hour)
	if clk.Now().UTC().Month() != month {
		left = 5 * dollar
	}
	next.left(t, "ann", 19, 317, "acme", left) // an hour brings 500/24 tokens back
}

// TestUsage: the program refuses limits and addresses that it cannot use.
func TestUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"-requests": {"-requests", "many"},
		"-tokens":   {"-tokens", "0/1m"},
		"-dollars":  {"-dollars", "0"},
		"listen":    {"-addr", "localhost:none"},
	} {
		out, _ := program(t, args...).CombinedOutput()
		if !strings.Contains(string(out), want) {
			t.Errorf("%v: %s", args, out)
		}
	}
}

// load asks g for ann, with twenty requests at once that come again when they are told to. It returns how
// many tokens were used, and how many the limit allows.
func load(g *gateway, span time.Duration) (used int64, allowed float64) {
	start := time.Now()
	var wg sync.WaitGroup
	var sum atomic.Int64
	for range 20 {
		wg.Go(func() {
			for time.Since(start) < span {
				r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/", strings.NewReader("Hello there"))
				r.Header.Set("User", "ann")
				w := httptest.NewRecorder()
				g.ServeHTTP(w, r)
				if _, bill, ok := strings.Cut(w.Body.String(), "\n["); ok {
					n, _, _ := strings.Cut(bill, " ")
					tokens, err := strconv.ParseInt(n, 10, 64)
					if err != nil {
						panic(bill)
					}
					sum.Add(tokens)
				}
				after, _ := strconv.Atoi(w.Header().Get("Retry-After"))
				time.Sleep(min(time.Duration(after)*time.Second, span))
			}
		})
	}
	wg.Wait()
	bucket := g.tokens.Describe().Algorithm.(ratelimit.TokenBucket)
	return sum.Load(), float64(bucket.Burst) + float64(bucket.Rate.Events)*float64(time.Since(start))/float64(bucket.Rate.Per)
}

// TestLoad: estimates that are five times too high do not cost what the limit allows.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := newGateway(storyteller(50*time.Millisecond), ratelimit.PerMinute(1000), ratelimit.PerMinute(10000), 1000*dollar)
		if err != nil {
			t.Fatal(err)
		}
		used, allowed := load(g, 10*time.Minute)
		if share := float64(used) / allowed; share < 0.98 || share > 1 {
			t.Errorf("%v of the tokens were used", share)
		}
	})
}

// start returns the URL of a gateway to a model, and the gateway. answered gets a value after each
// request.
func start(t *testing.T, m model) (url string, g *gateway, answered chan bool) {
	g, err := newGateway(m, ratelimit.PerDay(8), ratelimit.PerDay(500), 650_000) // nothing comes back meanwhile
	if err != nil {
		t.Fatal(err)
	}
	answered = make(chan bool, 100)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.ServeHTTP(w, r)
		answered <- true
	}))
	t.Cleanup(front.Close)
	return front.URL, g, answered
}

func ask(ctx context.Context, t *testing.T, url, user, prompt string) *http.Response {
	r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(prompt))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("User", user)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// left checks what a user and an organisation have left.
func (g *gateway) left(t *testing.T, user string, requests, tokens int, org string, money int) {
	t.Helper()
	var left []int
	for _, b := range []ratelimit.Bound{ratelimit.For(g.requests, user), ratelimit.For(g.tokens, user), ratelimit.For(g.money, org)} {
		d, err := b.Limiter().Peek(t.Context(), b.Key())
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, d.Remaining)
	}
	if want := []int{requests, tokens, money}; !slices.Equal(left, want) {
		t.Errorf("%s of %s has %v left, want %v", user, org, left, want)
	}
}

func TestGateway(t *testing.T) {
	url, g, _ := start(t, storyteller(0))
	for i, step := range []struct {
		user, prompt string
		status       int
		end          string
	}{
		{"ann", "Tell me a story", 200, "very long tunnel and when \n[84 tokens for 0.084 dollars, 203 were held]"},
		{"bob", "Tell me a much longer story about nine brave gophers", 200, "[210 tokens for 0.210 dollars, 213 were held]"},
		{"ann", "Hi", 200, "[21 tokens for 0.021 dollars, 200 were held]"},
		{"bob", "Hi", 200, "[21 tokens for 0.021 dollars, 200 were held]"},
		{"bob", "Tell me a story", 200, "[84 tokens for 0.084 dollars, 203 were held]"},
		{"bob", "Hi", 429, "bob has too few tokens left: the request may cost 200"},
		{"ann", "Hi", 200, "[21 tokens for 0.021 dollars, 200 were held]"},
		{"ann", "Hi", 200, "[21 tokens for 0.021 dollars, 200 were held]"},
		{"ann", "Tell me a story", 402, "acme has too little left of this month's budget: the request may cost 0.203 dollars"},
		{"cho", "Hi", 200, "[21 tokens for 0.021 dollars, 200 were held]"},
		{"cho", strings.Repeat("x", maxPrompt+1), 400, "http: request body too large"},
		{"dan", "Hi", 401, "the field User must be ann, bob or cho"},
	} {
		resp := ask(t.Context(), t, url, step.user, step.prompt)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != step.status || (resp.Header.Get("Retry-After") != "") != (step.status == 429 || step.status == 402) {
			t.Errorf("step %d: %v, Retry-After %q", i, resp.Status, resp.Header.Get("Retry-After"))
		}
		if !strings.HasSuffix(strings.TrimSpace(string(body)), step.end) {
			t.Errorf("step %d: %q, want %q", i, body, step.end)
		}
	}
	g.left(t, "ann", 4, 353, "acme", 188_000)
	g.left(t, "bob", 5, 185, "acme", 188_000)
	for range 7 {
		ask(t.Context(), t, url, "cho", "").Body.Close()
	}
	resp := ask(t.Context(), t, url, "cho", "")
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "cho may send no more requests now\n" {
		t.Errorf("%q, %v", body, err)
	}
}

// says returns a model that says some words, and then ends as f does.
func says(words int, err error, f func(ctx context.Context)) model {
	return func(ctx context.Context, _ string) (n int, answer iter.Seq[string], _ error) {
		return 1, func(yield func(string) bool) {
			for range words {
				yield("gopher")
			}
			f(ctx)
		}, err
	}
}

// TestModelFails: a request that the model does not answer costs nothing but the request.
func TestModelFails(t *testing.T) {
	url, g, _ := start(t, says(0, errors.New("out of order"), nil))
	resp := ask(t.Context(), t, url, "ann", "Hi")
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 502 || !strings.Contains(string(body), "[0 tokens") {
		t.Errorf("%v, %q, %v", resp.Status, body, err)
	}
	g.left(t, "ann", 7, 500, "acme", 650_000)
}

// A slow reader is a client that reads nothing for a while.
type slowReader struct {
	*httptest.ResponseRecorder
	reads time.Time // from when on it reads
}

func (w slowReader) FlushError() error {
	time.Sleep(time.Until(w.reads))
	w.Flush()
	return nil
}

// TestSlowReader: a client that reads slowly pays for the answer, and never less than one that does not.
func TestSlowReader(t *testing.T) {
	for _, tt := range []struct {
		takes         time.Duration
		tokens, money int // that are left of 500 and 700,000
	}{
		{0, 416, 616_000},
		{time.Minute, 416, 616_000},
		{2*longest - 1, 416, 616_000},
		{2 * longest, 297, 497_000}, // the estimate
		{time.Hour, 297, 497_000},
	} {
		synctest.Test(t, func(t *testing.T) {
			never := ratelimit.Rate{Events: 500, Per: 366 * 24 * time.Hour} // nothing comes back meanwhile
			g, err := newGateway(storyteller(0), never, never, 700_000)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("Tell me a story"))
			r.Header.Set("User", "ann")
			g.ServeHTTP(slowReader{httptest.NewRecorder(), time.Now().Add(tt.takes)}, r)
			g.left(t, "ann", 499, tt.tokens, "acme", tt.money)
		})
	}
}

// TestClientLeaves: a client that leaves pays for what the model has said until then.
func TestClientLeaves(t *testing.T) {
	url, g, answered := start(t, says(1, nil, func(ctx context.Context) { <-ctx.Done() }))
	ctx, leave := context.WithCancel(t.Context())
	resp := ask(ctx, t, url, "ann", "Hi")
	defer resp.Body.Close()
	if word, err := bufio.NewReader(resp.Body).ReadString(' '); err != nil || word != "gopher " {
		t.Fatal(word, err)
	}
	leave()
	<-answered
	g.left(t, "ann", 7, 498, "acme", 648_000)
}
