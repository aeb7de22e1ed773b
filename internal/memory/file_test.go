package memory

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// TestSecretsOfZeroAreRefused: with them, all keys would have one identity.
func TestSecretsOfZeroAreRefused(t *testing.T) {
	var file bytes.Buffer
	require.NoError(t, new(Store).Save(&file, nil, nil))
	_, err := ReadSaved(file.Bytes())
	require.ErrorIs(t, err, errDamaged)
	s := new(Store)
	s.Prepare()
	file.Reset()
	require.NoError(t, s.Save(&file, nil, nil))
	_, err = ReadSaved(file.Bytes())
	require.NoError(t, err)
}

// TestTrimCountsAKeyOnce: a file has keys twice whose shard was split while it was saved. None of
// them has another one evicted.
func TestTrimCountsAKeyOnce(t *testing.T) {
	l, err := limit.New(limit.Spec{Kind: limit.FixedWindow, Numbers: [4]uint64{10, uint64(time.Hour)}}, kernel.InMemory, nil)
	require.NoError(t, err)
	open := func(s *Store) map[string]*States { return map[string]*States{"": s.Open(l, false, true)} }
	s := new(Store)
	s.Prepare()
	named := open(s)
	clk, err := s.Timeline(func() (*timeline.Timeline, error) { return timeline.New(nil, nil), nil })
	require.NoError(t, err)
	for key := range 8 {
		_, err := named[""].Apply(t.Context(), fmt.Sprint(key), l, step.Request{Op: step.OpTake, N: 2, Clock: clk})
		require.NoError(t, err)
	}
	var file bytes.Buffer
	require.NoError(t, s.Save(&file, named, nil))
	saved, err := ReadSaved(file.Bytes())
	require.NoError(t, err)
	saved.limiters[""] = append(saved.limiters[""], saved.limiters[""]...)
	next := new(Store)
	next.Restore(saved)
	require.Zero(t, saved.Trim(saved.At, 8))
	named = open(next)
	named[""].RestoreStates(saved, "")
	require.Equal(t, 8, next.Len())
}

// FuzzLoad reads files whose hash is right and whose contents are anything. What is read can be
// restored and saved again.
func FuzzLoad(f *testing.F) {
	specs := []limit.Spec{
		{Kind: limit.TokenBucket, Numbers: [4]uint64{10, uint64(time.Hour), 10}},
		{Kind: limit.SlidingLog, Numbers: [4]uint64{10, uint64(time.Hour)}},
		{Kind: limit.InFlight, Numbers: [4]uint64{10, uint64(time.Hour)}},
	}
	open := func(tb testing.TB, s *Store) map[string]*States {
		named := map[string]*States{}
		for i, spec := range specs {
			l, err := limit.New(spec, kernel.InMemory, nil)
			require.NoError(tb, err)
			named[fmt.Sprint(i)] = s.Open(l, false, true)
		}
		return named
	}
	s := new(Store)
	s.Prepare()
	named := open(f, s)
	clk, err := s.Timeline(func() (*timeline.Timeline, error) { return timeline.New(nil, nil), nil })
	require.NoError(f, err)
	for _, states := range named {
		for key := range 3 {
			req := step.Request{Op: step.OpHold, N: 2, Clock: clk, Hold: step.Handle{ID: 3, For: time.Minute}}
			if key > 0 {
				req = step.Request{Op: step.OpTake, N: 2, Clock: clk}
			}
			_, err := states.Apply(f.Context(), fmt.Sprint(key), states.Limit, req)
			require.NoError(f, err)
		}
	}
	var file bytes.Buffer
	require.NoError(f, s.Save(&file, named, nil))
	f.Add(file.Bytes()[:file.Len()-sha256.Size])
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := sha256.Sum256(body)
		saved, err := ReadSaved(append(bytes.Clone(body), sum[:]...))
		if err != nil {
			return
		}
		s := new(Store)
		s.Restore(saved)
		named := open(t, s)
		for name, states := range named {
			states.RestoreStates(saved, name)
		}
		var again bytes.Buffer
		require.NoError(t, s.Save(&again, named, saved))
		_, err = ReadSaved(again.Bytes())
		require.NoError(t, err)
	})
}
