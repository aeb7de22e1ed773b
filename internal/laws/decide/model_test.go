package decide_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/model"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestModel plays random histories on limiters of random algorithms: each answer is that of the
// reference model, and what an earlier one has promised.
func TestModel(t *testing.T) {
	t.Parallel()
	for i, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			skipped := 0
			histories := budget.Histories(40, 250)
			for seed := range budget.Seeds(t, histories) {
				skipped += steps - play(t, history.NewRandom(uint64(i)<<32+seed, 0), kind, steps)
			}
			require.LessOrEqual(t, skipped, steps+int(histories)*steps/100) // one history, and a hundredth
		})
	}
}

const steps = 120 // in a history

// play plays a history of some steps on a limiter of a random algorithm, and returns how many of
// them it has played: it ends early if a WarmingUp may round otherwise than the model.
func play(t *testing.T, c history.Choices, kind kind, steps int) (played int) {
	t.Helper()
	d := newDrawer(c)
	alg := kind.draw(d)
	kept := pick(c, "memory", "limits", "interface", "bytes", "portable", "evictions")
	if kept == "portable" && !isPortable(alg) {
		kept = "bytes"
	}
	if kept == "bytes" && uint64(most(alg)) > 1<<61 { // a state in bytes counts no more
		kept = "memory"
	}
	s := setupOf(alg, time.Unix(0, d.start()), kept)
	g := &history.Generator{Choices: c, Keys: []string{"", "a key"}, Spans: d.spans, By: 2}
	next := g.Next
	if kept == "portable" {
		next = history.Before2100(next)
	}
	played = history.Run(t, s, history.AtMost(steps, next))
	if played < steps && !c.More() {
		return steps
	}
	return played
}

// TestTraces: histories that once had a wrong answer have none, wherever states are kept. An entry
// has what a test of random histories prints if it fails.
func TestTraces(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for name, tt := range map[string]struct {
		alg   ratelimit.Algorithm
		start time.Time
		text  string
	}{
		"the token of a turn after the last instant": {ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 1, Per: century}, Capacity: 100}, time.Unix(0, 0), `
			take 2
			reserve 1 as h1
			settle h1 for 0 by 1
		`},
	} {
		for kept := range keepings {
			if kept == "portable" && !isPortable(tt.alg) {
				continue
			}
			t.Run(name+", "+kept, func(t *testing.T) { history.Check(t, setupOf(tt.alg, tt.start, kept), tt.text) })
		}
	}
}

// A keeping is where states are kept.
type keeping struct {
	store   func(clk *storetest.Clock) ratelimit.Store
	options func() []ratelimit.Option
	tick    time.Duration
	forgets bool
}

var keepings = map[string]keeping{
	"memory": {func(*storetest.Clock) ratelimit.Store { return new(ratelimit.MemoryStore) }, fakes.InMemory, 1, false},
	"limits": {func(*storetest.Clock) ratelimit.Store { return new(ratelimit.MemoryStore) }, fakes.WithLimits, 1, false},
	"bytes":  {func(*storetest.Clock) ratelimit.Store { return fakes.NewMapDB().Store() }, fakes.InMemory, 1, false},
	// As Redis keeps them, in numbers below 2^53 and in microseconds.
	"portable": {func(clk *storetest.Clock) ratelimit.Store { return fakes.NewPortable(clk) }, fakes.InMemory, time.Microsecond, false},
	// A store of somebody else, which a limiter knows by its interface only.
	"interface": {func(*storetest.Clock) ratelimit.Store {
		return &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore)}
	}, fakes.InMemory, 1, false},
	"evictions": {func(*storetest.Clock) ratelimit.Store { return &ratelimit.MemoryStore{MaxKeys: 3} }, fakes.InMemory, 1, true},
}

// isPortable reports whether a portable store can have the limit.
func isPortable(alg ratelimit.Algorithm) bool {
	_, err := ratelimit.New(alg, ratelimit.WithStore(fakes.NewPortable(nil)), ratelimit.WithName("test"))
	return err == nil
}

// setupOf returns two limiters of the same keys, as two processes have them.
func setupOf(alg ratelimit.Algorithm, start time.Time, kept string) *history.Setup {
	of := keepings[kept]
	s := &history.Setup{Algorithm: alg, Start: start.Truncate(of.tick), Tick: of.tick, Kept: kept, Forgets: of.forgets}
	s.Open = func() (both []ratelimit.Limiter, _ history.Clock) {
		clk := storetest.NewClock(s.Start)
		options := append(of.options(), ratelimit.WithStore(of.store(clk)), ratelimit.WithClock(clk), ratelimit.WithName("test"), fakes.Patient)
		for range 2 {
			both = append(both, ratelimit.Must(ratelimit.New(s.Algorithm, options...)))
		}
		return both, clk
	}
	return s
}

// most returns the most events that a part of the algorithm grants at once.
func most(alg ratelimit.Algorithm) (most int) {
	for _, part := range partsOf(alg) {
		most = max(most, model.New(part, 1).Limit())
	}
	return most
}

// start chooses the first instant. With an InFlight, that is no earlier than a Timeout after the
// epoch: until then, a state does not tell when a shorter hold ends.
func (d *drawer) start() int64 {
	earliest := int64(0)
	if d.flies {
		earliest = int64(slices.Max(d.spans))
	}
	switch i := d.Below(8); {
	case i < 3 && d.flies:
		return max(1<<60, earliest)
	case i == 0:
		return 0
	case i == 1:
		return 1
	case i == 2:
		return 1 << 61
	case i == 3: // the edge of a window
		span := int64(pick(d.Choices, d.spans...))
		edge := 1_700_000_000_000_000_000 / span * span
		return max(earliest, edge+int64(d.Below(3)-1))
	default:
		return max(earliest, 1_700_000_000_000_000_000+int64(d.Below(1_000_000_000)))
	}
}

func pick[T any](c history.Choices, values ...T) T { return history.Pick(c, values...) }
