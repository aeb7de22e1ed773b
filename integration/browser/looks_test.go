package browser_test

import (
	"fmt"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/limitpage"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// TestLooks: what people see of a page with nothing to show, of long and odd names, on paper, and
// with a keyboard.
func TestLooks(t *testing.T) {
	t.Parallel()
	browser := start(t)

	t.Run("no limiter", func(t *testing.T) {
		server := httptest.NewServer(limitpage.New())
		t.Cleanup(server.Close)
		b := open(t, browser, server.URL)
		b.until(`document.querySelector("#status").textContent === "live"`)
		text := eval[string](b, `document.querySelector("main").innerText`)
		assert.Contains(t, text, "No limiter yet.")
		assert.NotContains(t, text, "1 seconds")
		assert.NotContains(t, text, "Look up", "nothing can be looked up")
		assert.NotContains(t, text, "0 bytes")
		b.everywhere()
	})

	t.Run("names", func(t *testing.T) {
		s := newSite(t)
		for _, name := range []string{"", "\u202egnp.elif\u2066", "a\nb", "שלום", strings.Repeat("W", 200)} {
			s.add(t, name, ratelimit.TokenBucket{Rate: ratelimit.PerHour(5), Burst: 1})
			s.limiters[name].AllowN("user:ann@example.com/tenant/12345", 1)
			s.limiters[name].Allow("user:ann@example.com/tenant/12345")
		}
		s.limiters[oddName].Allow("k")
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll(".chart").length === 9 && document.querySelectorAll("#top tbody tr").length === 6`)
		names := eval[[]string](b, `[...document.querySelectorAll(".chart h3")].map(e => e.textContent)`)
		assert.Subset(t, names, []string{"(no name)", `\u{202e}gnp.elif\u{2066}`, `a\u{a}b`, "שלום"}, "names cannot change the text around them")
		b.choose("#limiter", 3)
		b.do(chromedp.Click(chromedp.CSS("#form button")))
		b.until(`document.querySelector(".verdict")`)
		b.everywhere()
		for _, width := range []int64{1280, 320} {
			b.view(width, "light")
			b.until(fmt.Sprintf("innerWidth === %d", width))
			tall := eval[[]string](b, `[...document.querySelectorAll(".chart h3, #top th, #top td, #used th, #used td, #memory th, #memory td, .store h3, .name span, .name small")]
				.filter(e => e.getBoundingClientRect().height > (e.matches("#top tr *, #used tr *") ? 110 : 70)).map(e => e.tagName + ": " + e.textContent.slice(0, 30))`)
			assert.Empty(t, tall, "%d pixels: names take two lines at most", width)
		}
	})

	// Who is denied, since when, by what and what fails is seen at once, however many limiters
	// there are, and in whatever order they were added.
	for _, n := range []int{1, 5, 200} {
		t.Run(fmt.Sprintf("an incident with %d limiters", n), func(t *testing.T) {
			s := newEmptySite(t)
			redis, err := redisstore.New(conn{})
			require.NoError(t, err)
			limit := ratelimit.All{ratelimit.FixedWindow{Limit: 9000, Window: time.Hour}, ratelimit.FixedWindow{Limit: 2000, Window: 40 * 24 * time.Hour}}
			for i := range n {
				name, store := fmt.Sprint("limiter ", i), ratelimit.Store(new(ratelimit.MemoryStore))
				if i == 0 && n > 1 {
					store = redis
				}
				s.add(t, name, limit, ratelimit.WithStore(store), ratelimit.WithFailureLog(nil))
				l := s.limiters[name]
				l.AllowN("a customer", 998)
				for range 3 { // 3 of 300 are denied
					l.AllowN(fmt.Sprint("customer of ", name), 2001)
				}
				for i := range 296 {
					l.Allow(fmt.Sprint(i))
				}
			}
			worst := s.limiters[fmt.Sprint("limiter ", n-1)]
			for range 7000 {
				worst.AllowN("203.0.113.7", 2001)
			}
			b := open(t, browser, s.url)
			b.view(1280, "light")
			b.until(`innerWidth === 1280 && document.querySelector("#top tbody tr .share span")?.textContent.startsWith("6,")`)
			b.until(`document.querySelector(".chart .big").className === "big most"`)
			assert.True(t, eval[bool](b, `(() => { const pill = document.querySelector(".chart .big"); return pill.getBoundingClientRect().left >= pill.parentElement.getBoundingClientRect().left; })()`), "it does not stick out")
			assert.Less(t, eval[float64](b, `document.querySelector("#top tbody tr").getBoundingClientRect().bottom`), 900.0, "without scrolling")
			row := eval[string](b, `document.querySelector("#top tbody tr").innerText.replace(/\s+/g, " ")`)
			assert.Regexp(t, fmt.Sprintf(`^203\.0\.113\.7 limiter %d 2,000 in each 40d; asked for 2,001 6,\d+ \d\d:\d\d:\d\d (now|\d+ s ago) never$`, n-1), row)
			assert.Regexp(t, fmt.Sprintf(`^limiter %d 9,000 in each hour, and 2,000 in each 40d 9\d\.\d %% denied .* denied lately mostly by: 2,000 in each 40d$`, n-1),
				eval[string](b, `document.querySelector(".chart .words").innerText.replace(/\s+/g, " ")`))
			assert.Equal(t, min(n, 10), eval[int](b, `document.querySelectorAll(".chart").length`))
			assert.Equal(t, n <= 10, eval[bool](b, `!document.querySelector("#morelimiters").checkVisibility()`))
			assert.Less(t, eval[float64](b, `document.body.scrollHeight`), 5000.0)
			assert.Equal(t, n > 1, eval[bool](b, `document.querySelector("#outages").checkVisibility()`))
			b.everywhere()
			if n == 1 {
				return
			}
			assert.Equal(t, "big some", eval[string](b, `document.querySelector(".chart:nth-child(2) .big").className`), "1 % is not as bad")
			assert.Regexp(t, `^Redis has failed since \d\d:\d\d:\d\d connection refused limiter 0: 300 decisions without it in the last minutes, all granted$`,
				eval[string](b, `document.querySelector("#outages").innerText.replace(/\s+/g, " ")`))
			b.look("LIMITER 3")
			assert.Equal(t, map[bool]int{true: 1, false: 10}[n == 5], eval[int](b, `document.querySelectorAll(".chart").length`))
			other := fmt.Sprint("limiter ", n-2) // no other name begins with it
			b.look("customer of " + other)
			assert.Equal(t, other, eval[string](b, `document.querySelector(".chart h3").textContent`), "of which it is a key")
			assert.Equal(t, "customer of "+other, eval[string](b, `document.querySelector("#top tbody button").textContent`))
			b.look("nobody")
			assert.Contains(t, eval[string](b, `document.querySelector("main").innerText`), "No key that fits was denied lately.")
			b.look("")
			if n == 200 {
				eval[any](b, `document.querySelector("#morelimiters").click()`)
				assert.Equal(t, n, eval[int](b, `document.querySelectorAll(".chart").length`))
				b.fits("all limiters")
			}
		})
	}

	// Who uses most is seen beside who is denied most, and is looked up in the same way.
	t.Run("keys that use most", func(t *testing.T) {
		s := newSite(t)
		s.add(t, "free", ratelimit.Unlimited{})
		for i := range 8 {
			s.limiters["free"].AllowN(fmt.Sprint("customer ", i), 1000-100*i)
		}
		s.limiters["api"].AllowN("ann", 4)
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll("#used tbody tr").length === 6`)
		assert.Regexp(t, `^customer 0 free unlimited (1,000|9\d\d) \d\d:\d\d:\d\d (now|\d+ s ago)$`, eval[string](b, `document.querySelector("#used tbody tr").innerText.replace(/\s+/g, " ")`))
		assert.Equal(t, "No key was denied lately.", eval[string](b, `document.querySelector("#nokeys").innerText`))
		b.do(chromedp.Click(chromedp.CSS("#moreusedkeys")))
		assert.Equal(t, 9, eval[int](b, `document.querySelectorAll("#used tbody tr").length`))
		b.everywhere()
		b.look("ann")
		assert.Equal(t, []string{"ann"}, eval[[]string](b, `[...document.querySelectorAll("#used tbody button")].map(e => e.textContent)`))
		eval[any](b, `document.querySelector("#used tbody button").click()`)
		b.until(`document.querySelector(".verdict b")?.textContent === "denied" && document.querySelector("#key").value === "ann"`)
		b.look("nobody")
		assert.Equal(t, "No key that fits has used anything lately.", eval[string](b, `document.querySelector("#nousedkeys").innerText`))
	})

	// No count sticks out of its cell.
	t.Run("great counts", func(t *testing.T) {
		s := newEmptySite(t)
		s.add(t, "bytes", ratelimit.Unlimited{})
		for _, n := range []int{640_000, 64_000_000, 64_000_000_000_000, 1 << 62} {
			s.limiters["bytes"].AllowN(fmt.Sprint("disk ", n), n)
		}
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll("#used tbody tr").length === 4`)
		counts := eval[[]string](b, `[...document.querySelectorAll("#used .share span")].map(e => e.textContent)`)
		for i, want := range []string{`^4\.\d\d?E$`, `^6\d(\.\d)?T$`, `^6\d(\.\d)?M$`, `^6\d\d,\d{3}$`} {
			assert.Regexp(t, want, counts[i])
		}
		b.everywhere()
	})

	// The columns of a table have one name each, however wide the screen is.
	t.Run("labels of stores", func(t *testing.T) {
		b := open(t, browser, newSite(t).url)
		b.until(`document.querySelectorAll("#memory tbody tr").length === 3`)
		assert.Equal(t, eval[[]string](b, `[...document.querySelectorAll("#memory thead th")].slice(1).map(e => e.textContent.trim())`),
			eval[[]string](b, `[...document.querySelectorAll("#memory tbody tr:first-child td")].map(e => e.dataset.label)`))
	})

	t.Run("locked", func(t *testing.T) {
		s := newEmptySite(t)
		s.add(t, "logins", ratelimit.Lockout{Limit: 2, Window: time.Hour, First: time.Hour})
		s.limiters["logins"].AllowN("ann", 2)
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll("#limiter option").length === 1`)
		b.do(chromedp.SendKeys(chromedp.CSS("#key"), "ann"), chromedp.Click(chromedp.CSS("#form button")))
		b.until(`/^locked until (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d$/.test(document.querySelector(".verdict b")?.textContent)`)
		b.everywhere()
	})

	// The plots show as many seconds as the viewer has chosen, however young the data is.
	t.Run("time shown", func(t *testing.T) {
		s := newSite(t)
		s.limiters["api"].Allow("k")
		b := open(t, browser, s.url)
		b.hasColor(".chart canvas", "--granted-fill")
		rates := func(position float64) string { // what is said while the pointer is on that part of the plot
			return eval[string](b, fmt.Sprintf(`(() => {
				const canvas = document.querySelector(".chart canvas"), box = canvas.getBoundingClientRect();
				canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 46 + %v * (box.width - 56), clientY: box.top + 9 }));
				return document.querySelector(".chart .rates").textContent.slice(0, 8);
			})()`, position))
		}
		for option, seconds := range []float64{60, 300} {
			eval[any](b, fmt.Sprintf(`document.querySelector("#ranges").children[%d].click()`, option))
			first, err := time.Parse(time.TimeOnly, rates(0.001))
			require.NoError(t, err)
			last, err := time.Parse(time.TimeOnly, rates(0.999))
			require.NoError(t, err)
			shown := last.Sub(first)
			if shown < 0 {
				shown += 24 * time.Hour // across midnight
			}
			assert.InDelta(t, seconds-1, shown.Seconds(), 1)
		}
	})

	// The worst is not called harmless because a retry would be granted.
	t.Run("keeps asking", func(t *testing.T) {
		s := newEmptySite(t)
		s.add(t, "api", ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1, Per: time.Millisecond}})
		s.limiters["api"].AllowN("k", 1)
		b := open(t, browser, s.url)
		b.until(`document.querySelector(".chart")`)
		for range 1000 {
			s.limiters["api"].Allow("k")
		}
		b.until(`document.querySelector("#top tbody td:last-child")?.innerText === "keeps asking"`)
		s.limiters["api"].AllowN("k", 2)
		b.until(`document.querySelector("#top tbody td:last-child").innerText === "never"`)
	})

	t.Run("contrast of what is drawn", func(t *testing.T) {
		b := open(t, browser, newSite(t).url)
		for _, scheme := range []string{"light", "dark"} {
			b.view(1280, scheme)
			b.drawn(scheme, "--granted-fill", "--denied-fill", "--degraded-fill", "--edge")
		}
	})

	t.Run("on paper", func(t *testing.T) {
		s := newSite(t)
		for range 8 {
			s.limiters["api"].Allow("k")
		}
		b := open(t, browser, s.url)
		b.view(800, "dark")
		b.hasColor(".chart canvas", "--denied-fill")
		b.do(chromedp.Click(chromedp.CSS("#pause"))) // so that no report makes the page draw
		dark := eval[string](b, `getComputedStyle(document.body).color`)
		b.media("print", "dark")
		b.until(`getComputedStyle(document.body).color !== "` + dark + `"`)
		assert.False(t, eval[bool](b, `document.querySelector("#pause").checkVisibility() || document.querySelector("#form").checkVisibility()`))
		assert.Regexp(t, ` as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`, eval[string](b, `document.querySelector("#lead").innerText`))
		b.readable("print")
		b.fits("print")
		b.prints("--denied-fill")
	})

	// The heading, the plots and the lists show times of one zone, and say which.
	t.Run("zone", func(t *testing.T) {
		s := newSite(t)
		for range 8 {
			s.limiters["api"].Allow("k")
		}
		b := open(t, browser, s.url)
		for zone, named := range map[string]string{"Asia/Kolkata": "UTC+5:30", "America/Lima": "UTC-5", "UTC": "UTC"} {
			_, err := chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: zone})
			require.NoError(t, err)
			b.until(fmt.Sprintf(`document.querySelector("#zone")?.textContent === %q`, named))
			assert.Regexp(t, ` as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d `+regexp.QuoteMeta(named)+`$`, eval[string](b, `document.querySelector("#lead").innerText`))
			assert.Contains(t, eval[string](b, `document.querySelector("#plots").innerText.replace(/\s+/g, " ")`), "Times are in "+named+", the time zone of your browser.")
		}
	})

	// A store that nobody asked for is no mystery.
	t.Run("stores", func(t *testing.T) {
		tile := `document.querySelector("#tiles li:nth-child(3)")?.innerText.replace(/\s+/g, " ")`
		bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(5)}
		shared, others := new(ratelimit.MemoryStore), new(ratelimit.MemoryStore)
		s := newEmptySite(t)
		b := open(t, browser, s.url)
		for _, step := range []struct {
			limiter string
			store   *ratelimit.MemoryStore
			want    string
		}{
			{"a", nil, "1 store of one limiter"},
			{"b", nil, "2 stores of one limiter each"},
			{"c", shared, "3 stores of one limiter each"},
			{"d", shared, "3 stores, 2 of one limiter each"},
			{"e", others, "4 stores, 3 of one limiter each"},
		} {
			if step.store == nil {
				s.add(t, step.limiter, bucket)
			} else {
				s.add(t, step.limiter, bucket, ratelimit.WithStore(step.store))
			}
			b.until(tile + `.endsWith(" in ` + step.want + `")`)
		}
		assert.Contains(t, eval[string](b, `document.querySelector("#stores").innerText`), "A limiter without WithStore has a store of its own in memory.")
	})

	t.Run("focus", func(t *testing.T) {
		s := newSite(t)
		s.limiters["api"].AllowN("k", 4)
		s.limiters["api"].Allow("k")
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll("#top tbody tr").length === 1`)
		b.view(1280, "light")
		var order []string
		for range 11 {
			b.do(chromedp.KeyEvent("\t"))
			order = append(order, eval[string](b, `(() => {
				const e = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(e);
				return (e.id || e.innerText.split("\n")[0]) + (outlineStyle === "none" || parseFloat(outlineWidth) < 2 ? ", which nobody sees" : "");
			})()`))
		}
		assert.Equal(t, []string{"find", "pause", "k", "k", "limiter", "key", "Look up", "1 minute", "5 minutes", "charts", "The same data as JSON"}, order)
	})

	t.Run("by keyboard", func(t *testing.T) {
		s := newSite(t)
		l := s.limiters["api"]
		for range 8 {
			l.Allow("k")
		}
		b := open(t, browser, s.url)
		b.until(`document.querySelector(".chart .big")?.textContent === "50.0\u00a0% denied"`)
		b.do(chromedp.Click(chromedp.CSS("#pause"))) // so that no second is added meanwhile
		const rates = `document.querySelector(".chart .rates").textContent`
		press := func(key string) {
			eval[any](b, fmt.Sprintf(`document.querySelector("#charts").dispatchEvent(new KeyboardEvent("keydown", { key: %q }))`, key))
		}
		b.do(chromedp.Focus(chromedp.CSS("#charts")))
		assert.Equal(t, "charts", eval[string](b, `document.activeElement.id`))
		press("End")
		at := eval[string](b, rates)
		assert.Regexp(t, `^\d\d:\d\d:\d\d · `, at)
		press("ArrowLeft")
		press("ArrowRight")
		assert.Equal(t, at, eval[string](b, rates))
		press("Escape")
		assert.NotRegexp(t, `^\d\d:\d\d:\d\d · `, eval[string](b, rates))

		// The focus goes where the key is looked up, and screen readers hear what came of it, once.
		b.do(chromedp.Focus(chromedp.CSS("#top tbody button")))
		eval[any](b, `document.activeElement.click()`)
		b.until(`document.querySelector("#heard").textContent.startsWith("denied k api: 5/h, burst 4")`)
		assert.Equal(t, "h-look", eval[string](b, `document.activeElement.id`))
		b.do(chromedp.Focus(chromedp.CSS("#found .controls button")))
		eval[any](b, `document.activeElement.click()`)
		assert.Equal(t, "Give it its whole limit again", eval[string](b, `document.activeElement.textContent`))
		eval[any](b, `document.activeElement.click()`)
		b.until(`document.querySelector("#found .controls + .error").textContent === "The key was reset."`)
		assert.Equal(t, "Reset this key", eval[string](b, `document.activeElement.textContent`))
		skipped := eval[[]string](b, `[...document.querySelectorAll("h1, h2, h3, h4")].filter(e => e.checkVisibility()).map(e => +e.tagName[1]).map((n, i, all) => n > (all[i - 1] || 0) + 1 ? "h" + n : "").filter(Boolean)`)
		assert.Empty(t, skipped, "no level of headings is left out")
	})
}
