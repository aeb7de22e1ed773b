package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
)

// locked returns a fault of a lockedStore that change breaks.
func locked(rule string, change func(s *lockedStore)) fault {
	return fault{rule: rule, store: func() ratelimit.Store {
		s := newLockedStore()
		change(s)
		return s
	}}
}

// named returns a fault of a store that makes one string of a name and a key.
func named(rule string, id func(name, key string) string) fault {
	return locked(rule, func(s *lockedStore) { s.id = id })
}

// faultsOfNames returns stores that confuse the names of limiters.
func faultsOfNames() map[string]fault {
	changed := func(change func(name string) string) fault {
		return named("Names", func(name, key string) string { return change(name) + "\x00\x01" + key })
	}
	cut := func(most int) func(string) string {
		return func(name string) string { return name[:min(len(name), most)] }
	}
	return map[string]fault{
		"names are ignored":               named("Names", func(_, key string) string { return key }),
		"a colon in a name ends the name": named("Names", func(name, key string) string { return name + ":" + key }),
		"nothing ends a name":             named("Names", func(name, key string) string { return name + key }),
		"names are in lower case":         changed(strings.ToLower),
		"names are cut to 16 bytes":       changed(cut(16)),
		"names are cut to 255 bytes":      changed(cut(255)),
		"a name may have several algorithms": locked("SameName", func(s *lockedStore) {
			s.shares = true
		}),
		"the error of a name with another algorithm is not ErrInvalid": locked("SameName", func(s *lockedStore) {
			s.open = func(name string) error {
				if _, ok := s.names[name]; ok {
					return errors.New("already open")
				}
				return nil
			}
		}),
	}
}

// faultsOfKeys returns stores that confuse keys, as collations and paths do.
func faultsOfKeys() map[string]fault {
	changed := func(change func(key string) string) fault {
		return named("Keys", func(_, key string) string { return change(key) })
	}
	replaced := func(old, by string) fault {
		return changed(func(key string) string { return strings.Replace(key, old, by, 1) })
	}
	trimmed := func(cutset string) fault {
		return changed(func(key string) string { return strings.TrimRight(key, cutset) })
	}
	number := func(key string) string {
		if x, err := strconv.ParseFloat(key, 64); err == nil {
			return strconv.FormatFloat(x, 'g', -1, 64)
		}
		return key
	}
	upToZero := func(key string) string {
		key, _, _ = strings.Cut(key, "\x00")
		return key
	}
	tooLarge := locked("Keys", func(s *lockedStore) {
		s.fail = func(key string) error {
			if len(key) > 32768 {
				return errTooLarge
			}
			return nil
		}
	})
	tooLarge.says = errTooLarge.Error()
	return map[string]fault{
		"keys are in lower case":          changed(strings.ToLower),
		"É is é":                          replaced("É", "é"),
		"é is e":                          replaced("é", "e"),
		"keys are in normal form":         replaced("e\u0301", "é"),
		"keys are cut to 255 bytes":       changed(func(key string) string { return key[:min(len(key), 255)] }),
		"spaces at the end of keys go":    trimmed(" "),
		"line breaks at the end go":       trimmed("\n"),
		"a zero byte ends a key":          changed(upToZero),
		"keys are read as numbers":        changed(number),
		"keys are read as paths":          changed(func(key string) string { return path.Clean("/" + key) }),
		"keys are made valid UTF-8":       changed(func(key string) string { return strings.ToValidUTF8(key, "\ufffd") }),
		"keys are read as UTF-8":          changed(func(key string) string { return string([]rune(key)) }),
		"keys beyond 32 KiB are an error": tooLarge,
		"two of many keys are one": named("ManyKeys", func(_, key string) string {
			if key == "user 7" {
				return "user 77"
			}
			return key
		}),
	}
}

// faultsOfStates returns stores that change states, or cannot store them.
func faultsOfStates() map[string]fault {
	put := func(rule, says string, put func(state string) (string, error)) fault {
		f := locked(rule, func(s *lockedStore) { s.put = put })
		f.says = says
		return f
	}
	const unreadable = "unreadable state"
	cut := func(most int) fault {
		return put("LargeStates", unreadable, func(state string) (string, error) { return state[:min(len(state), most)], nil })
	}
	refused := func(most int) fault {
		return put("LargeStates", errTooLarge.Error(), func(state string) (string, error) {
			if len(state) > most {
				return "", errTooLarge
			}
			return state, nil
		})
	}
	return map[string]fault{
		"states are cut to 8 KiB":           cut(8 << 10),
		"states are cut to 64 KiB":          cut(64 << 10),
		"states beyond 8 KiB are an error":  refused(8 << 10),
		"states beyond 64 KiB are an error": refused(64 << 10),
		"spaces at the end of states go": put("LargeStates", unreadable,
			func(state string) (string, error) { return strings.TrimRight(state, " "), nil }),
		// Every rule fails, and the process goes on. Of bytes that are not UTF-8, each one is made a
		// character: three of them made one character would keep the length.
		"states are made valid UTF-8": put("", unreadable,
			func(state string) (string, error) { return string([]rune(state)), nil }),
		"states beyond 11,999 are evicted": locked("ManyKeys", func(s *lockedStore) { s.forgets = 11_999 }),
		"only states of grants are stored": locked("Exact/SlidingLog/count_denied", func(s *lockedStore) {
			s.keeps = func(res step.Answer) bool { return res.Allowed }
		}),
	}
}

