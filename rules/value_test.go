package rules

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// scanned returns a value of a database driver as a cell.
func scanned(t *testing.T, v any) (c cell) {
	t.Helper()
	assert.NoError(t, c.Scan(v))
	return c
}

func TestWhole(t *testing.T) {
	for v, want := range map[any]int64{
		7: 7, int64(-7): -7, uint64(7): 7, 7.0: 7, "7": 7, " 7 ": 7, "7.00": 7, "1e3": 1000, 1e3: 1000, "1.5e1": 15,
		int64(math.MaxInt64): math.MaxInt64, "-9223372036854775808": math.MinInt64,
	} {
		got, ok := scanned(t, v).whole()
		assert.True(t, ok, "%v", v)
		assert.Equal(t, want, got, "%v", v)
	}
	n, ok := scanned(t, []byte("12")).whole()
	assert.Equal(t, []any{int64(12), true}, []any{n, ok})
	for _, v := range []any{nil, 1.9, "1.9", "", "many", "0x10", "1_000", "1/2", "1e99", "1e999999999", true,
		uint64(math.MaxUint64), math.NaN(), math.Inf(1), time.Now(), []any{1}, map[string]any{}} {
		_, ok := scanned(t, v).whole()
		assert.False(t, ok, "%v", v)
	}
}

func TestSeconds(t *testing.T) {
	for v, want := range map[any]time.Duration{
		60: time.Minute, "60": time.Minute, 1.9: 1900 * time.Millisecond, "0.000000001": 1, 0.1: 100 * time.Millisecond,
		int64(9223372036): 9223372036 * time.Second, "9223372036.854775807": math.MaxInt64, float32(0.5): 500 * time.Millisecond,
	} {
		got, wrong := scanned(t, v).seconds()
		assert.Empty(t, wrong, "%v", v)
		assert.Equal(t, want, got, "%v", v)
	}
	for _, v := range []any{nil, 0, -1, "0.0000000001", "9223372036.854775808", int64(9223372037), math.Inf(1), math.NaN(), "1m", true} {
		_, wrong := scanned(t, v).seconds()
		assert.NotEmpty(t, wrong, "%v", v)
	}
}

func TestInstant(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, v := range []any{
		1893456000, uint64(1893456000), 1893456000.0, "1893456000", []byte("1893456000"), "1893456000.0", "1.893456e9", at,
		"2030-01-01T00:00:00Z", "2030-01-01T01:00:00+01:00", "2030-01-01 00:00:00", "2030-01-01 00:00:00.000", "2030-01-01",
		"2030-01-01 01:00:00+01", "2030-01-01 01:00:00+01:00", "2030-01-01T00:00:00", "2030-01-01 00:00:00 +0000 UTC", []byte("2030-01-01 00:00:00"),
	} {
		got, wrong := scanned(t, v).instant()
		assert.Empty(t, wrong, "%v", v)
		assert.True(t, at.Equal(got), "%v: %v", v, got)
	}
	got, _ := scanned(t, "1.5").instant()
	assert.Equal(t, time.Unix(1, 500_000_000), got)
	for _, v := range []any{int64(math.MaxInt64), uint64(math.MaxUint64), "9223372036854775807",
		"99999999999999999999999", int64(lastUnix) + 1, ".inf", math.Inf(1), 1e30, "infinity", []byte("Infinity"), nil} {
		got, wrong := scanned(t, v).instant()
		assert.Empty(t, wrong, "%v", v)
		assert.True(t, got.IsZero(), "%v is never: %v", v, got)
	}
	last, wrong := scanned(t, int64(lastSecond)).instant()
	assert.Empty(t, wrong)
	assert.Equal(t, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), last.UTC())
	for _, v := range []any{0, -1, int64(1893456000000), int64(lastUnix), int64(math.MinInt64), "-1", "never", "",
		"tomorrow", "-infinity", math.NaN(), math.Inf(-1), true, "0000-00-00 00:00:00", time.Time{}, time.Unix(0, 0),
		time.Unix(-1, 0), "2030-13-01", "1969-12-31", []int{1}} {
		_, wrong := scanned(t, v).instant()
		assert.NotEmpty(t, wrong, "%v", v)
	}
}

// TestTruth has what tables have for true and false.
func TestTruth(t *testing.T) {
	for v, want := range map[any]bool{
		true: true, 1: true, "1": true, "1.0": true, "Y": true, "y ": true, "yes": true, "T": true, "TRUE": true,
		false: false, 0: false, "0": false, 0.0: false, "N": false, "no": false, "f": false, "False": false, nil: false,
	} {
		got, wrong := scanned(t, v).truth()
		assert.Empty(t, wrong, "%v", v)
		assert.Equal(t, want, got, "%v", v)
	}
	for bit, want := range map[string]bool{"\x00": false, "\x01": true} { // of a BIT(1) of MySQL
		got, wrong := scanned(t, []byte(bit)).truth()
		assert.Empty(t, wrong)
		assert.Equal(t, want, got)
	}
	for _, v := range []any{2, -1, "", "maybe", "on", []byte{2}, []byte{0, 1}, time.Now()} {
		_, wrong := scanned(t, v).truth()
		assert.NotEmpty(t, wrong, "%v", v)
	}
}
