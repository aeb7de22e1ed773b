package browser_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// find returns the path of the browser. If there is none, it skips the test, or fails it if
// RATELIMIT_SERVERS is set, as in CI.
func find(t *testing.T) string {
	t.Helper()
	names := []string{"chromium", "chromium-browser", "google-chrome"}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("RATELIMIT_SERVERS") != "" {
		t.Fatalf("none of %v is installed: scripts/servers installs it", names)
	}
	t.Skipf("SKIPPED: none of %v is installed; scripts/servers installs it", names)
	return ""
}

// patience bounds everything that a test waits for.
const patience = 2 * time.Minute

// start starts a browser that ends with the test, and returns the context of its first tab. Chromium
// crashes now and then while it starts, on a busy machine: then start tries again.
func start(t *testing.T) context.Context {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:len(chromedp.DefaultExecAllocatorOptions):len(chromedp.DefaultExecAllocatorOptions)],
		chromedp.ExecPath(find(t)))
	if os.Geteuid() == 0 {
		opts = append(opts, chromedp.NoSandbox) // Chromium has no sandbox for root
	}
	limited, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	for try := 1; ; try++ {
		allocator, end := chromedp.NewExecAllocator(limited, append(opts, chromedp.UserDataDir(t.TempDir()))...)
		ctx, closeTab := chromedp.NewContext(allocator)
		err := chromedp.Do(ctx)
		if err == nil {
			t.Cleanup(end)
			t.Cleanup(closeTab)
			return ctx
		}
		closeTab()
		end()
		if try == 3 {
			require.NoError(t, err, "the browser does not start")
		}
		t.Logf("the browser did not start: %v", err)
	}
}

// A tab shows one page, and keeps what the page writes to the console.
type tab struct {
	t    *testing.T
	ctx  context.Context
	said chan []string // what was written to the console before the mark

	mayWrite bool // to the console
}

// mark is the text after which a tab stops to read the console.
const mark = "the test ends here"

// open opens url in a new tab of the browser. The test fails if the page writes to the
// console, as browsers do for errors, unless it may.
func open(t *testing.T, browser context.Context, url string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	b := &tab{t: t, ctx: ctx, said: make(chan []string, 1)}
	require.NoError(t, chromedp.Do(ctx))
	messages := chromedp.Console(ctx)
	go func() {
		var all []string
		for m, err := range messages {
			if err != nil || m.Text == mark {
				break
			}
			all = append(all, fmt.Sprintf("%s: %s (%s:%d)", m.Type, m.Text, m.URL, m.Line))
		}
		b.said <- all
	}()
	t.Cleanup(func() {
		_, err := chromedp.Run(ctx, chromedp.Evaluate[any](fmt.Sprintf("console.log(%q)", mark)))
		assert.NoError(t, err)
		if err == nil && !b.mayWrite {
			assert.Empty(t, <-b.said, "the page wrote to the console")
		}
		cancel()
	})
	b.do(chromedp.Navigate(url))
	return b
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

// view sets the width of the tab and the colour scheme of its user.
func (b *tab) view(width int64, scheme string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, 900))
	b.media("screen", scheme)
}

// media makes the tab a screen, or print, and sets the colour scheme.
func (b *tab) media(media, scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media:    media,
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(b.t, err)
}

// eval returns the value of a JavaScript expression, or of its promise.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(b.t, err, expression)
	return v
}

// until waits until a JavaScript condition holds.
func (b *tab) until(condition string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`new Promise((done, fail) => {
		const end = Date.now() + 20000;
		const look = () => {
			if (%s) return done(true);
			if (Date.now() > end) return fail(new Error(document.body.innerText.slice(0, 2000)));
			setTimeout(look, 20);
		};
		look();
	})`, condition))
}

// text returns the text of the first element that a selector matches as people see it, with single
// spaces.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf(`document.querySelector(%q).innerText.replace(/\s+/g, " ")`, selector))
}

