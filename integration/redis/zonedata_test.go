package redis_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

const zoneLimit = 10

// zoned is the task of a process that takes from the days of a zone.
type zoned struct {
	Addr        string
	ServerClock bool // whether Redis' clock picks the window, and not that of the process
}

// A taking is what such a process does next, and a taken what becomes of it.
type (
	taking struct {
		At time.Time // by the clock of the process
		N  int
	}
	taken struct {
		Allowed    bool
		RetryAfter time.Duration
	}
)

// TestZoned is the process. It takes until it is killed.
func TestZoned(t *testing.T) {
	do, ok := taskOf[zoned](t)
	if !ok {
		return
	}
	// A cached denial would be repeated for up to a second of the real clock.
	opts := []redisstore.Option{redisstore.WithTimeout(patient), redisstore.WithDenialCache(0)}
	if !do.ServerClock {
		opts = append(opts, redisstore.WithLimiterClock())
	}
	clk := storetest.NewClock(time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC))
	l := limiter(t, makers["goredis"](t, do.Addr, opts...),
		ratelimit.CalendarWindow{Limit: zoneLimit, Every: ratelimit.Day, Zone: "Europe/London"},
		ratelimit.WithClock(clk), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var next taking
		err := in.Decode(&next)
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		if !do.ServerClock {
			clk.Advance(next.At.Sub(clk.Now()))
		}
		d, err := l.Take(t.Context(), "k", next.N)
		require.NoError(t, err)
		require.NoError(t, out.Encode(taken{d.Allowed, d.RetryAfter}))
	}
}

// startZoned starts a process in whose zone data the clocks of London are ahead of UTC by some
// hours, and returns what takes events in the process.
func startZoned(t *testing.T, do zoned, hours int) (take func(at time.Time, n int) taken) {
	t.Helper()
	cmd := workerProcess(t, "TestZoned", do)
	cmd.Env = append(cmd.Env, "ZONEINFO="+zoneData(t, "Europe/London", hours))
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the end of the test has killed it
	in, out := json.NewEncoder(stdin), json.NewDecoder(stdout)
	return func(at time.Time, n int) (got taken) {
		t.Helper()
		require.NoError(t, in.Encode(taking{at, n}))
		require.NoError(t, out.Decode(&got))
		return got
	}
}

// zoneData makes a folder of zone data, which has one zone, and returns its path.
func zoneData(t *testing.T, name string, hours int) string {
	t.Helper()
	file := append([]byte("TZif"), make([]byte, 16)...)
	for _, count := range []uint32{0, 0, 0, 0, 1, 4} { // one type of local time, with a name of 3 letters
		file = binary.BigEndian.AppendUint32(file, count)
	}
	file = binary.BigEndian.AppendUint32(file, uint32(int32(hours*3600)))
	file = append(file, 0, 0, 'X', 'Y', 'Z', 0)
	folder := t.TempDir()
	path := filepath.Join(folder, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, file, 0o600))
	return folder
}

// Two processes have different data of a zone: by the old data, a day begins at 22:00 UTC, and by
// the new data at 23:00. They disagree about that hour only. Neither counts the events of two days
// together, so that after that hour both count the same ones.
func TestZoneDataThatDiffer(t *testing.T) {
	t.Parallel()
	do := zoned{Addr: startServer(t).addr()}
	before, after := startZoned(t, do, 2), startZoned(t, do, 1)
	at := func(day, hour, minute int) time.Time {
		return time.Date(2026, 3, day, hour, minute, 0, 0, time.UTC)
	}
	for i, step := range []struct {
		take func(time.Time, int) taken
		at   time.Time
		n    int
		ends time.Time // of the day that has no room, or zero if the events are granted
	}{
		{after, at(10, 21, 0), 10, time.Time{}},
		{before, at(10, 21, 59), 1, at(10, 22, 0)},
		{after, at(10, 21, 59), 1, at(10, 23, 0)},
		{before, at(10, 22, 0), 4, time.Time{}}, // its day begins
		{after, at(10, 22, 30), 6, time.Time{}}, // by the new data, the four are those of the old day
		{after, at(10, 22, 31), 1, at(10, 23, 0)},
		{before, at(10, 22, 31), 1, at(11, 22, 0)},
		{after, at(10, 23, 0), 7, time.Time{}}, // its day begins as well
		{before, at(10, 23, 1), 4, at(11, 22, 0)},
		{before, at(10, 23, 1), 3, time.Time{}},
		{after, at(11, 21, 59), 1, at(11, 23, 0)},
		{after, at(11, 22, 30), 1, at(11, 23, 0)}, // nobody has begun a day at 22:00
		{after, at(11, 23, 0), 10, time.Time{}},
		{before, at(11, 23, 0), 1, at(12, 22, 0)},
	} {
		want := taken{Allowed: step.ends.IsZero()}
		if !want.Allowed {
			want.RetryAfter = step.ends.Sub(step.at)
		}
		assert.Equal(t, want, step.take(step.at, step.n), i)
	}
}

// Redis' clock picks the windows of two processes, by whose data the day began hours ago, but not
// at the same time.
func TestZoneDataThatDifferByRedisClock(t *testing.T) {
	t.Parallel()
	do := zoned{Addr: startServer(t).addr(), ServerClock: true}
	hour := time.Now().UTC().Hour()
	shows := func(clock int) (ahead int) { return (clock-hour+35)%24 - 11 } // from -11 to 12
	early, late := startZoned(t, do, shows(12)), startZoned(t, do, shows(6))
	for i, step := range []struct {
		take    func(time.Time, int) taken
		n       int
		allowed bool
	}{
		{early, zoneLimit, true},
		{early, 1, false},
		{late, zoneLimit, true}, // these were events of the day before
		{late, 1, false},
		{early, 1, false}, // and these are of the day of both
		{late, 1, false},
	} {
		got := step.take(time.Time{}, step.n)
		assert.Equal(t, step.allowed, got.Allowed, i)
		if !got.Allowed { // noon of one process, and 6 o'clock of the other one
			assert.Greater(t, got.RetryAfter, 6*time.Hour, i)
			assert.LessOrEqual(t, got.RetryAfter, 19*time.Hour, i)
		}
	}
}