// faultsOfResets returns stores whose Reset deletes something else.
func faultsOfResets() map[string]fault {
	resets := func(reset func(s *lockedStore, key string)) fault {
		return locked("Reset", func(s *lockedStore) { s.reset = reset })
	}
	return map[string]fault{
		"Reset deletes nothing":    resets(func(*lockedStore, string) {}),
		"Reset deletes everything": resets(func(s *lockedStore, _ string) { clear(s.states) }),
		"Reset deletes the key of every name": resets(func(s *lockedStore, key string) {
			for name := range s.names {
				delete(s.states, s.id(name, key))
			}
		}),
		"Reset deletes what begins with the key": locked("Reset", func(s *lockedStore) {
			s.id = func(name, key string) string { return key + "\x00\x01" + name }
			s.reset = func(s *lockedStore, key string) {
				for id := range s.states {
					if strings.HasPrefix(id, key) {
						delete(s.states, id)
					}
				}
			}
		}),
	}
}

// faultsOfRequests returns stores that take a request for another one.
func faultsOfRequests() map[string]fault {
	const exact, flight = "Exact/FixedWindow", "Exact/InFlight"
	changed := func(rule string, change func(req *step.Request)) fault {
		return locked(rule, func(s *lockedStore) {
			s.request = func(req step.Request) step.Request { change(&req); return req }
		})
	}
	of := func(op step.Op, rule string, change func(req *step.Request)) fault {
		return changed(rule, func(req *step.Request) {
			if req.Op == op {
				change(req)
			}
		})
	}
	ignored := func(req *step.Request) { req.Op, req.N = step.OpPeek, 1 }
	return map[string]fault{
		"nobody may wait":                   changed(exact, func(req *step.Request) { req.MaxWait = 0 }),
		"nobody waits too long":             changed(exact, func(req *step.Request) { req.MaxWait = ratelimit.Never }),
		"settlements are ignored":           of(step.OpSettle, exact, ignored),
		"settlements are charges":           of(step.OpSettle, exact, func(req *step.Request) { req.Op = step.OpCharge }),
		"holds are of nothing":              of(step.OpHold, exact, func(req *step.Request) { req.N = 0 }),
		"holds are for ever":                of(step.OpHold, exact, func(req *step.Request) { req.Hold.For = ratelimit.Never }),
		"holds that end give nothing back":  changed(exact, func(req *step.Request) { req.Hold.Back = false }),
		"holds that end give all back":      changed(exact, func(req *step.Request) { req.Hold.Back = true }),
		"holds cannot be extended":          of(step.OpExtend, exact, ignored),
		"a key has one hold":                changed(exact, func(req *step.Request) { req.Hold.ID = min(req.Hold.ID, 1) }),
		"charges beyond the limit are lost": of(step.OpCharge, exact, func(req *step.Request) { req.Op = step.OpTake }),
		"charges count twice":               of(step.OpCharge, exact, func(req *step.Request) { req.N *= 2 }),
		"TakeUpTo takes all or nothing":     changed(exact, func(req *step.Request) { req.UpTo = false }),
		"TakeUpTo takes three at most":      changed(exact, takeThree),
		"events in flight stay there":       of(step.OpSettle, flight, ignored),
		"a release is of the latest hold":   locked(flight, releaseTheLatest),
		"the time is read before the state": locked("Meanwhile", readTheTimeFirst),
		"all calls use the first context":   firstContext(),
	}
}

func takeThree(req *step.Request) {
	if req.UpTo {
		req.N = min(req.N, 3)
	}
}

// releaseTheLatest settles the latest hold in place of each other one.
func releaseTheLatest(s *lockedStore) {
	var latest uint64
	s.request = func(req step.Request) step.Request {
		switch req.Op {
		case step.OpHold:
			latest = req.Hold.ID
		case step.OpSettle:
			req.Hold.ID = latest
		}
		return req
	}
}

