package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

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

// TestProgram starts the program as its documentation says, and asks it what that says.
func TestProgram(t *testing.T) {
	cmd := program(t, "-addr", "localhost:0", "-user", "300/d", "-org", "800/d") // nothing comes back meanwhile
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(said)
	if !lines.Scan() {
		t.Fatal("it says nothing")
	}
	limits, url, _ := strings.Cut(lines.Text(), ", on ")
	if !strings.Contains(limits, "300/d for each user, 800/d for each organisation") {
		t.Error(lines.Text())
	}
	for _, want := range []string{"84 tokens, 203 were held; ann has 216 left", "84 tokens, 203 were held; ann has 132 left", "ann has too few tokens left: the request may cost 203"} {
		resp := ask(t.Context(), t, url, "ann", "Tell me a story")
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%q, %v, want %q", body, err, want)
		}
	}
}

// TestUsage: the program refuses limits and addresses that it cannot use.
func TestUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"-user:": {"-user", "many"},
		"-org:":  {"-org", "0/1m"},
		"listen": {"-addr", "localhost:none"},
	} {
		out, err := program(t, args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
}

// start returns the URL of a gateway to backend, and the gateway. answered gets a value after
// each request.
func start(t *testing.T, backend http.Handler) (url string, g *gateway, answered chan bool) {
	server := httptest.NewServer(backend)
	t.Cleanup(server.Close)
	g = newGateway(server.URL, ratelimit.PerDay(500), ratelimit.PerDay(800)) // nothing comes back meanwhile
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

// spent checks how many tokens a user and an organisation have spent.
func (g *gateway) spent(t *testing.T, user string, byUser int, org string, byOrg int) {
	t.Helper()
	for i, b := range []ratelimit.Bound{ratelimit.For(g.users, user), ratelimit.For(g.orgs, org)} {
		d, err := b.Peek(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := d.Limit-d.Remaining, []int{byUser, byOrg}[i]; got != want {
			t.Errorf("%s has spent %d tokens, want %d", b.Key(), got, want)
		}
	}
}

func TestGateway(t *testing.T) {
	url, g, _ := start(t, model{})
	for i, step := range []struct {
		user, prompt string
		status       int
		end          string
	}{
		{"ann", "Tell me a story", 200, "very long tunnel and when \n[84 tokens, 203 were held; ann has 416 left]"},
		{"ann", "Tell me a story", 200, "[84 tokens, 203 were held; ann has 332 left]"},
		{"bob", "Tell me a much longer story about nine brave gophers", 200, "[210 tokens, 213 were held; bob has 290 left]"},
		{"ann", "Hi", 200, "[21 tokens, 200 were held; ann has 311 left]"},
		{"ann", "Hi", 200, "[21 tokens, 200 were held; ann has 290 left]"},
		{"bob", "Tell me a much longer story about nine brave gophers", 200, "[210 tokens, 213 were held; bob has 80 left]"},
		{"ann", "Tell me a story", 429, "acme has too few tokens left: the request may cost 203"},
		{"bob", "Hi", 429, "bob has too few tokens left: the request may cost 200"},
		{"cho", "Hi", 200, "[21 tokens, 200 were held; cho has 479 left]"},
		{"cho", strings.Repeat("x", maxPrompt+1), 400, "http: request body too large"},
		{"dan", "Hi", 401, "the field User must be ann, bob or cho"},
	} {
		resp := ask(t.Context(), t, url, step.user, step.prompt)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != step.status || (resp.Header.Get("Retry-After") != "") != (step.status == 429) {
			t.Errorf("step %d: %v, Retry-After %q", i, resp.Status, resp.Header.Get("Retry-After"))
		}
		if !strings.HasSuffix(strings.TrimSpace(string(body)), step.end) {
			t.Errorf("step %d: %q, want %q", i, body, step.end)
		}
	}
	g.spent(t, "ann", 210, "acme", 630)
	g.spent(t, "bob", 420, "acme", 630)
}

// TestModelFails: a request that the model does not answer costs nothing, and one that ends
// early costs what has come.
func TestModelFails(t *testing.T) {
	for words, status := range map[int]int{0: 502, 3: 200} {
		url, g, answered := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if words == 0 {
				w.WriteHeader(503)
				return
			}
			w.Header().Set(promptTokens, "1")
			io.WriteString(w, strings.Repeat("gopher ", words))
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}))
		resp := ask(t.Context(), t, url, "ann", "Hi")
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		cost := min(words, 1) + words
		<-answered
		if resp.StatusCode != status || !strings.Contains(string(body), "["+strconv.Itoa(cost)+" tokens") {
			t.Errorf("%v, %q", resp.Status, body)
		}
		g.spent(t, "ann", cost, "acme", cost)
	}
}

// TestClientLeaves: a client that leaves pays for what the model has said until then.
func TestClientLeaves(t *testing.T) {
	url, g, answered := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(promptTokens, "1")
		fmt.Fprint(w, "gopher ")
		http.NewResponseController(w).Flush()
		<-r.Context().Done() // the gateway has left
	}))
	ctx, leave := context.WithCancel(t.Context())
	resp := ask(ctx, t, url, "ann", "Hi")
	defer resp.Body.Close()
	if word, err := bufio.NewReader(resp.Body).ReadString(' '); err != nil || word != "gopher " {
		t.Fatal(word, err)
	}
	leave()
	<-answered
	g.spent(t, "ann", 2, "acme", 2)
}
