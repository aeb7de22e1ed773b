package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// surroundings is what a reader has where he pastes a snippet of README.
const surroundings = "ctx context.Context, user string, db *sql.DB, mux *http.ServeMux, search http.Handler, " +
	"callModel func(context.Context) int"

// importedBy has the packages that snippets of README and its surroundings use, by their names.
var importedBy = map[string]string{
	"client":    "github.com/ratelimit-go/ratelimit/httplimit/client",
	"context":   "context",
	"fmt":       "fmt",
	"goredis":   "github.com/ratelimit-go/ratelimit/redisstore/goredis",
	"http":      "net/http",
	"httplimit": "github.com/ratelimit-go/ratelimit/httplimit",
	"key":       "github.com/ratelimit-go/ratelimit/httplimit/key",
	"log":       "log",
	"ratelimit": "github.com/ratelimit-go/ratelimit",
	"redis":     "github.com/redis/go-redis/v9",
	"rules":     "github.com/ratelimit-go/ratelimit/rules",
	"sql":       "database/sql",
}

// TestReadmeCompilesAsPasted compiles each snippet of README in a function, as it stands there.
func TestReadmeCompilesAsPasted(t *testing.T) {
	budget.Alone(t)
	inRoot(t)
	work, err := filepath.Abs("go.work")
	require.NoError(t, err)
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	require.Greater(t, len(snippets), 4)
	for i, snippet := range snippets {
		function := fmt.Sprintf("func pasted(%s) {\n%s}\n", surroundings, snippet[1])
		var imports []string
		for name, path := range importedBy {
			if regexp.MustCompile(`\b` + name + `\.`).MatchString(function) {
				imports = append(imports, fmt.Sprintf("import %q\n", path))
			}
		}
		slices.Sort(imports)
		file := filepath.Join(t.TempDir(), "main.go")
		program := "package main\n\n" + strings.Join(imports, "") + "\nfunc main() {}\n\n" + function
		require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
		cmd := exec.CommandContext(t.Context(), "go", "vet", file)
		cmd.Env = append(os.Environ(), "GOWORK="+work, "GOFLAGS=")
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "snippet %d:\n%s\n%s", i, snippet[1], out)
	}
}
