package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A lockedStore is a simple store as a user would write it: a map protected by a mutex.
// Its fields break it in various ways.
type lockedStore struct {
	mu     sync.Mutex
	names  map[string]string // the Tag of the limiter of each name
	states map[string]string

	id       func(name, key string) string      // of a state
	put      func(state string) (string, error) // returns the state to store
	open     func(name string) error            // returns the error of Open
	fail     func(key string) error             // returns the error of Apply
	reset    func(s *lockedStore, key string)   // implements Reset
	request  func(step.Request) step.Request
	keeps    func(step.Answer) bool // whether a change is stored
	shares   bool                   // whether any algorithm may have any name
	forgets  int                    // the most states that it keeps
	order    []string               // in which the states were added
	context  context.Context        // of the first call
	oneFirst bool                   // whether all calls use that context
}

func newLockedStore() *lockedStore {
	return &lockedStore{
		names: map[string]string{}, states: map[string]string{},
		id: func(name, key string) string { return fmt.Sprintf("%d:%s%s", len(name), name, key) },
	}
}

func (s *lockedStore) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil {
		if err := s.open(name); err != nil {
			return nil, err
		}
	}
	tag := fmt.Sprintf("%x %v", t.Tag(), t.Varies)
	if have, ok := s.names[name]; ok && have != tag && !s.shares {
		return nil, fmt.Errorf("%q has another algorithm: %w", name, ratelimit.ErrInvalid)
	}
	s.names[name] = tag
	return &lockedStates{s, name}, nil
}

type lockedStates struct {
	*lockedStore
	name string
}

// Timeout implements [limit.States].
func (*lockedStates) Timeout() time.Duration { return 0 }

// Strays implements limit.States.
func (s *lockedStates) Strays() *stray.List { return nil }

// Lines implements limit.States.
func (s *lockedStates) Lines() *line.Lines { return new(line.Lines) }

func (s *lockedStates) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	if s.fail != nil {
		if err := s.fail(key); err != nil {
			return step.Answer{}, err
		}
	}
	if s.request != nil {
		req = s.request(req)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.context == nil {
		s.context = ctx
	}
	if s.oneFirst && s.context.Err() != nil {
		return step.Answer{}, s.context.Err()
	}
	id := s.id(s.name, key)
	state := s.states[id]
	after, unread := t.Apply([]byte(state), req)
	if !after.Changed || s.keeps != nil && !s.keeps(after.Answer) {
		return after.Answer, unread
	}
	if _, known := s.states[id]; !known {
		s.order = append(s.order, id)
	}
	stored := string(after.State)
	if s.put != nil {
		var err error
		if stored, err = s.put(stored); err != nil {
			return step.Answer{}, err
		}
	}
	s.states[id] = stored
	if s.forgets > 0 && len(s.order) > s.forgets {
		delete(s.states, s.order[0])
		s.order = s.order[1:]
	}
	return after.Answer, unread
}

func (s *lockedStates) Reset(_ context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reset != nil {
		s.reset(s.lockedStore, key)
		return nil
	}
	delete(s.states, s.id(s.name, key))
	return nil
}

// locked returns a constructor of lockedStores that change breaks.
func locked(change func(s *lockedStore)) func(clock.Clock) ratelimit.Store {
	return func(clock.Clock) ratelimit.Store {
		s := newLockedStore()
		change(s)
		return s
	}
}

// requests returns a constructor of stores that change each request.
func requests(change func(req step.Request) step.Request) func(clock.Clock) ratelimit.Store {
	return locked(func(s *lockedStore) { s.request = change })
}

// broken returns a constructor of databases that swap states by swaps.
func broken(swaps func(db *database, key, old, state string, until time.Time) bool) func(clock.Clock) ratelimit.Database {
	return func(clock.Clock) ratelimit.Database { return newDatabase(swaps) }
}

// A renaming database changes keys.
type renaming struct {
	*table
	rename func(key string) string
}

func (db renaming) Get(ctx context.Context, key string) ([]byte, error) {
	return db.table.Get(ctx, db.rename(key))
}

