package browser_test

import (
	"context"
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

// TestLooks: what people see of a page with nothing to show, of long and odd names, in an incident,
// on paper, and with a keyboard. The functions below each open a page in a tab of one browser.
func TestLooks(t *testing.T) {
	t.Parallel()
	browser := start(t)
	for _, look := range []struct {
		name  string
		check func(t *testing.T, browser context.Context)
	}{
		{"no limiter", looksWithNoLimiter},
		{"names", looksOfNames},
		{"an incident with 1 limiters", looksInAnIncident(1)},
		{"an incident with 5 limiters", looksInAnIncident(5)},
		{"an incident with 200 limiters", looksInAnIncident(200)},
		{"keys that use most", looksOfKeysThatUseMost},
		{"great counts", looksOfGreatCounts},
		{"labels of stores", looksOfLabels},
		{"locked", looksOfALockedKey},
		{"time shown", looksOfTheTimeShown},
		{"keeps asking", looksOfAKeyThatKeepsAsking},
		{"contrast of what is drawn", looksOfContrast},
		{"on paper", looksOnPaper},
		{"zone", looksOfTheZone},
		{"stores", looksOfStores},
		{"focus", looksOfTheFocus},
		{"by keyboard", looksByKeyboard},
	} {
		t.Run(look.name, func(t *testing.T) { look.check(t, browser) })
	}
}

func looksWithNoLimiter(t *testing.T, browser context.Context) {
	server := httptest.NewServer(limitpage.New())
	t.Cleanup(server.Close)
	b := open(t, browser, server.URL)
	b.until(`document.querySelector("#status").textContent === "live"`)
	text := b.text("main")
	assert.Contains(t, text, "No limiter yet.")
	assert.NotContains(t, text, "1 seconds")
	assert.NotContains(t, text, "Look up", "nothing can be looked up")
	assert.NotContains(t, text, "0 bytes")
	b.everywhere()
}

// looksOfNames: names cannot change the text around them, and take two lines at most.
func looksOfNames(t *testing.T, browser context.Context) {
	s := newSite(t)
	for _, name := range []string{"", "\u202egnp.elif\u2066", "a\nb", "שלום", strings.Repeat("W", 200)} {
		s.add(t, name, ratelimit.TokenBucket{Rate: ratelimit.PerHour(5), Burst: 1})
		s.limiters[name].AllowN("user:ann@example.com/tenant/12345", 1)
		s.limiters[name].Allow("user:ann@example.com/tenant/12345")
	}
	s.limiters[oddName].Allow("k")
	b := open(t, browser, s.url)
	b.untilCount(".chart", 9)
	b.untilCount("#top tbody tr", 6)
	assert.Subset(t, b.contents(".chart h3"), []string{"(no name)", `\u{202e}gnp.elif\u{2066}`, `a\u{a}b`, "שלום"})
	b.choose("#limiter", 3)
	b.do(chromedp.Click(chromedp.CSS("#form button")))
	b.until(`document.querySelector(".verdict")`)
	b.everywhere()
	for _, width := range []int64{1280, 320} {
		b.view(width, "light")
		b.until(fmt.Sprintf("innerWidth === %d", width))
		tall := eval[[]string](b, `[...document.querySelectorAll(
				".chart h3, #top th, #top td, #used th, #used td, #memory th, #memory td, .store h3, .name span, .name small")]
			.filter(e => e.getBoundingClientRect().height > (e.matches("#top tr *, #used tr *") ? 110 : 70))
			.map(e => e.tagName + ": " + e.textContent.slice(0, 30))`)
		assert.Empty(t, tall, "%d pixels", width)
	}
}

// looksInAnIncident: who is denied, since when, by what and what fails is seen at once, however many
// limiters there are, and in whatever order they were added.
func looksInAnIncident(n int) func(t *testing.T, browser context.Context) {
	return func(t *testing.T, browser context.Context) {
		b := open(t, browser, incident(t, n).url)
		b.view(1280, "light")
		b.until(`innerWidth === 1280 && document.querySelector("#top tbody tr .share span")?.textContent.startsWith("6,")`)
		b.until(`document.querySelector(".chart .big").className === "big most"`)
		b.worstIsFirst(n)
		assert.Equal(t, min(n, 10), b.count(".chart"))
		assert.Equal(t, n > 10, b.shows("#morelimiters"))
		assert.Less(t, eval[float64](b, `document.body.scrollHeight`), 5000.0)
		assert.Equal(t, n > 1, b.shows("#outages"))
		b.everywhere()
		if n == 1 {
			return
		}
		assert.Equal(t, "big some", eval[string](b, `document.querySelector(".chart:nth-child(2) .big").className`), "1 % is not as bad")
		assert.Regexp(t, `^Redis has failed since \d\d:\d\d:\d\d connection refused `+
			`limiter 0: 300 decisions without it in the last minutes, all granted$`, b.text("#outages"))
		b.findsAmong(n)
		if n > 10 {
			b.press("#morelimiters")
			assert.Equal(t, n, b.count(".chart"))
			b.fits("all limiters")
		}
	}
}

// incident returns a site of n limiters. Each denies 3 of 300 requests, but the last one thousands
// more, most of them of one key. If there are several, the store of the first is away.
func incident(t *testing.T, n int) *site {
	s := newEmptySite(t)
	redis, err := redisstore.New(conn{})
	require.NoError(t, err)
	limit := ratelimit.All{
		ratelimit.FixedWindow{Limit: 9000, Window: time.Hour},
		ratelimit.FixedWindow{Limit: 2000, Window: 40 * 24 * time.Hour},
	}
	for i := range n {
		name, store := fmt.Sprint("limiter ", i), ratelimit.Store(new(ratelimit.MemoryStore))
		if i == 0 && n > 1 {
			store = redis
		}
		s.add(t, name, limit, ratelimit.WithStore(store), ratelimit.WithFailureLog(nil))
		l := s.limiters[name]
		l.AllowN("a customer", 998)
		for range 3 {
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
	return s
}

// worstIsFirst: of n limiters, the one that denies most is the first, as is its key, and both say what
// there is to know.
func (b *tab) worstIsFirst(n int) {
	b.t.Helper()
	inside := eval[bool](b, `(() => {
		const pill = document.querySelector(".chart .big");
		return pill.getBoundingClientRect().left >= pill.parentElement.getBoundingClientRect().left;
	})()`)
	assert.True(b.t, inside, "it does not stick out")
	bottom := eval[float64](b, `document.querySelector("#top tbody tr").getBoundingClientRect().bottom`)
	assert.Less(b.t, bottom, 900.0, "without scrolling")
	assert.Regexp(b.t, fmt.Sprintf(`^203\.0\.113\.7 limiter %d 2,000 in each 40d; asked for 2,001 6,\d+ `+
		`\d\d:\d\d:\d\d (now|\d+ s ago) never$`, n-1), b.text("#top tbody tr"))
	// How much is denied is that of the last seconds: on a busy machine, some denials are older.
	assert.Regexp(b.t, fmt.Sprintf(`^limiter %d 9,000 in each hour, and 2,000 in each 40d [5-9]\d\.\d %% denied `+
		`.* denied lately mostly by: 2,000 in each 40d$`, n-1), b.text(".chart .words"))
}

// findsAmong: of n limiters, those are shown whose name fits what is looked for, or a key of theirs.
func (b *tab) findsAmong(n int) {
	b.t.Helper()
	b.look("LIMITER 3")
	assert.Equal(b.t, map[int]int{5: 1, 200: 10}[n], b.count(".chart"))
	other := fmt.Sprint("limiter ", n-2) // no other name begins with it
	b.look("customer of " + other)
	assert.Equal(b.t, other, b.contents(".chart h3")[0], "of which it is a key")
	assert.Equal(b.t, "customer of "+other, b.contents("#top tbody button")[0])
	b.look("nobody")
	assert.Contains(b.t, b.text("main"), "No key that fits was denied lately.")
	b.look("")
}

// looksOfKeysThatUseMost: who uses most is seen beside who is denied most, and is looked up in the
// same way.
func looksOfKeysThatUseMost(t *testing.T, browser context.Context) {
	s := newSite(t)
	s.add(t, "free", ratelimit.Unlimited{})
	for i := range 8 {
		s.limiters["free"].AllowN(fmt.Sprint("customer ", i), 1000-100*i)
	}
	s.limiters["api"].AllowN("ann", 4)
	b := open(t, browser, s.url)
	b.untilCount("#used tbody tr", 6)
	assert.Regexp(t, `^customer 0 free unlimited (1,000|9\d\d) \d\d:\d\d:\d\d (now|\d+ s ago)$`, b.text("#used tbody tr"))
	assert.Equal(t, "No key was denied lately.", b.text("#nokeys"))
	b.do(chromedp.Click(chromedp.CSS("#moreusedkeys")))
	assert.Equal(t, 9, b.count("#used tbody tr"))
	b.everywhere()
	b.look("ann")
	assert.Equal(t, []string{"ann"}, b.contents("#used tbody button"))
	b.press("#used tbody button")
	b.until(`document.querySelector(".verdict b")?.textContent === "denied" && document.querySelector("#key").value === "ann"`)
	b.look("nobody")
	assert.Equal(t, "No key that fits has used anything lately.", b.text("#nousedkeys"))
}

// looksOfGreatCounts: no count sticks out of its cell.
func looksOfGreatCounts(t *testing.T, browser context.Context) {
	s := newEmptySite(t)
	s.add(t, "bytes", ratelimit.Unlimited{})
	for _, n := range []int{640_000, 64_000_000, 64_000_000_000_000, 1 << 62} {
		s.limiters["bytes"].AllowN(fmt.Sprint("disk ", n), n)
	}
	b := open(t, browser, s.url)
	b.untilCount("#used tbody tr", 4)
	counts := b.contents("#used .share span")
	for i, want := range []string{`^4\.\d\d?E$`, `^6\d(\.\d)?T$`, `^6\d(\.\d)?M$`, `^6\d\d,\d{3}$`} {
		assert.Regexp(t, want, counts[i])
	}
	b.everywhere()
}

// looksOfLabels: the columns of a table have one name each, however wide the screen is.
func looksOfLabels(t *testing.T, browser context.Context) {
	b := open(t, browser, newSite(t).url)
	b.untilCount("#memory tbody tr", 3)
	assert.Equal(t,
		eval[[]string](b, `[...document.querySelectorAll("#memory thead th")].slice(1).map(e => e.textContent.trim())`),
		eval[[]string](b, `[...document.querySelectorAll("#memory tbody tr:first-child td")].map(e => e.dataset.label)`))
}

func looksOfALockedKey(t *testing.T, browser context.Context) {
	s := newEmptySite(t)
	s.add(t, "logins", ratelimit.Lockout{Limit: 2, Window: time.Hour, First: time.Hour})
	s.limiters["logins"].AllowN("ann", 2)
	b := open(t, browser, s.url)
	b.untilCount("#limiter option", 1)
	b.do(chromedp.SendKeys(chromedp.CSS("#key"), "ann"), chromedp.Click(chromedp.CSS("#form button")))
	b.until(`/^locked until (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d$/.test(document.querySelector(".verdict b")?.textContent)`)
	b.everywhere()
}

// looksOfTheTimeShown: the plots show as many seconds as the viewer has chosen, however young the
// data is.
func looksOfTheTimeShown(t *testing.T, browser context.Context) {
	s := newSite(t)
	s.limiters["api"].Allow("k")
	b := open(t, browser, s.url)
	b.hasColor(".chart canvas", "--granted-fill")
	for option, seconds := range []float64{60, 300} {
		eval[any](b, fmt.Sprintf(`document.querySelector("#ranges").children[%d].click()`, option))
		shown := b.timeAt(0.999).Sub(b.timeAt(0.001))
		if shown < 0 {
			shown += 24 * time.Hour // across midnight
		}
		// A second may begin between the two looks, and a pixel may show the second beside it.
		assert.InDelta(t, seconds-1, shown.Seconds(), 1)
	}
}

// timeAt returns the time that is told while the pointer is on a part of the first plot: 0 is its left
// end, and 1 its right one.
func (b *tab) timeAt(position float64) time.Time {
	b.t.Helper()
	at, err := time.Parse(time.TimeOnly, eval[string](b, fmt.Sprintf(`(() => {
		const canvas = document.querySelector(".chart canvas"), box = canvas.getBoundingClientRect();
		const clientX = box.left + 46 + %v * (box.width - 56), clientY = box.top + 9;
		canvas.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
		return document.querySelector(".chart .rates").textContent.slice(0, 8);
	})()`, position)))
	require.NoError(b.t, err)
	return at
}

// looksOfAKeyThatKeepsAsking: the worst is not called harmless because a retry would be granted.
func looksOfAKeyThatKeepsAsking(t *testing.T, browser context.Context) {
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
}

func looksOfContrast(t *testing.T, browser context.Context) {
	b := open(t, browser, newSite(t).url)
	for _, scheme := range []string{"light", "dark"} {
		b.view(1280, scheme)
		b.drawn(scheme, "--granted-fill", "--denied-fill", "--degraded-fill", "--edge")
	}
}

// halfDenied returns a site on which a key was granted four requests, and denied four.
func halfDenied(t *testing.T) *site {
	s := newSite(t)
	for range 8 {
		s.limiters["api"].Allow("k")
	}
	return s
}

func looksOnPaper(t *testing.T, browser context.Context) {
	b := open(t, browser, halfDenied(t).url)
	b.view(800, "dark")
	b.hasColor(".chart canvas", "--denied-fill")
	b.do(chromedp.Click(chromedp.CSS("#pause"))) // so that no report makes the page draw
	dark := eval[string](b, `getComputedStyle(document.body).color`)
	b.media("print", "dark")
	b.until(`getComputedStyle(document.body).color !== "` + dark + `"`)
	assert.False(t, b.shows("#pause") || b.shows("#form"))
	assert.Regexp(t, ` as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`, b.text("#lead"))
	b.readable("print")
	b.fits("print")
	b.prints("--denied-fill")
}

// looksOfTheZone: the heading, the plots and the lists show times of one zone, and say which.
func looksOfTheZone(t *testing.T, browser context.Context) {
	b := open(t, browser, halfDenied(t).url)
	for zone, named := range map[string]string{"Asia/Kolkata": "UTC+5:30", "America/Lima": "UTC-5", "UTC": "UTC"} {
		_, err := chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: zone})
		require.NoError(t, err)
		b.until(fmt.Sprintf(`document.querySelector("#zone")?.textContent === %q`, named))
		assert.Regexp(t, ` as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d `+regexp.QuoteMeta(named)+`$`, b.text("#lead"))
		assert.Contains(t, b.text("#plots"), "Times are in "+named+", the time zone of your browser.")
	}
}

// looksOfStores: a store that nobody asked for is no mystery.
func looksOfStores(t *testing.T, browser context.Context) {
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
	assert.Contains(t, b.text("#stores"), "A limiter without WithStore has a store of its own in memory.")
}

// looksOfTheFocus: the tab key leads to everything that can be used, in its order, and everybody sees
// where it is.
func looksOfTheFocus(t *testing.T, browser context.Context) {
	s := newSite(t)
	s.limiters["api"].AllowN("k", 4)
	s.limiters["api"].Allow("k")
	b := open(t, browser, s.url)
	b.untilCount("#top tbody tr", 1)
	b.view(1280, "light")
	var order []string
	for range 11 {
		b.do(chromedp.KeyEvent("\t"))
		order = append(order, eval[string](b, `(() => {
			const e = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(e);
			const unseen = outlineStyle === "none" || parseFloat(outlineWidth) < 2;
			return (e.id || e.innerText.split("\n")[0]) + (unseen ? ", which nobody sees" : "");
		})()`))
	}
	assert.Equal(t, []string{
		"find", "pause", "k", "k", "limiter", "key", "Look up", "1 minute", "5 minutes", "charts", "The same data as JSON",
	}, order)
}

// looksByKeyboard: the seconds of the plots are read, and a key is looked up and reset, without a
// pointer.
func looksByKeyboard(t *testing.T, browser context.Context) {
	b := open(t, browser, halfDenied(t).url)
	b.until(`document.querySelector(".chart .big")?.textContent === "50.0\u00a0% denied"`)
	b.do(chromedp.Click(chromedp.CSS("#pause"))) // so that no second is added meanwhile
	b.readsSecondsByKeyboard()
	b.resetsByKeyboard()
	skipped := eval[[]string](b, `[...document.querySelectorAll("h1, h2, h3, h4")].filter(e => e.checkVisibility())
		.map(e => +e.tagName[1]).map((n, i, all) => n > (all[i - 1] || 0) + 1 ? "h" + n : "").filter(Boolean)`)
	assert.Empty(t, skipped, "no level of headings is left out")
}

func (b *tab) readsSecondsByKeyboard() {
	b.t.Helper()
	rates := func() string { return b.contents(".chart .rates")[0] }
	key := func(name string) {
		eval[any](b, fmt.Sprintf(`document.querySelector("#charts").dispatchEvent(new KeyboardEvent("keydown", { key: %q }))`, name))
	}
	b.do(chromedp.Focus(chromedp.CSS("#charts")))
	assert.Equal(b.t, "charts", eval[string](b, `document.activeElement.id`))
	key("End")
	at := rates()
	assert.Regexp(b.t, `^\d\d:\d\d:\d\d · `, at)
	key("ArrowLeft")
	key("ArrowRight")
	assert.Equal(b.t, at, rates())
	key("Escape")
	assert.NotRegexp(b.t, `^\d\d:\d\d:\d\d · `, rates())
}

// resetsByKeyboard: the focus goes where the key is looked up, and screen readers hear what came of
// it, once.
func (b *tab) resetsByKeyboard() {
	b.t.Helper()
	focused := func() string { return eval[string](b, `document.activeElement.textContent`) }
	press := func() { eval[any](b, `document.activeElement.click()`) }
	b.do(chromedp.Focus(chromedp.CSS("#top tbody button")))
	press()
	b.until(`document.querySelector("#heard").textContent.startsWith("denied k api: 5/h, burst 4")`)
	assert.Equal(b.t, "h-look", eval[string](b, `document.activeElement.id`))
	b.do(chromedp.Focus(chromedp.CSS("#found .controls button")))
	press()
	assert.Equal(b.t, "Give it its whole limit again", focused())
	press()
	b.until(`document.querySelector("#found .controls + .error").textContent === "The key was reset."`)
	assert.Equal(b.t, "Reset this key", focused())
}
