package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimit-go/ratelimit/benchmarks/server"
)

// TestMain serves a wire if a test started this process for that.
func TestMain(m *testing.M) {
	if isWire(os.Args) {
		exitWith(runWire(os.Args))
	}
	m.Run()
}

// measured returns what the program prints. It skips the test if no server is installed, or fails it if
// RATELIMIT_SERVERS is set, as in CI.
func measured(t *testing.T, args ...string) string {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), append(args, "-round", "5ms"), &out)
	if errors.Is(err, server.ErrMissing) && os.Getenv("RATELIMIT_SERVERS") == "" {
		t.Skip("SKIPPED:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestTable sees that each limiter answers as it should in each traffic that it can have.
func TestTable(t *testing.T) {
	t.Parallel()
	columns := slices.Sorted(maps.Keys(dials()))
	got := measured(t, "-callers", "4", "-away", "0,0.5ms", "-pool", "callers,default",
		"-traffic", "many,hot,denied", "-columns", strings.Join(columns, ","), "-rounds", "1")
	const head, linesOfSetUp, setUps = 2, 5, 2 * 2 * 3
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != head+linesOfSetUp*setUps {
		t.Errorf("%d lines:\n%s", len(lines), got)
	}
	for _, line := range lines {
		if cells := strings.Count(line, "|"); cells != len(columns)+3 {
			t.Errorf("%d cells: %s", cells, line)
		}
	}
}

// TestBenchFormat sees that each round is a line of its own, which benchstat can read.
func TestBenchFormat(t *testing.T) {
	t.Parallel()
	got := measured(t, "-callers", "2", "-away", "0", "-columns", "floor", "-rounds", "3", "-bench")
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 3 {
		t.Fatal("not three rounds:\n", got)
	}
	for _, line := range lines {
		words := strings.Fields(line)
		if words[0] != "BenchmarkRedis/callers=2/away=0ms/pool=callers/traffic=many/column=floor" || len(words) != 14 {
			t.Error(line)
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	r := &result{rounds: []figures{{allocs: 9}, {allocs: 1}, {allocs: 4}}}
	if got := r.median(allocs); got != 4 {
		t.Error("of three:", got)
	}
	r.rounds = append(r.rounds, figures{allocs: 6})
	if got := r.median(allocs); got != 5 {
		t.Error("of four:", got)
	}
}

func TestWrongArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-callers", "0"}, {"-callers", "1,x"}, {"-away", "-1ms"}, {"-away", "1"}, {"-pool", "none"},
		{"-traffic", "some"}, {"-columns", "none"}, {"-columns", ""}, {"-rounds", "0"}, {"-round", "0"}, {"more"},
	} {
		if err := run(context.Background(), args, &strings.Builder{}); err == nil {
			t.Error("no error for", args)
		}
	}
}