func readTheTimeFirst(s *lockedStore) {
	s.request = func(req step.Request) step.Request { req, _ = req.Read(); return req }
}

func firstContext() fault {
	f := locked("Contexts", func(s *lockedStore) { s.oneFirst = true })
	f.says = "context canceled"
	return f
}

// faultsOfErrors returns stores that fail.
func faultsOfErrors() map[string]fault {
	locked := errors.New("database is locked")
	fails := func(rule string, err error, fail func(op step.Op, call int) bool) fault {
		return fault{rule: rule, says: err.Error(), store: func() ratelimit.Store {
			calls := 0
			return failing{newLockedStore(), func(op step.Op) error {
				if calls++; fail(op, calls) {
					return err
				}
				return nil
			}}
		}}
	}
	return map[string]fault{
		"every call fails":         fails("Exact/TokenBucket", errLost, func(step.Op, int) bool { return true }),
		"some calls fail":          fails("Atomic", locked, func(_ step.Op, call int) bool { return call%50 == 0 }),
		"cancellations are errors": fails("Exact/FixedWindow", errLost, func(op step.Op, _ int) bool { return op == step.OpSettle }),
	}
}

// faultsOfHandles returns stores of which another handle finds other states.
func faultsOfHandles() map[string]fault {
	store := func() ratelimit.Store { return newLockedStore() }
	itself := func(s ratelimit.Store) ratelimit.Store { return s }
	return map[string]fault{
		"a restart forgets the states": {rule: "Restart", store: store,
			reopen: func(ratelimit.Store) ratelimit.Store { return newLockedStore() }},
		"limits with other parameters have other states": {rule: "Restart", reopen: itself,
			store: func() ratelimit.Store { return &apart{newLockedStore()} }},
		"each handle has a copy of the states": {rule: "Handles", store: store, reopen: copied},
		"another handle finds no holds":        {rule: "Exact/FixedWindow", store: store, reopen: withoutHolds},
	}
}

// copied returns a handle on a copy of the states.
func copied(s ratelimit.Store) ratelimit.Store {
	of, again := s.(*lockedStore), newLockedStore()
	of.mu.Lock()
	defer of.mu.Unlock()
	maps.Copy(again.states, of.states)
	return again
}

// withoutHolds returns a handle that takes each hold for another one.
func withoutHolds(s ratelimit.Store) ratelimit.Store {
	of, again := s.(*lockedStore), newLockedStore()
	again.states = of.states // which no two goroutines use, in a history
	again.request = func(req step.Request) step.Request { req.Hold.ID ^= 1; return req }
	return again
}

// An apart store keeps the states of limits with different parameters, and those with WithLimits,
// apart.
type apart struct{ *lockedStore }

func (s *apart) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	return s.lockedStore.Open(fmt.Sprintf("%s%s%v", name, t.Tag(), t.Varies), t, timeout)
}

// oneWriter returns a store whose database has a lock for all writes, which take 10 ms, and that
// makes a loop for each call.
func oneWriter() ratelimit.Store {
	return looping{newDatabase(func(db *database, key, old, state string, until time.Time) bool {
		db.writing.Lock()
		defer db.writing.Unlock()
		time.Sleep(10 * time.Millisecond)
		return db.swap(key, same(old), state, until)
	})}
}

// A looping store gets, compares and swaps until it succeeds.
type looping struct{ db *database }

func (s looping) Open(string, *limit.Limit, time.Duration) (limit.States, error) { return s, nil }

// Timeout implements [limit.States].
func (looping) Timeout() time.Duration { return 0 }

// Strays implements limit.States.
func (looping) Strays() *stray.List { return nil }

// Lines implements limit.States.
func (looping) Lines() *line.Lines { return new(line.Lines) }

func (s looping) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		old, _ := s.db.Get(ctx, key)
		after, err := t.Apply(old, req)
		if after.Changed && !s.db.swaps(s.db, key, string(old), string(after.State), time.Time{}) {
			if err = ctx.Err(); err == nil {
				continue
			}
		}
		return after.Answer, err
	}
}

func (s looping) Reset(ctx context.Context, key string) error { return s.db.Delete(ctx, key) }

// A failing store returns errors that depend on the operation.
type failing struct {
	ratelimit.Store
	fail func(op step.Op) error
}

func (s failing) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	states, err := s.Store.Open(name, t, timeout)
	return &failingStates{States: states, fail: s.fail}, err
}

type failingStates struct {
	limit.States
	mu   sync.Mutex
	fail func(op step.Op) error
}

func (s *failingStates) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	s.mu.Lock()
	err := s.fail(req.Op)
	s.mu.Unlock()
	if err != nil {
		return step.Answer{}, err
	}
	return s.States.Apply(ctx, key, t, req)
}
