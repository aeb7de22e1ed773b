package browser_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/limitpage"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// TestLive: how the page asks for reports, and what it shows while they change or fail.
func TestLive(t *testing.T) {
	t.Parallel()
	browser := start(t)
	const live = `document.querySelector("#status").textContent === "live"`

	t.Run("nobody asks for a page that is hidden", func(t *testing.T) {
		b := open(t, browser, newSite(t).url)
		b.until(live)
		eval[any](b, `(() => { // the test says when the time for the next report has come
			const { setTimeout, fetch } = window;
			window.setTimeout = (f, ms) => ms < 500 ? setTimeout(f, ms) : (window.next = f, 0);
			window.fetch = (...args) => { window.asked++; return fetch(...args); };
		})()`)
		b.until(`window.next`)
		hide := func(hidden bool) {
			eval[any](b, fmt.Sprintf(`(() => {
				window.asked = 0;
				Object.defineProperty(document, "hidden", { value: %t, configurable: true });
				document.dispatchEvent(new Event("visibilitychange"));
			})()`, hidden))
		}
		hide(true)
		eval[any](b, `(() => { window.next(); })()`)
		assert.Zero(t, eval[int](b, `window.asked`))
		hide(false)
		assert.Equal(t, 1, eval[int](b, `window.asked`), "and it asks at once when it is seen again")
	})

	t.Run("one at a time", func(t *testing.T) {
		b := open(t, browser, newSite(t).url)
		b.until(live)
		eval[any](b, `(() => {
			window.most = window.now = 0;
			const real = window.fetch;
			window.fetch = async (...args) => {
				window.most = Math.max(window.most, ++window.now);
				try { return await real(...args); } finally { window.now--; }
			};
			for (let i = 0; i < 5; i++) document.dispatchEvent(new Event("visibilitychange"));
		})()`)
		b.until(`window.most > 0 && window.now === 0`)
		assert.Equal(t, 1, eval[int](b, `window.most`))
	})

	// An operator who lacks the right, a proxy and a page that is not this one answer, too.
	for status, answer := range map[int]struct{ body, want string }{
		http.StatusTeapot:     {`{"error":"` + strings.Repeat("no ", 1000) + `"}`, strings.Repeat("no ", 66) + "no; trying again"},
		http.StatusForbidden:  {`{"error":"sign in first"}`, "sign in first; trying again"},
		http.StatusBadGateway: {"<h1>Bad Gateway</h1>", "error 502 Bad Gateway; trying again"},
		http.StatusOK:         {"<form>", "the answer is not JSON; trying again"},
		http.StatusAccepted:   {"{}", "the answer is not a report; trying again"},
	} {
		t.Run("answer "+strconv.Itoa(status), func(t *testing.T) {
			page := limitpage.New()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !r.URL.Query().Has("format") {
					page.ServeHTTP(w, r)
					return
				}
				w.WriteHeader(status)
				_, _ = w.Write([]byte(answer.body))
			}))
			t.Cleanup(server.Close)
			b := open(t, browser, server.URL)
			b.mayWrite = true
			b.until(fmt.Sprintf(`document.querySelector("#status").textContent === %q`, answer.want))
		})
	}

	t.Run("what a reset failed of stays", func(t *testing.T) {
		s := newSite(t)
		b := open(t, browser, s.url)
		b.mayWrite = true
		b.until(`document.querySelectorAll("#limiter option").length === 4`)
		b.choose("#limiter", 2) // in Redis, which is away
		b.do(chromedp.SendKeys(chromedp.CSS("#key"), "ann"), chromedp.Click(chromedp.CSS("#form button")))
		b.until(`document.querySelector("#found .controls")`)
		b.do(chromedp.Click(chromedp.CSS("#found .controls button:nth-child(1)")), chromedp.Click(chromedp.CSS("#found .controls button:nth-child(2)")))
		said := `document.querySelector("#found").innerText.includes("The key may not have been reset") &&
			document.querySelector("#found").innerText.includes("connection refused")`
		b.until(said)
		eval[any](b, `performance.clearResourceTimings()`)
		b.until(`performance.getEntriesByType("resource").length > 3`) // two reports, and looks at the key
		assert.True(t, eval[bool](b, said))
	})

	t.Run("the limiter that was chosen stays chosen", func(t *testing.T) {
		s := newSite(t)
		late, err := ratelimit.New(ratelimit.Blocked{}, ratelimit.WithName("late"), ratelimit.WithObserver(s.page.Observe))
		require.NoError(t, err)
		late.Allow("k") // is seen before it is added
		s.add(t, "last", ratelimit.Blocked{})
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll("#limiter option").length === 5`)
		b.choose("#limiter", 4)
		require.NoError(t, s.page.Add(late))
		b.until(`document.querySelectorAll("#limiter option").length === 6`)
		assert.Equal(t, "last", eval[string](b, `document.querySelector("#limiter").value`))
	})

	t.Run("another process has nothing of the first", func(t *testing.T) {
		var now atomic.Pointer[site]
		now.Store(newSite(t))
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { now.Load().page.ServeHTTP(w, r) }))
		t.Cleanup(server.Close)
		for range 5 {
			now.Load().limiters["api"].Allow("k")
		}
		b := open(t, browser, server.URL)
		b.until(`document.querySelector(".chart .big")?.textContent === "20.0\u00a0% denied"`)
		now.Store(newSite(t))
		b.until(`document.querySelector(".chart .big").textContent === "– denied" && document.querySelector("#keys").hidden`)
	})

	// A limiter that refuses what it cannot decide denies everything.
	t.Run("outage", func(t *testing.T) {
		store, err := redisstore.New(conn{})
		require.NoError(t, err)
		s := newSite(t)
		s.add(t, "closed", ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStore(store),
			ratelimit.WithFailureLog(nil), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		b := open(t, browser, s.url)
		for range 4 {
			s.limiters["closed"].Allow("k")
		}
		words := chart("closed") + `?.querySelector(".words").innerText`
		b.until(words + `?.includes("100.0\u00a0% denied or refused")`)
		assert.Contains(t, eval[string](b, words), "without the store, all refused")
		s.limiters["redis"].Allow("k")
		b.until(chart("redis") + `.innerText.includes("without the store, all granted")`)
		b.until(`document.querySelector("#tiles").innerText.includes("80.0\u00a0% refused")`)
		b.until(`document.querySelector("#redis .label").textContent.startsWith("No reply")`)
		b.everywhere()
	})

	// A click on a key hits that key, though the order changes each second.
	t.Run("keys keep their places", func(t *testing.T) {
		s := newSite(t)
		l := s.limiters["api"]
		deny := func(key string, n int) {
			l.AllowN(key, 4)
			for range n {
				l.Allow(key)
			}
		}
		deny("first", 6)
		deny("second", 3)
		b := open(t, browser, s.url)
		const shown = `[...document.querySelectorAll("#top tbody button")].map(e => e.textContent).join()`
		b.until(shown + ` === "first,second"`)
		b.do(chromedp.Focus(chromedp.CSS("#top tbody tr:nth-child(2) button")))
		deny("second", 20)
		deny("third", 40)
		b.until(shown + ` === "first,second,third"`)
		eval[any](b, `document.activeElement.blur()`)
		b.until(shown + ` === "third,second,first"`)
	})
}
