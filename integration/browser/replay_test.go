package browser_test

import (
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
		b.until(`document.querySelectorAll(".chart canvas").length > 0`)
		return b
	}

	// Wide tables scroll for themselves; the page does not.
	everywhere := func(b *tab) {
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{1280, 375} {
				b.view(width, scheme)
				name := fmt.Sprintf("%d pixels, %s", width, scheme)
				b.until(fmt.Sprintf("innerWidth === %d && matchMedia('(prefers-color-scheme: %s)').matches", width, scheme))
				b.until(`document.documentElement.scrollWidth <= document.documentElement.clientWidth`)
				b.readable(name)
				b.drawn(name, "--allowed-fill", "--denied-fill")
			}
		}
	}

	t.Run("bundled log", func(t *testing.T) {
		b := replay(t, "")
		assert.Equal(t, []string{"leaky bucket", "fixed window, from first"},
			eval[[]string](b, `[...document.querySelectorAll(".chart:not(:has(canvas)) h3")].map(e => e.textContent)`), "they decide as others")
		for _, chart := range []string{".chart", ".chart:nth-of-type(2)"} { // the reference, and a difference
			b.hasColor(chart+" canvas", "--allowed-fill")
			b.hasColor(chart+" canvas", "--denied-fill")
		}
		everywhere(b)
		for _, width := range []int64{800, 400, 375, 320} {
			b.view(width, "light")
			b.until(fmt.Sprintf("innerWidth === %d", width))
			assert.True(t, eval[bool](b, `(() => {
				const box = document.querySelector(".summary").parentElement;
				return box.scrollWidth <= box.clientWidth;
			})()`), "%d pixels: the whole summary is seen", width)
		}
		assert.Equal(t, eval[[]string](b, `[...document.querySelectorAll(".summary thead th")].map(e => e.firstChild.textContent.trim())`)[1:],
			eval[[]string](b, `[...document.querySelectorAll(".summary tbody tr:nth-child(2) td")].map(e => e.dataset.label)`), "labels are those of the columns")
		assert.Zero(t, eval[int](b, `[...document.querySelectorAll(".keys tbody tr")].filter(tr =>
			[...tr.children].slice(2).every(e => e.textContent === "0")).length`), "each key was denied")
		said := func() []string {
			return eval[[]string](b, `[...document.querySelectorAll(".chart:has(canvas) .said")].slice(0, 2).map(e => e.textContent)`)
		}
		whole := []string{"Denies 2,575 of 12,224.", "Denies 1,033 that the token bucket allows, and allows 548 that it denies."}
		assert.Equal(t, whole, said())
		b.choose("#pick", 1)
		assert.Equal(t, "203.0.113.66", eval[string](b, `document.querySelector("#pick").value`))
		assert.Equal(t, []string{"Denies 1,744 of 2,703.", "Denies 607 that the token bucket allows, and allows 548 that it denies."}, said())
		b.choose("#pick", 0)
		assert.Equal(t, whole, said())
		assert.Equal(t, "203.0.113.66 2,703 1,744",
			eval[string](b, `[...document.querySelectorAll(".keys tbody tr:first-child > *")].slice(0, 3).map(e => e.textContent).join(" ")`))
	})

	t.Run("nobody denied", func(t *testing.T) {
		b := replay(t, "1 ann\n2 bob\n", "-limit", "9/1m", "-")
		assert.Contains(t, eval[string](b, `document.querySelector("main").innerText`), "Denied most\n\nNo key was denied.")
		assert.Equal(t, []string{"all"}, eval[[]string](b, `[...document.querySelectorAll("#pick option")].map(e => e.textContent)`))
		everywhere(b)
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
		assert.Contains(t, eval[[]string](b, `[...document.querySelectorAll(".keys tbody th")].map(e => e.textContent)`), "<script>window.hacked_=_1</script>x")
		assert.Contains(t, eval[[]string](b, `[...document.querySelectorAll("#pick option")].map(e => e.textContent)`), "<script>window.hacked_=_1</script>x")
		everywhere(b)
		b.view(400, "light")
		b.until("innerWidth === 400")
		assert.True(t, eval[bool](b, `(() => {
			const box = document.querySelector(".keys").parentElement.getBoundingClientRect();
			return [...document.querySelectorAll(".keys tbody td:nth-child(3)")].every(e => e.getBoundingClientRect().right <= box.right);
		})()`), "a long key does not hide how often it was denied")
	})
}
