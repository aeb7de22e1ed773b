package redisstore

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// An unreadable value is reported once, counted, and replaced by a new state, whether the
// script detects it or the arithmetic does.
func TestUnreadableState(t *testing.T) {
	for name, value := range map[string]string{
		"short":   "damaged",
		"invalid": "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: 2, Window: time.Hour})
				s, l := f.store(t)
				require.True(t, l.Allow("k"))
				for key := range f.states {
					f.states[key] = value
				}
				_, err := l.Take(t.Context(), "k", 1)
				require.ErrorIs(t, err, ratelimit.ErrState)
				for _, want := range []bool{true, false} {
					d, err := l.Take(t.Context(), "k", 1)
					require.NoError(t, err)
					assert.Equal(t, want, d.Allowed, "the first call has spent one of two")
				}
				assert.EqualValues(t, 1, s.Stats().Unreadable)
				assert.EqualValues(t, 1, s.Stats().OtherErrors)
				assert.EqualValues(t, 1, s.Stats().Failures)
			})
		})
	}
}

// The short form of a bucket's state, a decimal number, is read as lua/bucket.lua describes.
func TestShortState(t *testing.T) {
	words := func(words ...uint64) (b []byte) {
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return b
	}
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)}
	for _, tt := range []struct {
		alg   ratelimit.Algorithm
		value string
		want  []byte
	}{
		{bucket, "1763791234567890", words(1763791234567890, 0, 0)},
		{bucket, "1763791234567890006", words(1763791234567890, 6, 0)},
		{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(7), Capacity: 7}, "1763791234567890", words(1763791234567890, 0, 0)},
		{bucket, "", nil},
		{bucket, "176379123456789", []byte("176379123456789")},
		{bucket, "17637912345678900", []byte("17637912345678900")},
		{bucket, "176379123456789x", []byte("176379123456789x")},
		{bucket, "176379123456789000x", []byte("176379123456789000x")},
		{ratelimit.All{bucket}, "1763791234567890", []byte("1763791234567890")},
		{ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, "1763791234567890", []byte("1763791234567890")},
	} {
		tr, err := ratelimit.NewTransition(tt.alg)
		require.NoError(t, err)
		prog, err := newProgram(tr)
		require.NoError(t, err)
		state := prog.state("", tt.value)
		if tt.want != nil {
			tt.want = append([]byte(prog.header), tt.want...)
		}
		assert.Equal(t, tt.want, state, "%#v %s", tt.alg, tt.value)
	}
}
