package browser_test

import (
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReplay tests the page that examples/replay writes, from its bundled log, and from one
// with hostile keys.
func TestReplay(t *testing.T) {
	t.Parallel()
	browser := start(t)
	program := filepath.Join(t.TempDir(), "replay")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./replay")
	build.Dir = filepath.Join("..", "..", "examples")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	replay := func(t *testing.T, input string, args ...string) *tab {
		t.Helper()
		file := filepath.Join(t.TempDir(), "replay.html")
		cmd := exec.CommandContext(t.Context(), program, append([]string{"-o", file}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		b := open(t, browser, (&url.URL{Scheme: "file", Path: file}).String())
		b.until(`document.querySelectorAll(".chart canvas").length > 1`)
		return b
	}

	t.Run("bundled log", func(t *testing.T) {
		b := replay(t, "")
		assert.Equal(t, 9, eval[int](b, `document.querySelectorAll(".chart canvas").length`))
		b.hasColor(".chart:nth-child(2) canvas", "--allowed-fill")
		b.hasColor(".chart:nth-child(2) canvas", "--denied-fill")
		b.everywhere()
		for _, scheme := range []string{"dark", "light"} {
			b.view(1280, scheme)
			b.drawn(scheme, "--offered", "--allowed-fill", "--denied-fill")
		}
		b.do(chromedp.Click(chromedp.CSS(".keyrow:nth-child(2)")))
		b.until(`document.querySelector("#pick").value === "0"`)
		b.prints("--denied-fill")
	})

	t.Run("by keyboard", func(t *testing.T) {
		b := replay(t, "")
		b.view(1280, "light")
		b.do(chromedp.Focus(chromedp.CSS("#pick")))
		for range 10 {
			b.do(chromedp.KeyEvent("\t"))
			if eval[bool](b, `document.activeElement.id === "charts"`) {
				break
			}
		}
		require.Equal(t, "charts", eval[string](b, `document.activeElement.id`), "Tab reaches the plots")
		const shown = `[...document.querySelectorAll(".chart .words p:last-child")].map(e => e.textContent)`
		whole := eval[[]string](b, shown)
		press := func(key string) []string {
			eval[any](b, fmt.Sprintf(`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: %q }))`, key))
			return eval[[]string](b, shown)
		}
		end := press("End")
		for i, when := range end {
			assert.Equal(t, end[0], when, "all plots are read at the same time")
			assert.NotEqual(t, whole[i], when)
		}
		before := press("ArrowLeft")
		assert.NotEqual(t, end, before)
		assert.Equal(t, end, press("ArrowRight"))
		assert.NotEqual(t, before, press("Home"))
		assert.Equal(t, whole, press("Escape"))
	})

	// The list opens on the algorithm of which it has most to say.
	t.Run("the algorithm that denied most", func(t *testing.T) {
		b := replay(t, "")
		denied := eval[[]float64](b, `[...document.querySelectorAll("tbody td[data-label=denied]")].map(e => +e.textContent.replaceAll(",", ""))`)
		most := slices.Index(denied, slices.Max(denied))
		require.Positive(t, most, "it is not the first one")
		pressed := `[...document.querySelectorAll("#algorithms button")].findIndex(e => e.getAttribute("aria-pressed") === "true")`
		assert.Equal(t, most, eval[int](b, pressed))
	})

	t.Run("hostile keys are text", func(t *testing.T) {
		var log strings.Builder
		for key := range hostile {
			key = strings.Join(strings.Fields(strings.ReplaceAll(key, "\x00", "")), "_")
			for i := range 4 {
				fmt.Fprintf(&log, "%d %s\n", 1_700_000_000+i, key+"x")
			}
		}
		b := replay(t, log.String(), "-limit", "2/1m", "-")
		assert.Zero(t, eval[int](b, `document.querySelectorAll("main script, main img, main b[onclick]").length`))
		assert.False(t, eval[bool](b, `"hacked" in window`))
		assert.Contains(t, eval[[]string](b, `[...document.querySelectorAll(".keyrow .name")].map(e => e.textContent)`), "<script>window.hacked_=_1</script>x")
		b.everywhere()
	})
}
