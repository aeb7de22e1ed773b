package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A crowd has all clients of a run.
type crowd struct {
	clock *fastClock
	base  string // the server's URL
	seed  uint64
	from  time.Time // when the traffic begins and
	span  time.Duration
	dial  func(addr string) http.RoundTripper // connections from that address
}

// run starts the clients and waits until all of them have stopped, when span is over. It
// returns the first error of a client's request.
func (c crowd) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var wg sync.WaitGroup
	join := func(addr, agent string, behave func(*client)) {
		cl := &client{
			crowd: c,
			ctx:   ctx,
			fail:  fail,
			agent: agent,
			rand:  rand.New(rand.NewPCG(c.seed, hash(addr))),
			http:  &http.Client{Transport: c.dial(addr)},
		}
		wg.Go(func() {
			behave(cl)
			cl.http.CloseIdleConnections()
		})
	}

	for i := range 36 {
		join(fmt.Sprintf("127.0.0.%d", 10+3*i), browsers[i%len(browsers)], (*client).visit)
	}
	for i := range 8 {
		join(fmt.Sprintf("127.0.3.%d", 0x10+7*i), browsers[i%len(browsers)], (*client).visit)
	}
	for i := range 3 {
		join(fmt.Sprintf("127.0.1.%d", 21+i), "ShopSync/4.2 (Android 15)", (*client).sync)
	}
	join("127.0.1.77", "python-requests/2.32.3", (*client).export)
	join("127.0.1.200", "curl/8.12.1", (*client).monitor)
	join("127.0.3.5", "Mozilla/5.0 (compatible; ExampleBot/2.1; +https://bot.example/)", (*client).crawl)
	join("127.0.2.66", "Go-http-client/1.1", (*client).scrape)
	join("127.0.2.140", "Mozilla/5.0 (Windows NT 10.0)", (*client).guess)

	c.clock.sleepUntil(ctx, c.from.Add(c.span))
	err := context.Cause(ctx) // nil if the time is over and no request failed
	fail(nil)                 // stops clients that are still waiting
	wg.Wait()
	return err
}

func hash(s string) (h uint64) {
	for i := range len(s) {
		h = h*1099511628211 + uint64(s[i])
	}
	return h
}

var browsers = []string{
	"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
	"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Safari/605.1.15",
	"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
	"Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Mobile/15E148 Safari/604.1",
}

// A client is an address that makes requests. Its methods without parameters below are
// kinds of behaviour. Each returns when the crowd's time is over.
type client struct {
	crowd
	ctx   context.Context // ends when the crowd stops
	fail  context.CancelCauseFunc
	agent string
	rand  *rand.Rand // used by behave's own goroutine only
	http  *http.Client
}

// visit is a person who from time to time reads a few pages. There are more visits in the
// quarter of an hour after a newsletter.
func (c *client) visit() {
	newsletter := c.from.Add(c.span / 6)
	c.pause(0, c.span/3)
	for c.alive() {
		if now := c.clock.now(); now.Before(newsletter) && c.rand.IntN(2) == 0 {
			c.clock.sleepUntil(c.ctx, newsletter)
			c.pause(0, 12*time.Minute)
		}
		for range 2 + c.rand.IntN(5) {
			page := fmt.Sprintf("/products/%d", 1+c.rand.IntN(400))
			if c.rand.IntN(4) == 0 {
				page = fmt.Sprintf("/search?q=item+%d", c.rand.IntN(90))
			}
			c.get(page, "-")
			c.parallel(3+c.rand.IntN(6), 4, func(i int) {
				c.get(fmt.Sprintf("/static/%s", parts[i%len(parts)]), page)
			})
			if !c.pause(6*time.Second, 50*time.Second) {
				return
			}
		}
		c.pause(4*time.Minute, 22*time.Minute)
	}
}

var parts = []string{"style.css", "shop.js", "logo.svg", "cart.js", "hero.webp", "fonts/text.woff2", "icons.svg", "tile.webp"}