func (db renaming) CompareAndSwap(ctx context.Context, key string, old, state []byte, until time.Time) (bool, error) {
	return db.table.CompareAndSwap(ctx, db.rename(key), old, state, until)
}

func (db renaming) Delete(ctx context.Context, key string) error {
	return db.table.Delete(ctx, db.rename(key))
}

// renamed returns a constructor of databases that change keys.
func renamed(rename func(key string) string) func(clock.Clock) ratelimit.Database {
	return func(clock.Clock) ratelimit.Database { return renaming{newTable(), rename} }
}

func cutKeys(most int) func(key string) string {
	return func(key string) string { return key[:min(len(key), most)] }
}

// A reusing database returns all states in one buffer.
type reusing struct {
	*table
	mu     sync.Mutex
	buffer [1 << 20]byte
}

func (db *reusing) Get(ctx context.Context, key string) ([]byte, error) {
	state, err := db.table.Get(ctx, key)
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.buffer[:copy(db.buffer[:], state)], err
}

// A wiping database clears the old state once it is swapped.
type wiping struct{ *table }

func (db wiping) CompareAndSwap(ctx context.Context, key string, old, state []byte, until time.Time) (bool, error) {
	swapped, err := db.table.CompareAndSwap(ctx, key, old, state, until)
	if swapped {
		clear(old)
	}
	return swapped, err
}

// A strict database deletes only what is there.
type strict struct{ *table }

func (db strict) Delete(ctx context.Context, key string) error {
	if state, _ := db.Get(ctx, key); state == nil {
		return errors.New("no such key")
	}
	return db.table.Delete(ctx, key)
}

// A keeping database deletes nothing.
type keeping struct{ *table }

func (keeping) Delete(context.Context, string) error { return nil }

var errTooLarge = errors.New("value too large for this table")

