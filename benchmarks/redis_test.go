package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// needServer skips a test if no server is installed, or fails it if RATELIMIT_SERVERS is
// set, as in CI.
func needServer(t testing.TB) *server {
	t.Helper()
	s, err := startServer()
	if errors.Is(err, errNoServer) && os.Getenv("RATELIMIT_SERVERS") == "" {
		t.Skipf("SKIPPED: %v; scripts/servers installs one", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

func TestServer(t *testing.T) {
	s := needServer(t)
	if v := s.version(); !strings.Contains(v, "dis ") && !strings.Contains(v, "key ") || strings.Contains(v, "unknown") {
		t.Errorf("its version is %q", v)
	}
	ctx := context.Background()
	empty, err := s.memory()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.admin.SetRange(ctx, "key", 1<<20, "x").Err(); err != nil {
		t.Fatal(err)
	}
	if full, err := s.memory(); err != nil || full-empty < 1<<20 || full-empty > 3<<19 {
		t.Errorf("a value of 1 MiB takes %d bytes, error %v", full-empty, err)
	}
	if err := s.flush(); err != nil {
		t.Error(err)
	}
	if n, err := s.admin.DBSize(ctx).Result(); err != nil || n != 0 {
		t.Errorf("%d keys are left, error %v", n, err)
	}
	if _, err := s.info("memory", "nothing"); err == nil {
		t.Error("a field that is not there has a value")
	}
	s.end()
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is left, error %v", err)
	}
	if s.answers() {
		t.Error("it has not ended")
	}
}

// TestWire checks that a wire delays requests and replies.
func TestWire(t *testing.T) {
	s := needServer(t)
	w, err := startWire(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer w.end()
	client := redis.NewClient(&redis.Options{Addr: w.addr})
	defer client.Close()
	ctx := context.Background()
	for range 10 {
		start := time.Now()
		if got, err := client.Echo(ctx, "hello").Result(); err != nil || got != "hello" {
			t.Errorf("it answers %q, error %v", got, err)
		}
		if took := time.Since(start); took < 2*oneWay {
			t.Errorf("a round trip takes %v", took)
		}
	}
	s.end()
	if err := client.Echo(ctx, "hello").Err(); err == nil {
		t.Error("it answers for a server that has ended")
	}
}

// TestNoServer checks that limiters in Redis are left out if there is no server, and that the
// report says so.
func TestNoServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, progress bytes.Buffer
	if err := run([]string{"-quick", "-run", "^R", "-only", "^redis_rate$"}, &out, &progress); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "**Left out: neither redis-server nor valkey-server is in PATH.**") {
		t.Error("the report does not say that it is left out")
	}
	if !strings.Contains(progress.String(), "SKIPPED") {
		t.Error("the program does not say so while it runs")
	}
}

// TestRedisPart measures a part of the scenarios in Redis.
func TestRedisPart(t *testing.T) {
	needServer(t)
	var out bytes.Buffer
	if err := run([]string{"-quick", "-run", "^(R1|R-bytes)$", "-only", "^(ratelimit, rueidis|redis_rate)$"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## Limits in Redis", "≤ 0.55 × redis_rate", "(redis_rate)", "### R-bytes"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report does not have %q", want)
		}
	}
	for _, other := range []string{"### R2", "ulule"} {
		if strings.Contains(out.String(), other) {
			t.Errorf("the report has %q in it", other)
		}
	}
}

// TestRedisWrongAnswers checks that each scenario in Redis notices a contender that gives
// wrong answers, and one that fails.
func TestRedisWrongAnswers(t *testing.T) {
	needServer(t)
	each := slices.Clip(groupOf("RE100").ids)
	impatient := quick
	impatient.patience = 0 // none of the liars ever changes its mind
	for _, tt := range []struct {
		says   contenders.Answer
		caught []string
	}{
		{contenders.Allowed, []string{"R3"}},
		{contenders.Denied, append(each, "R1", "R2", "R-bytes")},
		{contenders.Failed, append(each, "R1", "R2", "R3", "R-bytes")},
	} {
		liar := contenders.Contender{Name: "liar", Role: contenders.Peer, Dial: func(string, contenders.Limit, time.Duration) (contenders.Allow, func(), error) {
			return func(string) contenders.Answer { return tt.says }, func() {}, nil
		}}
		liar.DialEach = func(addr string, l contenders.Limit, timeout time.Duration) (contenders.Allow, contenders.Each, func(), error) {
			allow, end, err := liar.Dial(addr, l, timeout)
			return allow, inTurn(allow), end, err
		}
		b := bench{
			sizes:      impatient,
			contenders: []contenders.Contender{liar},
			wanted:     func(string) bool { return true },
			progress:   func(string, ...any) {},
		}
		res, err := b.run()
		if err != nil {
			t.Fatal(err)
		}
		for _, scenario := range tt.caught {
			if !slices.Contains([]string{"R1", "R2", "R3"}, scenario) {
				continue
			}
			for _, n := range awayCallers {
				failed := res.at(away(scenario, n, byPolicy), "liar")
				if tt.says == contenders.Failed {
					if failed.median() != 100 {
						t.Errorf("%s with %d callers: %v %% failed", scenario, n, failed.median())
					}
				} else if failed.wrong == 0 {
					t.Errorf("%s with %d callers did not notice that it says %d", scenario, n, tt.says)
				}
			}
		}
		for _, id := range tt.caught {
			if res.at(id, "liar").wrong == 0 {
				t.Errorf("%s did not notice that it says %d", id, tt.says)
			}
		}
	}
}

// TestAsked checks that each scenario has a row for this library as compared with the peers,
// and the other rows that targets ask for.
func TestAsked(t *testing.T) {
	for _, sc := range scenarios(full) {
		if found := asked(sc.id); found[0].who != "" {
			t.Errorf("%s begins with %q", sc.id, found[0].who)
		}
	}
	if found := asked("R2"); len(found) != 2 || found[1].who != contenders.Lease {
		t.Errorf("R2 asks for %v", found)
	}
}
