package limit_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// storedAlgorithms are algorithms of each kind with the header of their states.
// A change to one of them orphans the states that users have stored.
var storedAlgorithms = []struct {
	alg    ratelimit.Algorithm
	header string
}{
	{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, "01 02 01 07 0a 8094ebdc03 0a"},
	{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 300, Refill: ratelimit.RefillInterval}, "01 02 01 0f 03 8094ebdc03 ac02 01"},
	{ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(3), Capacity: 7}, "01 02 02 07 03 80b09dc2df01 07"},
	{ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(3)}, "01 02 02 07 03 80b09dc2df01 01"},
	{ratelimit.FixedWindow{Limit: 3, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}, "01 02 03 07 03 80c0e285e368 01"},
	{ratelimit.FixedWindow{Limit: 3, Window: math.MaxInt64}, "01 02 03 03 03 ffffffffffffffff7f"},
	{ratelimit.SlidingWindow{Limit: 3, Window: time.Second, Segments: 4}, "01 02 04 07 03 8094ebdc03 04"},
	{ratelimit.SlidingLog{Limit: 3, Window: time.Second}, "01 02 05 03 03 8094ebdc03"},
	{ratelimit.SlidingLog{Limit: 3, Window: time.Second, CountDenied: true}, "01 02 05 07 03 8094ebdc03 01"},
	{ratelimit.RollingWindow{Quota: 3, Window: time.Hour, Period: time.Minute, PeriodLimit: 2}, "01 02 06 0f 03 80c0e285e368 80b09dc2df01 02"},
	{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(3), Warmup: time.Second, ColdFactor: 1.5}, "01 02 07 0f 03 8094ebdc03 8094ebdc03 80808080808080fc3f"},
	{ratelimit.InFlight{Limit: 3, Timeout: time.Second}, "01 02 0b 03 03 8094ebdc03"},
	{
		ratelimit.CalendarWindow{Limit: 3, Every: ratelimit.Month, Zone: "Europe/London", Start: 31, Hour: 4},
		"01 02 0c 1f 03 03 1f 04 0d 4575726f70652f4c6f6e646f6e",
	},
	{ratelimit.CalendarWindow{Limit: 3, Every: ratelimit.Day}, "01 02 0c 13 03 01 03 555443"},
	{ratelimit.CalendarWindow{Limit: 3, Every: ratelimit.Year}, "01 02 0c 17 03 05 65 03 555443"},
	{ratelimit.Lockout{Limit: 3, Window: time.Hour, First: time.Second, Longest: time.Minute}, "01 02 0d 0f 03 80c0e285e368 8094ebdc03 80b09dc2df01"},
	{ratelimit.Lockout{Limit: 3, Window: time.Hour, First: time.Second}, "01 02 0d 07 03 80c0e285e368 8094ebdc03"},
	{ratelimit.All{ratelimit.SlidingLog{Limit: 3, Window: time.Second}}, "01 02 08 01 05 03 03 8094ebdc03"},
	{
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.All{ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(3)}}},
		"01 02 08 02 01 07 0a 8094ebdc03 0a 02 07 03 80b09dc2df01 01",
	},
	{ratelimit.Unlimited{}, "01 02 09 00"},
	{ratelimit.Blocked{}, "01 02 0a 00"},
	{ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.Unlimited{}}, "01 02 08 02 01 07 0a 8094ebdc03 0a 09 00"},
}

func unhex(t testing.TB, text string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	require.NoError(t, err)
	return b
}

