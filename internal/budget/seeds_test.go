package budget

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// seedsAt returns the first seeds of a run, and a number that a test draws.
func seedsAt(t *testing.T, night string) (seeds []uint64, drawn uint64) {
	t.Helper()
	t.Setenv(nightly, night)
	return slices.Collect(Seeds(t, 3)), Rand(t).Uint64()
}

func TestSeeds(t *testing.T) {
	inCI, drawn := seedsAt(t, "")
	assert.Equal(t, []uint64{0, 1, 2}, inCI)
	again, drawnAgain := seedsAt(t, "")
	assert.Equal(t, inCI, again)
	assert.Equal(t, drawn, drawnAgain)
}

// No night tries what CI or the night before has tried, and its number repeats it.
func TestSeeds_OfANight(t *testing.T) {
	_, inCI := seedsAt(t, "")
	one, drawn := seedsAt(t, "20260301")
	next, drawnNext := seedsAt(t, "20260302")
	assert.Equal(t, []uint64{20260301_000_000, 20260301_000_001, 20260301_000_002}, one)
	assert.Equal(t, uint64(20260302_000_000), next[0])
	assert.NotEqual(t, inCI, drawn)
	assert.NotEqual(t, drawn, drawnNext)
	again, drawnAgain := seedsAt(t, "20260301")
	assert.Equal(t, one, again)
	assert.Equal(t, drawn, drawnAgain)
}

func TestSeeds_StopEarly(t *testing.T) {
	t.Setenv(nightly, "")
	for seed := range Seeds(t, 3) {
		if seed == 1 {
			return
		}
		require.Zero(t, seed)
	}
	t.Fatal("there is a second seed")
}

func TestSeeds_NoNumber(t *testing.T) {
	for _, value := range []string{"yes", "-1", "2026-03-01", "99999999999"} {
		_, err := firstSeedOf(value)
		assert.ErrorContains(t, err, value)
		assert.ErrorContains(t, err, "such as 20260301")
	}
}
