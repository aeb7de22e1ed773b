package storetest_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The tests in this file run the suite on databases and stores that are broken on purpose. Each of
// them breaks one promise, of which its name tells. The databases are in brokendatabases_test.go,
// and the stores in brokenstores_test.go.

// A fault is what is wrong with a database or with a store, and the rule that notices it.
type fault struct {
	rule string // if empty, each rule does
	says string // what the suite says of it; if empty, that a promise is broken

	database func(clk clock.Clock) ratelimit.Database
	store    func() ratelimit.Store                  // in place of database
	reopen   func(s ratelimit.Store) ratelimit.Store // may be nil
	tick     time.Duration                           // of the Config
}

// faults returns all faults, by a name that says what is wrong.
func faults() map[string]fault {
	all := map[string]fault{}
	for _, some := range []map[string]fault{
		faultsOfConfigs(), faultsOfSwaps(), faultsOfDatabases(), faultsOfNames(), faultsOfKeys(), faultsOfStates(),
		faultsOfResets(), faultsOfRequests(), faultsOfErrors(), faultsOfHandles(),
	} {
		maps.Copy(all, some)
	}
	return all
}

// faultsOfConfigs returns what Run refuses, and a Tick that Run cannot know to be wrong.
func faultsOfConfigs() map[string]fault {
	portable := func(tick time.Duration) func() ratelimit.Store {
		return func() ratelimit.Store { return portableStore{newStore(), tick} }
	}
	const coarse = time.Millisecond
	return map[string]fault{
		"there is no database":        {says: "Config has no Database"},
		"a store counts milliseconds": {says: "Config.Tick is 1ms: ", store: portable(coarse), tick: coarse},
		"the tick is negative":        {says: "Config.Tick is -1ns: ", store: newStore, tick: -1},
		"the tick is not the store's": {rule: "Exact/TokenBucket", store: portable(time.Microsecond)},
		"a database has ticks":        {says: "must be 0 with a Database", database: plain, tick: time.Microsecond},
	}
}

func plain(clock.Clock) ratelimit.Database { return newTable() }

// TestBrokenStores runs the rule on each fault in a process of its own, and expects the suite to
// name the promise.
func TestBrokenStores(t *testing.T) {
	const variable = "STORETEST_BROKEN"
	for name, f := range faults() {
		t.Run(name, func(t *testing.T) {
			switch os.Getenv(variable) {
			case name:
				storetest.Run(t, f.config())
				return
			case "":
			default:
				return
			}
			t.Parallel()
			says := f.says
			if says == "" {
				says = "broken promise: "
			}
			out, err := alone(t, variable, name, f.rule)
			if err == nil || !strings.Contains(out, says) {
				t.Errorf("the suite did not notice; it said %v\n%s", err, out)
			}
			if f.says != "" && strings.Contains(out, "broken promise") {
				t.Errorf("the suite does not say that the store failed:\n%s", out)
			}
		})
	}
}

// config returns what the suite is run with.
func (f fault) config() (c storetest.Config) {
	c.Tick = f.tick
	if strings.HasPrefix(f.rule, "Exact/") {
		c.Timeout = 2 * time.Second // for callers that a fault lets wait for ever
	}
	if f.database != nil {
		c.Database = func(_ testing.TB, clk clock.Clock) ratelimit.Database { return f.database(clk) }
	}
	if f.store != nil {
		c.New = func(testing.TB, clock.Clock) ratelimit.Store { return f.store() }
	}
	if f.reopen != nil {
		c.Reopen = func(_ testing.TB, _ clock.Clock, s ratelimit.Store) ratelimit.Store { return f.reopen(s) }
	}
	return c
}

// A stop is a store that hangs or panics, and what the suite says of that.
type stop struct {
	reset func(*lockedStore, string)
	open  func(name string) error
	says  string
}

// TestStoreThatStopsTheRun checks that a store that hangs or panics fails its subtest with a message
// that says so, and that the others continue.
func TestStoreThatStopsTheRun(t *testing.T) {
	const variable = "STORETEST_STOPS"
	for name, s := range map[string]stop{
		"hangs":        {reset: func(*lockedStore, string) { select {} }, says: "did not return within 200ms"},
		"panics":       {reset: func(*lockedStore, string) { panic("odd") }, says: "panicked: odd"},
		"hangs, Open":  {open: onceOpened(func() { select {} }), says: "Open did not return within 200ms"},
		"panics, Open": {open: onceOpened(func() { panic("odd") }), says: "Open panicked: odd"},
	} {
		t.Run(name, func(t *testing.T) {
			switch os.Getenv(variable) {
			case name:
				s.run(t)
				return
			case "":
			default:
				return
			}
			t.Parallel()
			out, err := alone(t, variable, name, "(Reset|Names|Keys|ManyKeys)")
			if err == nil || !strings.Contains(out, s.says) {
				t.Errorf("the suite did not notice; it said %v\n%s", err, out)
			}
			for _, rule := range []string{"Keys", "ManyKeys"} {
				passed := "PASS: TestStoreThatStopsTheRun/" + strings.ReplaceAll(name, " ", "_") + "/" + rule
				if !strings.Contains(out, passed) {
					t.Errorf("%s did not go on:\n%s", rule, out)
				}
			}
		})
	}
}

// run runs the suite on the store.
func (s stop) run(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store {
			store := newLockedStore()
			store.reset, store.open = s.reset, s.open
			return store
		},
		Steps:   10,
		Keys:    10,
		Timeout: 200 * time.Millisecond,
	})
}

// onceOpened returns an open function that calls f for a limiter that is not named by default.
func onceOpened(f func()) func(name string) error {
	return func(name string) error {
		if name != "test" {
			f()
		}
		return nil
	}
}

// alone runs one rule for the named subtest of the calling test in a separate process. An
// environment variable tells that process which subtest to run.
func alone(t *testing.T, variable, name, rule string) (out string, err error) {
	test, _, _ := strings.Cut(t.Name(), "/")
	subtest := regexp.QuoteMeta(strings.ReplaceAll(name, " ", "_"))
	pattern := "^" + test + "$/^" + subtest + "$"
	for part := range strings.SplitSeq(rule, "/") {
		pattern += "/^" + part
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run="+pattern)
	cmd.Env = append(os.Environ(), variable+"="+name)
	text, err := cmd.CombinedOutput()
	failed := bytes.Contains(text, []byte("--- FAIL: "+test))
	if !failed && err != nil || bytes.Contains(text, []byte("has completed")) {
		t.Errorf("the process ended: %v", err)
	}
	return string(text), err
}

var (
	errTooLarge = errors.New("too large")
	errLost     = errors.New("connection lost")
)