func TestHeaders(t *testing.T) {
	kinds := map[string]bool{}
	for _, tt := range storedAlgorithms {
		tr, err := fakes.NewLimit(tt.alg)
		require.NoError(t, err)
		assert.Equal(t, hex.EncodeToString(unhex(t, tt.header)), hex.EncodeToString(tr.Tag()), "%+v", tt.alg)
		kinds[string(tr.Tag()[2])] = true

		by, err := tr.Origin(append(slices.Clone(tr.Tag()), 1, 2, 3))
		require.NoError(t, err)
		assert.Equal(t, tr.Spec, by.Spec)
	}
	for _, alg := range storetest.Algorithms() {
		l := mustLimit(t, alg)
		assert.True(t, kinds[string(l.Tag()[2])], "storedAlgorithms lacks the header of a %T", alg)
	}

	portable, err := fakes.NewLimit(ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	require.NoError(t, err)
	portable, err = portable.Portable(time.Microsecond)
	require.NoError(t, err)
	assert.Equal(t, unhex(t, "01 d10f 03 03 03 80c0e285e368"), portable.Tag())
}

// TestLettersDiffer: limits of two kinds share no key in Redis.
func TestLettersDiffer(t *testing.T) {
	kinds := map[byte]limit.Kind{}
	for _, alg := range append(slices.Collect(maps.Values(storetest.Algorithms())), ratelimit.Unlimited{}, ratelimit.Blocked{}) {
		if _, ok := alg.(ratelimit.All); ok {
			continue
		}
		spec := mustLimit(t, alg).Spec
		if other, known := kinds[spec.Letter()]; known {
			assert.Equal(t, other, spec.Kind, "%c is the letter of a %T and of another kind", spec.Letter(), alg)
		}
		kinds[spec.Letter()] = spec.Kind
	}
}

// TestStates pins states as a whole, after one event at noon: the header, and the words in
// nanoseconds and as portable words in microseconds.
func TestStates(t *testing.T) {
	req := step.Request{N: 1}.At(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	second := time.Second
	for _, tt := range []struct {
		alg                    ratelimit.Algorithm
		inNanoseconds, inMicro string
	}{
		{
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)},
			"010201070180c0e285e36801 00208fe41fb99818 0080d6b3d9b59818",
			"01d10f01070180c0e285e36801 00b4420cf64b0600 0000000000000000 0010af35f54b0600",
		},
		{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)},
			"01020107078094ebdc0307 004a7826f4f82cac 0000000000000000 0080d6b3d9b59818",
			"01d10f0107078094ebdc0307 093eb135f54b0600 0100000000000000 0010af35f54b0600",
		},
		{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Refill: ratelimit.RefillInterval},
			"0102010f0a8094ebdc030a01 0080d6b3d9b59818 0100000000000000",
			"01d10f010f0a8094ebdc030a01 0010af35f54b0600 0100000000000000",
		},
		{
			ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 5},
			"010202070a8094ebdc0305 0061ccb9d9b59818 0000000000000000",
			"01d10f02070a8094ebdc0305 a096b035f54b0600 0000000000000000 0000000000000000",
		},
		{
			ratelimit.FixedWindow{Limit: 2, Window: time.Hour},
			"010203030280c0e285e368 0080d6b3d9b59818 0100000000000000",
			"01d10f03030280c0e285e368 0010af35f54b0600 0100000000000000",
		},
		{
			ratelimit.FixedWindow{Limit: 2, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
			"010203070280c0e285e36801 0080d6b3d9b59818 0100000000000000",
			"01d10f03070280c0e285e36801 0010af35f54b0600 0100000000000000",
		},
		{
			ratelimit.CalendarWindow{Limit: 2, Every: ratelimit.Day, Zone: "Asia/Tokyo"},
			"01020c1302010a417369612f546f6b796f 0060b1b417719818 0100000000000000",
			"01d10f0c1302010a417369612f546f6b796f 009c929be34b0600 0100000000000000",
		},
		{
			ratelimit.SlidingWindow{Limit: 10, Window: second},
			"010204070a8094ebdc0301 0080d6b3d9b59818 0100000000000000",
			"01d10f04070a8094ebdc0301 0010af35f54b0600 0100000000000000",
		},
		{
			ratelimit.RollingWindow{Quota: 10, Window: 3 * second, Period: second},
			"010206070a80bcc1960b8094ebdc03 0080d6b3d9b59818 0100000000000000 0100000000000000 0000000000000000",
			"01d10f06070a80bcc1960b8094ebdc03 0010af35f54b0600 0100000000000000 0100000000000000 0000000000000000",
		},
		{
			ratelimit.Lockout{Limit: 2, Window: time.Hour, First: second, Longest: time.Minute},
			"01020d0f0280c0e285e3688094ebdc0380b09dc2df01 0080d6b3d9b59818 0080d6b3d9b59818 0000000000000000 0000000000000000 0100000000000000",
			"01d10f0d0f0280c0e285e3688094ebdc0380b09dc2df01 0010af35f54b0600 0010af35f54b0600 0000000000000000 0000000000000000 0100000000000000",
		},
		{
			ratelimit.SlidingLog{Limit: 2, Window: time.Hour, CountDenied: true},
			"010205070280c0e285e36801 0100000000000000 0300000000000000 0080d6b3d9b59818 0080d6b3d9b59818",
			"01d10f05070280c0e285e36801 0100000000000000 0300000000000000 0010af35f54b0600 0010af35f54b0600",
		},
		{
			ratelimit.WarmingUp{Rate: ratelimit.PerSecond(10), Warmup: second},
			"0102070f0a8094ebdc038094ebdc03808080808080808440 000000000000f03f 00f686c4d9b59818",
			"01d10f070f0a8094ebdc038094ebdc03808080808080808440 000000000000f03f c055b335f54b0600 0000000000000000",
		},
		{
			ratelimit.All{ratelimit.SlidingLog{Limit: 2, Window: time.Hour}},
			"0102080105030280c0e285e368 0400000000000000 0100000000000000 0300000000000000 0080d6b3d9b59818 0080d6b3d9b59818",
			"01d10f080105030280c0e285e368 0400000000000000 0100000000000000 0300000000000000 0010af35f54b0600 0010af35f54b0600",
		},
		{
			ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.SlidingLog{Limit: 2, Window: time.Hour}},
			"0102080201070180c0e285e3680105030280c0e285e368 0400000000000000 00208fe41fb99818 0080d6b3d9b59818 0100000000000000 0300000000000000 0080d6b3d9b59818 0080d6b3d9b59818",
			"01d10f080201070180c0e285e3680105030280c0e285e368 0400000000000000 00b4420cf64b0600 0000000000000000 0010af35f54b0600 0100000000000000 0300000000000000 0010af35f54b0600 0010af35f54b0600",
		},
	} {
		tr := mustLimit(t, tt.alg)
		portable, err := tr.Portable(time.Microsecond)
		require.NoError(t, err)
		for want, tr := range map[string]*limit.Limit{tt.inNanoseconds: tr, tt.inMicro: portable} {
			after, err := tr.Apply(nil, req)
			require.NoError(t, err)
			assert.True(t, after.Changed)
			assert.Equal(t, hex.EncodeToString(unhex(t, want)), hex.EncodeToString(after.State), "%+v", tt.alg)
		}
	}
}

