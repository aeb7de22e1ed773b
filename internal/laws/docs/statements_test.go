package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readable are the folders of isReadable.
var readable = []string{"internal", "iolimit", "observe", "limitpage", "otellimit", "ratelimittest", "storetest"}

// TestHeadersDoNotWrite: the header of an if or a switch declares names, or decides, and changes nothing:
// a reader who looks for what is changed looks at statements. An error or an ok may be set there.
func TestHeadersDoNotWrite(t *testing.T) {
	inRoot(t)
	looked := 0
	for _, path := range files(t, isReadable) {
		looked++
		for _, at := range hiddenWrites(t, path, read(t, path)) {
			t.Errorf("%s: the header changes something: make it a statement of its own", at)
		}
	}
	require.Greater(t, looked, 50, "the search finds nothing")
}

// isReadable reports whether a file has code that is held to TestHeadersDoNotWrite: that of the root and of
// these folders, without tests.
func isReadable(path string) bool {
	if strings.HasSuffix(path, "_test.go") {
		return false
	}
	folder, _, nested := strings.Cut(path, "/")
	return !nested || slices.Contains(readable, folder)
}

// hiddenWrites returns where headers of a file change something.
func hiddenWrites(t *testing.T, path, text string) (places []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
	require.NoError(t, err)
	look := func(init ast.Stmt) {
		if init != nil && writes(init) {
			places = append(places, set.Position(init.Pos()).String())
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch s := n.(type) {
		case *ast.IfStmt:
			look(s.Init)
		case *ast.SwitchStmt:
			look(s.Init)
		}
		return true
	})
	return places
}

// writes reports whether a statement changes something other than an error or an ok.
func writes(s ast.Stmt) bool {
	assignment, ok := s.(*ast.AssignStmt)
	if !ok || assignment.Tok != token.ASSIGN {
		return !ok || assignment.Tok != token.DEFINE
	}
	last, ok := assignment.Lhs[len(assignment.Lhs)-1].(*ast.Ident)
	return !ok || last.Name != "err" && last.Name != "ok"
}

// TestHiddenWrites checks what TestHeadersDoNotWrite finds.
func TestHiddenWrites(t *testing.T) {
	for header, found := range map[string]int{
		"if x := f(); x > 0 {}":             0,
		"if err = f(); err != nil {}":       0,
		"if v, ok = m[1]; ok {}":            0,
		"if x = f(); x > 0 {}":              1,
		"if n++; n > 2 {}":                  1,
		"if n += 2; n > 2 {}":               1,
		"if f(); n > 2 {}":                  1,
		"switch x = f(); {}":                1,
		"if a {} else if x = f(); x > 0 {}": 1,
	} {
		assert.Len(t, hiddenWrites(t, "f.go", "package p\n\nfunc g() {\n"+header+"\n}\n"), found, header)
	}
}
