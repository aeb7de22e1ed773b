package script

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The script of a single part reads its constants, the time and the first run of requests in one call
// of unpack, and that of several parts reads the same constants.
func TestOpening(t *testing.T) {
	form := func(text string) string { // of the first string in text
		_, rest, found := strings.Cut(text, "unpack('<")
		require.True(t, found)
		form, _, _ := strings.Cut(rest, "'")
		return form
	}
	for _, k := range kernels[1:] {
		j := joiner{kernels: []kernel{k}, current: k.files}
		costs := ""
		if text := j.join(j.block("cost")); text != "" {
			costs = form(text)
		}
		want := "B" + form(j.join(j.block("constants"))) + "dBI4dd" + costs
		assert.Equal(t, want, form(j.join(j.block("opening"))), k.name)
	}
}

// A block that two files of a kernel have is a mistake, unless the later one says that it adds to the other.
func TestBlocksAreThereOnce(t *testing.T) {
	calendar := joiner{current: []string{"window", "calendar"}}
	assert.Contains(t, calendar.block("load"), "undecided")
	assert.Panics(t, func() { (&joiner{current: []string{"window", "window"}}).block("load") })
	assert.Panics(t, func() { (&joiner{current: []string{"calendar"}}).block("load") }, "it adds to none")
}

// There is one script for each set of kinds, without comments.
func TestScripts(t *testing.T) {
	a, b := scriptFor(true, Plain, []byte{kindOf('t'), kindOf('g'), kindOf('t')}), scriptFor(true, Plain, []byte{kindOf('g'), kindOf('t')})
	assert.Same(t, a, b)
	assert.NotSame(t, a, scriptFor(true, Plain, []byte{kindOf('t')}))
	assert.NotSame(t, scriptFor(false, Plain, []byte{kindOf('t')}), scriptFor(true, Plain, []byte{kindOf('t')}))
	assert.NotContains(t, a.Text, "--")
	undoes := scriptFor(true, Longer, []byte{kindOf('t'), kindOf('g')})
	assert.NotSame(t, a, undoes)
	assert.Greater(t, len(undoes.Text), len(a.Text))
	assert.Len(t, a.SHA, 40)
}