// TestBrokenStores runs one rule of the suite on stores that break a promise, each in a
// separate process, and expects the suite to name the promise.
func TestBrokenStores(t *testing.T) {
	const variable = "STORETEST_BROKEN"
	cut := func(most int) func(string) (string, error) {
		return func(state string) (string, error) { return state[:min(len(state), most)], nil }
	}
	refused := func(most int) func(string) (string, error) {
		return func(state string) (string, error) {
			if len(state) > most {
				return "", errTooLarge
			}
			return state, nil
		}
	}
	for broken, tt := range map[string]struct {
		rule  string
		says  string // the expected message; empty for that of the broken promise
		store func(clock.Clock) ratelimit.Store

		reopen   func(s ratelimit.Store) ratelimit.Store
		database func(clock.Clock) ratelimit.Database // in place of store
	}{
		"lost update": {rule: "Atomic", database: broken(func(db *database, key, _, state string, until time.Time) bool {
			return db.swap(key, func(value) bool { return true }, state, until)
		})},
		"early": {rule: "RetryAfter", database: func(clk clock.Clock) ratelimit.Database {
			db := newDatabase(func(db *database, key, old, state string, until time.Time) bool {
				return db.swap(key, same(old), state, until.Add(-time.Millisecond))
			})
			db.expires = clk
			return db
		}},
		"nothing to test":     {says: "Config has no Database"},
		"no names":            {rule: "Names", store: locked(func(s *lockedStore) { s.id = func(_, key string) string { return key } })},
		"ambiguous":           {rule: "Names", store: locked(func(s *lockedStore) { s.id = func(name, key string) string { return name + ":" + key } })},
		"without a separator": {rule: "Names", store: locked(func(s *lockedStore) { s.id = func(name, key string) string { return name + key } })},
		"names in lower case": {rule: "Names", store: locked(func(s *lockedStore) {
			s.id = func(name, key string) string { return strings.ToLower(name) + "\x00\x01" + key }
		})},
		"names cut to 16 bytes":  {rule: "Names", store: locked(func(s *lockedStore) { s.id = cutNames(16) })},
		"names cut to 255 bytes": {rule: "Names", store: locked(func(s *lockedStore) { s.id = cutNames(255) })},
		"keys in lower case":     {rule: "Keys", store: locked(func(s *lockedStore) { s.id = func(_, key string) string { return strings.ToLower(key) } })},
		"keys cut to 255 bytes":  {rule: "Keys", store: locked(func(s *lockedStore) { s.id = func(_, key string) string { return key[:min(len(key), 255)] } })},
		"keys cut to 180 bytes":  {rule: "Keys", database: renamed(cutKeys(180))},
		"states without spaces at their end": {rule: "LargeStates", says: "unreadable state", store: locked(func(s *lockedStore) {
			s.put = func(state string) (string, error) { return strings.TrimRight(state, " "), nil }
		})},
		"states made valid UTF-8": {rule: "", says: "unreadable state", store: locked(func(s *lockedStore) {
			s.put = func(state string) (string, error) { return string([]rune(state)), nil } // each byte apart: three at once would keep the length
		})}, // every rule fails, and the process goes on
		"the zero time as expired": {rule: "Forgetting", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			return until.IsZero() || db.swap(key, same(old), state, until)
		})},
		"keys without spaces": {rule: "Keys", store: locked(func(s *lockedStore) { s.id = func(_, key string) string { return strings.TrimRight(key, " ") } })},
		"keys until a zero byte": {rule: "Keys", store: locked(func(s *lockedStore) {
			s.id = func(_, key string) string { key, _, _ = strings.Cut(key, "\x00"); return key }
		})},
		"keys in lower case, of all letters": {rule: "Keys", store: locked(func(s *lockedStore) {
			s.id = func(_, key string) string { return strings.Replace(key, "É", "é", 1) }
		})},
		"keys without accents": {rule: "Keys", store: locked(func(s *lockedStore) {
			s.id = func(_, key string) string { return strings.Replace(key, "é", "e", 1) }
		})},
		"keys in normal form": {rule: "Keys", store: locked(func(s *lockedStore) {
			s.id = func(_, key string) string { return strings.Replace(key, "e\u0301", "é", 1) }
		})},
		"keys read as numbers": {rule: "Keys", store: locked(func(s *lockedStore) {
			s.id = func(_, key string) string {
				if x, err := strconv.ParseFloat(key, 64); err == nil {
					return strconv.FormatFloat(x, 'g', -1, 64)
				}
				return key
			}
		})},
		"keys without line breaks": {rule: "Keys", store: locked(func(s *lockedStore) {
			s.id = func(_, key string) string { return strings.TrimRight(key, "\n") }
		})},
		"keys as paths": {rule: "Keys", store: locked(func(s *lockedStore) {
			s.id = func(_, key string) string { return path.Clean("/" + key) }
		})},
		"keys made valid UTF-8": {rule: "Keys", store: locked(func(s *lockedStore) { s.id = func(_, key string) string { return strings.ToValidUTF8(key, "\ufffd") } })},
		"keys read as UTF-8":    {rule: "Keys", store: locked(func(s *lockedStore) { s.id = func(_, key string) string { return string([]rune(key)) } })},
		"keys too large": {rule: "Keys", says: "key too large", store: locked(func(s *lockedStore) {
			s.fail = func(key string) error {
				if len(key) > 32768 {
					return errors.New("key too large")
				}
				return nil
			}
		})},
		"resets other names": {rule: "Reset", store: locked(func(s *lockedStore) {
			s.reset = func(s *lockedStore, key string) {
				for name := range s.names {
					delete(s.states, s.id(name, key))
				}
			}
		})},
		"resets all": {rule: "Reset", store: locked(func(s *lockedStore) {
			s.reset = func(s *lockedStore, _ string) { clear(s.states) }
		})},
		"resets by prefix": {rule: "Reset", store: locked(func(s *lockedStore) {
			s.id = func(name, key string) string { return key + "\x00\x01" + name }
			s.reset = func(s *lockedStore, key string) {
				for id := range s.states {
					if strings.HasPrefix(id, key) {
						delete(s.states, id)
					}
				}
			}
		})},
		"resets nothing":             {rule: "Reset", store: locked(func(s *lockedStore) { s.reset = func(*lockedStore, string) {} })},
		"states cut to 8 KiB":        {rule: "LargeStates", says: "unreadable state", store: locked(func(s *lockedStore) { s.put = cut(8 << 10) })},
		"states cut to 64 KiB":       {rule: "LargeStates", says: "unreadable state", store: locked(func(s *lockedStore) { s.put = cut(64 << 10) })},
		"states refused from 8 KiB":  {rule: "LargeStates", says: errTooLarge.Error(), store: locked(func(s *lockedStore) { s.put = refused(8 << 10) })},
		"states refused from 64 KiB": {rule: "LargeStates", says: errTooLarge.Error(), store: locked(func(s *lockedStore) { s.put = refused(64 << 10) })},
		"evicts above 10,000":        {rule: "ManyKeys", store: locked(func(s *lockedStore) { s.forgets = 10_000 })},
		"time before the state": {rule: "Meanwhile", store: locked(func(s *lockedStore) {
			s.request = func(req step.Request) step.Request { req, _ = req.Read(); return req }
		})},
		"recreates what was reset": {rule: "Meanwhile", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, func(v value) bool { return v.state == "" || v.state == old }, state, until)
		})},
		"counters that begin anew":                 {rule: "Meanwhile/Reset_and_Take", database: counters},
		"counters that begin anew after an expiry": {rule: "Meanwhile/the_next_hour", database: counters},
		"inserts over others": {rule: "Meanwhile", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, func(v value) bool { return old == "" || v.state == old }, state, until)
		})},
		"inserts once more": {rule: "Swap", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, func(v value) bool { return old == "" || v.state == old }, state, until)
		})},
		"inserts what has gone": {rule: "Swap", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, func(v value) bool { return v.state == "" || v.state == old }, state, until)
		})},
		"compares 64 bytes": {rule: "Swap", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, func(v value) bool { return v.state[:min(len(v.state), 64)] == old[:min(len(old), 64)] }, state, until)
		})},
		"compares in lower case": {rule: "Swap", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, func(v value) bool { return strings.EqualFold(v.state, old) }, state, until)
		})},
		"compares without spaces": {rule: "Swap", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, func(v value) bool { return strings.TrimRight(v.state, " ") == strings.TrimRight(old, " ") }, state, until)
		})},
		"says that it swapped": {rule: "Swap", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, same(old), state, until) || true
		})},
		"looks and swaps": {rule: "OneSwap", database: broken(func(db *database, key, old, state string, until time.Time) bool {
			now := db.value(key)
			runtime.Gosched()
			return now.state == old && db.swap(key, func(value) bool { return true }, state, until)
		})},
		"database in lower case":      {rule: "Bytes", database: renamed(strings.ToLower)},
		"database with 199-byte keys": {rule: "Bytes", database: renamed(cutKeys(199))},
		"one buffer":                  {rule: "Bytes", database: func(clock.Clock) ratelimit.Database { return &reusing{table: newTable()} }},
		"clears what it was given":    {rule: "Swap", says: "has changed a slice", database: func(clock.Clock) ratelimit.Database { return wiping{newTable()} }},
		"deletes only what is there":  {rule: "Delete", says: "no such key", database: func(clock.Clock) ratelimit.Database { return strict{newTable()} }},
		"deletes nothing":             {rule: "Delete", database: func(clock.Clock) ratelimit.Database { return keeping{newTable()} }},
		"conflicts use up the time":   {rule: "Contended", store: oneWriter},
		"the first context":           {rule: "Contexts", says: "context canceled", store: locked(func(s *lockedStore) { s.oneFirst = true })},
		"any algorithm":               {rule: "SameName", store: locked(func(s *lockedStore) { s.shares = true })},
		"another error": {rule: "SameName", store: locked(func(s *lockedStore) {
			s.open = func(name string) error {
				if _, ok := s.names[name]; ok {
					return errors.New("already open")
				}
				return nil
			}
		})},
		"stores grants only": {rule: "CountDenied", store: locked(func(s *lockedStore) {
			s.keeps = func(res step.Answer) bool { return res.Allowed }
		})},
		"no wait": {rule: "Wait", store: locked(func(s *lockedStore) {
			s.request = func(req step.Request) step.Request { req.MaxWait = ratelimit.Never; return req }
		})},
		"settles nothing": {rule: "Settle", store: requests(func(req step.Request) step.Request {
			if req.Op == step.OpSettle {
				req.Op, req.N = step.OpPeek, 1
			}
			return req
		})},
		"settles as charges": {rule: "Settle", store: requests(func(req step.Request) step.Request {
			if req.Op == step.OpSettle {
				req.Op = step.OpCharge
			}
			return req
		})},
		"holds nothing": {rule: "Settle", store: requests(func(req step.Request) step.Request {
			if req.Op == step.OpHold {
				req.N = 0
			}
			return req
		})},
		"holds for ever": {rule: "Holds", store: requests(func(req step.Request) step.Request {
			if req.Op == step.OpHold {
				req.Hold.For = ratelimit.Never
			}
			return req
		})},
		"gives nothing back": {rule: "Holds", store: requests(func(req step.Request) step.Request {
			req.Hold.Back = false
			return req
		})},
		"gives all back": {rule: "Holds", store: requests(func(req step.Request) step.Request {
			req.Hold.Back = true
			return req
		})},
		"extends nothing": {rule: "Holds", store: requests(func(req step.Request) step.Request {
			if req.Op == step.OpExtend {
				req.Op, req.N = step.OpPeek, 1
			}
			return req
		})},
		"one hold for each key": {rule: "Holds", store: requests(func(req step.Request) step.Request {
			if req.Hold.ID != 0 {
				req.Hold.ID = 1
			}
			return req
		})},
		"forgets holds at a restart": {rule: "Holds", reopen: func(s ratelimit.Store) ratelimit.Store {
			return &lockedStore{names: map[string]string{}, states: s.(*lockedStore).states, id: s.(*lockedStore).id, request: func(req step.Request) step.Request {
				req.Hold.ID ^= 1 // so that none is found
				return req
			}}
		}, store: locked(func(*lockedStore) {})},
		"charges only what is granted": {rule: "Charge", store: requests(func(req step.Request) step.Request {
			if req.Op == step.OpCharge {
				req.Op = step.OpTake
			}
			return req
		})},
		"charges twice": {rule: "Charge", store: requests(func(req step.Request) step.Request {
			if req.Op == step.OpCharge {
				req.N *= 2
			}
			return req
		})},
		"loses settlements": {rule: "Settle", database: broken(func(db *database, key, _, state string, until time.Time) bool {
			return db.swap(key, func(value) bool { return true }, state, until)
		})},
		"releases nothing": {rule: "InFlight", store: locked(func(s *lockedStore) {
			s.request = func(req step.Request) step.Request {
				if req.Op == step.OpSettle {
					req.Op, req.N = step.OpPeek, 1
				}
				return req
			}
		})},
		"releases of others": {rule: "InFlight", store: locked(func(s *lockedStore) {
			var latest uint64 // the ID of the latest hold, which is settled in place of each
			s.request = func(req step.Request) step.Request {
				switch req.Op {
				case step.OpHold:
					latest = req.Hold.ID
				case step.OpSettle:
					req.Hold.ID = latest
				}
				return req
			}
		})},
		"cancels nothing": {rule: "Cancel", says: "connection lost", store: func(clock.Clock) ratelimit.Store {
			return failing{newLockedStore(), func(op step.Op) error {
				if op == step.OpSettle {
					return errors.New("connection lost")
				}
				return nil
			}}
		}},
		"a state for each limit": {rule: "Priorities", store: func(clock.Clock) ratelimit.Store { return stateForEachLimit{newLockedStore()} }},
		"no plans":               {rule: "Plans", store: func(clock.Clock) ratelimit.Store { return plansRefused{newLockedStore()} }},
		"fails": {rule: "Exact/TokenBucket", says: "no such table", store: locked(func(s *lockedStore) {
			s.fail = func(string) error { return errors.New("no such table") }
		})},
		"fails at times": {rule: "Atomic", says: "database is locked", store: func(clock.Clock) ratelimit.Store {
			calls := 0
			return failing{newLockedStore(), func(step.Op) error {
				if calls++; calls%50 == 0 {
					return errors.New("database is locked")
				}
				return nil
			}}
		}},
		"each key once": {rule: "Each", store: together(func(calls []limit.Call, apply func(*limit.Call)) {
			first := make(map[string]step.Answer)
			for i := range calls {
				c, known := &calls[i], false
				if c.Answer, known = first[c.Key]; !known {
					apply(c)
					first[c.Key] = c.Answer
				}
			}
		})},
		"each in another order": {rule: "Each", store: together(func(calls []limit.Call, apply func(*limit.Call)) {
			for i := range slices.Backward(calls) {
				apply(&calls[i])
			}
		})},
		"each until a denial": {rule: "Each", store: together(func(calls []limit.Call, apply func(*limit.Call)) {
			for i := range calls {
				if apply(&calls[i]); !calls[i].Answer.Allowed {
					return
				}
			}
		})},
		"each up to 100 keys": {rule: "Each", store: together(func(calls []limit.Call, apply func(*limit.Call)) {
			for i := range calls[:min(len(calls), 100)] {
				apply(&calls[i])
			}
		})},
		"each by the limit of the first": {rule: "Each", store: together(func(calls []limit.Call, apply func(*limit.Call)) {
			for i := range calls {
				calls[i].Limit = calls[0].Limit
				apply(&calls[i])
			}
		})},
		"each fails at times": {rule: "Each", says: "connection lost", store: together(func(calls []limit.Call, apply func(*limit.Call)) {
			for i := range calls {
				if apply(&calls[i]); i == 20 {
					calls[i].Err = errors.New("connection lost")
				}
			}
		})},
		"up to, but all or none": {rule: "UpTo", store: locked(func(s *lockedStore) {
			s.request = func(req step.Request) step.Request {
				req.UpTo = false
				return req
			}
		})},
		"up to three": {rule: "UpTo", store: locked(func(s *lockedStore) {
			s.request = func(req step.Request) step.Request {
				if req.UpTo {
					req.N = min(req.N, 3)
				}
				return req
			}
		})},
		"keys together until a denial": {rule: "Together", store: jointly(func(calls []limit.Call, apply func(c *limit.Call, refused bool)) bool {
			for i := range calls {
				if apply(&calls[i], false); !calls[i].Answer.Allowed {
					break
				}
			}
			return true
		})},
		"keys together if the first grants": {rule: "Together", store: jointly(func(calls []limit.Call, apply func(c *limit.Call, refused bool)) bool {
			apply(&calls[0], false)
			for i := range calls[1:] {
				calls[1+i].Answer = calls[0].Answer
				calls[1+i].Answered = true
			}
			return true
		})},
		"keys together, granted without a decision": {rule: "Together", store: jointly(func(calls []limit.Call, _ func(*limit.Call, bool)) bool {
			for i := range calls {
				calls[i].Answered, calls[i].Answer.Allowed = true, true
			}
			return true
		})},
		"keys together, always refused": {rule: "Together", store: jointly(func(calls []limit.Call, apply func(c *limit.Call, refused bool)) bool {
			for i := range calls {
				apply(&calls[i], true)
			}
			return true
		})},
		"keys together fail at times": {rule: "Together", says: "connection lost", store: jointly(nil)},
		"forgets over a restart":      {rule: "Restart", store: locked(func(*lockedStore) {}), reopen: func(ratelimit.Store) ratelimit.Store { return newLockedStore() }},
		"apart by parameters":         {rule: "Restart", store: apartStore, reopen: func(s ratelimit.Store) ratelimit.Store { return s }},
		"a cache in each handle": {rule: "Handles", store: locked(func(*lockedStore) {}), reopen: func(s ratelimit.Store) ratelimit.Store {
			s.(*lockedStore).mu.Lock()
			defer s.(*lockedStore).mu.Unlock()
			again := newLockedStore()
			for id, state := range s.(*lockedStore).states {
				again.states[id] = state
			}
			return again
		}},
	} {
		t.Run(broken, func(t *testing.T) {
			if os.Getenv(variable) == broken {
				var c storetest.Config
				if tt.store != nil {
					c.New = func(_ testing.TB, clk clock.Clock) ratelimit.Store { return tt.store(clk) }
				}
				if tt.database != nil {
					c.Database = func(_ testing.TB, clk clock.Clock) ratelimit.Database { return tt.database(clk) }
				}
				if tt.reopen != nil {
					c.Reopen = func(_ testing.TB, _ clock.Clock, s ratelimit.Store) ratelimit.Store { return tt.reopen(s) }
				}
				storetest.Run(t, c)
				return
			}
			if os.Getenv(variable) != "" {
				return
			}
			t.Parallel()
			says := tt.says
			if says == "" {
				says = "broken promise: "
			}
			out, err := alone(t, variable, broken, tt.rule)
			if err == nil || !strings.Contains(out, says) {
				t.Errorf("the suite did not notice; it said %v\n%s", err, out)
			}
			if tt.says != "" && strings.Contains(out, "broken promise") {
				t.Errorf("the suite does not say that the store failed:\n%s", out)
			}
		})
	}
}

