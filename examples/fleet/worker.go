package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	redisrueidis "github.com/ratelimit-go/ratelimit/redisstore/rueidis"
)

// keys are the API keys. limit is the limit of each key.
var (
	keys  = [...]string{"abuser", "alice", "bob"}
	limit = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)}
)

// A report has the decisions of a process since its last report, by key. It is a line of JSON on
// stdout.
type report [len(keys)]struct {
	Shared count // by the limit in Redis
	Local  count // by the fallback
}

type count struct{ Allowed, Denied int }

func (c *count) add(o count) { c.Allowed, c.Denied = c.Allowed+o.Allowed, c.Denied+o.Denied }

func (c count) asked() int { return c.Allowed + c.Denied }

func (r *report) add(o *report) {
	for k := range r {
		r[k].Shared.add(o[k].Shared)
		r[k].Local.add(o[k].Local)
	}
}

// degraded returns how many decisions the fallbacks made.
func (r *report) degraded() (n int) {
	for _, t := range r {
		n += t.Local.asked()
	}
	return n
}

// newLimiter returns the limiter of one process of the fleet. This function is the essential part
// of the example.
func newLimiter(client rueidis.Client, j job) (ratelimit.Limiter, error) {
	store, err := redisrueidis.New(client, redisstore.WithPrefix(j.Prefix))
	if err != nil {
		return nil, err
	}
	// While Redis is unavailable, each process uses its share of the limit.
	fallback, err := ratelimit.New(ratelimit.Share(limit, j.Processes))
	if err != nil {
		return nil, err
	}
	return ratelimit.New(limit,
		ratelimit.WithStore(store), ratelimit.WithName("api"),
		ratelimit.WithFailurePolicy(ratelimit.Fallback(fallback)))
}

// work is the job of a process of the fleet: it decides on requests, and writes a report
// for each line of in, until in is closed.
func work(j job, in io.Reader, out io.Writer) error {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{j.Redis}})
	if err != nil {
		return err
	}
	defer client.Close()
	limiter, err := newLimiter(client, j)
	if err != nil {
		return err
	}
	w := &worker{limiter: limiter}
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	// A client with this pause between requests uses the process's share of the limit.
	even := limit.Rate.Per * time.Duration(j.Processes) / time.Duration(limit.Rate.Events)
	for key := range keys {
		volley, pause := 1, 2*even
		switch {
		case key == 0 && j.Process == 1: // as many requests as could come over a network
			volley, pause = 100, time.Millisecond
		case key == 0:
			pause = even / 2
		}
		clients.Go(func() { w.client(ctx, key, volley, pause) })
	}
	encoder := json.NewEncoder(out)
	for asked := bufio.NewScanner(in); asked.Scan(); {
		if err := encoder.Encode(w.take()); err != nil {
			return err
		}
	}
	return nil
}

// A worker counts the decisions of a limiter.
type worker struct {
	limiter ratelimit.Limiter

	mu  sync.Mutex // protects now
	now report
}

// client sends volleys of requests with a key until ctx ends.
func (w *worker) client(ctx context.Context, key, volley int, pause time.Duration) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for range volley {
			w.ask(ctx, key)
		}
	}
}

// ask decides on a request. A service would respond with 200 or 429 here.
func (w *worker) ask(ctx context.Context, key int) {
	d, err := w.limiter.Take(ctx, keys[key], 1)
	if err != nil && !d.Degraded {
		return // ctx has ended
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &w.now[key].Shared
	if d.Degraded {
		c = &w.now[key].Local
	}
	if d.Allowed {
		c.Allowed++
	} else {
		c.Denied++
	}
}

// take returns the counts and resets them.
func (w *worker) take() (r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, w.now = w.now, report{}
	return r
}
