package storetest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The in-memory store keeps every promise, whatever its bound.
func TestMemoryStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store { return ratelimit.NewMemoryStore() },
	})
}

func TestMemoryStoreWithMaxKeys(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store {
			return ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(100))
		},
	})
}

// A store that has no more than get and compare-and-swap, as a third party's
// may, keeps them too.
func TestCompareAndSwapStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store { return &casStore{} },
	})
}

// So does one that forgets a state as soon as it is told that it may.
func TestExpiringStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(_ testing.TB, clk clock.Clock) ratelimit.Store { return &casStore{expires: clk} },
	})
}

// TestBrokenStores runs the suite on stores that break a promise, in a process
// of its own, and expects it to say so.
func TestBrokenStores(t *testing.T) {
	const variable = "STORETEST_BROKEN"
	for broken, promise := range map[string]string{
		"lost update": "any number of goroutines get exactly what one would have got",
		"early":       "a tick before RetryAfter the same request is still denied",
		"no names":    "limiters of different names share nothing",
		"no wait":     "Wait costs nothing if its deadline is too near",
	} {
		t.Run(broken, func(t *testing.T) {
			if os.Getenv(variable) == broken {
				storetest.Run(t, storetest.Config{
					New: func(_ testing.TB, clk clock.Clock) ratelimit.Store {
						return &casStore{broken: broken, expires: clk}
					},
				})
				return
			}
			if os.Getenv(variable) != "" {
				return
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenStores$/^"+strings.ReplaceAll(broken, " ", "_")+"$")
			cmd.Env = append(os.Environ(), variable+"="+broken)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "broken promise: "+promise) {
				t.Errorf("the suite did not notice; it said %v\n%s", err, out)
			}
		})
	}
}

// A casStore keeps states as bytes.
type casStore struct {
	states  sync.Map    // from [2]string, a name and a key, to entry
	expires clock.Clock // if not nil, states are forgotten when they may be
	broken  string      // in which way, if in any
}

type entry struct {
	state string
	until time.Time
}

func (s *casStore) Open(name string, _ *ratelimit.Transition) (ratelimit.States, error) {
	if s.broken == "no names" {
		name = ""
	}
	return casStates{s, name}, nil
}

type casStates struct {
	*casStore
	name string
}

func (s casStates) Apply(_ context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	id := [2]string{s.name, key}
	if s.broken == "no wait" {
		req.MaxWait = ratelimit.Never
	}
	for {
		old, _ := s.states.LoadOrStore(id, entry{})
		state := old.(entry).state
		if s.expires != nil && !s.expires.Now().Before(old.(entry).until) {
			state = ""
		}
		next, changed, res, err := t.Apply([]byte(state), req)
		if err != nil || !changed {
			return res, err
		}
		e := entry{state: string(next)}
		if s.expires != nil {
			e.until = s.expires.Now().Add(res.Decision.ResetAfter)
		}
		switch s.broken {
		case "lost update":
			s.states.Store(id, e)
			return res, nil
		case "early":
			e.until = e.until.Add(-time.Millisecond)
		}
		if s.states.CompareAndSwap(id, old, e) {
			return res, nil
		}
	}
}

func (s casStates) Reset(_ context.Context, key string) error {
	s.states.Delete([2]string{s.name, key})
	return nil
}
