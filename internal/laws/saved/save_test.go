package saved_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// reload saves a store to a file, and returns another one that has loaded it.
func reload(t *testing.T, s *ratelimit.MemoryStore, path string) *ratelimit.MemoryStore {
	require.NoError(t, s.Save(path))
	next := new(ratelimit.MemoryStore)
	require.NoError(t, next.Load(path))
	return next
}

// newStore returns a store that can be saved.
func newStore() *ratelimit.MemoryStore {
	s := new(ratelimit.MemoryStore)
	_ = s.Load("there is no such file")
	return s
}

// named returns a limiter named "test".
func named(t *testing.T, alg ratelimit.Algorithm, s *ratelimit.MemoryStore, clk clock.Clock, opts ...ratelimit.Option) ratelimit.Limiter {
	l, err := ratelimit.New(alg, append(opts, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithClock(clk))...)
	require.NoError(t, err)
	return l
}

// TestSavedStoreDecidesEqually: a store that is saved and loaded between any two calls decides as one that
// stays in memory, also if the limit has changed when it is loaded.
func TestSavedStoreDecidesEqually(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	for name, alg := range storetest.Algorithms() {
		settled, histories := 0, budget.Histories(6, 50)
		for seed := range budget.Seeds(t, histories) {
			s := savedAndKept(t, alg, path, &settled)
			g := &history.Generator{
				Choices: history.NewRandom(seed, 1),
				Keys:    []string{"a", "b", strings.Repeat("a long key ", 10)},
				Spans:   []time.Duration{time.Second, time.Minute},
			}
			if seed%3 == 0 {
				s.Limits = append(s.Limits, ratelimit.Share(alg, 2), ratelimit.Share(alg, 3))
			}
			next := history.Before2100(g.Next)
			var holds []history.Op
			history.Run(t, s, history.AtMost(60, func(p history.Player) (history.Op, bool) {
				switch g.Below(10) {
				case 0, 1:
					return history.Op{Verb: history.Fault, Name: "deploy", N: g.Below(len(s.Limits))}, true
				case 2:
					o := history.Op{Verb: history.Hold, Key: "a", N: g.Below(4), Name: fmt.Sprint("own", len(holds)), Back: true}
					holds = append(holds, o)
					return o, true
				case 3:
					if len(holds) > 0 {
						o := holds[g.Below(len(holds))]
						return history.Op{Verb: history.Settle, Key: o.Key, Name: o.Name, N: g.Below(o.N + 2)}, true
					}
				}
				return next(p)
			}))
		}
		assert.Greater(t, settled, int(histories)/2, "%s: holds that are settled after a deploy", name)
	}
}

// savedAndKept returns what histories are played on that are interrupted by deploys: a store that is
// saved and loaded then, and one that is not. After a deploy, all keys may have another limit. It counts
// the settlements after the first deploy.
func savedAndKept(t *testing.T, alg ratelimit.Algorithm, path string, settled *int) *history.Twins {
	s := &history.Twins{Limits: []ratelimit.Algorithm{alg}, Kept: "a file and memory"}
	s.Start = time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC)
	s.Open = func(func(string) ratelimit.Algorithm) history.OpenTwins {
		clk, store, present := storetest.NewClock(s.Start), newStore(), alg
		var opts []ratelimit.Option
		if len(s.Limits) > 1 {
			opts = append(opts, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return present, nil }))
		}
		memory, deploys := newStore(), 0
		saved := []ratelimit.Limiter{named(t, alg, store, clk)}
		kept := []ratelimit.Limiter{named(t, alg, memory, clk, opts...)}
		return history.OpenTwins{
			Stores: []history.Store{{Limiters: saved}, {Limiters: kept}},
			Clock:  clk,
			After: func(ops []history.Op) error {
				if deploys > 0 && ops[0].Verb == history.Settle {
					*settled++
				}
				return nil
			},
			Fault: func(o history.Op) (damages bool) {
				store, present = reload(t, store, path), s.Limits[o.N%len(s.Limits)]
				saved[0], kept[0] = named(t, present, store, clk), named(t, alg, memory, clk, opts...)
				deploys++
				return false
			},
		}
	}
	return s
}