// TestStoreThatStopsTheRun checks that a store that hangs or panics fails its subtest
// with a message that says so, and that the others continue.
func TestStoreThatStopsTheRun(t *testing.T) {
	const variable = "STORETEST_STOPS"
	for broken, tt := range map[string]struct {
		reset func(*lockedStore, string)
		open  func(name string) error
		says  string
	}{
		"hangs":        {reset: func(*lockedStore, string) { select {} }, says: "did not return within 200ms"},
		"panics":       {reset: func(*lockedStore, string) { panic("odd") }, says: "panicked: odd"},
		"hangs, Open":  {open: onceOpened(func() { select {} }), says: "Open did not return within 200ms"},
		"panics, Open": {open: onceOpened(func() { panic("odd") }), says: "Open panicked: odd"},
	} {
		t.Run(broken, func(t *testing.T) {
			if os.Getenv(variable) == broken {
				storetest.Run(t, storetest.Config{
					New: func(testing.TB, clock.Clock) ratelimit.Store {
						s := newLockedStore()
						s.reset, s.open = tt.reset, tt.open
						return s
					},
					Steps:   10,
					Keys:    10,
					Timeout: 200 * time.Millisecond,
				})
				return
			}
			if os.Getenv(variable) != "" {
				return
			}
			t.Parallel()
			out, err := alone(t, variable, broken, "(Reset|Names|ClockBack|ManyKeys)")
			if err == nil || !strings.Contains(out, tt.says) {
				t.Errorf("the suite did not notice; it said %v\n%s", err, out)
			}
			for _, rule := range []string{"ClockBack", "ManyKeys"} {
				if !strings.Contains(out, "PASS: TestStoreThatStopsTheRun/"+strings.ReplaceAll(broken, " ", "_")+"/"+rule) {
					t.Errorf("%s did not go on:\n%s", rule, out)
				}
			}
		})
	}
}

