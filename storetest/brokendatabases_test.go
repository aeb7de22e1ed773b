package storetest_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A swapper is the CompareAndSwap of a database.
type swapper func(db *database, key, old, state string, until time.Time) bool

// faultsOfSwaps returns databases whose CompareAndSwap is wrong.
func faultsOfSwaps() map[string]fault {
	swaps := func(rule string, by swapper) fault {
		return fault{rule: rule, database: func(clock.Clock) ratelimit.Database { return newDatabase(by) }}
	}
	compares := func(rule string, same func(have, old string) bool) fault {
		return swaps(rule, func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, func(v value) bool { return same(v.state, old) }, state, until)
		})
	}
	always := func(_, _ string) bool { return true }
	orNone := func(have, old string) bool { return have == "" || have == old }
	orNew := func(have, old string) bool { return old == "" || have == old }
	cut := func(s string) string { return s[:min(len(s), 64)] }
	trim := func(s string) string { return strings.TrimRight(s, " ") }
	return map[string]fault{
		"a swap compares nothing, and loses an update":        compares("Atomic", always),
		"a swap makes a key again that was reset meanwhile":   compares("Meanwhile", orNone),
		"a swap of nothing swaps a state":                     compares("Swap", orNew),
		"a swap of nothing swaps a state that is new":         compares("Meanwhile", orNew),
		"a swap of a state makes a key that has none":         compares("Swap", orNone),
		"a swap compares 64 bytes":                            compares("Swap", func(a, b string) bool { return cut(a) == cut(b) }),
		"a swap compares in lower case":                       compares("Swap", strings.EqualFold),
		"a swap compares without spaces at the end":           compares("Swap", func(a, b string) bool { return trim(a) == trim(b) }),
		"a swap says that it has swapped when it has not":     swaps("Swap", alwaysSays),
		"a swap looks at the state, and then stores the next": swaps("OneSwap", looksAndSwaps),
		"a swap says that it has stored what never expires":   swaps("Forgetting", forgetsTheEternal),
		"versions begin anew when a key is deleted":           {rule: "Meanwhile/Reset_and_Take", database: byVersion},
		"versions begin anew when a key expires":              {rule: "Meanwhile/the_next_hour", database: byVersion},
		"states expire a millisecond early":                   {rule: "Exact/FixedWindow", database: early},
		"states expire up to a millisecond early":             {rule: "Exact", database: inMilliseconds(0)},
		"conflicts of many callers use up the time of a call": {rule: "Contended", store: oneWriter},
		"a swap clears the old state that it has been given":  {rule: "Swap", says: "has changed a slice", database: wipes},
	}
}

// alwaysSays swaps as it should, and says that it has swapped in any case.
func alwaysSays(db *database, key, old, state string, until time.Time) bool {
	db.swap(key, same(old), state, until)
	return true
}

// looksAndSwaps compares in one step and stores in another one, between which others may swap.
func looksAndSwaps(db *database, key, old, state string, until time.Time) bool {
	now := db.value(key)
	runtime.Gosched()
	return now.state == old && db.swap(key, func(value) bool { return true }, state, until)
}

// forgetsTheEternal takes the zero Time for a time that has passed.
func forgetsTheEternal(db *database, key, old, state string, until time.Time) bool {
	return until.IsZero() || db.swap(key, same(old), state, until)
}

// early returns a database that deletes states a millisecond before they expire.
func early(clk clock.Clock) ratelimit.Database {
	db := newDatabase(func(db *database, key, old, state string, until time.Time) bool {
		return db.swap(key, same(old), state, until.Add(-time.Millisecond))
	})
	db.expires = clk
	return db
}

// inMilliseconds returns databases that keep the times at which states expire in milliseconds, up to
// one of which they have added.
func inMilliseconds(added time.Duration) func(clk clock.Clock) ratelimit.Database {
	return func(clk clock.Clock) ratelimit.Database {
		db := newDatabase(func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, same(old), state, until.Add(added).Truncate(time.Millisecond))
		})
		db.expires = clk.(*storetest.Clock).Clock
		return db
	}
}

// byVersion returns a database that compares a number of the key, which begins with 1 again after
// the key was deleted or has expired. So it takes a new state for the one that was read.
func byVersion(clk clock.Clock) ratelimit.Database {
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

// faultsOfDatabases returns databases whose other methods are wrong, or that change keys.
func faultsOfDatabases() map[string]fault {
	of := func(rule, says string, open func() ratelimit.Database) fault {
		return fault{rule: rule, says: says, database: func(clock.Clock) ratelimit.Database { return open() }}
	}
	cut := func(most int) func() ratelimit.Database {
		return renamed(func(key string) string { return key[:min(len(key), most)] })
	}
	return map[string]fault{
		"keys are cut to 180 bytes":            of("Keys", "", cut(180)),
		"keys are cut to 199 bytes":            of("Bytes", "", cut(199)),
		"a database has keys in lower case":    of("Bytes", "", renamed(strings.ToLower)),
		"Get returns all states in one buffer": of("Bytes", "", func() ratelimit.Database { return &reusing{table: newTable()} }),
		"Delete deletes nothing":               of("Delete", "", func() ratelimit.Database { return keeping{newTable()} }),
		"Delete fails if there is no state": of("Delete", errNoKey.Error(),
			func() ratelimit.Database { return strict{newTable()} }),
		"a swap whose context has ended swaps, and says that it has not": of("Delete", "",
			func() ratelimit.Database { return denying{newTable()} }),
	}
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

func renamed(rename func(key string) string) func() ratelimit.Database {
	return func() ratelimit.Database { return renaming{newTable(), rename} }
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

func wipes(clock.Clock) ratelimit.Database { return wiping{newTable()} }

func (db wiping) CompareAndSwap(ctx context.Context, key string, old, state []byte, until time.Time) (bool, error) {
	swapped, err := db.table.CompareAndSwap(ctx, key, old, state, until)
	if swapped {
		clear(old)
	}
	return swapped, err
}

// A denying database denies that it has swapped if the context has ended.
type denying struct{ *table }

func (db denying) CompareAndSwap(ctx context.Context, key string, old, state []byte, until time.Time) (bool, error) {
	swapped, err := db.table.CompareAndSwap(ctx, key, old, state, until)
	return swapped && ctx.Err() == nil, err
}

// A strict database deletes only what is there.
type strict struct{ *table }

var errNoKey = errors.New("no such key")

func (db strict) Delete(ctx context.Context, key string) error {
	if state, _ := db.Get(ctx, key); state == nil {
		return errNoKey
	}
	return db.table.Delete(ctx, key)
}

// A keeping database deletes nothing.
type keeping struct{ *table }

func (keeping) Delete(context.Context, string) error { return nil }
