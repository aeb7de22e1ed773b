// Package browser_test tests the page of limitpage, and that of examples/replay, in a real browser:
// Chromium, without a window.
package browser_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/limitpage"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// hostile keys, and what the page shows of them.
var hostile = map[string]string{
	`<script>window.hacked = 1</script>`:         `<script>window.hacked = 1</script>`,
	`<img src=x onerror="window.hacked = 1">`:    `<img src=x onerror="window.hacked = 1">`,
	`"'` + "`${window.hacked = 1}`</td></table>": `"'` + "`${window.hacked = 1}`</td></table>",
	"\u202egnp.elif\u2066":                       `"\u202egnp.elif\u2066"`,
	"שלום עולם":                                  "שלום עולם",
	"a\xff\xfe\x00\r\n":                          `"a\xff\xfe\x00\r\n"`,
	strings.Repeat("W", 100):                     strings.Repeat("W", 100),
	"e" + strings.Repeat("\u0301", 60):           "e" + strings.Repeat("\u0301", 60),
	"":                                           "(empty)",
	"&lt;b&gt;{{.}}%s\\":                         "&lt;b&gt;{{.}}%s\\",
	"constructor":                                "constructor",
	"__proto__":                                  "__proto__",
}

// longKey has 10 kB, of which the page shows only the start.
var longKey = strings.Repeat("10kB", 2500)

// A conn is a connection to a Redis that is away.
type conn struct{}

func (conn) Do(_ context.Context, commands []redisstore.Command) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	for i := range replies {
		replies[i].Err = errors.New("connection refused")
	}
	return replies
}

func (conn) Server(string) (name string, known bool) { return "", true }
func (conn) OneServer() bool                         { return true }
func (conn) NoAnswer(string) error                   { return nil }
func (conn) Redial(context.Context, string)          {}

var oddName = `<b onclick="hacked = 1">` + strings.Repeat("long", 50)

// A site serves a page with its limiters.
type site struct {
	page     *limitpage.Page
	limiters map[string]ratelimit.Limiter
	away     atomic.Bool // whether it answers nothing
	url      string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := newEmptySite(t)
	redis, err := redisstore.New(conn{})
	require.NoError(t, err)
	s.add(t, "api", ratelimit.TokenBucket{Rate: ratelimit.PerHour(5), Burst: 4})
	s.add(t, "login", ratelimit.All{ratelimit.SlidingWindow{Limit: 5, Window: time.Minute}, ratelimit.FixedWindow{Limit: 1000, Window: 24 * time.Hour}})
	s.add(t, "redis", ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStore(redis), ratelimit.WithFailureLog(nil))
	s.add(t, oddName, ratelimit.Blocked{})
	return s
}

