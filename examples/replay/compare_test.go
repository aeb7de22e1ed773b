package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// compared replays a log through the algorithms of a command line.
func compared(t *testing.T, log string, args ...string) (*trace, []*outcome) {
	t.Helper()
	s, err := parseArgs(append(args, "-"), io.Discard)
	require.NoError(t, err)
	tr := read(t, log, "-")
	outcomes, err := replay(tr, s.candidates)
	require.NoError(t, err)
	return tr, outcomes
}

// A limit of 3 per 10 s: the bucket refills one after another, the window all at its border.
const bordered = "100 a\n109 a 3\n110 a 3\n113 a\n"

func TestDifference(t *testing.T) {
	tr, outcomes := compared(t, bordered, "-limit", "3/10s", "-alg", "token,fixed,leaky")
	assert.Equal(t, [][]bool{
		{false, false, true, false},
		{false, true, false, true},
		{false, false, true, false},
	}, [][]bool{outcomes[0].denials, outcomes[1].denials, outcomes[2].denials})

	assert.Equal(t, difference{}, outcomes[0].beside(outcomes[0], tr))
	assert.Equal(t, difference{stricter: 4, laxer: 3}, outcomes[1].beside(outcomes[0], tr))
	assert.Equal(t, difference{stricter: 3, laxer: 4}, outcomes[0].beside(outcomes[1], tr))

	assert.Nil(t, twin(outcomes, 0))
	assert.Nil(t, twin(outcomes, 1))
	assert.Same(t, outcomes[0], twin(outcomes, 2))
}

func TestDifferenceInWords(t *testing.T) {
	for want, d := range map[string]difference{
		"Denies 1,000 more than the token bucket.":                            {stricter: 1000},
		"Denies 7 fewer than the token bucket.":                               {laxer: 7},
		"Denies 2 that the token bucket allows, and allows 3 that it denies.": {stricter: 2, laxer: 3},
	} {
		assert.Equal(t, want, d.inWords("token bucket"))
	}
}

// TestVerdict: the choice hardly matters if the algorithms agree on 99 of a hundred events.
func TestVerdict(t *testing.T) {
	tr, outcomes := compared(t, bordered, "-limit", "3/10s", "-alg", "token,fixed,leaky")
	assert.Equal(t, "The 3 algorithms decide alike on 12.5 % of the events. Where they do not, "+
		"choose by what you promise to clients; in doubt, take the token bucket.", verdict(tr, outcomes))
	assert.Empty(t, verdict(tr, outcomes[:1]))

	for alike, want := range map[int]string{
		691: "Where they do not, choose by what you promise",
		692: "So it hardly matters which of them you choose: take the token bucket.",
	} {
		log := bordered + strings.Repeat("200 b\n210 b\n", alike)[:6*alike] // beyond 3, all deny them
		tr, outcomes = compared(t, log, "-limit", "3/10s", "-alg", "token,fixed,leaky")
		assert.Contains(t, verdict(tr, outcomes), want, "%d more", alike)
	}
}

// TestPlotsOfDifferences: the bins have what only an algorithm denied, and so what only the reference
// denied, which the page subtracts.
func TestPlotsOfDifferences(t *testing.T) {
	tr, outcomes := compared(t, bordered, "-limit", "3/10s", "-alg", "token,fixed")
	all := newPageData(tr, outcomes, nil).Lines[0]
	var d difference
	for bin, stricter := range all.Stricter[1] {
		d.stricter += stricter
		d.laxer += all.Denied[0][bin] - all.Denied[1][bin] + stricter
	}
	assert.Equal(t, outcomes[1].beside(outcomes[0], tr), d)
}

// TestPageCompares: an algorithm that decides as an earlier one has words, and no plot of its own.
func TestPageCompares(t *testing.T) {
	for list, want := range map[string]struct{ plots, bars int }{
		"token,fixed,leaky": {plots: 2, bars: 1},
		"token":             {plots: 1, bars: 0},
	} {
		tr, outcomes := compared(t, bordered, "-limit", "3/10s", "-alg", list)
		var page bytes.Buffer
		require.NoError(t, writePage(&page, tr, limit{rate: ratelimit.PerSecond(1)}, outcomes, "Try 5/s."))
		assert.Equal(t, want.plots, strings.Count(page.String(), `<div class="plot">`), list)
		assert.Equal(t, want.bars, strings.Count(page.String(), `<div class="bar"`), list)
		assert.Equal(t, list != "token", strings.Contains(page.String(), "The same decisions as those of: token bucket."), list)
		assert.Contains(t, page.String(), "Try 5/s.")
	}
}