// TestSavedLimitMayChange: states that were saved are adopted by another limit of the name.
func TestSavedLimitMayChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	month := func(limit int) ratelimit.Algorithm {
		return ratelimit.CalendarWindow{Limit: limit, Every: ratelimit.Month}
	}
	store := newStore()
	require.True(t, named(t, month(100), store, clk).AllowN("key", 60))
	next := named(t, month(200), reload(t, store, path), clk)
	d, err := next.Peek(t.Context(), "key")
	require.NoError(t, err)
	assert.Equal(t, 140, d.Remaining)

	plans := map[string]ratelimit.Algorithm{"small": month(10), "large": month(1000)}
	lookup := ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) { return plans[key], nil })
	store = newStore()
	customers := named(t, month(1), store, clk, lookup)
	require.True(t, customers.AllowN("small", 4))
	require.True(t, customers.AllowN("large", 400))
	require.True(t, customers.AllowN("unknown", 1))
	customers = named(t, month(1), reload(t, store, path), clk, lookup)
	for key, left := range map[string]int{"small": 6, "large": 600, "unknown": 0} {
		d, err := customers.Peek(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, left, d.Remaining, key)
	}
}

// TestSaveKeepsWhatNoLimiterAskedFor: a limiter that is not made in one run has its states in the next one.
func TestSaveKeepsWhatNoLimiterAskedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	clk := clock.NewMock()
	store := newStore()
	other := func(s *ratelimit.MemoryStore) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
			ratelimit.WithName("other"), ratelimit.WithStore(s), ratelimit.WithClock(clk)))
	}
	require.True(t, other(store).AllowN("key", 5))
	store = reload(t, store, path)
	named(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, store, clk).Allow("key")
	store = reload(t, reload(t, store, path), path)
	assert.False(t, other(store).Allow("key"))
	assert.False(t, named(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, store, clk).Allow("key"))
}

// TestLoadRefuses: what cannot be used is refused as a whole, and the store is as it was.
func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "limits.state")
	store := newStore()
	l, err := ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: 24 * time.Hour}, ratelimit.WithName("test"), ratelimit.WithStore(store))
	require.NoError(t, err)
	require.True(t, l.Allow("key"))
	require.NoError(t, store.Save(path))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	assert.ErrorIs(t, new(ratelimit.MemoryStore).Load(filepath.Join(dir, "none")), fs.ErrNotExist)
	assert.ErrorIs(t, store.Load(path), ratelimit.ErrInvalid, "a limiter uses it")
	twice := new(ratelimit.MemoryStore)
	require.NoError(t, twice.Load(path))
	assert.ErrorIs(t, twice.Load(path), ratelimit.ErrInvalid)
	for name, change := range map[string]func(b []byte) []byte{
		"empty":        func([]byte) []byte { return nil },
		"another file": func([]byte) []byte { return []byte("a file of something else, which is longer than a hash is") },
		"newer":        func(b []byte) []byte { b[len("ratelimit states")]++; return b },
		"longer":       func(b []byte) []byte { return append(b, 0) },
	} {
		require.NoError(t, os.WriteFile(path, change(append([]byte(nil), whole...)), 0o600))
		assert.ErrorContains(t, new(ratelimit.MemoryStore).Load(path), "cannot load the states", name)
	}
	for i := range whole {
		require.NoError(t, os.WriteFile(path, whole[:i], 0o600))
		require.Error(t, new(ratelimit.MemoryStore).Load(path), "the first %d bytes", i)
		damaged := append([]byte(nil), whole...)
		damaged[i] ^= 1 << (i % 8)
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		next := new(ratelimit.MemoryStore)
		require.Error(t, next.Load(path), "byte %d is damaged", i)
		require.NoError(t, os.WriteFile(path, whole, 0o600))
		require.NoError(t, next.Load(path), "a store that refused a file can load another one")
	}
}

