package iolimit_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/iolimit"
)

func TestWriterWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Repeat("The quick brown fox. ", 100)
		begin, b := time.Now(), bucket()
		var out bytes.Buffer
		w := iolimit.Writer(t.Context(), &out, b)
		n, err := io.WriteString(w, text)
		require.NoError(t, err)
		assert.Equal(t, len(text), n)
		assert.Equal(t, text, out.String())
		assert.Equal(t, time.Duration(len(text)-1000)*time.Millisecond, time.Since(begin))
		assert.Equal(t, 0, left(t, b))

		n, err = w.Write(nil)
		require.NoError(t, err)
		assert.Zero(t, n)
	})
}

// What a failed or short write has not written is given back.
func TestWriterGivesBackWhatWasNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			room  int
			fails error
			want  error
		}{
			{100, errDown, errDown},
			{100, nil, io.ErrShortWrite},
			{0, errDown, errDown},
			{0, nil, io.ErrShortWrite},
		} {
			b := bucket()
			n, err := iolimit.Writer(t.Context(), &limitedSpace{test.room, test.fails}, b).Write(make([]byte, 500))
			assert.Equal(t, test.want, err)
			assert.Equal(t, test.room, n)
			assert.Equal(t, 1000-test.room, left(t, b))
		}

		// The end of a window is a chunk of its own.
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1600, Window: time.Second}))
		b := ratelimit.For(l, "key")
		require.True(t, b.Limiter().AllowN(b.Key(), 1550))
		n, err := iolimit.Writer(t.Context(), &limitedSpace{room: 10, err: errDown}, b).Write(make([]byte, 100))
		assert.Equal(t, errDown, err)
		assert.Equal(t, 10, n)
		assert.Equal(t, 40, left(t, b))
	})
}

// So it is if another limit decides in place of that of the key.
func TestWriterGivesBackToAStandIn(t *testing.T) {
	lookup := func(context.Context, string) (ratelimit.Algorithm, error) { return nil, errDown }
	stands := ratelimit.WithClock(clock.NewMock())
	unknown := bucket(stands, ratelimit.WithFailureLog(nil), ratelimit.WithLimits(lookup))
	spare := bucket(stands)
	store := &failing{Store: new(ratelimit.MemoryStore)}
	store.down.Store(true)
	down := bucket(stands, ratelimit.WithFailureLog(nil),
		ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.Fallback(spare.Limiter())))
	for name, b := range map[string]ratelimit.Bound{"the limit of New": unknown, "a fallback": down} {
		_, err := iolimit.Writer(t.Context(), &limitedSpace{room: 10, err: errDown}, b).Write(make([]byte, 60))
		require.ErrorIs(t, err, errDown)
		d, _ := b.Limiter().Peek(t.Context(), b.Key())
		assert.Equal(t, 990, d.Remaining, name)
	}
}

// A limit that decides in place of that of the key may be lower. Then what is written passes by that one.
func TestWriterByALowerStandIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		high := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}
		low := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}
		var down bool
		quiet := ratelimit.WithFailureLog(nil)
		unknown := ratelimit.Must(ratelimit.New(low, quiet, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
			if down {
				return nil, errDown
			}
			return high, nil
		})))
		store := &failing{Store: new(ratelimit.MemoryStore)}
		spare := ratelimit.Fallback(ratelimit.Must(ratelimit.New(low)))
		fallsBack := ratelimit.Must(ratelimit.New(high, quiet, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(spare)))
		for name, l := range map[string]ratelimit.Limiter{"the limit of New": unknown, "a fallback": fallsBack} {
			down = false
			store.down.Store(false)
			w := iolimit.Writer(t.Context(), io.Discard, ratelimit.For(l, "key"))
			n, err := w.Write(make([]byte, 1))
			require.NoError(t, err, name)
			require.Equal(t, 1, n, name)
			time.Sleep(time.Minute)
			down = true
			store.down.Store(true)
			begin := time.Now()
			n, err = w.Write(make([]byte, 50))
			require.NoError(t, err, name)
			assert.Equal(t, 50, n, name)
			assert.Equal(t, 4*time.Second, time.Since(begin), name)
		}
	})
}

// limitedSpace is a writer that has room for some bytes.
type limitedSpace struct {
	room int
	err  error
}

func (l *limitedSpace) Write(p []byte) (int, error) {
	if len(p) > l.room {
		n := l.room
		l.room = 0
		return n, l.err
	}
	l.room -= len(p)
	return len(p), nil
}

// A Write whose context ends says how much it has written, and gives its place back.
func TestWriterWhoseContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := bucket()
		begin := time.Now()
		time.AfterFunc(500*time.Millisecond, cancel)
		var out bytes.Buffer
		n, err := iolimit.Writer(ctx, &out, b).Write(make([]byte, 2000))
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 500*time.Millisecond, time.Since(begin))
		assert.Equal(t, out.Len(), n)
		assert.Equal(t, 1500-n, left(t, b))
		assert.Less(t, 1500-n, 62, "less than a chunk")

		_, err = iolimit.Writer(ctx, &out, b).Write([]byte("x"))
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, n, out.Len())
	})
}

func TestWriterWithFailingStore(t *testing.T) {
	store := &failing{Store: new(ratelimit.MemoryStore)}
	b := bucket(ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()), ratelimit.WithFailureLog(nil))
	var out bytes.Buffer
	w := iolimit.Writer(t.Context(), &out, b)
	for _, text := range []string{"one ", "two ", "three"} {
		store.down.Store(true)
		n, err := io.WriteString(w, text)
		require.ErrorIs(t, err, errDown)
		require.Zero(t, n)
		store.down.Store(false)
		_, err = io.WriteString(w, text)
		require.NoError(t, err)
	}
	assert.Equal(t, "one two three", out.String())
}

// A refusing is a limiter that New has not made: its first holds are refused, without an error.
type refusing struct {
	ratelimit.Limiter
	refusals int
}

func (l *refusing) Reserve(context.Context, string, int, ...ratelimit.ReserveOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return nil, ratelimit.Decision{Limit: 1000, RetryAfter: time.Second}, nil
}

func (l *refusing) Hold(ctx context.Context, key string, n int, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	if l.refusals > 0 {
		l.refusals--
		return nil, ratelimit.Decision{Limit: 1000, RetryAfter: time.Hour}, nil
	}
	return l.Limiter.Hold(ctx, key, n, opts...)
}

func TestWriterWaitsWhenAWrapperRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &refusing{ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1000, Window: 24 * time.Hour})), 2}
		began := time.Now()
		n, err := iolimit.Writer(t.Context(), io.Discard, ratelimit.For(l, "key")).Write([]byte("x"))
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		assert.Equal(t, 2*time.Hour, time.Since(began))
		assert.Equal(t, 999, left(t, ratelimit.For(l.Limiter, "key")))
	})
}

// io.Copy works with both ends, and with sources that write by themselves.
func TestCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Repeat("The quick brown fox. ", 500)
		for name, source := range map[string]io.Reader{
			"WriterTo":    strings.NewReader(text),
			"no WriterTo": struct{ io.Reader }{strings.NewReader(text)},
		} {
			var out bytes.Buffer
			b := bucket()
			n, err := io.Copy(iolimit.Writer(t.Context(), &out, b), iolimit.Reader(t.Context(), source, bucket()))
			require.NoError(t, err, name)
			assert.Len(t, text, int(n), name)
			assert.Equal(t, text, out.String(), name)
			assert.Equal(t, 0, left(t, b), name)
		}
	})
}