// stateAfterOne returns the state of a key of which one event was taken, at an instant.
func stateAfterOne(t testing.TB, l *limit.Limit, at time.Time) []byte {
	t.Helper()
	after, err := l.Apply(nil, step.Request{N: 1}.At(at))
	require.NoError(t, err)
	return after.State
}

// The sizes of states are those that the documentation of Database says.
func TestStateSizes(t *testing.T) {
	most := math.MaxInt32
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1e6 + 1, Per: 999 * time.Hour}, Burst: 1e6, Refill: ratelimit.RefillInterval},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)},
		ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 1e6 + 1, Per: 999 * time.Hour}, Capacity: 1e6},
		ratelimit.FixedWindow{Limit: most, Window: math.MaxInt64, Start: ratelimit.StartOnFirstEvent},
		ratelimit.WarmingUp{Rate: ratelimit.Rate{Events: most, Per: 999 * time.Hour}, Warmup: 999 * time.Hour, ColdFactor: 1.1},
		ratelimit.FixedWindow{Limit: 1, Window: 1},
	} {
		state := stateAfterOne(t, mustLimit(t, alg), time.Unix(1e9, 0))
		assert.LessOrEqual(t, len(state), 60, "%+v", alg)
		assert.GreaterOrEqual(t, len(state), 10, "%+v", alg)
	}
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.SlidingWindow{Limit: most, Window: 1000 * time.Hour, Segments: 1000},
		ratelimit.RollingWindow{Quota: most, Window: 1000 * time.Hour, Period: time.Hour},
	} {
		state := stateAfterOne(t, mustLimit(t, alg), time.Unix(1e9, 0))
		// A count has 4 bytes, and the rest of a state as many as other states.
		assert.InDelta(t, 4000, len(state), 60, "%+v", alg)
	}
}