// TestSaveLeavesOut: limiters without a name are left out, and the error says so. Idle keys are left out.
func TestSaveLeavesOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	store := newStore()
	clk := clock.NewMock()
	l := named(t, ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, store, clk)
	require.True(t, l.Allow("key"))
	unnamed := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, ratelimit.WithStore(store), ratelimit.WithClock(clk)))
	require.True(t, unnamed.Allow("key"))
	err := store.Save(path)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "limiters without a name is 1")
	runtime.KeepAlive(unnamed)
	next := new(ratelimit.MemoryStore)
	require.NoError(t, next.Load(path))
	named(t, ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, next, clk)
	assert.Equal(t, 1, next.Len())
	unlimited := ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}, ratelimit.WithStore(next), ratelimit.WithClock(clk)))
	assert.NoError(t, next.Save(path), "a limiter without states needs no name")
	runtime.KeepAlive(unlimited)
	next = reload(t, next, path) // whose limiter "test" is not made
	ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithName("other"),
		ratelimit.WithStore(next), ratelimit.WithClock(clk)))
	size := func() int64 {
		require.NoError(t, next.Save(path))
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info.Size()
	}
	before := size()
	clk.Add(time.Minute)
	assert.Equal(t, before-12-8, size()) // less an identity and a word
	last := reload(t, next, path)
	named(t, ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, last, clk)
	assert.Zero(t, last.Len())
}

// TestSaveFails: the old file stays, and nothing beside it.
func TestSaveFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "limits.state")
	assert.ErrorIs(t, new(ratelimit.MemoryStore).Save(path), ratelimit.ErrInvalid, "Load was not called")
	assert.NoFileExists(t, path)
	require.NoError(t, os.Mkdir(path, 0o700)) // which no file can replace
	assert.ErrorContains(t, newStore().Save(path), "cannot save the states")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1)
	assert.Error(t, newStore().Save(filepath.Join(dir, "no", "folder")))

	require.NoError(t, os.Remove(path))
	old, another := path+".new-1", path+".new-2"
	require.NoError(t, os.WriteFile(old, []byte("what a killed process has left"), 0o600))
	require.NoError(t, os.Chtimes(old, time.Time{}, time.Now().Add(-61*time.Second)))
	require.NoError(t, os.WriteFile(another, []byte("what another process writes"), 0o600))
	require.NoError(t, os.Chtimes(another, time.Time{}, time.Now().Add(-30*time.Second)))
	require.NoError(t, newStore().Save(path))
	require.NoError(t, new(ratelimit.MemoryStore).Load(path))
	assert.NoFileExists(t, old)
	assert.FileExists(t, another)
}

// TestSaveThroughALink: a link stays one, and what it links to is replaced.
func TestSaveThroughALink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, newStore().Save(path))
	require.NoError(t, os.Symlink(path, link))
	day := ratelimit.FixedWindow{Limit: 5, Window: 24 * time.Hour}
	store, clk := newStore(), clock.NewMock()
	require.True(t, named(t, day, store, clk).AllowN("key", 5))
	require.NoError(t, store.Save(link))
	info, err := os.Lstat(link)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&fs.ModeSymlink)
	store = new(ratelimit.MemoryStore)
	require.NoError(t, store.Load(path))
	assert.False(t, named(t, day, store, clk).Allow("key"))
}

// TestRefusedFileIsKept: Save replaces no file that Load could not use, for example after a rollback,
// whatever the path is called and however many stores refuse it.
func TestRefusedFileIsKept(t *testing.T) {
	t.Chdir(t.TempDir())
	later := []byte("ratelimit states\x02 and what only a later version knows")
	require.NoError(t, os.WriteFile("limits.state", later, 0o600))
	day := ratelimit.FixedWindow{Limit: 5, Window: 24 * time.Hour}
	clk := clock.NewMock()
	var stores []*ratelimit.MemoryStore
	for range 2 {
		store := new(ratelimit.MemoryStore)
		assert.ErrorContains(t, store.Load("limits.state"), "version 2")
		stores = append(stores, store)
	}
	kept := func() (contents [][]byte) {
		paths, err := filepath.Glob("limits.state.refused-*")
		require.NoError(t, err)
		for _, path := range paths {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			contents = append(contents, content)
		}
		return contents
	}
	require.True(t, named(t, day, stores[0], clk).AllowN("key", 5))
	unnamed := ratelimit.Must(ratelimit.New(day, ratelimit.WithStore(stores[0]), ratelimit.WithClock(clk))) // which makes an error
	for range 2 {
		require.ErrorIs(t, stores[0].Save("./limits.state"), ratelimit.ErrInvalid)
		assert.Equal(t, [][]byte{later}, kept())
	}
	runtime.KeepAlive(unnamed)
	last := new(ratelimit.MemoryStore)
	require.NoError(t, last.Load("limits.state"))
	assert.False(t, named(t, day, last, clk).Allow("key"))
	require.NoError(t, stores[1].Save("limits.state"))
	assert.Len(t, kept(), 2)
	assert.Contains(t, kept(), later)

	require.NoError(t, os.WriteFile("limits.state", later, 0o600))
	last = new(ratelimit.MemoryStore)
	require.Error(t, last.Load("limits.state"))
	require.NoError(t, os.Remove("limits.state"))
	assert.NoError(t, last.Save("limits.state"), "the file was removed meanwhile")
	assert.Len(t, kept(), 2)
}

