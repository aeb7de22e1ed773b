package browser

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/limitpage"
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
		assert.Equal(t, []string{"(no name)", `\u{202e}gnp.elif\u{2066}`, `a\u{a}b`, "שלום"}, names[4:8], "names cannot change the text around them")
		b.choose("#limiter", 3)
		b.do(chromedp.Click(chromedp.CSS("#form button")))
		b.until(`document.querySelector(".verdict")`)
		b.everywhere()
		for _, width := range []int64{1280, 320} {
			b.view(width, "light")
			b.until(fmt.Sprintf("innerWidth === %d", width))
			tall := eval[[]string](b, `[...document.querySelectorAll(".chart h3, #top th, #top td, #memory th, #memory td, #filter, .store h3")]
				.filter(e => e.getBoundingClientRect().height > 70).map(e => e.tagName + ": " + e.textContent.slice(0, 30))`)
			assert.Empty(t, tall, "%d pixels: names take two lines at most", width)
		}
	})

	t.Run("many limiters", func(t *testing.T) {
		s := newSite(t)
		for i := range 200 {
			s.add(t, fmt.Sprint("limiter ", i), ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
			s.limiters[fmt.Sprint("limiter ", i)].AllowN("k", 2)
		}
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll(".chart").length === 204`)
		b.choose("#filter", 204)
		b.until(`document.querySelectorAll("#top tbody tr").length === 1`)
		assert.Equal(t, "limiter 199", eval[string](b, `document.querySelector("#top .name span").textContent`))
		b.fits("many limiters")
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
		b.readable("print")
		b.fits("print")
		b.prints("--denied-fill")
	})

	t.Run("focus", func(t *testing.T) {
		s := newSite(t)
		s.limiters["api"].AllowN("k", 4)
		s.limiters["api"].Allow("k")
		b := open(t, browser, s.url)
		b.until(`document.querySelectorAll("#top tbody tr").length === 1`)
		b.view(1280, "light")
		var order []string
		for range 10 {
			b.do(chromedp.KeyEvent("\t"))
			order = append(order, eval[string](b, `(() => {
				const e = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(e);
				return (e.id || e.innerText.split("\n")[0]) + (outlineStyle === "none" || parseFloat(outlineWidth) < 2 ? ", which nobody sees" : "");
			})()`))
		}
		assert.Equal(t, []string{"pause", "1 minute", "5 minutes", "charts", "filter", "k", "limiter", "key", "Look up", "JSON"}, order)
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
		b.until(`document.querySelector("#heard").textContent.startsWith("denied k api: 5 per hour")`)
		assert.Equal(t, "h-look", eval[string](b, `document.activeElement.id`))
		b.do(chromedp.Focus(chromedp.CSS("#found .controls button")))
		eval[any](b, `document.activeElement.click()`)
		assert.Equal(t, "Give it its whole limit again", eval[string](b, `document.activeElement.textContent`))
		eval[any](b, `document.activeElement.click()`)
		b.until(`document.querySelector("#found .controls + .error").textContent === "It was reset."`)
		assert.Equal(t, "Reset this key", eval[string](b, `document.activeElement.textContent`))
		skipped := eval[[]string](b, `[...document.querySelectorAll("h1, h2, h3, h4")].filter(e => e.checkVisibility()).map(e => +e.tagName[1]).map((n, i, all) => n > (all[i - 1] || 0) + 1 ? "h" + n : "").filter(Boolean)`)
		assert.Empty(t, skipped, "no level of headings is left out")
	})
}
