package iolimit_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/iolimit"
)

// bucket returns a key with 1000 bytes a second, in chunks of 62.
func bucket(opts ...ratelimit.Option) ratelimit.Bound {
	return ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}, opts...)), "key")
}

// left returns how many bytes b grants now.
func left(t *testing.T, b ratelimit.Bound) int {
	t.Helper()
	d, err := b.Limiter().Peek(context.Background(), b.Key())
	require.NoError(t, err)
	return d.Remaining
}

func TestReaderReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := []byte(strings.Repeat("The quick brown fox. ", 100))
		require.NoError(t, iotest.TestReader(iolimit.Reader(t.Context(), bytes.NewReader(text), bucket()), text))

		// Each byte is charged, and once, however it comes.
		for name, r := range map[string]io.Reader{
			"whole":     bytes.NewReader(text),
			"one byte":  iotest.OneByteReader(bytes.NewReader(text)),
			"half":      iotest.HalfReader(bytes.NewReader(text)),
			"with EOF":  iotest.DataErrReader(bytes.NewReader(text)),
			"buffer":    bytes.NewBuffer(text),
			"with nils": &pausing{r: bytes.NewReader(text)},
		} {
			begin, b := time.Now(), bucket()
			got, err := io.ReadAll(iolimit.Reader(t.Context(), r, b))
			require.NoError(t, err, name)
			assert.Equal(t, string(text), string(got), name)
			assert.Equal(t, time.Duration(len(text)-1000)*time.Millisecond, time.Since(begin), name)
			assert.Equal(t, 0, left(t, b), name)
		}
	})
}

// pausing returns 0 and nil from every second Read.
type pausing struct {
	r     io.Reader
	pause bool
}

func (p *pausing) Read(b []byte) (int, error) {
	if p.pause = !p.pause; p.pause {
		return 0, nil
	}
	return p.r.Read(b)
}

// The end and errors of the source come at once, even if nothing is left of the limit.
func TestReaderPassesErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, b := time.Now(), bucket()
		require.True(t, b.Limiter().AllowN(b.Key(), 1000))
		for _, want := range []error{io.EOF, io.ErrUnexpectedEOF} {
			n, err := iolimit.Reader(t.Context(), iotest.ErrReader(want), b).Read(make([]byte, 10))
			assert.Zero(t, n)
			assert.Equal(t, want, err)
		}
		n, err := iolimit.Reader(t.Context(), strings.NewReader("x"), b).Read(nil)
		assert.Zero(t, n)
		assert.NoError(t, err)
		assert.Zero(t, time.Since(begin))
	})
}

// No call asks the source for more than a chunk, and chunks follow a limit that changes.
func TestChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := 0
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Second},
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
				return ratelimit.TokenBucket{Rate: ratelimit.PerSecond(limit)}, nil
			})))
		source := new(asked)
		b := ratelimit.For(l, "key")
		r := iolimit.Reader(t.Context(), source, b)
		for _, step := range []struct{ limit, chunk int }{
			{1, 1},
			{15, 1},
			{16, 1},
			{1600, 100},
			{64 << 10, 4 << 10},
			{128 << 10, 4 << 10},
			{1 << 20, 16 << 10},
			{4 << 20, 64 << 10},
			{1 << 30, 64 << 10},
			{1 << 20, 16 << 10},
			{1600, 100},
			{1, 1},
		} {
			limit = step.limit
			_, err := r.Read(make([]byte, 1<<20)) // the limit is known from the one before
			require.NoError(t, err)
			for source.n = 0; source.n == 0; { // what was read before is delivered first
				_, err = r.Read(make([]byte, 1<<20))
				require.NoError(t, err)
			}
			assert.Equal(t, step.chunk, source.n, "limit %d", step.limit)
		}
	})
}

// asked is an endless source that knows how many bytes it was asked for last.
type asked struct{ n int }

func (a *asked) Read(p []byte) (int, error) {
	a.n = len(p)
	return len(p), nil
}

// A reader whose source is slow takes nothing from others on its key.
func TestIdleReadersHoldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket()
		for range 100 {
			in, out := io.Pipe()
			defer out.Close()
			go func() { _, _ = io.Copy(io.Discard, iolimit.Reader(context.Background(), in, b)) }()
		}
		synctest.Wait()
		assert.Equal(t, 1000, left(t, b))
	})
}

