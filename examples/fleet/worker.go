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

// keys are the API keys.
var keys = [...]string{"abuser", "alice", "bob"}

// A report has the decisions of a process since its last report. It is a line of JSON on
// stdout.
type report struct {
	Keys    [len(keys)]tally // as in keys
	Calls   uint64           // of Redis
	Cached  uint64           // denials that needed no call
	Slowest time.Duration    // the slowest decision
}

// A tally counts the decisions on one key.
type tally struct {
	Shared count // by the limit in Redis
	Local  count // degraded ones, by the fallback
}

type count struct{ Allowed, Denied int }

func (c *count) add(o count) { c.Allowed, c.Denied = c.Allowed+o.Allowed, c.Denied+o.Denied }

func (r *report) add(o report) {
	for k := range r.Keys {
		r.Keys[k].Shared.add(o.Keys[k].Shared)
		r.Keys[k].Local.add(o.Keys[k].Local)
	}
	r.Calls, r.Cached, r.Slowest = r.Calls+o.Calls, r.Cached+o.Cached, max(r.Slowest, o.Slowest)
}

// degraded returns how many decisions the fallbacks made.
func (r *report) degraded() (n int) {
	for _, t := range r.Keys {
		n += t.Local.Allowed + t.Local.Denied
	}
	return n
}

// newLimiter returns the limiter of one process of the fleet. It is the essential part of
// this example.
func newLimiter(client rueidis.Client, j job) (ratelimit.Limiter, *redisstore.Store, error) {
	store, err := redisrueidis.New(client, redisstore.WithPrefix(j.Prefix))
	if err != nil {
		return nil, nil, err
	}
	// While Redis is unavailable, each process uses its share of the limit.
	limit := ratelimit.TokenBucket{Rate: j.Rate}
	fallback, err := ratelimit.New(ratelimit.Share(limit, j.Processes))
	if err != nil {
		return nil, nil, err
	}
	limiter, err := ratelimit.New(limit,
		ratelimit.WithStore(store), ratelimit.WithName("api"),
		ratelimit.WithFailurePolicy(ratelimit.Fallback(fallback)))
	return limiter, store, err
}

// work is the job of a process of the fleet: it decides on requests, and writes a report
// for each line of in, until in is closed.
func work(j job, in io.Reader, out io.Writer) error {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{j.Redis}})
	if err != nil {
		return err
	}
	defer client.Close()
	limiter, store, err := newLimiter(client, j)
	if err != nil {
		return err
	}
	w := &worker{limiter: limiter}
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	for key, pace := range j.paces() {
		clients.Go(func() { w.client(ctx, key, pace) })
	}
	var before redisstore.Stats
	encoder := json.NewEncoder(out)
	for asked := bufio.NewScanner(in); asked.Scan(); {
		r, now := w.take(), store.Stats()
		r.Calls, r.Cached = now.Calls-before.Calls, now.Cached-before.Cached
		before = now
		if err := encoder.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// A pace is the rate of a client: batches of requests with a pause after each.
type pace struct {
	volley int
	pause  time.Duration
}

// paces returns the pace of the client of each key.
func (j job) paces() (paces [len(keys)]pace) {
	// This pace uses exactly the process's share of the limit, unless tickers are not
	// that precise.
	even := max(j.Rate.Per*time.Duration(j.Processes)/time.Duration(j.Rate.Events), 2*time.Millisecond)
	for key := range paces {
		paces[key] = pace{1, 2 * even}
	}
	paces[0] = pace{1, even / 2} // abuser
	if j.Process == 1 {
		// As many requests as could come over a network. Without a pause, the client
		// would occupy a CPU and slow down the decisions.
		paces[0] = pace{100, time.Millisecond}
	}
	return paces
}

// A worker counts the decisions of a limiter.
type worker struct {
	limiter ratelimit.Limiter

	mu  sync.Mutex // protects the fields below
	now report
}

// client sends requests with a key until ctx ends.
func (w *worker) client(ctx context.Context, key int, p pace) {
	ticker := time.NewTicker(p.pause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for range p.volley {
			w.ask(ctx, key)
		}
	}
}

// ask decides on a request. A service would respond with 200 or 429 here.
func (w *worker) ask(ctx context.Context, key int) {
	begin := time.Now()
	d, err := w.limiter.Take(ctx, keys[key], 1)
	took := time.Since(begin)
	if err != nil && !d.Degraded {
		return // ctx has ended
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.Slowest = max(w.now.Slowest, took)
	c := &w.now.Keys[key].Shared
	if d.Degraded {
		c = &w.now.Keys[key].Local
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