// TestSaveTouchesNothingElse: Save removes no file but what a killed one has left, and replaces only
// regular files.
func TestSaveTouchesNothingElse(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "limits"), filepath.Join(dir, "limits.new-york")
	require.NoError(t, newStore().Save(other))
	require.NoError(t, os.Chtimes(other, time.Time{}, time.Now().Add(-time.Hour)))
	require.NoError(t, newStore().Save(path))
	assert.FileExists(t, other)

	socket, dangling := filepath.Join(dir, "socket"), filepath.Join(dir, "dangling")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer listener.Close()
	require.NoError(t, os.Symlink("nowhere", dangling))
	for _, path := range []string{socket, dangling, dir} {
		before, err := os.Lstat(path)
		require.NoError(t, err)
		store := new(ratelimit.MemoryStore)
		require.Error(t, store.Load(path), path)
		assert.Error(t, store.Save(path), path)
		after, err := os.Lstat(path)
		require.NoError(t, err)
		assert.Equal(t, before.Mode(), after.Mode())
		assert.True(t, os.SameFile(before, after))
	}
	assert.ErrorIs(t, newStore().Save(""), ratelimit.ErrInvalid)
}

// TestKeysOfAnEmptyFile: a store that loads what an empty one has saved tells all keys apart.
func TestKeysOfAnEmptyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	day := ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour}
	store := reload(t, reload(t, newStore(), path), path)
	l := named(t, day, store, clock.NewMock())
	taken := map[string]bool{}
	for _, length := range []int{8, 9, 64, 65, 200} {
		for i := range 100 {
			key := fmt.Sprintf("%0*d", length, i)
			require.True(t, l.Allow(key), key)
			taken[key] = true
		}
	}
	assert.Equal(t, len(taken), store.Len())
}

// TestManySaveToOnePath: savers of several stores never leave a file that is of two of them.
func TestManySaveToOnePath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	day := ratelimit.FixedWindow{Limit: 1 << 20, Window: 24 * time.Hour}
	clk := clock.NewMock()
	var savers sync.WaitGroup
	for saver := 1; saver <= 3; saver++ {
		store := newStore()
		l := named(t, day, store, clk)
		for i := range 3000 {
			require.True(t, l.AllowN(fmt.Sprint(i), saver))
		}
		savers.Go(func() {
			for range 10 {
				assert.NoError(t, store.Save(path))
			}
		})
	}
	check := func() {
		store := new(ratelimit.MemoryStore)
		err := store.Load(path)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		require.NoError(t, err)
		l := named(t, day, store, clk)
		used := map[int]int{}
		for i := range 3000 {
			d, err := l.Peek(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			used[d.Limit-d.Remaining]++
		}
		assert.Len(t, used, 1)
		assert.NotContains(t, used, 0)
	}
	for range 10 {
		check()
	}
	savers.Wait()
	check()
}

// TestSaveBesideNew: a store can be saved while its first limiters are made.
func TestSaveBesideNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	for range 20 {
		store := newStore()
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				l := named(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, store, clock.New())
				assert.True(t, l.Allow("key"))
			})
			all.Go(func() { assert.NoError(t, store.Save(path)) })
		}
		all.Wait()
		store = reload(t, store, path)
		l := named(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, store, clock.New())
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, 3, d.Remaining)
	}
}