// The context ends the wait, and what was read is kept, and charged once.
func TestReaderKeepsWhatItCannotDeliver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket()
		require.True(t, b.Limiter().AllowN(b.Key(), 1000))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		begin, source := time.Now(), strings.NewReader("twenty bytes of text")
		r := iolimit.Reader(ctx, source, b)
		n, err := r.Read(make([]byte, 100))
		assert.Zero(t, n)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 10*time.Millisecond, time.Since(begin))
		assert.Equal(t, 0, source.Len(), "it has read a chunk")
		assert.Equal(t, 10, left(t, b), "and given its place back")
		_, err = r.Read(make([]byte, 100))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 10, left(t, b))
	})
}

// An error that came with bytes follows them, even if they are delivered late.
func TestReaderKeepsErrors(t *testing.T) {
	store := &failing{Store: new(ratelimit.MemoryStore)}
	b := bucket(ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()), ratelimit.WithFailureLog(nil))
	r := iolimit.Reader(t.Context(), &lastWords{text: "Read once. Ended."}, b)
	buf := make([]byte, 11)
	_, err := r.Read(buf)
	require.NoError(t, err)
	assert.Equal(t, "Read once. ", string(buf))
	store.down.Store(true)
	_, err = r.Read(buf)
	require.ErrorIs(t, err, errDown)
	store.down.Store(false)
	clear(buf) // it is the caller's

	n, err := r.Read(buf[:2])
	require.NoError(t, err)
	assert.Equal(t, "En", string(buf[:n]))
	n, err = r.Read(buf)
	assert.Equal(t, io.ErrUnexpectedEOF, err)
	assert.Equal(t, "ded.", string(buf[:n]))
	_, err = r.Read(buf)
	assert.Equal(t, io.ErrNoProgress, err, "the error came once")
}

// lastWords returns an error with its last bytes, and then others.
type lastWords struct{ text string }

func (l *lastWords) Read(p []byte) (int, error) {
	if l.text == "" {
		return 0, io.ErrNoProgress
	}
	n := copy(p, l.text)
	if l.text = l.text[n:]; l.text == "" {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// Each policy does with a stream what it does with other requests, and no byte is lost or
// delivered twice.
func TestReaderWithFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spare := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Burst: 10}))
		for name, test := range map[string]struct {
			policy ratelimit.FailurePolicy
			takes  time.Duration
			fails  bool
		}{
			"open":     {policy: ratelimit.FailOpen()},
			"closed":   {policy: ratelimit.FailClosed(), fails: true},
			"fallback": {policy: ratelimit.Fallback(spare), takes: 100 * time.Millisecond},
		} {
			store := &failing{Store: new(ratelimit.MemoryStore)}
			b := bucket(ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(test.policy), ratelimit.WithFailureLog(nil))
			for _, known := range []bool{false, true} { // whether a chunk has passed before
				begin := time.Now()
				r := iolimit.Reader(t.Context(), iotest.DataErrReader(strings.NewReader("twenty bytes of text")), b)
				var text []byte
				if known {
					text = make([]byte, 3)
					_, err := io.ReadFull(r, text)
					require.NoError(t, err, name)
				}
				store.down.Store(true)
				if test.fails {
					for range 3 {
						n, err := r.Read(make([]byte, 4))
						require.ErrorIs(t, err, errDown, name)
						require.Zero(t, n, name)
					}
					store.down.Store(false)
				}
				rest, err := io.ReadAll(r)
				require.NoError(t, err, name)
				assert.Equal(t, "twenty bytes of text", string(text)+string(rest), name)
				if name != "fallback" {
					assert.Equal(t, test.takes, time.Since(begin), name)
				} else {
					assert.GreaterOrEqual(t, time.Since(begin), test.takes-30*time.Millisecond, name)
				}
				store.down.Store(false)
				time.Sleep(time.Second)
			}
		}
	})
}

var errDown = errors.New("the store is down")

// failing is a store that fails while it is down. A limiter may repeat calls in the background while
// a test sets it.
type failing struct {
	ratelimit.Store
	down atomic.Bool
}

func (f *failing) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	s, err := f.Store.Open(name, t, timeout)
	return &failingStates{s, f}, err
}

type failingStates struct {
	limit.States
	store *failing
}

func (f *failingStates) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	if f.store.down.Load() {
		return step.Answer{}, errDown
	}
	return f.States.Apply(ctx, key, t, req)
}

// A key that is granted nothing fails at once, before anything is read or written.
func TestBlockedKey(t *testing.T) {
	b := ratelimit.For(blocked{bucket().Limiter()}, "mallory")
	source := strings.NewReader("text")
	_, err := io.ReadAll(iolimit.Reader(t.Context(), source, b))
	require.ErrorIs(t, err, ratelimit.ErrNever)
	assert.ErrorContains(t, err, `1 bytes of key "m"… (7 bytes)`)
	assert.Equal(t, 4, source.Len())

	var out bytes.Buffer
	n, err := iolimit.Writer(t.Context(), &out, b).Write([]byte("text"))
	require.ErrorIs(t, err, ratelimit.ErrNever)
	assert.Zero(t, n)
	assert.Zero(t, out.Len())
}