// contents returns the text of each element that a selector matches, as it is in the page.
func (b *tab) contents(selector string) []string {
	b.t.Helper()
	return eval[[]string](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].map(e => e.textContent)`, selector))
}

// count returns how many elements a selector matches.
func (b *tab) count(selector string) int {
	b.t.Helper()
	return eval[int](b, fmt.Sprintf(`document.querySelectorAll(%q).length`, selector))
}

// untilCount waits until a selector matches that many.
func (b *tab) untilCount(selector string, n int) {
	b.t.Helper()
	b.until(fmt.Sprintf(`document.querySelectorAll(%q).length === %d`, selector, n))
}

// shows reports whether the first element that a selector matches can be seen.
func (b *tab) shows(selector string) bool {
	b.t.Helper()
	return eval[bool](b, fmt.Sprintf(`document.querySelector(%q).checkVisibility()`, selector))
}

// press clicks the first element that a selector matches, even if it cannot be seen.
func (b *tab) press(selector string) {
	b.t.Helper()
	eval[any](b, fmt.Sprintf(`document.querySelector(%q).click()`, selector))
}

// fits fails the test if something is wider than the tab, or is drawn outside of it.
func (b *tab) fits(name string) {
	b.t.Helper()
	wide := eval[[]string](b, `(async () => {
		for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); // ResizeObservers may change the page once more
		const wide = [];
		const hidden = e => e.closest("noscript") || getComputedStyle(e.closest("thead, .heard") || e).clipPath !== "none"; // read aloud only
		const width = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth > width) wide.push("the page has " + document.documentElement.scrollWidth + " pixels");
		for (const e of document.body.querySelectorAll("*")) {
			const box = e.getBoundingClientRect();
			if (!box.width || !box.height || hidden(e)) continue;
			if (box.right > width + 1 || box.left < -1)
				wide.push(e.tagName + "." + e.className + " at " + box.left + " to " + box.right + ": " + e.textContent.slice(0, 40));
		}
		for (const e of document.querySelectorAll(".n > span, .share span, .figures b"))
			if (e.getBoundingClientRect().height > 45) wide.push("a number takes several lines: " + e.textContent);
		for (const e of document.querySelectorAll("th, td, li, p, h3, button, dd"))
			if (e.clientWidth && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === "visible" && !hidden(e))
				wide.push(e.tagName + "." + e.className + " has " + e.clientWidth + " pixels for " + e.scrollWidth + ": " + e.textContent.slice(0, 40));
		return wide;
	})()`)
	assert.Empty(b.t, wide, name)
}

// readable fails the test if text is not much lighter or darker than what it is drawn on.
func (b *tab) readable(name string) {
	b.t.Helper()
	faint := eval[[]string](b, `(() => {
		const parse = c => c.match(/[\d.]+/g).map(Number);
		const light = ([r, g, b]) => [r, g, b]
			.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
			.reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
		const faint = [];
		for (const e of document.body.querySelectorAll("*")) {
			if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || e.closest("noscript, script")) continue;
			let under = e;
			while (under && parse(getComputedStyle(under).backgroundColor)[3] === 0) under = under.parentElement;
			const a = light(parse(getComputedStyle(e).color)), b = light(parse(getComputedStyle(under || document.body).backgroundColor));
			const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
			const style = getComputedStyle(e), size = parseFloat(style.fontSize);
			const least = size >= 24 || size >= 18.5 && style.fontWeight >= 600 ? 3 : 4.5; // of large text, and of other text: WCAG 1.4.3
			if (contrast < least) faint.push(contrast.toFixed(2) + ": " + e.tagName + "." + e.className + " " + e.textContent.slice(0, 40));
		}
		return faint;
	})()`)
	assert.Empty(b.t, faint, name)
}

// drawn fails the test if bars, or the borders of fields, are not much lighter or darker than the
// card they are on: WCAG 1.4.11.
func (b *tab) drawn(name string, properties ...string) {
	b.t.Helper()
	for _, property := range properties {
		contrast := eval[float64](b, fmt.Sprintf(`(() => {
			const light = name => {
				const g = new OffscreenCanvas(1, 1).getContext("2d");
				g.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
				g.fillRect(0, 0, 1, 1);
				return [...g.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
					.reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
			};
			const a = light("--card"), b = light(%q);
			return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		})()`, property))
		assert.GreaterOrEqual(b.t, contrast, 3.0, "%s: %s", name, property)
	}
}

// everywhere checks the page at several widths, in the light and in the dark.
func (b *tab) everywhere() {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 820, 375, 320} {
			b.view(width, scheme)
			name := fmt.Sprintf("%d pixels, %s", width, scheme)
			b.until(fmt.Sprintf("innerWidth === %d && matchMedia('(prefers-color-scheme: %s)').matches", width, scheme))
			b.fits(name)
			b.readable(name)
		}
	}
}

// hasColor waits until the canvas that selector names has a pixel of the custom property's
// colour.
func (b *tab) hasColor(selector, property string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`(() => {
		const canvas = document.querySelector(%q);
		if (!canvas || !canvas.width) return false;
		const probe = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
		probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(%q).trim();
		probe.fillRect(0, 0, 1, 1);
		const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
		probe.clearRect(0, 0, 1, 1);
		probe.drawImage(canvas, 0, 0);
		const { data } = probe.getImageData(0, 0, canvas.width, canvas.height);
		for (let i = 0; i < data.length; i += 4) if (data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255) return true;
		return false;
	})()`, selector, property))
}

// look types what is looked for, in place of what was there.
func (b *tab) look(text string) {
	b.t.Helper()
	eval[any](b, fmt.Sprintf(`(() => { const e = document.querySelector("#find"); e.value = %q; e.dispatchEvent(new Event("input")); })()`, text))
}

// chart is the plot of a limiter, with its words, as JavaScript.
func chart(limiter string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".chart")].find(e => e.querySelector("h3").textContent === %q)`, limiter)
}

// choose chooses the option of a select element.
func (b *tab) choose(selector string, option int) {
	b.t.Helper()
	eval[any](b, fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.selectedIndex = %d;
		e.dispatchEvent(new Event("change"));
	})()`, selector, option))
}

// prints fails the test if a page that is seen in the dark is not drawn for the printer in the
// colours of paper: that of the custom property is looked for.
func (b *tab) prints(property string) {
	b.t.Helper()
	color := fmt.Sprintf(`getComputedStyle(document.documentElement).getPropertyValue(%q).trim()`, property)
	b.media("print", "dark")
	ink := eval[string](b, color)
	b.media("", "dark")
	require.NotEqual(b.t, ink, eval[string](b, color))
	eval[any](b, `(() => {
		window.printed = [];
		for (const name of ["fill", "fillRect"]) {
			const draw = CanvasRenderingContext2D.prototype[name];
			CanvasRenderingContext2D.prototype[name] = function (...shape) {
				if (matchMedia("print").matches) window.printed.push(this.fillStyle);
				draw.apply(this, shape);
			};
		}
	})()`)
	_, err := chromedp.Run(b.ctx, chromedp.PrintToPDF())
	require.NoError(b.t, err)
	assert.Contains(b.t, eval[[]string](b, `window.printed`), ink)
}
