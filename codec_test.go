package ratelimit

import (
	"context"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// storedAlgorithms are algorithms of each kind with the header of their states.
// A change to one of them orphans the states that users have stored.
var storedAlgorithms = []struct {
	alg    Algorithm
	header string
}{
	{TokenBucket{Rate: PerSecond(10)}, "01 02 01 07 0a 8094ebdc03 0a"},
	{TokenBucket{Rate: PerSecond(3), Burst: 300, Refill: RefillInterval}, "01 02 01 0f 03 8094ebdc03 ac02 01"},
	{LeakyBucket{Rate: PerMinute(3), Capacity: 7}, "01 02 02 07 03 80b09dc2df01 07"},
	{LeakyBucket{Rate: PerMinute(3)}, "01 02 02 07 03 80b09dc2df01 01"},
	{FixedWindow{Limit: 3, Window: time.Hour, Start: StartOnFirstEvent}, "01 02 03 07 03 80c0e285e368 01"},
	{FixedWindow{Limit: 3, Window: math.MaxInt64}, "01 02 03 03 03 ffffffffffffffff7f"},
	{SlidingWindow{Limit: 3, Window: time.Second, Segments: 4}, "01 02 04 07 03 8094ebdc03 04"},
	{SlidingLog{Limit: 3, Window: time.Second}, "01 02 05 03 03 8094ebdc03"},
	{SlidingLog{Limit: 3, Window: time.Second, CountDenied: true}, "01 02 05 07 03 8094ebdc03 01"},
	{RollingWindow{Quota: 3, Window: time.Hour, Period: time.Minute, PeriodLimit: 2}, "01 02 06 0f 03 80c0e285e368 80b09dc2df01 02"},
	{WarmingUp{Rate: PerSecond(3), Warmup: time.Second, ColdFactor: 1.5}, "01 02 07 0f 03 8094ebdc03 8094ebdc03 80808080808080fc3f"},
	{InFlight{Limit: 3, Timeout: time.Second}, "01 02 0b 03 03 8094ebdc03"},
	{All{SlidingLog{Limit: 3, Window: time.Second}}, "01 02 08 01 05 03 03 8094ebdc03"},
	{All{TokenBucket{Rate: PerSecond(10)}, All{LeakyBucket{Rate: PerMinute(3)}}}, "01 02 08 02 01 07 0a 8094ebdc03 0a 02 07 03 80b09dc2df01 01"},
	{Unlimited{}, "01 02 09 00"},
	{Blocked{}, "01 02 0a 00"},
	{All{TokenBucket{Rate: PerSecond(10)}, Unlimited{}}, "01 02 08 02 01 07 0a 8094ebdc03 0a 09 00"},
}

func unhex(t testing.TB, text string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	require.NoError(t, err)
	return b
}

func TestHeaders(t *testing.T) {
	kinds := map[string]bool{}
	for _, tt := range storedAlgorithms {
		tr, err := NewTransition(tt.alg)
		require.NoError(t, err)
		assert.Equal(t, hex.EncodeToString(unhex(t, tt.header)), hex.EncodeToString(tr.Tag()), "%+v", tt.alg)
		kinds[string(tr.Tag()[2])] = true

		by, words, err := readHeader(append(tr.Tag(), 1, 2, 3), kernel.InMemory)
		require.NoError(t, err)
		assert.Equal(t, tr.alg, transitionOf(by).alg)
		assert.Equal(t, []byte{1, 2, 3}, words)
	}
	assert.Len(t, kinds, len(storedKinds), "each kind")

	portable, err := NewTransition(FixedWindow{Limit: 3, Window: time.Hour})
	require.NoError(t, err)
	portable, err = portable.Portable(time.Microsecond)
	require.NoError(t, err)
	assert.Equal(t, unhex(t, "01 d10f 03 03 03 80c0e285e368"), portable.Tag())
}

// TestStates pins states as a whole, after one event at noon: the header, and the words in
// nanoseconds and as portable words in microseconds.
func TestStates(t *testing.T) {
	req := Request{N: 1}.At(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	second := time.Second
	for _, tt := range []struct {
		alg                    Algorithm
		inNanoseconds, inMicro string
	}{
		{
			TokenBucket{Rate: PerHour(1)},
			"010201070180c0e285e36801 00208fe41fb99818 0080d6b3d9b59818",
			"01d10f01070180c0e285e36801 00b4420cf64b0600 0000000000000000 0010af35f54b0600",
		},
		{
			TokenBucket{Rate: PerSecond(7)},
			"01020107078094ebdc0307 004a7826f4f82cac 0000000000000000 0080d6b3d9b59818",
			"01d10f0107078094ebdc0307 093eb135f54b0600 0100000000000000 0010af35f54b0600",
		},
		{
			TokenBucket{Rate: PerSecond(10), Refill: RefillInterval},
			"0102010f0a8094ebdc030a01 0080d6b3d9b59818 0100000000000000",
			"01d10f010f0a8094ebdc030a01 0010af35f54b0600 0100000000000000",
		},
		{
			LeakyBucket{Rate: PerSecond(10), Capacity: 5},
			"010202070a8094ebdc0305 0061ccb9d9b59818 0000000000000000",
			"01d10f02070a8094ebdc0305 a096b035f54b0600 0000000000000000 0000000000000000",
		},
		{
			FixedWindow{Limit: 2, Window: time.Hour},
			"010203030280c0e285e368 0080d6b3d9b59818 0100000000000000",
			"01d10f03030280c0e285e368 0010af35f54b0600 0100000000000000",
		},
		{
			FixedWindow{Limit: 2, Window: time.Hour, Start: StartOnFirstEvent},
			"010203070280c0e285e36801 0080d6b3d9b59818 0100000000000000",
			"01d10f03070280c0e285e36801 0010af35f54b0600 0100000000000000",
		},
		{
			SlidingWindow{Limit: 10, Window: second},
			"010204070a8094ebdc0301 0080d6b3d9b59818 0100000000000000",
			"01d10f04070a8094ebdc0301 0010af35f54b0600 0100000000000000",
		},
		{
			RollingWindow{Quota: 10, Window: 3 * second, Period: second},
			"010206070a80bcc1960b8094ebdc03 0080d6b3d9b59818 0100000000000000 0100000000000000 0000000000000000",
			"01d10f06070a80bcc1960b8094ebdc03 0010af35f54b0600 0100000000000000 0100000000000000 0000000000000000",
		},
		{
			SlidingLog{Limit: 2, Window: time.Hour, CountDenied: true},
			"010205070280c0e285e36801 0100000000000000 0300000000000000 0080d6b3d9b59818 0080d6b3d9b59818",
			"01d10f05070280c0e285e36801 0100000000000000 0300000000000000 0010af35f54b0600 0010af35f54b0600",
		},
		{
			WarmingUp{Rate: PerSecond(10), Warmup: second},
			"0102070f0a8094ebdc038094ebdc03808080808080808440 000000000000f03f 00f686c4d9b59818",
			"01d10f070f0a8094ebdc038094ebdc03808080808080808440 000000000000f03f c055b335f54b0600 0000000000000000",
		},
		{
			All{SlidingLog{Limit: 2, Window: time.Hour}},
			"0102080105030280c0e285e368 0400000000000000 0100000000000000 0300000000000000 0080d6b3d9b59818 0080d6b3d9b59818",
			"01d10f080105030280c0e285e368 0400000000000000 0100000000000000 0300000000000000 0010af35f54b0600 0010af35f54b0600",
		},
		{
			All{TokenBucket{Rate: PerHour(1)}, SlidingLog{Limit: 2, Window: time.Hour}},
			"0102080201070180c0e285e3680105030280c0e285e368 0400000000000000 00208fe41fb99818 0080d6b3d9b59818 0100000000000000 0300000000000000 0080d6b3d9b59818 0080d6b3d9b59818",
			"01d10f080201070180c0e285e3680105030280c0e285e368 0400000000000000 00b4420cf64b0600 0000000000000000 0010af35f54b0600 0100000000000000 0300000000000000 0010af35f54b0600 0010af35f54b0600",
		},
	} {
		tr := mustTransition(t, tt.alg)
		portable, err := tr.Portable(time.Microsecond)
		require.NoError(t, err)
		for want, tr := range map[string]*Transition{tt.inNanoseconds: tr, tt.inMicro: portable} {
			state, changed, _, err := tr.Apply(nil, req)
			require.NoError(t, err)
			assert.True(t, changed)
			assert.Equal(t, hex.EncodeToString(unhex(t, want)), hex.EncodeToString(state), "%+v", tt.alg)
		}
	}
}

// The sizes of states are those that the documentation of Store says.
func TestStateSizes(t *testing.T) {
	most := math.MaxInt32
	for _, alg := range []Algorithm{
		TokenBucket{Rate: Rate{Events: 1e6 + 1, Per: 999 * time.Hour}, Burst: 1e6, Refill: RefillInterval},
		TokenBucket{Rate: PerSecond(7)},
		LeakyBucket{Rate: Rate{Events: 1e6 + 1, Per: 999 * time.Hour}, Capacity: 1e6},
		FixedWindow{Limit: most, Window: math.MaxInt64, Start: StartOnFirstEvent},
		WarmingUp{Rate: Rate{Events: most, Per: 999 * time.Hour}, Warmup: 999 * time.Hour, ColdFactor: 1.1},
		FixedWindow{Limit: 1, Window: 1},
	} {
		state, _, _, err := mustTransition(t, alg).Apply(nil, Request{N: 1}.At(time.Unix(1e9, 0)))
		require.NoError(t, err)
		assert.LessOrEqual(t, len(state), 60, "%+v", alg)
		assert.GreaterOrEqual(t, len(state), 10, "%+v", alg)
	}
	state, _, _, err := mustTransition(t, SlidingWindow{Limit: most, Window: 1000 * time.Hour, Segments: 1000}).Apply(nil, Request{N: 1}.At(time.Unix(1e9, 0)))
	require.NoError(t, err)
	assert.InDelta(t, 4000, len(state), 60)
	state, _, _, err = mustTransition(t, RollingWindow{Quota: most, Window: 1000 * time.Hour, Period: time.Hour}).Apply(nil, Request{N: 1}.At(time.Unix(1e9, 0)))
	require.NoError(t, err)
	assert.InDelta(t, 4000, len(state), 60)
}

// Each field of each algorithm is stored: a field that fields forgets would
// make two limits one.
func TestEveryFieldIsStored(t *testing.T) {
	for i, kind := range storedKinds {
		if _, ok := kind.(All); ok {
			assert.Equal(t, allKind, i+1)
			continue
		}
		var stored int
		kind.fields(func(fields ...any) { stored = len(fields) })
		assert.Equal(t, leafFields(kind), stored, "%T", kind)
		assert.EqualValues(t, i+1, kind.kind(), "%T", kind)
		alg, err := value(kind)
		require.NoError(t, err, "%T is not one of the sealed algorithms", kind)
		assert.Equal(t, kind, alg)
	}
}

// A newest is an algorithm that comes after those of this package.
type newest struct{ FixedWindow }

func (a newest) normalized() Algorithm      { return a }
func (a newest) share(by divisor) Algorithm { return newest{a.FixedWindow.share(by).(FixedWindow)} }
func (newest) kind() uint64                 { return newestKind }
func (a newest) fields(visit func(...any)) Algorithm {
	return newest{a.FixedWindow.fields(visit).(FixedWindow)}
}

var newestKind = uint64(len(storedKinds) + 1)

// An algorithm that is added to storedKinds needs nothing else for its states to be read.
func TestNewKindIsRead(t *testing.T) {
	one := newest{FixedWindow{Limit: 5, Window: time.Hour}}
	_, err := NewTransition(one)
	require.ErrorIs(t, err, ErrInvalid, "it is not in storedKinds")
	sealed := storedKinds
	defer func() { storedKinds = sealed }()
	storedKinds = append(slices.Clip(storedKinds), newest{})

	for _, alg := range []Algorithm{one, All{one, TokenBucket{Rate: PerSecond(10)}}} {
		state, _, _, err := mustTransition(t, alg).Apply(nil, Request{N: 1}.At(time.Unix(1000, 0)))
		require.NoError(t, err)
		_, _, res, err := mustTransition(t, Share(alg, 2)).Apply(state, Request{N: 1}.At(time.Unix(1000, 0)))
		require.NoError(t, err)
		require.NoError(t, res.StateErr())
		assert.Equal(t, 0, res.Decision.Remaining, "2, less one event under each limit")
	}
}

// A state that cannot be read is reported once, and is replaced by a fresh one.
func TestUnreadableStates(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tr, err := NewTransition(FixedWindow{Limit: 2, Window: time.Hour})
	require.NoError(t, err)
	good, _, _, err := tr.Apply(nil, Request{N: 1}.At(now))
	require.NoError(t, err)
	with := func(at int, b byte) []byte {
		state := append([]byte(nil), good...)
		state[at] = b
		return state
	}
	portable, err := tr.Portable(time.Microsecond)
	require.NoError(t, err)
	foreign, _, _, err := portable.Apply(nil, Request{N: 1}.At(now))
	require.NoError(t, err)
	longer, _, _, err := mustTransition(t, SlidingLog{Limit: 2, Window: time.Hour}).Apply(nil, Request{N: 1}.At(now))
	require.NoError(t, err)
	for name, state := range map[string][]byte{
		"a later version":    with(0, 2),
		"an unknown kind":    with(2, 99),
		"kind 0":             with(2, 0),
		"an unknown field":   with(3, 0x0b),
		"a zero field":       unhex(t, "010203070280c0e285e36800"+"0080d6b3d9b598180100000000000000"),
		"an invalid field":   with(4, 0),
		"a count too high":   with(len(good)-1, 0xff),
		"cut in the header":  good[:4],
		"cut in the words":   good[:len(good)-1],
		"a word is missing":  good[:len(good)-8],
		"a word too many":    append(append([]byte(nil), good...), make([]byte, 8)...),
		"a log without end":  longer[:len(longer)-8],
		"another encoding":   foreign,
		"JSON":               []byte(`{"tokens":3}`),
		"nothing but zeros":  make([]byte, 16),
		"a number too large": unhex(t, "01020303ffffffffffffffffff01"+"80c0e285e368"),
		"an endless number":  []byte("\x01\x02\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
		"too many parts":     unhex(t, "010208ffff7f"),
		"an All in an All":   unhex(t, "0102080108010503028094ebdc03"),
	} {
		t.Run(name, func(t *testing.T) {
			for op := OpTake; op <= OpCancel; op++ {
				next, changed, res, err := tr.Apply(state, Request{Op: op, N: 1, MaxWait: Never}.At(now))
				require.NoError(t, err)
				require.True(t, changed, "it is to be replaced")
				require.ErrorIs(t, res.StateErr(), ErrState)
				require.ErrorContains(t, res.StateErr(), "damaged")

				_, _, res, err = tr.Apply(next, Request{Op: OpTake, N: 1}.At(now))
				require.NoError(t, err)
				require.NoError(t, res.StateErr(), "once")
				want := 1
				if op == OpTake || op == OpReserve {
					want = 0
				}
				require.Equal(t, want, res.Decision.Remaining, "the request was applied to a fresh key")
			}
		})
	}
}

// A limiter reports a state that cannot be read as it reports a store that fails, but
// once: FailOpen does not grant everything from then on.
func TestLimiterReportsUnreadableState(t *testing.T) {
	for name, tt := range map[string]struct {
		policy FailurePolicy
		first  bool
	}{"open": {FailOpen, true}, "closed": {FailClosed, false}} {
		t.Run(name, func(t *testing.T) {
			db := mapStates{"key": "nonsense"}
			l, err := New(FixedWindow{Limit: 3, Window: time.Hour}, WithStore(db), WithName("test"), WithFailurePolicy(tt.policy))
			require.NoError(t, err)
			d, err := l.Take(t.Context(), "key", 1)
			require.ErrorIs(t, err, ErrState)
			assert.Equal(t, tt.first, d.Allowed)
			assert.True(t, d.Degraded)
			for _, want := range []bool{true, true, false, false} {
				d, err := l.Take(t.Context(), "key", 1)
				require.NoError(t, err)
				assert.Equal(t, want, d.Allowed)
			}
		})
	}
}

// A restart with other parameters keeps the usage, with and without WithLimits.
func TestRestartWithOtherParameters(t *testing.T) {
	own := WithLimits(func(_ context.Context, key string) (Algorithm, error) { return nil, nil })
	hour := func(n int) Algorithm { return TokenBucket{Rate: PerHour(n)} }
	type start struct {
		alg  Algorithm
		opts []Option
	}
	for name, tt := range map[string]struct {
		was, is start
		kept    bool
	}{
		"lower":             {start{hour(10), nil}, start{hour(7), nil}, true},
		"WithLimits added":  {start{hour(10), nil}, start{hour(10), []Option{own}}, true},
		"WithLimits gone":   {start{hour(10), []Option{own}}, start{hour(10), nil}, true},
		"both":              {start{hour(10), []Option{own}}, start{hour(7), nil}, true},
		"hour to day":       {start{FixedWindow{Limit: 10, Window: time.Hour}, nil}, start{FixedWindow{Limit: 10, Window: 24 * time.Hour}, nil}, true},
		"window to bucket":  {start{FixedWindow{Limit: 10, Window: time.Hour}, nil}, start{hour(10), nil}, false},
		"log to log in All": {start{SlidingLog{Limit: 10, Window: time.Hour}, nil}, start{All{SlidingLog{Limit: 10, Window: time.Hour}}, nil}, false},
	} {
		t.Run(name, func(t *testing.T) {
			db, clk := mapStates{}, stepclock.New()
			limiter := func(s start) Limiter {
				return Must(New(s.alg, append(s.opts, WithStore(db), WithName("test"), WithClock(clk), WithFailurePolicy(FailClosed))...))
			}
			l := limiter(tt.was)
			require.True(t, l.AllowN("key", 10))
			require.False(t, l.Allow("key"))
			l = limiter(tt.is)
			d, err := l.Take(t.Context(), "key", 1)
			require.NoError(t, err)
			assert.Equal(t, !tt.kept, d.Allowed, "%+v", d)
			again, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			assert.Equal(t, !tt.kept, again.Allowed)
		})
	}
}

func mustTransition(t testing.TB, alg Algorithm) *Transition {
	tr, err := NewTransition(alg)
	require.NoError(t, err)
	return tr
}

// mapStates is a store of bytes for one goroutine. It looks as a third-party store may:
// nothing in it handles states that cannot be read.
type mapStates map[string]string

func (m mapStates) Open(string, *Transition) (States, error) { return m, nil }

func (m mapStates) Apply(_ context.Context, key string, t *Transition, req Request) (Result, error) {
	next, changed, res, err := t.Apply([]byte(m[key]), req)
	if err != nil || !changed {
		return res, err
	}
	m[key] = string(next)
	return res, nil
}

func (m mapStates) Reset(_ context.Context, key string) error {
	delete(m, key)
	return nil
}

// FuzzStates reads states with arbitrary bytes.
func FuzzStates(f *testing.F) {
	by := mustTransition(f, All{SlidingLog{Limit: 3, Window: time.Second}, TokenBucket{Rate: PerSecond(3)}})
	for _, tt := range storedAlgorithms {
		state, _, _, err := mustTransition(f, tt.alg).Apply(nil, Request{N: 1}.At(time.Unix(1000, 0)))
		require.NoError(f, err)
		f.Add(state)
		f.Add(state[:max(0, len(state)-8)])
		f.Add(mustTransition(f, tt.alg).Tag()) // a plan has no states
	}
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, state []byte) {
		next, changed, res, err := by.Apply(state, Request{N: 1}.At(time.Unix(1001, 0)))
		require.NoError(t, err)
		if res.StateErr() != nil {
			require.True(t, changed && errors.Is(res.StateErr(), ErrState))
		}
		if changed {
			_, _, res, err = by.Apply(next, Request{N: 1}.At(time.Unix(1002, 0)))
			require.NoError(t, err)
			require.NoError(t, res.StateErr(), "the stored state can be read")
		}
	})
}

// leafFields counts the fields of an algorithm, and those of its Rate instead of it.
func leafFields(alg Algorithm) (n int) {
	for _, field := range reflect.VisibleFields(reflect.TypeOf(alg)) {
		if n++; field.Type == reflect.TypeFor[Rate]() {
			n++
		}
	}
	return n
}

// A log in a state of bytes has no unused words, even in an All, although it has some after its first
// entries have left the window.
func TestLogsArePacked(t *testing.T) {
	plain := SlidingLog{Limit: 100, Window: time.Second}
	counting := SlidingLog{Limit: 100, Window: time.Second, CountDenied: true}
	for _, alg := range []Algorithm{plain, counting, All{plain, TokenBucket{Rate: PerSecond(100)}, counting}} {
		tr := mustTransition(t, alg)
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		var state []byte
		for range 15 {
			next, _, res, err := tr.Apply(state, Request{N: 1}.At(now))
			require.NoError(t, err)
			require.True(t, res.Decision.Allowed)
			state, now = next, now.Add(100*time.Millisecond)
		}
		_, words, err := tr.loose().read(state)
		require.NoError(t, err)
		want := 3 + 10 // the header of a log, and the entries in the window
		if _, ok := alg.(All); ok {
			want = 2 + 2 + 2*want // two lengths, and the bucket
		}
		assert.Len(t, words, want, "%+v", alg)
	}
}