func newEmptySite(t *testing.T) *site {
	t.Helper()
	s := &site{page: limitpage.New(limitpage.WithReset()), limiters: map[string]ratelimit.Limiter{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.away.Load() {
			panic(http.ErrAbortHandler)
		}
		s.page.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL + "/debug/ratelimit/"
	return s
}

func (s *site) add(t *testing.T, name string, alg ratelimit.Algorithm, opts ...ratelimit.Option) {
	t.Helper()
	l, err := ratelimit.New(alg, append([]ratelimit.Option{ratelimit.WithName(name), ratelimit.WithObserver(s.page.Observe)}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, s.page.Add(l))
	s.limiters[name] = l
}

func TestLimitPage(t *testing.T) {
	t.Parallel()
	browser := start(t)

	t.Run("values move", func(t *testing.T) {
		s := newSite(t)
		b := open(t, browser, s.url)
		b.until(`document.querySelector("#status").textContent === "live" && document.querySelectorAll(".chart").length === 4`)
		b.until(`document.querySelector(".chart .big").textContent === "– denied"`)
		for range 8 {
			s.limiters["api"].Allow("203.0.113.7")
		}
		s.limiters["redis"].Allow("k")
		b.until(`document.querySelector(".chart .big").textContent === "50.0\u00a0% denied"`)
		b.until(`document.querySelectorAll("#top tbody tr").length === 1 && document.querySelector("#top .share span").textContent === "4"`)
		assert.Equal(t, "203.0.113.7", eval[string](b, `document.querySelector("#top tbody button").textContent`))
		assert.Equal(t, "1 key", eval[string](b, `document.querySelector(".chart .held").textContent`)[:5])
		for _, color := range []string{"--granted-fill", "--denied-fill"} {
			b.hasColor(".chart:nth-child(1) canvas", color)
		}
		b.hasColor(".chart:nth-child(2) canvas", "--degraded-fill")
		b.until(`document.querySelector("#redis .error").textContent === "1 decision without Redis: 1 with another error."`)
		for range 4 {
			s.limiters["api"].Allow("203.0.113.7")
		}
		b.until(`document.querySelector(".chart .big").textContent === "66.7\u00a0% denied"`)
		b.do(chromedp.Click(chromedp.CSS("#pause")))
		b.until(`document.querySelector("#status").textContent === "paused"`)
	})

	t.Run("hostile keys are text", func(t *testing.T) {
		s := newSite(t)
		l := s.limiters["api"]
		var want []string
		for key, shown := range hostile {
			l.AllowN(key, 4)
			l.Allow(key)
			want = append(want, shown)
		}
		l.AllowN(longKey, 4)
		l.Allow(longKey)
		s.limiters[oddName].Allow("<i>")
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll("#top tbody tr").length === 12`)
		b.look("api")
		b.do(chromedp.Click(chromedp.CSS("#morekeys")))
		b.until(fmt.Sprintf(`document.querySelectorAll("#top tbody tr").length === %d`, len(hostile)+1))
		assert.ElementsMatch(t, want, eval[[]string](b, `[...document.querySelectorAll("#top tbody button:enabled")].map(e => e.textContent)`))
		assert.Regexp(t, `^(10kB)+.*… \(only the start of this long key is kept\)$`,
			eval[string](b, `document.querySelector("#top tbody button:disabled").textContent`))
		assert.Zero(t, eval[int](b, `document.querySelectorAll("#top script, #top img, #top b, #charts b, main script").length`))
		assert.False(t, eval[bool](b, `"hacked" in window`))
		b.view(1280, "light")
		b.until("innerWidth === 1280")
		rows := `[...document.querySelectorAll("#top tbody tr")].map(e => e.getBoundingClientRect())`
		assert.True(t, eval[bool](b, rows+`.every((r, i, all) => r.height < 80 && (i === 0 || r.top >= all[i - 1].bottom - 1))`), "no key reaches into the rows of others")

		// Each of them can be looked up.
		var filled []string
		for i := range len(hostile) {
			eval[any](b, fmt.Sprintf(`(() => {
				document.querySelector("#found").replaceChildren();
				document.querySelectorAll("#top tbody button:enabled")[%d].click();
			})()`, i))
			b.until(`document.querySelector(".verdict b")?.textContent === "denied"`)
			filled = append(filled, eval[string](b, `document.querySelector("#key").value`))
		}
		assert.NotContains(t, filled, `"\u202egnp.elif\u2066"`, "a quoted key is not that key")
		assert.NotContains(t, filled, `"a\xff\xfe\x00\r\n"`)
		assert.Contains(t, filled, "constructor", "a key shown as it is can be changed and looked up")
		b.everywhere()
	})

	t.Run("keys are looked up and reset", func(t *testing.T) {
		s := newSite(t)
		l := s.limiters["api"]
		l.AllowN("ann", 4)
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll("#limiter option").length === 4`)
		b.do(chromedp.SendKeys(chromedp.CSS("#key"), "ann"), chromedp.Click(chromedp.CSS("#form button")))
		b.until(`document.querySelector(".verdict b")?.textContent === "denied"`)
		assert.Contains(t, eval[string](b, `document.querySelector("#found dl").innerText`), "Remaining\n0\nRetryAfter\n")
		assert.Regexp(t, `^now: none is granted\nin 11 min \d+ s: 1 is granted\nin 47 min \d+ s: it is like an unused key: 4 at once$`,
			eval[string](b, `document.querySelector(".steps").innerText`))
		b.everywhere()
		b.do(chromedp.Click(chromedp.CSS("#found .controls button:nth-child(1)")), chromedp.Click(chromedp.CSS("#found .controls button:nth-child(2)")))
		b.until(`document.querySelector(".verdict b").textContent === "granted"`)
		assert.True(t, l.AllowN("ann", 4))
		b.until(`document.querySelector(".verdict b").textContent === "denied"`) // the page looks again
		eval[any](b, `document.querySelector("#limiter").value = "redis"`)
		b.do(chromedp.Click(chromedp.CSS("#form button")))
		b.until(`document.querySelector("#found .error")?.textContent.includes("connection refused")`)
		assert.Equal(t, s.url, eval[string](b, `location.href`), "the form does not leave the page")
	})

	t.Run("no limit is a word", func(t *testing.T) {
		s := newSite(t)
		s.add(t, "free", ratelimit.Unlimited{})
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll("#limiter option").length === 5`)
		b.choose("#limiter", 4)
		b.do(chromedp.Click(chromedp.CSS("#form button")))
		b.until(`document.querySelector(".steps")?.innerText.startsWith("now: any number is granted")`)
		assert.Contains(t, eval[string](b, `document.querySelector("#found dl").innerText`), "Limit\nany number\nRemaining\nany number\n")
	})

	t.Run("other scripts do not run", func(t *testing.T) {
		b := open(t, browser, newSite(t).url)
		b.mayWrite = true
		assert.Contains(t, eval[string](b, `(() => { try { document.body.innerHTML = "<p>"; return "no error"; } catch (e) { return e.message; } })()`), "TrustedHTML")
	})

	t.Run("it goes on when the server is back", func(t *testing.T) {
		s := newSite(t)
		b := open(t, browser, s.url)
		b.mayWrite = true
		b.until(`document.querySelector("#status").textContent === "live"`)
		s.away.Store(true)
		b.until(`/^no answer since \d\d:\d\d:\d\d; trying again$/.test(document.querySelector("#status").textContent)`)
		eval[any](b, `scrollTo(0, document.body.scrollHeight)`)
		assert.True(t, eval[bool](b, `(() => {
			const box = document.querySelector("#status").getBoundingClientRect();
			return box.top >= 0 && box.bottom <= innerHeight;
		})()`), "it is seen at the end of the page")
		b.everywhere()
		s.away.Store(false)
		b.until(`document.querySelector("#status").textContent === "live"`)
	})
}