// sync is an app that every few minutes fetches all changes at once.
func (c *client) sync() {
	c.pause(0, 4*time.Minute)
	for c.alive() {
		n := 50 + c.rand.IntN(60)
		first := c.rand.IntN(5000)
		c.parallel(n, 6, func(i int) { c.get(fmt.Sprintf("/api/items/%d", first+i), "-") })
		c.pause(4*time.Minute, 9*time.Minute)
	}
}

// export is a job that a scheduler starts every five minutes. It begins a little before
// the full minute and ends a little after it, so that it spans two windows of a limit.
func (c *client) export() {
	const every = 5 * time.Minute
	for next := c.from.Add(every - 5*time.Second); c.clock.sleepUntil(c.ctx, next); next = next.Add(every) {
		for i := range 110 {
			c.get(fmt.Sprintf("/api/export?page=%d", i+1), "-")
			if !c.pause(20*time.Millisecond, 60*time.Millisecond) {
				return
			}
		}
	}
}

// monitor checks every half minute whether the site is up.
func (c *client) monitor() {
	for c.alive() {
		c.get("/healthz", "-")
		c.pause(30*time.Second, 0)
	}
}

// crawl is a search engine's crawler that waits between pages.
func (c *client) crawl() {
	for c.alive() {
		c.get(fmt.Sprintf("/products/%d", 1+c.rand.IntN(4000)), "-")
		c.pause(3*time.Second, 7*time.Second)
	}
}

// scrape copies the catalogue as fast as possible: for a quarter of the time, it sends
// several requests at once without a pause.
func (c *client) scrape() {
	c.clock.sleepUntil(c.ctx, c.from.Add(c.span*7/20))
	end := c.from.Add(c.span * 12 / 20)
	c.parallel(4, 4, func(lane int) {
		for n := lane; c.alive() && c.clock.now().Before(end); n += 4 {
			c.get(fmt.Sprintf("/products/%d", 1+n), "-")
			c.pause(900*time.Millisecond, 0)
		}
	})
}

// guess tries passwords, a little faster than a limit should allow.
func (c *client) guess() {
	c.clock.sleepUntil(c.ctx, c.from.Add(c.span*14/20))
	for end := c.from.Add(c.span * 18 / 20); c.alive() && c.clock.now().Before(end); {
		c.do(http.MethodPost, "/login", "/login")
		c.pause(300*time.Millisecond, 600*time.Millisecond)
	}
}

// alive reports whether the crowd's time is not over.
func (c *client) alive() bool {
	return c.ctx.Err() == nil && c.clock.now().Before(c.from.Add(c.span))
}

// pause waits for a random time from least to most, or for least if most is not greater.
// It returns false if the crowd stopped first.
func (c *client) pause(least, most time.Duration) bool {
	d := least
	if most > least {
		d += time.Duration(c.rand.Int64N(int64(most - least)))
	}
	return c.clock.sleep(c.ctx, d)
}

// parallel calls f(0) to f(n-1) from the given number of goroutines.
func (c *client) parallel(n, lanes int, f func(i int)) {
	jobs := make(chan int)
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			for i := range jobs {
				f(i)
			}
		})
	}
	for i := range n {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
}

func (c *client) get(path, referer string) { c.do(http.MethodGet, path, referer) }

// do makes one request. An error ends the run, except when the crowd stops during the
// request.
func (c *client) do(method, path, referer string) {
	if !c.alive() {
		return
	}
	req, err := http.NewRequestWithContext(c.ctx, method, c.base+path, nil)
	if err != nil {
		panic(err) // paths are made above
	}
	req.Header.Set("User-Agent", c.agent)
	if strings.HasPrefix(referer, "/") {
		req.Header.Set("Referer", "https://shop.example"+referer)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if c.ctx.Err() == nil {
			c.fail(err)
		}
		return
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}
