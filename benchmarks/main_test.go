package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// hasCall reports whether c has the call that a scenario of its group is about, and can be
// measured there.
func hasCall(id string, c contenders.Contender) bool {
	switch {
	case slices.Contains([]string{"I1kp", "I100kp", "I100k-64"}, id):
		return !c.Stale
	case strings.HasSuffix(id, "-own"):
		return c.Own != nil
	case strings.HasSuffix(id, "-each"):
		return c.Each != nil
	}
	return true
}

// TestQuick runs every contender through every scenario on a small scale, and checks that
// all answers are right, that all figures are present, and that the report can be written.
// It does not check speeds.
func TestQuick(t *testing.T) {
	b := bench{
		sizes:      quick,
		contenders: contenders.All(),
		wanted:     func(string) bool { return true },
		progress:   t.Logf,
	}
	res, err := b.run()
	if err != nil {
		t.Fatal(err)
	}
	if err := res.check(scenarios(quick)); err != nil {
		t.Error(err)
	}
	asked := res.server.missing == "" // see TestServer
	var ids []string
	for _, g := range groups() {
		ids = append(ids, g.ids...)
		for _, id := range g.ids {
			for _, c := range b.contenders {
				takesPart := g.takesPart(c) && (asked || !g.redis)
				if !hasCall(id, c) {
					takesPart = false
				}
				if strings.HasPrefix(id, "heap") && (c.Role == contenders.Floor || c.Role == contenders.Bound) {
					takesPart = false // there are no bytes to measure
				}
				if measured := len(res.at(id, c.Name).values) > 0; measured != takesPart {
					t.Errorf("%s: %s: measured: %v, takes part: %v", id, c.Name, measured, takesPart)
				}
			}
		}
	}
	for _, sc := range scenarios(quick) {
		if !slices.Contains(ids, sc.id) {
			t.Errorf("no group measures %s", sc.id)
		}
	}

	dir := t.TempDir()
	if err := writePlot(filepath.Join(dir, "docs", "plot.svg"), res, b.contenders); err != nil {
		t.Error(err)
	}
	r := report{Command: "go run ./benchmarks", Machine: thisMachine(), Plot: "docs/plot.svg"}
	r.tables(quick, res, b.contenders)
	var text bytes.Buffer
	if err := r.write(&text); err != nil {
		t.Fatal(err)
	}
	for _, c := range b.contenders {
		least := 10
		switch {
		case c.Role == contenders.Slots && asked:
			least = 4 // in two scenarios, one of which has a target, and in the table of contenders
		case c.Role == contenders.Settled && asked:
			least = 3 // in one scenario, which has a target, and in the table of contenders
		case c.Role == contenders.Weighed && asked:
			least = 2 // in one scenario, and in the table of contenders
		case c.Dial != nil && asked:
			least = 4 // in three scenarios
		case c.Dial != nil:
			least = 1
		case c.HTTP || c.Rules:
			least = 3 // in two
		case c.Wire:
			least = 2 // in one
		}
		if n := strings.Count(text.String(), c.Name); n < least {
			t.Errorf("the report names %q %d times, want at least %d", c.Name, n, least)
		}
	}
	if host, err := os.Hostname(); err == nil && len(host) > 3 && strings.Contains(text.String(), host) {
		t.Error("the report names this machine")
	}
	for _, bad := range []string{"%!", "<no value>", "NaN", "Inf", dir} {
		if strings.Contains(text.String(), bad) {
			t.Errorf("the report has %q in it", bad)
		}
	}
}