// blocked grants nothing to anyone.
type blocked struct{ ratelimit.Limiter }

func (blocked) Peek(context.Context, string) (ratelimit.Decision, error) {
	return ratelimit.Decision{RetryAfter: ratelimit.Never}, nil
}

func (blocked) Reserve(context.Context, string, int, ...ratelimit.ReserveOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return nil, ratelimit.Decision{RetryAfter: ratelimit.Never}, nil
}

// A key that is blocked while a stream runs fails the stream, which can go on when it is
// granted bytes again.
func TestKeyIsBlockedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket()
		change := &changing{Limiter: b.Limiter()}
		r := iolimit.Reader(t.Context(), strings.NewReader("text"), ratelimit.For(change, "key"))
		_, err := io.ReadFull(r, make([]byte, 1))
		require.NoError(t, err)
		change.blocked = true
		for range 2 {
			n, err := r.Read(make([]byte, 10))
			require.ErrorIs(t, err, ratelimit.ErrNever)
			require.Zero(t, n)
		}
		change.blocked = false
		rest, err := io.ReadAll(r)
		require.NoError(t, err)
		assert.Equal(t, "ext", string(rest))
		assert.Equal(t, 996, left(t, b))
	})
}

type changing struct {
	ratelimit.Limiter
	blocked bool
}

func (c *changing) Peek(ctx context.Context, key string) (ratelimit.Decision, error) {
	if c.blocked {
		return blocked{}.Peek(ctx, key)
	}
	return c.Limiter.Peek(ctx, key)
}

func (c *changing) Reserve(ctx context.Context, key string, n int, opts ...ratelimit.ReserveOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	if c.blocked {
		return blocked{}.Reserve(ctx, key, n, opts...)
	}
	return c.Limiter.Reserve(ctx, key, n, opts...)
}

// If the limit becomes lower while a stream asks for its turn, every byte passes by the lower one.
func TestLimitBecomesLowerMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, stream := range map[string]func(b ratelimit.Bound) error{
			"Reader": func(b ratelimit.Bound) error {
				_, err := io.ReadFull(iolimit.Reader(t.Context(), new(asked), b), make([]byte, 51))
				return err
			},
			"Writer": func(b ratelimit.Bound) error {
				_, err := iolimit.Writer(t.Context(), io.Discard, b).Write(make([]byte, 51))
				return err
			},
		} {
			l := &lowering{limit: 1000}
			own := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
				return ratelimit.FixedWindow{Limit: l.limit, Window: time.Second}, nil
			})
			l.Limiter = ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Second}, own))
			require.True(t, l.AllowN("key", 1000))
			begin := time.Now()
			require.NoError(t, stream(ratelimit.For(l, "key")), name)
			assert.Equal(t, 6*time.Second, time.Since(begin), name)
		}
	})
}

// A lowering is a limiter whose limit becomes lower when somebody waits.
type lowering struct {
	ratelimit.Limiter
	limit int
}

func (l *lowering) WaitN(ctx context.Context, key string, n int) error {
	l.limit = 10
	return l.Limiter.WaitN(ctx, key, n)
}

func (l *lowering) Hold(
	ctx context.Context, key string, n int, opts ...ratelimit.HoldOption,
) (*ratelimit.Reservation, ratelimit.Decision, error) {
	l.limit = 10
	return l.Limiter.Hold(ctx, key, n, opts...)
}

func TestMisuse(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var logged strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	var none context.Context
	var typed *changing
	iolimit.Conn(nil, ratelimit.For(typed, "key"), ratelimit.Bound{})
	iolimit.Writer(t.Context(), nil, ratelimit.Bound{})
	assert.Equal(t, 2, strings.Count(logged.String(), "the Bound's limiter is nil"), "before they are used")
	for name, r := range map[string]io.Reader{
		"no limiter":    iolimit.Reader(t.Context(), strings.NewReader("text"), ratelimit.Bound{}),
		"a nil limiter": iolimit.Reader(t.Context(), strings.NewReader("text"), ratelimit.For(typed, "key")),
		"no context":    iolimit.Reader(none, strings.NewReader("text"), bucket()),
	} {
		_, err := r.Read(make([]byte, 10))
		assert.ErrorIs(t, err, ratelimit.ErrInvalid, name)
	}
	for _, n := range []int{-1, 11} {
		_, err := iolimit.Reader(t.Context(), lying(n), bucket()).Read(make([]byte, 10))
		assert.ErrorContains(t, err, "negative count, or more bytes", n)
		b := bucket()
		_, err = iolimit.Writer(t.Context(), lying(n), b).Write(make([]byte, 10))
		assert.ErrorContains(t, err, "negative count, or more bytes", n)
	}
}