// TestLoadAroundANewThatFails: after a limiter was refused because of the store's fields, the store has a
// clock, and Load would come too late. What was loaded before is there for the next limiter.
func TestLoadAroundANewThatFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	day := ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour}
	clk := clock.NewMock()
	store := newStore()
	require.True(t, named(t, day, store, clk).Allow("key"))
	require.NoError(t, store.Save(path))

	for _, loadsFirst := range []bool{false, true} {
		store = &ratelimit.MemoryStore{MaxKeys: -1}
		if loadsFirst {
			require.NoError(t, store.Load(path))
		}
		_, err := ratelimit.New(day, ratelimit.WithName("test"), ratelimit.WithStore(store), ratelimit.WithClock(clk))
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		require.ErrorIs(t, store.Load(path), ratelimit.ErrInvalid)
		store.MaxKeys = 0
		assert.Equal(t, loadsFirst, !named(t, day, store, clk).Allow("key"))
	}
}

// TestLoadWithFewerKeys: of more keys than MaxKeys, those stay that eviction would have left, whichever
// limiter they are of: idle keys go first, then those with the most events remaining.
func TestLoadWithFewerKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	clk := clock.NewMock()
	limiter := func(name string, store *ratelimit.MemoryStore) ratelimit.Limiter {
		day := ratelimit.FixedWindow{Limit: 5, Window: 24 * time.Hour}
		return ratelimit.Must(ratelimit.New(day, ratelimit.WithName(name), ratelimit.WithStore(store), ratelimit.WithClock(clk)))
	}
	store := newStore()
	for _, name := range []string{"idle", "one", "two"} {
		l := limiter(name, store)
		for i := range 1000 {
			n := 1
			if i%10 == 0 || name == "idle" {
				n = 5
			}
			require.True(t, l.AllowN(fmt.Sprint(i), n))
		}
		if name == "idle" {
			clk.Add(24 * time.Hour)
		}
	}
	require.NoError(t, store.Save(path))
	next := &ratelimit.MemoryStore{MaxKeys: 250}
	require.NoError(t, next.Load(path))
	l := limiter("one", next)
	assert.LessOrEqual(t, next.Len(), 250)
	assert.EqualValues(t, 1750, next.Stats().Evictions)
	others := limiter("two", next)
	assert.Equal(t, 250, next.Len())
	for i := 0; i < 1000; i += 10 {
		assert.False(t, l.Allow(fmt.Sprint(i)), i)
		assert.False(t, others.Allow(fmt.Sprint(i)), i)
	}
}

// TestLoadedTimeDoesNotGoBack: a clock that is up to a minute behind the time of saving decides as
// the saving store would have, and one that is further behind is refused.
func TestLoadedTimeDoesNotGoBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	clk := clock.NewMock()
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	clk.Set(begin)
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10}
	store := newStore()
	l := named(t, bucket, store, clk)
	require.True(t, l.AllowN("key", 10))
	require.NoError(t, store.Save(path))

	behind := clock.NewMock()
	behind.Set(begin.Add(-time.Minute))
	next := new(ratelimit.MemoryStore)
	require.NoError(t, next.Load(path))
	l = named(t, bucket, next, behind)
	d, err := l.Peek(t.Context(), "key")
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: 10, RetryAfter: 61 * time.Second, ResetAfter: 70 * time.Second}, d)

	behind.Set(begin.Add(-61 * time.Second))
	next = new(ratelimit.MemoryStore)
	require.NoError(t, next.Load(path))
	_, err = ratelimit.New(bucket, ratelimit.WithStore(next), ratelimit.WithName("test"), ratelimit.WithClock(behind))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "1m1s ahead of the clock")
	assert.NotErrorIs(t, err, fs.ErrNotExist)
}

