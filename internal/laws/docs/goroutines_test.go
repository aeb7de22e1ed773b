package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// starters are the functions and methods that start a goroutine or a timer, as the go statement does.
var starters = []string{"AfterFunc", "AddCleanup", "Go", "NewTicker", "NewTimer", "SetFinalizer", "Ticker", "Timer"}

// TestGoroutines: docs/design.md has a line for each function of the library that starts a goroutine or a
// timer, which says what ends it.
func TestGoroutines(t *testing.T) {
	inRoot(t)
	started := startersIn(t, files(t, func(path string) bool {
		outside := regexp.MustCompile(`_test\.go$|^(benchmarks|examples|integration|scripts|storetest)/|^internal/(fakes|fakeredis|history)/`)
		return !outside.MatchString(path)
	}))
	require.NotEmpty(t, started)
	_, table, found := strings.Cut(read(t, "docs/design.md"), "\n## Goroutines and timers\n")
	require.True(t, found)
	var named []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\((\\S+)\\) \\|").FindAllStringSubmatch(table, -1) {
		named = append(named, row[2]+" "+row[1])
	}
	assert.Equal(t, started, slices.Sorted(slices.Values(named)))
}

// startersIn returns the functions of files that start a goroutine or a timer, each with its file.
func startersIn(t *testing.T, files []string) (found []string) {
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			starts := false
			ast.Inspect(function, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					starts = true
				case *ast.CallExpr:
					name, ok := n.Fun.(*ast.SelectorExpr)
					if !ok {
						break
					}
					from, _ := name.X.(*ast.Ident)
					afterwards := name.Sel.Name == "After" && from != nil && from.Name == "time" // not of a Time
					starts = starts || afterwards || slices.Contains(starters, name.Sel.Name)
				}
				return true
			})
			if starts {
				found = append(found, file+" "+function.Name.Name)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
