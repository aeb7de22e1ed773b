package ratelimit_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadmeCodeIsTested checks that the Go code in the README, and in the
// package's documentation, is a copy of code in the tested examples.
func TestReadmeCodeIsTested(t *testing.T) {
	examples := unindented(t, "example_test.go") + unindented(t, "redisstore/goredis/example_test.go")

	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		code := strings.ReplaceAll(block[1], "\t", "")
		assert.Contains(t, examples, code)
		assert.LessOrEqual(t, strings.Count(code, "\n"), 15, "a reader's patience")
	}
}

func unindented(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return strings.ReplaceAll(string(text), "\t", "")
}

// TestReadmeNamesWhatExists checks that the files and folders that the README
// and the design point at are there.
func TestReadmeNamesWhatExists(t *testing.T) {
	for _, doc := range []string{"README.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, link := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(string(text), -1) {
			_, err := os.Stat(link[1])
			assert.NoError(t, err, "%s points at %s", doc, link[1])
		}
	}
}