// onceOpened returns an open function that calls f for a limiter that is not named by default.
func onceOpened(f func()) func(string) error {
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
	subtest := strings.NewReplacer(" ", "_", "(", `\(`).Replace(name)
	pattern := "^" + test + "$/^" + subtest + "$"
	for part := range strings.SplitSeq(rule, "/") {
		pattern += "/^" + part
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run="+pattern)
	cmd.Env = append(os.Environ(), variable+"="+name)
	text, err := cmd.CombinedOutput()
	if !bytes.Contains(text, []byte("--- FAIL: "+test)) && err != nil || bytes.Contains(text, []byte("has completed")) {
		t.Errorf("the process ended: %v", err)
	}
	return string(text), err
}

func cutNames(most int) func(name, key string) string {
	return func(name, key string) string { return name[:min(len(name), most)] + "\x00\x01" + key }
}

// counters has a version number for each key that starts again with 1 after the key was
// deleted, and compares that of the state that was read.
func counters(clk clock.Clock) ratelimit.Database {
	db := newDatabase(func(db *database, key, old, state string, until time.Time) bool {
		db.mu.Lock()
		defer db.mu.Unlock()
		revision := db.known[key+" "+old]
		if db.values[key].revision != revision {
			return false
		}
		db.values[key] = value{state, revision + 1, until}
		return true
	})
	db.expires = clk.(*storetest.Clock).Clock
	return db
}

// oneWriter has a lock for all writes, which take 10 ms, and a loop for each call.
func oneWriter(clock.Clock) ratelimit.Store {
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

// apartStore keeps limiters with different parameters, and those with WithLimits, apart.
func apartStore(clock.Clock) ratelimit.Store { return &apart{newLockedStore()} }

type apart struct{ *lockedStore }

func (s *apart) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	return s.lockedStore.Open(fmt.Sprintf("%s%s%v", name, t.Tag(), t.Varies), t, timeout)
}

// together returns a constructor of lockedStores that have EachStates. They pass the calls to
// each, and what it may do with each of them.
func together(each func(calls []limit.Call, apply func(*limit.Call))) func(clock.Clock) ratelimit.Store {
	return func(clock.Clock) ratelimit.Store { return &togetherStore{newLockedStore(), each} }
}

type togetherStore struct {
	*lockedStore
	each func(calls []limit.Call, apply func(*limit.Call))
}

func (s *togetherStore) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	states, err := s.lockedStore.Open(name, t, timeout)
	return &togetherStates{states, s}, err
}