// A limit of events at once is no limit of bytes: nobody would ever release them.
func TestInFlightDoesNotSuit(t *testing.T) {
	flight := ratelimit.InFlight{Limit: 100, Timeout: time.Hour}
	for name, alg := range map[string]ratelimit.Algorithm{
		"alone":  flight,
		"in All": ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}, ratelimit.All{flight}},
	} {
		own := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })
		for _, l := range []ratelimit.Limiter{
			ratelimit.Must(ratelimit.New(alg)),
			ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}, own)),
		} {
			b, source := ratelimit.For(l, "key"), strings.NewReader("text")
			_, err := io.ReadAll(iolimit.Reader(t.Context(), source, b))
			require.ErrorIs(t, err, ratelimit.ErrInvalid, name)
			assert.ErrorContains(t, err, "InFlight")
			assert.Equal(t, 4, source.Len(), "nothing is read")
			var out bytes.Buffer
			_, err = io.WriteString(iolimit.Writer(t.Context(), &out, b), "text")
			require.ErrorIs(t, err, ratelimit.ErrInvalid, name)
			assert.Zero(t, out.Len())
			assert.Equal(t, 100, left(t, b))
		}
	}
}

// Plans let a stream pass, or fail it, and so do limits that become plans.
func TestPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limited := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}
		var alg ratelimit.Algorithm
		b := ratelimit.For(ratelimit.Must(ratelimit.New(limited,
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil }))), "key")
		source := new(asked)
		r := iolimit.Reader(t.Context(), source, b)
		begin := time.Now()
		for _, step := range []struct {
			alg   ratelimit.Algorithm
			bytes int
			takes time.Duration
		}{
			{ratelimit.Unlimited{}, 1 << 20, 0},
			{limited, 1000, 0},
			{ratelimit.All{ratelimit.Unlimited{}, ratelimit.Unlimited{}}, 1 << 20, 0},
			{limited, 500, time.Second / 2},
			{ratelimit.All{ratelimit.Unlimited{}, limited}, 0, 0},
			{ratelimit.Blocked{}, 0, 0},
			{ratelimit.All{limited, ratelimit.Blocked{}}, 0, 0},
			{ratelimit.Unlimited{}, 1 << 20, 0},
		} {
			alg = step.alg
			if step.bytes == 0 {
				if d, _ := b.Limiter().Peek(t.Context(), b.Key()); d.Limit > 0 {
					continue // a limit of another kind starts afresh
				}
				n, err := r.Read(make([]byte, 1))
				require.ErrorIs(t, err, ratelimit.ErrNever)
				assert.Zero(t, n)
				continue
			}
			_, err := io.ReadFull(r, make([]byte, step.bytes))
			require.NoError(t, err)
			assert.Equal(t, step.takes, time.Since(begin), "%+v", alg)
			begin = time.Now()
		}
		_, err := io.ReadFull(iolimit.Reader(t.Context(), source, b), make([]byte, 1<<20))
		require.NoError(t, err)
		assert.Equal(t, 64<<10, source.n)
	})
}

// lying returns a wrong number of bytes.
type lying int

func (l lying) Read([]byte) (int, error)  { return int(l), nil }
func (l lying) Write([]byte) (int, error) { return int(l), nil }

// Streams follow the clock of the limiter.
func TestReaderFollowsTheInjectedClock(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"TokenBucket":    ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)},
		"a full queue":   ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1)},
		"a window's end": ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
	} {
		mock := clock.NewMock()
		b := ratelimit.For(ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(mock))), "key")
		require.True(t, b.Limiter().Allow(b.Key()))
		done := make(chan error)
		go func() {
			_, err := io.ReadFull(iolimit.Reader(context.Background(), new(asked), b), make([]byte, 3))
			done <- err
		}()
		for waiting := true; waiting; {
			mock.Add(10 * time.Minute)
			select {
			case err := <-done:
				require.NoError(t, err, name)
				waiting = false
			default:
			}
		}
		assert.False(t, mock.Now().Before(time.Unix(0, 0).Add(3*time.Hour)), name)
	}
}