// Each field of each algorithm is stored: a field that spec forgets would make two limits one. The
// words say each field, too: an error names two limits by them.
func TestEveryFieldIsStored(t *testing.T) {
	varied, kinds := make(map[string]int), make(map[reflect.Type]bool)
	for _, tt := range storedAlgorithms {
		if _, ok := tt.alg.(ratelimit.All); ok {
			continue
		}
		kind := reflect.TypeOf(tt.alg)
		kinds[kind] = true
		for i := range leaves(reflect.New(kind).Elem()) {
			other := reflect.New(kind).Elem()
			other.Set(reflect.ValueOf(mustLimit(t, tt.alg).Known)) // with defaults filled in
			switch field := leaves(other)[i]; field.Kind() {
			case reflect.Bool:
				field.SetBool(!field.Bool())
			case reflect.Float64:
				field.SetFloat(field.Float() + 1)
			case reflect.String:
				field.SetString("Asia/Tokyo")
			default:
				if field.SetInt(field.Int() * 2); field.Int() < 1 {
					field.SetInt(1)
				}
			}
			if l, err := fakes.NewLimit(other.Interface().(ratelimit.Algorithm)); err == nil {
				assert.NotEqual(t, mustLimit(t, tt.alg).Tag(), l.Tag(), "%v and %v", tt.alg, other)
				assert.NotEqual(t, tt.alg.String(), l.Spec.String())
				varied[fmt.Sprint(kind.Name(), i)]++
			}
		}
	}
	want := 0
	for kind := range kinds {
		want += len(leaves(reflect.New(kind).Elem()))
	}
	assert.Len(t, varied, want, "each field was another one")
}

// leaves returns the fields of an algorithm, and those of its ratelimit.Rate instead of it.
func leaves(alg reflect.Value) (all []reflect.Value) {
	for i := range alg.NumField() {
		if field := alg.Field(i); field.Kind() == reflect.Struct {
			all = append(all, leaves(field)...)
		} else {
			all = append(all, field)
		}
	}
	return all
}

// Whoever leaves the Timeout out is told how to choose it.
func TestMissingTimeout(t *testing.T) {
	_, err := fakes.NewLimit(ratelimit.InFlight{Limit: 1})
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "InFlight.Timeout is 0s: it must be at least 1ns, and longer than a request takes")
}