type togetherStates struct {
	limit.States
	store *togetherStore
}

func (s *togetherStates) ApplyEach(ctx context.Context, calls []limit.Call) {
	s.store.each(calls, func(c *limit.Call) {
		c.Answer, c.Err = s.Apply(ctx, c.Key, c.Limit, c.Request)
	})
}

// jointly returns a constructor of lockedStores that have JointStates. They pass the calls to
// all, and what it may do with each of them. If all is nil, they fail.
func jointly(all func(calls []limit.Call, apply func(c *limit.Call, refused bool)) bool) func(clock.Clock) ratelimit.Store {
	return func(clock.Clock) ratelimit.Store { return &jointStore{newLockedStore(), all} }
}

type jointStore struct {
	*lockedStore
	all func(calls []limit.Call, apply func(c *limit.Call, refused bool)) bool
}

func (s *jointStore) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	states, err := s.lockedStore.Open(name, t, timeout)
	return &jointStates{states, s}, err
}

type jointStates struct {
	limit.States
	store *jointStore
}

func (s *jointStates) Group(string) any { return s.store }

func (s *jointStates) ApplyAll(ctx context.Context, calls []limit.Call) (decided bool, err error) {
	if s.store.all == nil {
		return true, errors.New("connection lost")
	}
	decided = s.store.all(calls, func(c *limit.Call, refused bool) {
		req := c.Request
		req.Refused = refused
		var failed error
		c.Answer, failed = c.States.Apply(ctx, c.Key, c.Limit, req)
		c.Answered, err = true, errors.Join(err, failed)
	})
	return decided, err
}

// plansRefused refuses to open limiters of algorithms that need no state.
type plansRefused struct{ *lockedStore }

func (s plansRefused) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	if t.Stateless() {
		return nil, fmt.Errorf("nothing to store: %w", ratelimit.ErrInvalid)
	}
	return s.lockedStore.Open(name, t, timeout)
}

// A stateForEachLimit has a state for each limit of a key.
type stateForEachLimit struct{ ratelimit.Store }

func (s stateForEachLimit) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	states, err := s.Store.Open(name, t, timeout)
	return statesByLimit{states}, err
}

type statesByLimit struct{ limit.States }

func (s statesByLimit) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	return s.States.Apply(ctx, fmt.Sprintf("%s of %x", key, t.Tag()), t, req)
}

// failing returns errors that depend on the operation.
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
