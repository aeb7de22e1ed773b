package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// The tests in this file call the methods of a Database directly, without a store.

// databaseRules are promises of a Database. The tests of stores seldom notice that such a promise
// is broken.
var databaseRules = map[string]rule{
	"Swap": {
		"CompareAndSwap swaps if the state is old, byte by byte, " +
			"or if there is none and old is nil, and otherwise changes nothing",
		testSwap,
	},
	"OneSwap": {"of concurrent swaps with the same old state, one succeeds", testOneSwap},
	"Bytes":   {"Get returns the bytes of the last swap, which stay as they are", testBytes},
	"Delete":  {"Delete leaves no state, whether or not there was one", testDelete},
}

// A storeOn is a store on a database.
type storeOn struct {
	ratelimit.Store
	db ratelimit.Database
}

func newOn(
	open func(testing.TB, clock.Clock) ratelimit.Database,
) func(testing.TB, clock.Clock) ratelimit.Store {
	return func(t testing.TB, clk clock.Clock) ratelimit.Store {
		db := open(t, clk)
		return storeOn{ratelimit.NewStore(db), db}
	}
}

func reopenOn(_ testing.TB, _ clock.Clock, s ratelimit.Store) ratelimit.Store {
	db := s.(storeOn).db
	return storeOn{ratelimit.NewStore(db), db}
}

// A directCaller calls the methods of a database. A call that fails fails the test.
type directCaller struct {
	*suite
	db ratelimit.Database
}

func (s *suite) direct() directCaller {
	return directCaller{s, s.Database(s.T, NewClock(start))}
}

func (d directCaller) get(key string) (state []byte) {
	d.Helper()
	_ = d.watch.guard(ctx, "Get", func() error {
		got, err := d.db.Get(ctx, key)
		state = got
		return err
	})
	d.intact()
	return state
}

// swap may be called by several goroutines at once. Their test must call intact afterwards.
func (d directCaller) swap(key string, old, state []byte, expires time.Time) (swapped bool) {
	_ = d.watch.guard(ctx, "CompareAndSwap", func() (err error) {
		was, is := bytes.Clone(old), bytes.Clone(state)
		swapped, err = d.db.CompareAndSwap(ctx, key, old, state, expires)
		if !bytes.Equal(was, old) || !bytes.Equal(is, state) {
			return errors.New("CompareAndSwap has changed a slice that it was given")
		}
		return err
	})
	return swapped
}

// put stores state under a key that has none.
func (d directCaller) put(key, state string) {
	d.Helper()
	swapped := d.swap(key, nil, []byte(state), start.Add(time.Hour))
	d.intact()
	if !swapped {
		d.broken("key %.20q has no state, and the swap of nil failed", key)
	}
}

func (d directCaller) remove(key string) {
	d.Helper()
	_ = d.watch.guard(ctx, "Delete", func() error { return d.db.Delete(ctx, key) })
	d.intact()
}

func testSwap(s *suite) {
	large := strings.Repeat("state", 20_000)
	for name, tt := range map[string]struct {
		state, old string // "" for none
		swapped    bool
	}{
		"none, as expected":         {"", "", true},
		"the state":                 {"state", "state", true},
		"the large state":           {large + "x", large + "x", true},
		"a state, but none is old":  {"state", "", false},
		"no state, but old":         {"", "state", false},
		"another state":             {"state", "other", false},
		"another last byte":         {large + "x", large + "y", false},
		"only the beginning":        {"state", "stat", false},
		"more than the state":       {"stat", "state", false},
		"upper case":                {"state", "State", false},
		"a space at the end":        {"state", "state ", false},
		"a zero byte at the end":    {"state\x00", "state", false},
		"another after a zero byte": {"st\x00ate", "st\x00ats", false},
		"other bytes, not UTF-8":    {"state\xfe", "state\xff", false},
		"accents":                   {"st\u00e5te", "state", false},
		"another number":            {"1", "01", false},
	} {
		for _, former := range []bool{false, true} {
			d := s.direct()
			if former { // the key had a state
				d.put("test:k", "former")
				d.remove("test:k")
			}
			if tt.state != "" {
				d.put("test:k", tt.state)
			}
			var old []byte
			if tt.old != "" {
				old = []byte(tt.old)
			}
			swapped := d.swap("test:k", old, []byte("next"), time.Time{})
			want := tt.state
			if swapped {
				want = "next"
			}
			if got := string(d.get("test:k")); swapped != tt.swapped || got != want {
				s.broken("%s: the state was %.20q, and old %.20q: "+
					"swapped is %v, and the state %.20q",
					name, tt.state, tt.old, swapped, got)
			}
		}
	}
}

