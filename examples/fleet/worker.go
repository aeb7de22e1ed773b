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

// A report is what a process decided in a while: a line of JSON on its stdout.
type report struct {
	Keys    [len(keys)]tally // as in keys
	Calls   uint64           // of Redis
	Cached  uint64           // denials that needed no call
	Slowest time.Duration    // decision
}

// A tally is the decisions on one key.
type tally struct {
	Shared count // by the limit in Redis
	Local  count // by the fallback: these are degraded
}

type count struct{ Allowed, Denied int }

// newLimiter makes the limiter of one process of the fleet, which is all that this
// example is about.
func newLimiter(client rueidis.Client, j job) (ratelimit.Limiter, *redisstore.Store, error) {
	store, err := redisrueidis.New(client, redisstore.WithPrefix(j.Prefix))
	if err != nil {
		return nil, nil, err
	}
	// While Redis is away, each process has its share of the limit.
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

// work is what a process of the fleet does: it decides, and reports once for each
// line of in, until in ends.
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

// A pace is how a client asks: volleys of requests, one a pause.
type pace struct {
	volley int
	pause  time.Duration
}

// paces are those of the clients that have each key.
func (j job) paces() (paces [len(keys)]pace) {
	// This one would use up this process's share of the limit, unless no ticker is
	// that precise.
	even := max(j.Rate.Per*time.Duration(j.Processes)/time.Duration(j.Rate.Events), 2*time.Millisecond)
	for key := range paces {
		paces[key] = pace{1, 2 * even}
	}
	paces[0] = pace{1, even / 2} // abuser
	if j.Process == 1 {
		// As much as a network brings. Without a pause, it would take a core, and
		// the slowest decision would tell how busy the machine is.
		paces[0] = pace{100, time.Millisecond}
	}
	return paces
}

// A worker counts what a limiter decides.
type worker struct {
	limiter ratelimit.Limiter

	mu  sync.Mutex // protects all below
	now report
}

// client asks for a key again and again.
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

// ask is where a service would answer a request, with 200 or 429.
func (w *worker) ask(ctx context.Context, key int) {
	begin := time.Now()
	d, err := w.limiter.Take(ctx, keys[key], 1)
	took := time.Since(begin)
	if err != nil && !d.Degraded {
		return // the end of ctx
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

// take returns what was counted, and begins anew.
func (w *worker) take() (r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, w.now = w.now, report{}
	return r
}