// A state that cannot be read is reported once, and is replaced by a fresh one.
func TestUnreadableStates(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tr, err := fakes.NewLimit(ratelimit.FixedWindow{Limit: 2, Window: time.Hour})
	require.NoError(t, err)
	good := stateAfterOne(t, tr, now)
	with := func(at int, b byte) []byte {
		state := append([]byte(nil), good...)
		state[at] = b
		return state
	}
	portable, err := tr.Portable(time.Microsecond)
	require.NoError(t, err)
	foreign := stateAfterOne(t, portable, now)
	longer := stateAfterOne(t, mustLimit(t, ratelimit.SlidingLog{Limit: 2, Window: time.Hour}), now)
	for name, state := range map[string][]byte{
		"a later version":       with(0, 4),
		"a list of no holds":    with(0, 2),
		"a list of no turns":    with(0, 3),
		"an unknown kind":       with(2, 99),
		"kind 0":                with(2, 0),
		"an unknown field":      with(3, 0x0b),
		"a zero field":          unhex(t, "010203070280c0e285e36800"+"0080d6b3d9b598180100000000000000"),
		"an invalid field":      with(4, 0),
		"a zone that is none":   append(unhex(t, "01020c13020104"+hex.EncodeToString([]byte("None"))), make([]byte, 16)...),
		"a zone of no letters":  append(unhex(t, "01020c13020100"), make([]byte, 16)...),
		"no zone":               append(unhex(t, "01020c030201"), make([]byte, 16)...),
		"a zone that is cut":    unhex(t, "01020c1302010d"+hex.EncodeToString([]byte("Europe/Lon"))),
		"no unit of a calendar": append(unhex(t, "01020c13020603"+hex.EncodeToString([]byte("UTC"))), make([]byte, 16)...),
		"a count too high":      with(len(good)-1, 0xff),
		"cut in the header":     good[:4],
		"cut in the words":      good[:len(good)-1],
		"a word is missing":     good[:len(good)-8],
		"a word too many":       append(append([]byte(nil), good...), make([]byte, 8)...),
		"a log without end":     longer[:len(longer)-8],
		"another encoding":      foreign,
		"JSON":                  []byte(`{"tokens":3}`),
		"nothing but zeros":     make([]byte, 16),
		"a number too large":    unhex(t, "01020303ffffffffffffffffff01"+"80c0e285e368"),
		"an endless number":     []byte("\x01\x02\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
		"too many parts":        unhex(t, "010208ffff7f"),
		"an All in an All":      unhex(t, "0102080108010503028094ebdc03"),
		"an All of nothing":     unhex(t, "01020800"),
		"limits of two kinds":   unhex(t, "010200"+"03030280c0e285e368"+"05030280c0e285e368"),
		"a second, cut":         unhex(t, "010200"+"03030280c0e285e368"+"0303"),
		"two of no state":       unhex(t, "010200"+"0900"+"0900"),
		"kind 0 in an All":      unhex(t, "01020801"+"0000"),
		"a fifth parameter":     unhex(t, "01020323"+"0280c0e285e36805"),
		"a bucket of none":      append(unhex(t, "010201030a8094ebdc03"), make([]byte, 16)...),
		"a refill of none":      append(unhex(t, "0102010b0a8094ebdc0301"), make([]byte, 16)...),
		"a queue of none":       append(unhex(t, "010202030a8094ebdc03"), make([]byte, 16)...),
	} {
		t.Run(name, func(t *testing.T) {
			for op := step.OpTake; op <= step.OpReserve; op++ {
				after, err := tr.Apply(state, step.Request{Op: op, N: 1, MaxWait: ratelimit.Never}.At(now))
				require.True(t, after.Changed, "it is to be replaced")
				require.ErrorIs(t, err, ratelimit.ErrState)
				require.ErrorContains(t, err, "damaged")

				again, err := tr.Apply(after.State, step.Request{Op: step.OpTake, N: 1}.At(now))
				require.NoError(t, err, "once")
				want := 1
				if op == step.OpTake || op == step.OpReserve {
					want = 0
				}
				require.Equal(t, want, again.Answer.Remaining, "the request was applied to a fresh key")
			}
		})
	}
}

// A limiter reports a state that cannot be read as it reports a store that fails, but
// once: ratelimit.FailOpen does not grant everything from then on.
func TestLimiterReportsUnreadableState(t *testing.T) {
	for name, tt := range map[string]struct {
		policy ratelimit.FailurePolicy
		first  bool
	}{"open": {ratelimit.FailOpen(), true}, "closed": {ratelimit.FailClosed(), false}} {
		t.Run(name, func(t *testing.T) {
			db := fakes.MapStates{"key": "nonsense"}
			l, err := ratelimit.New(ratelimit.FixedWindow{Limit: 3, Window: time.Hour}, ratelimit.WithStore(db),
				ratelimit.WithName("test"), ratelimit.WithFailurePolicy(tt.policy))
			require.NoError(t, err)
			d, err := l.Take(t.Context(), "key", 1)
			require.ErrorIs(t, err, ratelimit.ErrState)
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

// A restart with other parameters keeps the usage, with and without ratelimit.WithLimits.
func TestRestartWithOtherParameters(t *testing.T) {
	own := ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) { return nil, nil })
	hour := func(n int) ratelimit.Algorithm { return ratelimit.TokenBucket{Rate: ratelimit.PerHour(n)} }
	type start struct {
		alg  ratelimit.Algorithm
		opts []ratelimit.Option
	}
	for name, tt := range map[string]struct {
		was, is start
		kept    bool
	}{
		"lower":            {start{hour(10), nil}, start{hour(7), nil}, true},
		"WithLimits added": {start{hour(10), nil}, start{hour(10), []ratelimit.Option{own}}, true},
		"WithLimits gone":  {start{hour(10), []ratelimit.Option{own}}, start{hour(10), nil}, true},
		"both":             {start{hour(10), []ratelimit.Option{own}}, start{hour(7), nil}, true},
		"hour to day": {
			start{ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, nil},
			start{ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour}, nil}, true,
		},
		"window to bucket": {start{ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, nil}, start{hour(10), nil}, false},
		"log to log in All": {
			start{ratelimit.SlidingLog{Limit: 10, Window: time.Hour}, nil},
			start{ratelimit.All{ratelimit.SlidingLog{Limit: 10, Window: time.Hour}}, nil}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, clk := fakes.MapStates{}, stepclock.New()
			limiter := func(s start) ratelimit.Limiter {
				return ratelimit.Must(ratelimit.New(s.alg,
					append(s.opts, ratelimit.WithStore(db), ratelimit.WithName("test"), ratelimit.WithClock(clk),
						ratelimit.WithFailurePolicy(ratelimit.FailClosed()))...))
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

func mustLimit(t testing.TB, alg ratelimit.Algorithm) *limit.Limit {
	l, err := fakes.NewLimit(alg)
	require.NoError(t, err)
	return l
}

// FuzzStates reads states with arbitrary bytes.
func FuzzStates(f *testing.F) {
	by := mustLimit(f, ratelimit.All{ratelimit.SlidingLog{Limit: 3, Window: time.Second}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3)}})
	for _, tt := range storedAlgorithms {
		state := stateAfterOne(f, mustLimit(f, tt.alg), time.Unix(1000, 0))
		f.Add(state)
		f.Add(state[:max(0, len(state)-8)])
		f.Add(mustLimit(f, tt.alg).Tag()) // a plan has no states
	}
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, state []byte) {
		after, err := by.Apply(state, step.Request{N: 1}.At(time.Unix(1001, 0)))
		if err != nil {
			require.True(t, after.Changed)
			require.ErrorIs(t, err, ratelimit.ErrState)
		}
		if after.Changed {
			_, err = by.Apply(after.State, step.Request{N: 1}.At(time.Unix(1002, 0)))
			require.NoError(t, err, "the stored state can be read")
		}
	})
}

// A log in a state of bytes has no unused words, even in an All, although it has some after its first
// entries have left the window.
func TestLogsArePacked(t *testing.T) {
	plain := ratelimit.SlidingLog{Limit: 100, Window: time.Second}
	counting := ratelimit.SlidingLog{Limit: 100, Window: time.Second, CountDenied: true}
	for _, alg := range []ratelimit.Algorithm{plain, counting, ratelimit.All{plain, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)}, counting}} {
		tr := mustLimit(t, alg)
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		var state []byte
		for range 15 {
			after, err := tr.Apply(state, step.Request{N: 1}.At(now))
			require.NoError(t, err)
			require.True(t, after.Answer.Allowed)
			state, now = after.State, now.Add(100*time.Millisecond)
		}
		words := state[len(tr.Tag()):]
		want := 3 + 10 // the header of a log, and the entries in the window
		if _, ok := alg.(ratelimit.All); ok {
			want = 2 + 2 + 2*want // two lengths, and the bucket
		}
		assert.Len(t, words, 8*want, "%+v", alg)
	}
}