func testOneSwap(s *suite) {
	d := s.direct()
	var old []byte
	for round := range 25 {
		if round%5 == 0 {
			d.remove("test:k")
			old = nil
		}
		var swaps atomic.Int64
		var wg sync.WaitGroup
		for caller := range 8 {
			state := fmt.Appendf(nil, "%d by %d", round, caller)
			wg.Go(func() {
				if d.swap("test:k", old, state, start.Add(time.Hour)) {
					swaps.Add(1)
				}
			})
		}
		wg.Wait()
		d.intact()
		if n := swaps.Load(); n != 1 {
			s.broken("%d of 8 swaps of %q succeeded", n, old)
		}
		old = d.get("test:k")
	}
}

func testBytes(s *suite) {
	d := s.direct()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	long := strings.Repeat("k", 199)
	want := map[string]string{
		"test:every":     string(every),
		"test:large":     strings.Repeat(string(every), 400),
		"test:zero":      "\x00",
		"test:zeros":     "\x00\x00\x00",
		"test:spaces":    "  ",
		"test:lines":     "\r\n\n",
		"test:not+UTF-8": "\xff\xfe\xc3\x28",
		"test:%61":       "quoted",
		"test:a":         "not quoted",
		long + "a":       "lower",
		long + "A":       "upper",
		long:             "short",
		"#":              "a",
		"test:":          "b",
	}
	for key, state := range want {
		d.put(key, state)
	}
	got := map[string][]byte{}
	for key := range want {
		got[key] = d.get(key)
	}
	for key, state := range want {
		again := d.get(key)
		if string(again) != state {
			s.broken("the state of key %.20q was %.20q (%d bytes), "+
				"and Get returns %.20q (%d bytes)",
				key, state, len(state), again, len(again))
		}
		if !d.swap(key, again, []byte("next"), time.Time{}) {
			d.intact()
			s.broken("the swap of what Get has returned failed, key %.20q", key)
		}
	}
	for key, state := range want {
		if string(got[key]) != state {
			s.broken("Get of key %.20q returned %.20q, which later calls have changed to %.20q",
				key, state, got[key])
		}
		if again := d.get(key); string(again) != "next" {
			s.broken("the state of key %.20q was swapped, and Get returns %.20q", key, again)
		}
	}
}

func testDelete(s *suite) {
	d := s.direct()
	d.remove("test:never+seen")
	d.put("test:a", "state")
	d.put("test:A", "other")
	for range 2 {
		d.remove("test:a")
		if state := d.get("test:a"); len(state) > 0 {
			s.broken("after Delete, Get returns %q", state)
		}
		if state := d.get("test:A"); string(state) != "other" {
			s.broken("Delete of another key changed %q to %q", "other", state)
		}
	}
	d.put("test:a", "again")

	// With a context that has ended, a call may do all of its work or nothing, but no part of it.
	ended, cancel := context.WithCancel(ctx)
	cancel()
	old, next := []byte("again"), []byte("next")
	var swapped bool
	err := d.watch.guard(ended, "CompareAndSwap", func() (err error) {
		swapped, err = d.db.CompareAndSwap(ended, "test:a", old, next, time.Time{})
		return err
	})
	d.intact()
	want := "again"
	if swapped {
		want = "next"
	}
	if state := d.get("test:a"); err == nil && string(state) != want {
		s.broken("the context has ended; swapped is %v, and the state %q", swapped, state)
	}
}