// TestSaveBesideTraffic: a store is saved while limiters use it, and grow; each key in the file has a state
// that it has had.
func TestSaveBesideTraffic(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	store := newStore()
	month := ratelimit.CalendarWindow{Limit: 1 << 20, Every: ratelimit.Year}
	l := named(t, month, store, clock.New())
	const keys, callers = 20_000, 4
	var all sync.WaitGroup
	var rounds [callers]atomic.Int64
	stop := make(chan struct{})
	for caller := range callers {
		all.Go(func() {
			for {
				for i := caller; i < keys; i += callers {
					l.Allow(fmt.Sprint(i))
				}
				rounds[caller].Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 5 {
		var before [callers]int64
		for i := range rounds {
			before[i] = rounds[i].Load()
		}
		require.NoError(t, store.Save(path))
		loaded := new(ratelimit.MemoryStore)
		require.NoError(t, loaded.Load(path))
		next := named(t, month, loaded, clock.New())
		for i := 0; i < keys; i += 97 {
			d, err := next.Peek(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			used := int64(d.Limit - d.Remaining)
			assert.GreaterOrEqual(t, used, before[i%callers])
			assert.LessOrEqual(t, used, rounds[i%callers].Load()+1)
		}
	}
	close(stop)
	all.Wait()
}

// TestKilledWhileItSaves: whenever a process is killed that saves all the time, the file is a whole one.
func TestKilledWhileItSaves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.state")
	if to := os.Getenv("SAVE_FOR_EVER"); to != "" {
		store := newStore()
		l := named(t, ratelimit.FixedWindow{Limit: 1 << 30, Window: 24 * time.Hour}, store, clock.New())
		for {
			for i := range 5000 {
				l.Allow(fmt.Sprint(i))
			}
			require.NoError(t, store.Save(to))
			fmt.Println("saved")
		}
	}
	for kill := range 10 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledWhileItSaves$")
		child.Env = append(os.Environ(), "SAVE_FOR_EVER="+path)
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		lines := bufio.NewScanner(out)
		for range 1 + kill {
			require.True(t, lines.Scan())
		}
		runtime.Gosched()
		require.NoError(t, child.Process.Kill())
		_ = child.Wait()
		store := newStore()
		require.NoError(t, store.Load(path))
		l := named(t, ratelimit.FixedWindow{Limit: 1 << 30, Window: 24 * time.Hour}, store, clock.New())
		d, err := l.Peek(t.Context(), "4999")
		require.NoError(t, err)
		assert.GreaterOrEqual(t, d.Limit-d.Remaining, 1+kill)
		assert.Equal(t, 5000, store.Len())
	}
}

// TestFileOfAnotherVersion: a file that the first version has saved is read. If the form of files changes, the
// package reads both, and this file stays.
func TestFileOfAnotherVersion(t *testing.T) {
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	path := filepath.Join("testdata", "version1.state")
	algorithms := map[string]ratelimit.Algorithm{
		"bucket": ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)},
		"log":    ratelimit.SlidingLog{Limit: 10, Window: time.Hour},
		"all":    ratelimit.All{ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.InFlight{Limit: 10, Timeout: time.Hour}},
	}
	limiter := func(name string, store *ratelimit.MemoryStore) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(algorithms[name], ratelimit.WithName(name), ratelimit.WithStore(store), ratelimit.WithClock(clk)))
	}
	if os.Getenv("WRITE_VERSION") != "" {
		store := newStore()
		for name := range algorithms {
			require.True(t, limiter(name, store).AllowN("key", 3))
			_, _, err := limiter(name, store).Hold(t.Context(), "key", 2)
			require.NoError(t, err)
			require.True(t, limiter(name, store).AllowN(strings.Repeat("long ", 20), 4))
		}
		require.NoError(t, store.Save(path))
	}
	store := newStore()
	require.NoError(t, store.Load(path))
	for name := range algorithms {
		for key, left := range map[string]int{"key": 5, strings.Repeat("long ", 20): 6, "other": 10} {
			d, err := limiter(name, store).Peek(t.Context(), key)
			require.NoError(t, err)
			assert.Equal(t, left, d.Remaining, "%s, %s", name, key)
		}
	}
}

func BenchmarkSave(b *testing.B) {
	path := filepath.Join(b.TempDir(), "limits.state")
	for _, keys := range []int{1000, 1_000_000} {
		store := newStore()
		bucket := ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 100, Per: 24 * time.Hour}}
		l := ratelimit.Must(ratelimit.New(bucket, ratelimit.WithName("test"), ratelimit.WithStore(store)))
		for i := range keys {
			l.Allow(fmt.Sprint(i))
		}
		b.Run(fmt.Sprintf("keys=%d/Save", keys), func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, store.Save(path))
			}
			info, err := os.Stat(path)
			require.NoError(b, err)
			b.ReportMetric(float64(info.Size())/float64(keys), "B/key")
		})
		b.Run(fmt.Sprintf("keys=%d/Load", keys), func(b *testing.B) {
			for b.Loop() {
				next := new(ratelimit.MemoryStore)
				require.NoError(b, next.Load(path))
				ratelimit.Must(ratelimit.New(bucket, ratelimit.WithName("test"), ratelimit.WithStore(next)))
			}
		})
	}
}
