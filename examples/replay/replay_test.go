package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// mustReplay replays a trace through the algorithms of a list.
func mustReplay(t testing.TB, tr *trace, list string, l limit) []*outcome {
	t.Helper()
	cs, err := candidates(list, l)
	if err != nil {
		t.Fatal(err)
	}
	outcomes, err := replay(tr, cs, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

// A log on which the algorithms decide differently with 3 per 10 s, checked by hand. Key b
// must not affect key a.
const smallLog = `
100 a
100 b
109 a
109 a
109 a
110 a
111 a
112.5 a
119 a 4
120 a
`

func TestReplaySmallLog(t *testing.T) {
	tr := mustRead(t, smallLog, byIP)
	l := limit{ratelimit.Rate{Events: 3, Per: 10 * time.Second}, 3}
	// By request: a b a a a, at 110, 111 and 112.5, the four at once, the last.
	for list, want := range map[string]string{
		"token":    "YYYYY nnY n Y", // at 109, 3 tokens again: one arrives every 3⅓ s
		"interval": "YYYYn YYY n Y", // the lump comes at 110
		"leaky":    "YYYYY nnY n Y",
		"fixed":    "YYYYn YYY n Y", // a new window at 110
		"first":    "YYYYn YYY n Y", // windows from 100, 110 and 120: the clock's, in this case
		"sliding":  "YYYYn nnn n Y", // at 112.5, ¾ of 3 still count: with 1 more, 3¼
		"log":      "YYYYn Ynn n Y", // at 120, only that of 110 (10 s old) no longer counts
	} {
		o := mustReplay(t, tr, list, l)[0]
		want = strings.ReplaceAll(want, " ", "")
		got := ""
		for i := range tr.requests {
			if o.isAllowed(i) {
				got += "Y"
			} else {
				got += "n"
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", list, got, want)
		}
		events := int64(0)
		for i, r := range tr.requests {
			if !o.isAllowed(i) {
				events += int64(r.n)
			}
		}
		if o.denied != events || o.allowed != tr.total-events || !slices.Equal(o.deniedOf, []int64{events, 0}) || o.limited != 1 || o.worst != 0 {
			t.Errorf("%s: allowed %d, denied %d, by key %v, %d keys limited, worst %d; want %d, %d, all of key 0",
				list, o.allowed, o.denied, o.deniedOf, o.limited, o.worst, tr.total-events, events)
		}
		if o.longestWait != ratelimit.Never {
			t.Errorf("%s: longest wait %v, want Never: 4 at once exceed the limit of 3", list, o.longestWait)
		}
	}
}

func TestReplayTellsTheLongestWait(t *testing.T) {
	tr := mustRead(t, "100 a\n101 a\n103 a\n104 b\n", byIP)
	l := limit{ratelimit.Every(10 * time.Second), 1}
	for _, o := range mustReplay(t, tr, "token,log", l) {
		if o.longestWait != 9*time.Second {
			t.Errorf("%s: longest wait %v, want 9s", o.name, o.longestWait)
		}
	}
}

// Two algorithms are simple enough to implement here naively. On the bundled log, the
// library must agree with them on each request.
func TestReplayAgreesWithNaiveModels(t *testing.T) {
	tr := bundledTrace(t)
	outcomes := mustReplay(t, tr, "fixed,log", minuteLimit(60, 60))
	const window, most = int64(time.Minute), 60

	type keyWindow struct {
		key    int32
		window int64
	}
	inWindow := map[keyWindow]int{}
	granted := map[int32][]int64{}
	for i, r := range tr.requests {
		at := keyWindow{r.key, r.at / window}
		fixed := inWindow[at] < most
		if fixed {
			inWindow[at]++
		}
		count := 0
		for _, then := range granted[r.key] {
			if then > r.at-window {
				count++
			}
		}
		sliding := count < most
		if sliding {
			granted[r.key] = append(granted[r.key], r.at)
		}
		if outcomes[0].isAllowed(i) != fixed || outcomes[1].isAllowed(i) != sliding {
			t.Fatalf("request %d: fixed window %v, sliding log %v; the models say %v, %v",
				i, outcomes[0].isAllowed(i), outcomes[1].isAllowed(i), fixed, sliding)
		}
	}
}

func TestReplayReportsItsProgress(t *testing.T) {
	tr := bundledTrace(t)
	cs, err := candidates("token", minuteLimit(60, 60))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	if _, err := replay(tr, cs, func(n int) { total += n }); err != nil {
		t.Fatal(err)
	}
	if total != len(tr.requests) {
		t.Errorf("progress adds up to %d, want %d", total, len(tr.requests))
	}
}

func BenchmarkReplay(b *testing.B) {
	tr := bundledTrace(b)
	cs, err := candidates("all", minuteLimit(60, 60))
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range cs {
		b.Run("alg="+c.id, func(b *testing.B) {
			for b.Loop() {
				if _, err := replayOne(tr, c, func(int) {}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(tr.requests)), "ns/request")
		})
	}
}
