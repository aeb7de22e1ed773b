package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReleaseChangelog(t *testing.T) {
	day := time.Date(2026, 11, 21, 23, 0, 0, 0, time.FixedZone("", -2*60*60))
	got, err := releaseChangelog("# Changelog\n\n## [Unreleased]\n\n### Added\n\n- This.\n\n## [0.1.0] - 2026-01-01\n\n- That.\n", "v0.2.0", day)
	require.NoError(t, err)
	assert.Equal(t, "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-22\n\n### Added\n\n- This.\n\n## [0.1.0] - 2026-01-01\n\n- That.\n", got)

	for text, want := range map[string]string{
		"# Changelog\n\n- This.\n": "no heading [Unreleased]",
		"## [Unreleased]\n\n### Added\n\n## [0.1.0] - 2026-01-01\n\n- That.\n": "no entries under [Unreleased]",
		"## [Unreleased]\n": "no entries under [Unreleased]",
	} {
		_, err := releaseChangelog(text, "v0.2.0", day)
		assert.ErrorContains(t, err, want)
	}
}
