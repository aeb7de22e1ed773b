package storetest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
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
// TestRestlessMemoryStore lets other keys come all the time, and tables be replaced.
func TestRestlessMemoryStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store {
			return restlessStore{ratelimit.NewMemoryStore()}
		},
		Steps: 200,
	})
}

type restlessStore struct{ *ratelimit.MemoryStore }

func (s restlessStore) Open(name string, t *ratelimit.Transition) (ratelimit.States, error) {
	states, err := s.MemoryStore.Open(name, t)
	return &restlessStates{States: states, store: s.MemoryStore}, err
}

type restlessStates struct {
	ratelimit.States
	store *ratelimit.MemoryStore
	calls atomic.Int64
}

func (s *restlessStates) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	other := req
	other.Op, other.N = ratelimit.OpTake, 1
	i := s.calls.Add(1)
	if _, err := s.States.Apply(ctx, fmt.Sprint("restless ", i), t, other); err != nil {
		return ratelimit.Result{}, err
	}
	if i%4 == 0 {
		s.store.Shrink()
	}
	return s.States.Apply(ctx, key, t, req)
}

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

// So does one whose states are portable and whose clock is coarse.
func TestPortableStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New:  func(testing.TB, clock.Clock) ratelimit.Store { return &casStore{tick: time.Microsecond} },
		Tick: time.Microsecond,
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
	states  sync.Map      // from [2]string, a name and a key, to entry
	expires clock.Clock   // if not nil, states are forgotten when they may be
	broken  string        // in which way, if in any
	tick    time.Duration // of its clock, if states are portable
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
	if s.tick > 0 {
		var err error
		if t, err = t.Portable(s.tick); err != nil {
			return ratelimit.Result{}, err
		}
	}
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
