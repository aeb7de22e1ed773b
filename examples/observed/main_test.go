package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/otellimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// Requests of a user in a volley, and what becomes of them if the clock moves once they are there.
const (
	searches     = 8
	searchesDone = 5 // the others are denied

	reports     = 12 // the first is let through, and the others wait in line for 1, 2, 3 … seconds
	reportsDone = 11 // because the turn of the last one would come after more than 10 seconds
)

// A volley is what users do at once.
type volley struct {
	server *httptest.Server

	running  sync.WaitGroup
	mu       sync.Mutex     // protects answered
	answered map[string]int // requests by path and status
}

// send sends the requests of users. They are answered when the clock has moved far enough.
func (v *volley) send(t *testing.T, users ...string) {
	for _, user := range users {
		for path, n := range map[string]int{"/search": searches, "/report": reports} {
			for range n {
				v.running.Go(func() {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.server.URL+path, nil)
					if !assert.NoError(t, err) {
						return
					}
					req.Header.Set("User", user)
					resp, err := v.server.Client().Do(req)
					if t.Context().Err() != nil || !assert.NoError(t, err) {
						return
					}
					resp.Body.Close()
					v.mu.Lock()
					defer v.mu.Unlock()
					v.answered[fmt.Sprint(path, " ", resp.StatusCode)]++
				})
			}
		}
	}
}

// decisions returns how many the server shows.
func decisions(server *httptest.Server) (sum float64, err error) {
	resp, err := server.Client().Get(server.URL + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	for _, found := range regexp.MustCompile(`(?m)^ratelimit_decisions_total\{.*\} (\d+)$`).FindAllSubmatch(text, -1) {
		n, _ := strconv.Atoi(string(found[1]))
		sum += float64(n)
	}
	return sum, err
}

// queries returns those in docs/observe.md: the lines before each one say what it asks.
func queries(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/observe.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```promql\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, block)
	found := map[string]string{}
	question := ""
	for line := range strings.Lines(string(block[1])) {
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			question = strings.TrimSpace(comment)
		} else {
			found[question] += line
		}
	}
	return found
}

// TestPrometheus sends requests, and compares the answers of a real Prometheus server to the
// queries in docs/observe.md with what was done. The clock of the limiters moves only when all of a volley
// are there, and then a second at a time, so that each wait is known.
//
// The same is done twice, before and after the first scrape, because a rate needs two samples:
// rate extrapolates series that have grown alike by the same factor.
func TestPrometheus(t *testing.T) {
	clk := clock.NewMock()
	handler, err := newService(clk)
	require.NoError(t, err)
	path := findPrometheus(t)
	server := httptest.NewServer(handler)
	v := &volley{server: server, answered: map[string]int{}}
	t.Cleanup(func() { // if the test has failed, the end of its context has ended the requests
		v.running.Wait()
		server.Close()
	})

	const users = 4 // in the two volleys
	decided := func(n int, count func() (float64, error)) {
		eventually(t, func() error {
			got, err := count()
			if err == nil && got != float64(n) {
				err = fmt.Errorf("%v decisions, not %d", got, n)
			}
			return err
		})
	}
	done := 0
	volley := func(names ...string) {
		v.send(t, names...)
		shown := func() (float64, error) { return decisions(server) }
		done += len(names) * (searches + 1 + reports - reportsDone) // the denied one comes after those in line
		decided(done, shown)
		for range reportsDone - 1 {
			clk.Add(time.Second)
			done += len(names)
			decided(done, shown)
		}
	}
	volley("ann", "bob")
	p := startPrometheus(t, path, server.Listener.Addr().String())
	scraped := func() (float64, error) {
		got, err := p.ask("sum(ratelimit_decisions_total)", "")
		return got[""], err
	}
	decided(users/2*(searches+reports), scraped)
	volley("cho", "dan")
	decided(users*(searches+reports), scraped)

	answers := map[string]map[string]float64{}
	for question, query := range queries(t) {
		label := regexp.MustCompile(`ratelimit_(limiter|store)`).FindString(query)
		got, err := p.ask(query, label)
		require.NoError(t, err)
		answers[question] = got
	}
	t.Log(answers)
	const denied, wait, keys = "the share of decisions that are denials, by limiter", "the wait that 99 % do not exceed, by limiter", "keys held, by store"
	close := func(question string, by float64, want map[string]float64) {
		t.Helper()
		got := answers[question]
		require.Len(t, got, len(want), question)
		for label := range want {
			assert.InDelta(t, want[label], got[label], by, "%s: %s", question, label)
		}
		delete(answers, question)
	}
	// A scrape during a volley sees a part of it, from which Prometheus extrapolates.
	close(denied, 0.02, map[string]float64{"search": 1 - searchesDone/float64(searches), "reports": 1 - reportsDone/float64(reports)})
	close(keys, 2, map[string]float64{"main": 2 * users}) // those of /search that are idle may be forgotten
	// 5 of 11 waits are between 5 and 10 seconds, a bucket of the histogram, in which
	// Prometheus interpolates. The longest wait is 10 seconds.
	close(wait, 0.1, map[string]float64{"reports": 5 + (10-5)*(0.99*reportsDone-6)/5})
	assert.Empty(t, answers, "queries that this test does not know")

	v.running.Wait()
	assert.Equal(t, map[string]int{
		"/search 200": users * searchesDone, "/search 429": users * (searches - searchesDone),
		"/report 200": users * reportsDone, "/report 429": users * (reports - reportsDone),
	}, v.answered)
}

// A redis is a connection to a server that is away.
type redis struct{}

func (redis) Do(_ context.Context, commands []redisstore.Command) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	for i := range replies {
		replies[i].Err = errors.New("connection refused")
	}
	return replies
}
func (redis) Server(string) (name string, known bool) { return "", true }
func (redis) OneServer() bool                         { return true }
func (redis) NoAnswer(string) error                   { return nil }
func (redis) Redial(context.Context, string)          {}

// TestNames: promtool check metrics finds nothing to complain about in the metrics of otellimit.
func TestNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	provider, err := newProvider(registry)
	require.NoError(t, err)
	search, reports, err := newLimiters(provider, clock.New())
	require.NoError(t, err)
	store, err := redisstore.New(redis{})
	require.NoError(t, err)
	_, err = otellimit.ObserveRedis(provider, "redis", store)
	require.NoError(t, err)
	require.True(t, search.Allow("ann"))
	require.NoError(t, reports.Wait(t.Context(), "ann"))
	metrics, err := registry.Gather()
	require.NoError(t, err)
	require.Greater(t, len(metrics), 14)
	problems, err := promlint.NewWithMetricFamilies(metrics).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestRequestsWithoutUser(t *testing.T) {
	handler, err := newService(clock.New())
	require.NoError(t, err)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/search", nil))
	assert.Equal(t, http.StatusBadRequest, w.Code)
}
