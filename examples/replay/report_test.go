package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// render returns the page for a log.
func render(t *testing.T, text string, by keyKind, algorithms string, l limit) string {
	t.Helper()
	tr := mustRead(t, text, by)
	var b bytes.Buffer
	if err := writePage(&b, tr, l, mustReplay(t, tr, algorithms, l)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var dataScript = regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`)

// plotted returns the data that a page plots.
func plotted(t *testing.T, html string) (d pageData) {
	t.Helper()
	m := dataScript.FindStringSubmatch(html)
	if m == nil {
		t.Fatal("the page has no data")
	}
	if err := json.Unmarshal([]byte(m[1]), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func sum(s sparse) (n int64) {
	for i := 1; i < len(s); i += 2 {
		n += s[i]
	}
	return n
}

func TestPagePlotsEveryRequest(t *testing.T) {
	tr := bundledTrace(t)
	outcomes := mustReplay(t, tr, "all", minuteLimit(60, 60))
	var b bytes.Buffer
	if err := writePage(&b, tr, minuteLimit(60, 60), outcomes); err != nil {
		t.Fatal(err)
	}
	d := plotted(t, b.String())

	if got := sum(d.All.Offered); got != tr.total {
		t.Errorf("%d offered, want %d", got, tr.total)
	}
	for i, o := range outcomes {
		if got := sum(d.All.Denied[i]); got != o.denied {
			t.Errorf("%s: %d denied, want %d", o.name, got, o.denied)
		}
		for _, k := range d.Keys {
			if got := sum(k.Denied[i]); got != k.TotalDenied[i] {
				t.Errorf("%s, %s: %d denied, want %d", o.name, k.Label, got, k.TotalDenied[i])
			}
		}
	}
	if len(d.Keys) != topKeys || d.Keys[0].Label != tr.keys[outcomes[0].worst] {
		t.Errorf("%d keys, the first is %s; want %d, %s", len(d.Keys), d.Keys[0].Label, topKeys, tr.keys[outcomes[0].worst])
	}
	for _, o := range outcomes {
		if !strings.Contains(b.String(), "data-label=\"denied\">"+comma(o.denied)+"</td>") {
			t.Errorf("%s: no %s in the table", o.name, comma(o.denied))
		}
	}
}

func TestPageEscapesKeys(t *testing.T) {
	const evil = `</script><script>alert("x")</script>`
	html := render(t, "1 "+strings.ReplaceAll(evil, " ", "")+"\n1 "+evil+"\n2 "+evil+"\n3 '\"><img/src=x>\n", byIP, "all", minuteLimit(1, 1))
	if strings.Contains(html, `alert("x")`) || strings.Contains(html, "<img") {
		t.Error("a key is markup in the page")
	}
	d := plotted(t, html)
	if len(d.Keys) != 1 || d.Keys[0].Label != evil {
		t.Errorf("keys %+v, want %q", d.Keys, evil)
	}
	if want := "&lt;/script&gt;&lt;script&gt;"; !strings.Contains(html, want) {
		t.Errorf("no %s in the table", want)
	}
}

func TestPageNeedsNothingElse(t *testing.T) {
	html := render(t, "1 a\n2 a\n", byIP, "all", minuteLimit(1, 1))
	for _, bad := range []string{"<link", " src=", "@import", "url(", "fetch(", "ZgotmplZ", "<no value>"} {
		if strings.Contains(html, bad) {
			t.Errorf("%q in the page", bad)
		}
	}
	for _, want := range []string{"The MIT License", "default-src 'none'", "prefers-color-scheme"} {
		if !strings.Contains(html, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	if n := strings.Count(html, "</script>"); n != 2 {
		t.Errorf("%d scripts end, want 2: embedded data must not end a script", n)
	}
}

func TestPageOfUnusualLogs(t *testing.T) {
	var many strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&many, "%d key-%d\n", i/50, i)
	}
	for _, c := range []struct {
		name, log, algorithms string
		want                  []string
		keys                  int
	}{
		{"one request", "1 a\n", "token", []string{"(none was limited)", "1 limit.", "0.0 %"}, 1},
		{"nothing denied", "1 a\n300 a\n2 b\n", "all", []string{"(none was limited)", "9 limits.", "by all of the algorithms"}, 2},
		{"100,000 keys", many.String(), "token,log", []string{"100,000"}, topKeys},
		{"all denied", "1 a 5\n2 a 5\n", "token", []string{"The most limited", "100.0 %", "forever", "width:100.00%"}, 1},
		{"a long key", "1 " + strings.Repeat("k", 100_000) + " 3\n", "token", []string{"kkk…kkk"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			html := render(t, c.log, byIP, c.algorithms, minuteLimit(1, 1))
			for _, want := range c.want {
				if !strings.Contains(html, want) {
					t.Errorf("no %q in the page", want)
				}
			}
			d := plotted(t, html)
			if len(d.Keys) != c.keys {
				t.Errorf("%d keys, want %d", len(d.Keys), c.keys)
			}
			if len(html) > 200_000 {
				t.Errorf("%d bytes, want at most 200,000", len(html))
			}
		})
	}
}

// The page merges bins by the given factors. Wider bins must be aligned to the clock.
func TestPageAlignsWiderBins(t *testing.T) {
	d := plotted(t, render(t, "1772442007 a\n1772445600 a\n", byIP, "token", minuteLimit(1, 1)))
	if d.Step != 1 || d.Start != 1772442007 {
		t.Fatalf("bins of %v s from %v, want 1 s from 1772442007", d.Step, d.Start)
	}
	for _, f := range d.Factors {
		if got, want := d.Origin%f, 1772442007%f; got != want {
			t.Errorf("factor %d: the first bin is number %d of a wider one, want %d", f, got, want)
		}
	}
}

// A narrow page shows a label in each cell instead of column headings, with the same words.
func TestCellsAreLabelledAsTheirColumns(t *testing.T) {
	html := render(t, smallLog, byIP, "token,log", limit{ratelimit.Rate{Events: 3, Per: 10 * time.Second}, 3})
	var headings []string
	for _, m := range regexp.MustCompile(`<th role="columnheader"[^>]*>([^<]*)<`).FindAllStringSubmatch(html, -1) {
		headings = append(headings, m[1])
	}
	var labels []string
	for _, m := range regexp.MustCompile(`<td [^>]*data-label="([^"]*)"`).FindAllStringSubmatch(html, -1) {
		labels = append(labels, m[1])
	}
	if len(headings) != 7 || !slices.Equal(labels, append(slices.Clone(headings[1:]), headings[1:]...)) {
		t.Errorf("cells are labelled %q, columns are headed %q", labels, headings)
	}
}