// TestWrongAnswers checks that every scenario notices contenders that give wrong answers.
func TestWrongAnswers(t *testing.T) {
	liar := func(name string, allow func(l contenders.Limit, asked map[string]int, key string) contenders.Answer) contenders.Contender {
		limiter := func(l contenders.Limit) (contenders.Allow, error) {
			lock := make(chan struct{}, 1)
			asked := make(map[string]int)
			return func(key string) contenders.Answer {
				lock <- struct{}{}
				defer func() { <-lock }()
				asked[key]++
				return allow(l, asked, key)
			}, nil
		}
		each := func(l contenders.Limit) (contenders.Allow, contenders.Each, error) {
			allow, err := limiter(l)
			return allow, inTurn(allow), err
		}
		return contenders.Contender{Name: name, Role: contenders.Peer, Quick: true, New: limiter, Own: limiter, Each: each}
	}
	yes := liar("always yes", func(contenders.Limit, map[string]int, string) contenders.Answer { return contenders.Allowed })
	no := liar("always no", func(contenders.Limit, map[string]int, string) contenders.Answer { return contenders.Denied })
	fails := liar("always fails", func(contenders.Limit, map[string]int, string) contenders.Answer { return contenders.Failed })
	forgets := liar("forgets", func(l contenders.Limit, asked map[string]int, key string) contenders.Answer {
		n := asked[key]
		if len(asked) > quick.table/2 {
			clear(asked)
		}
		if n > l.Burst && l != contenders.Quick {
			return contenders.Denied
		}
		return contenders.Allowed
	})
	// omits answers correctly, except that it denies the last key of each call for many.
	omits := liar("omits one", func(contenders.Limit, map[string]int, string) contenders.Answer { return contenders.Allowed })
	omits.Each = func(l contenders.Limit) (contenders.Allow, contenders.Each, error) {
		allow, err := omits.New(l)
		return allow, func(keys []string) int { return len(keys) - 1 }, err
	}
	allowed := []string{"S1", "S1-36", "S3", "S3p", "S3-64", "S4", "S4h", "S4h-each", "S5", "S5-64", "S6", "S6h", "S7",
		"I1k", "I1k-36", "I1kp", "I100k", "I100kp", "I100k-64", "I1M", "longest", "mixed-p50"}
	denied := []string{"S2", "S2-36", "S2p", "mixed-p50"}
	own := []string{"S3-own", "S3p-own", "I1k-own", "heap-own"}
	tests := []struct {
		contenders.Contender
		caught []string
	}{
		{yes, append(denied, "heap-5M")},
		{no, slices.Concat(allowed, own)},
		{fails, slices.Concat(allowed, denied, own)},
		{forgets, []string{"heap-5M"}},
		{omits, []string{"S4h-each"}},
	}
	for _, tt := range tests {
		t.Run(tt.Name, func(t *testing.T) {
			b := bench{
				sizes:      quick,
				contenders: []contenders.Contender{tt.Contender},
				wanted:     func(string) bool { return true },
				progress:   func(string, ...any) {},
			}
			res, err := b.run()
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range tt.caught {
				if res.at(id, tt.Name).wrong == 0 {
					t.Errorf("%s did not notice", id)
				}
			}
			if err := res.check(scenarios(quick)); err == nil || !strings.Contains(err.Error(), tt.Name) {
				t.Errorf("check returned %v, want an error that names %q", err, tt.Name)
			}
		})
	}
}

// inTurn returns an Each that calls allow for each key.
func inTurn(allow contenders.Allow) contenders.Each {
	return func(keys []string) (allowed int) {
		for _, key := range keys {
			if allow(key) == contenders.Allowed {
				allowed++
			}
		}
		return allowed
	}
}

// TestWrongMiddlewares checks that rows of middlewares notice those that give wrong answers.
func TestWrongMiddlewares(t *testing.T) {
	for _, tt := range []struct {
		role   contenders.Role
		says   contenders.Answer
		caught []string
	}{
		{contenders.Peer, contenders.Allowed, []string{"http-denied"}},
		{contenders.Peer, contenders.Denied, []string{"http"}},
		{contenders.Variant, contenders.Denied, []string{"http-16", "http-36"}},
	} {
		b := bench{
			sizes: quick,
			contenders: []contenders.Contender{{Name: "liar", Role: tt.role, HTTP: true, New: func(contenders.Limit) (contenders.Allow, error) {
				return func(string) contenders.Answer { return tt.says }, nil
			}}},
			wanted:   func(id string) bool { return strings.HasPrefix(id, "http") },
			progress: func(string, ...any) {},
		}
		res, err := b.run()
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range tt.caught {
			if res.at(id, "liar").wrong == 0 {
				t.Errorf("%s did not notice that it says %d", id, tt.says)
			}
		}
	}
}

// TestPartialRunKeepsReport checks that partial runs write to the terminal, and to no file
// unless -o or -plot is given.
func TestPartialRunKeepsReport(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	var out bytes.Buffer
	if err := run([]string{"-quick", "-run", "^S1$", "-only", "^(ratelimit|throttled)$"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"throttled", "one hot key, allowed", "go run ./benchmarks -only '^(ratelimit|throttled)$' -quick -run '^S1$'"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output does not have %q", want)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("it wrote %v", left)
	}
	if err := run([]string{"-quick", "-run", "^S1$", "-only", "^ratelimit$", "-o", "part.md", "-plot", "part.svg"}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"part.md", "part.svg"} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
}

// TestErrors checks that the command reports wrong arguments and does not start to measure.
func TestErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	tests := []struct {
		args []string
		want string
	}{
		{nil, "not the root of the repository"},
		{[]string{"-run", "S99"}, "the scenarios are S1, S1-36, S2"},
		{[]string{"-run", "("}, "-run: error parsing regexp"},
		{[]string{"-only", "nobody"}, "no contender matches"},
		{[]string{"surplus"}, `unexpected argument "surplus"`},
	}
	for _, tt := range tests {
		if err := run(tt.args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want one with %q", tt.args, err, tt.want)
		}
	}
}
