package docs_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAdaptersAreAlike: modules rueidis and valkey of redisstore differ only in the names of their
// clients. What is mended in one of them is mended in the other.
func TestAdaptersAreAlike(t *testing.T) {
	inRoot(t)
	ofRueidis := strings.NewReplacer("valkey-go", "rueidis", "valkey", "rueidis", "Valkey", "Redis")
	for _, files := range [][2]string{
		{"rueidis/rueidis.go", "valkey/valkey.go"},
		{"rueidis/conn.go", "valkey/conn.go"},
		{"rueidis/scan.go", "valkey/scan.go"},
		{"rueidis/rueidis_test.go", "valkey/valkey_test.go"},
		{"rueidis/example_test.go", "valkey/example_test.go"},
	} {
		rueidis, valkey := afterImports(t, files[0]), afterImports(t, files[1])
		assert.Equal(t, rueidis, ofRueidis.Replace(valkey), "redisstore/%s and redisstore/%s", files[0], files[1])
	}
}

// afterImports returns what follows the imports of a file of redisstore.
func afterImports(t *testing.T, file string) string {
	t.Helper()
	_, code, found := strings.Cut(read(t, filepath.Join("redisstore", file)), "\n)\n")
	require.True(t, found, file)
	return code
}
