package memory

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// fuzzedAlgorithms have states of one word, of two, of several, and in maps.
var fuzzedAlgorithms = append([]*step.Machine{
	aligned(3, time.Second),
	onFirstEvent(3, time.Second),
	rolling(5, 4*time.Second, time.Second),
	bucket(1, time.Second),
}, everyWidth...)

// FuzzMemory decodes an algorithm, a bound and a sequence of calls from bytes, and
// applies them to the store and to a plain map of states. The store, whose tables are
// replaced, split, swept and emptied meanwhile, must give the same answers. If it is
// full, it may evict a key, but none while another key has more events left.
func FuzzMemory(f *testing.F) {
	rng := budget.Rand(f)
	for alg := range fuzzedAlgorithms {
		for _, bound := range []byte{0, 1, 5, 12, 5 + 128, 15 + 128} {
			data := make([]byte, 400)
			for i := range data {
				data[i] = byte(rng.Uint32())
			}
			data[0], data[1] = byte(alg), bound
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 {
			return
		}
		alg := fuzzedAlgorithms[int(data[0])%len(fuzzedAlgorithms)]
		l, s, clk := newTestLimiter(t, alg, withMaxKeys(int(data[1]%16)))
		samples := data[1]&128 != 0
		if samples {
			s.admission.sizes = sampleSizes{few: 1, most: 3, all: 2}
		}
		l.fast.splitAt = 1
		m := &mirror{samples: samples, t: t, l: l, s: s, clk: clk, states: make(map[string][]uint64)}
		for data = data[2:min(len(data), 2000)]; len(data) >= 2; data = data[2:] {
			key, n := fmt.Sprint(data[0]%32), 1+int(data[1]%4)
			switch data[0] / 32 {
			default:
				m.take(key, n, data[1]&64 != 0)
			case 5:
				clk.Advance(time.Duration(data[1]) * 10 * time.Millisecond)
			case 6:
				require.NoError(t, l.Reset(context.Background(), key))
				delete(m.states, key)
			case 7:
				s.Shrink()
				s.check(t)
			}
			m.forget(key)
		}
		s.check(t)
	})
}

// A mirror holds what a store should.
type mirror struct {
	samples   bool // whether evictions look at samples
	t         *testing.T
	l         *limiter
	s         *Store
	clk       *stepclock.Clock
	states    map[string][]uint64
	evictions uint64
}

func (m *mirror) apply(key string, op step.Op, n int) (a step.Answer) {
	k, st := m.l.k, slices.Clone(m.states[key])
	if st == nil {
		st = k.NewState()
	}
	now := timeline.InstantOf(m.clk.Now())
	if st, changed := k.Step(st, &step.Request{Op: op, N: n, Fixed: &step.Reading{Now: now}}, &a); changed {
		m.states[key] = st
	}
	return a
}

func (m *mirror) take(key string, n int, allow bool) {
	want := m.apply(key, step.OpTake, n)
	if allow {
		require.Equal(m.t, want.Allowed, m.l.AllowN(key, n))
		return
	}
	got, err := m.l.Take(context.Background(), key, n)
	require.NoError(m.t, err)
	require.Equal(m.t, want, got)
}

// forget finds out which key the store has evicted, if any. That must not be the key
// just admitted.
func (m *mirror) forget(admitted string) {
	stats := m.s.Stats()
	if stats.Evictions == m.evictions {
		return
	}
	require.Equal(m.t, m.evictions+1, stats.Evictions)
	m.evictions++
	lost := ""
	var answer step.Answer // of the lost key
	decisions := make(map[string]step.Answer)
	for key := range m.states {
		want := m.apply(key, step.OpPeek, 1)
		got, err := m.l.Peek(context.Background(), key)
		require.NoError(m.t, err)
		if got != want {
			require.Empty(m.t, lost, "one eviction, and two keys lost")
			lost, answer = key, want
		} else if key != admitted && want.ResetAfter > 0 { // else it is idle, and may be forgotten at any time
			decisions[key] = want
		}
	}
	require.NotEmpty(m.t, lost, "an eviction was counted")
	require.NotEqual(m.t, admitted, lost)
	if m.samples {
		decisions = nil // it was chosen from few keys
	}
	for key, d := range decisions {
		require.LessOrEqual(m.t, d.Remaining, answer.Remaining, "%q was lost rather than %q", lost, key)
		if d.Remaining == answer.Remaining {
			require.GreaterOrEqual(m.t, d.ResetAfter, answer.ResetAfter, "%q was lost rather than %q", lost, key)
		}
	}
	delete(m.states, lost)
}
