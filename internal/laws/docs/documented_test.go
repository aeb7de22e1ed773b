package docs_test

import (
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// The tests in this file check the code and the links in the documentation.

// TestDocumentedCodeIsCompiled checks that the Go code in docs and in the doc
// comments of every package is a copy of code that is compiled: in a test or in a
// program of this repository.
func TestDocumentedCodeIsCompiled(t *testing.T) {
	budget.Alone(t)
	inRoot(t)
	var compiled []string
	for _, source := range sources(t, func(path string) bool {
		return strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "examples/")
	}) {
		compiled = append(compiled, tokens(source))
	}

	blocks := 0
	check := func(where, code string) {
		blocks++
		shown := tokens(code)
		require.NotEmpty(t, strings.TrimSpace(shown), where)
		if !slices.ContainsFunc(compiled, func(file string) bool { return strings.Contains(file, shown) }) {
			t.Errorf("%s shows code that nothing compiles (if it is not Go, list its beginning in notGo)", where)
		}
	}
	fence := regexp.MustCompile("(?s)```go\n(.*?)```")
	for _, page := range pages(t) {
		for _, block := range fence.FindAllStringSubmatch(read(t, page), -1) {
			if page != "README.md" { // which TestReadmeCompilesAsPasted compiles
				check(page, block[1])
			}
			patience := 20 // of a reader, in lines
			if strings.HasPrefix(block[1], "package main\n") {
				patience = 50 // for a whole program
			}
			assert.LessOrEqual(t, strings.Count(block[1], "\n"), patience, "%s: a reader's patience", page)
		}
	}
	for where, code := range commentedCode(t) {
		if !slices.ContainsFunc(notGo, func(start string) bool { return strings.HasPrefix(code, start) }) {
			check(where, code)
		}
	}
	require.Greater(t, blocks, 10, "the search finds nothing")
}

// notGo has the beginnings of the blocks in doc comments that are not Go: commands, tables
// and data.
var notGo = []string{
	"go run ", "for i in ", "curl ", "prometheus ",
	"ACL SETUSER ", "SELECT ",
	"THROTTLE_ID  ", "id       the limiter", "/user/#/photos/#  ", "sliding-log  ",
	"# throttle.yaml\n", "RateLimit-Policy: ",
	"metric  ", "attribute  ", "limit  ", "enqueue → ", "closed     ",
}

// TestTokens checks that code is found whatever its indentation and comments are, but not in a
// comment, and not if it is wrong.
func TestTokens(t *testing.T) {
	file := tokens("package p\n\nfunc f() {\n\t// g(1)\n\tx := g(2) // two\n\th(p.X{\n\t\tA: 1})\n}\n")
	for code, want := range map[string]bool{
		"x := g(2)\nh(ratelimit.p.X{A: 1})": true,
		"// said before\nx := g(2)":         true,
		"g(1)":                              false,
		"x := g(2":                          false,
		"x := g(2\nh":                       false,
		"h(p.X{A 1})":                       false,
	} {
		assert.Equal(t, want, strings.Contains(file, tokens(code)), code)
	}
}

// TestDocumentedLinksExist checks that the files, folders and headings that pages point at
// are there.
func TestDocumentedLinksExist(t *testing.T) {
	inRoot(t)
	link := regexp.MustCompile(`\]\(([^)#:]*)#?([^):]*)\)`)
	headings := 0
	for _, page := range pages(t) {
		for _, to := range link.FindAllStringSubmatch(read(t, page), -1) {
			path, heading := page, to[2]
			if to[1] != "" {
				path = filepath.Join(filepath.Dir(page), to[1])
			}
			_, err := os.Stat(path)
			if assert.NoError(t, err, "%s points at %s", page, to[1]) && heading != "" {
				headings++
				assert.Contains(t, anchors(read(t, path)), heading, "%s points at %s", page, to[0])
			}
		}
	}
	require.Greater(t, headings, 5, "the search finds nothing")
}

// TestDocLinksResolve checks that the links in the doc comments of all packages that users import
// lead somewhere: [Name] to what the package declares, and [pkg.Name] to a package that it imports.
func TestDocLinksResolve(t *testing.T) {
	inRoot(t)
	packages := make(map[string][]*ast.File)
	set := token.NewFileSet()
	for _, file := range files(t, func(path string) bool {
		return !strings.HasSuffix(path, "_test.go") && !strings.Contains("/"+path, "/internal/")
	}) {
		parsed, err := parser.ParseFile(set, file, nil, parser.ParseComments)
		require.NoError(t, err)
		if parsed.Name.Name != "main" {
			packages[filepath.Dir(file)] = append(packages[filepath.Dir(file)], parsed)
		}
	}
	for dir, of := range packages {
		p, err := doc.NewFromFiles(set, of, "github.com/ratelimit-go/ratelimit/"+dir, doc.PreserveAST)
		require.NoError(t, err)
		links := p.Parser()
		for _, file := range of {
			for _, group := range file.Comments {
				for _, block := range links.Parse(group.Text()).Content {
					for _, link := range unresolved(block) {
						t.Errorf("%s: %s leads nowhere", set.Position(group.Pos()), link)
					}
				}
			}
		}
	}
	require.Contains(t, packages, ".")
}

// unresolved returns what in a block of a comment looks like a link, but leads nowhere.
func unresolved(block comment.Block) (links []string) {
	var text []comment.Text
	switch b := block.(type) {
	case *comment.Paragraph:
		text = b.Text
	case *comment.Heading:
		text = b.Text
	case *comment.List:
		for _, item := range b.Items {
			for _, block := range item.Content {
				links = append(links, unresolved(block)...)
			}
		}
	}
	for _, part := range text {
		if plain, ok := part.(comment.Plain); ok {
			links = append(links, regexp.MustCompile(`\[\*?(\w+\.)*[A-Z]\w*\]`).FindAllString(string(plain), -1)...)
		}
	}
	return links
}

// anchors returns the anchors that GitHub makes of the headings of a page: in lower case,
// without punctuation, and with hyphens for spaces.
func anchors(page string) (found []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		words := regexp.MustCompile(`[^\pL\pN_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		found = append(found, strings.ReplaceAll(words, " ", "-"))
	}
	return found
}

// pages returns the Markdown files.
func pages(t *testing.T) []string {
	t.Helper()
	top, err := filepath.Glob("*.md")
	require.NoError(t, err)
	docs, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, docs)
	return append(top, docs...)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// files returns the paths of the Go files of all modules that match.
func files(t *testing.T, match func(path string) bool) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != "."):
			return filepath.SkipDir
		}
		if path = filepath.ToSlash(path); strings.HasSuffix(path, ".go") && match(path) {
			found = append(found, path)
		}
		return nil
	}))
	return found
}

func sources(t *testing.T, match func(path string) bool) (texts []string) {
	t.Helper()
	for _, file := range files(t, match) {
		texts = append(texts, read(t, file))
	}
	return texts
}

// commentedCode returns the code blocks of the doc comments of all packages that users
// import, by where they stand.
func commentedCode(t *testing.T) map[string]string {
	t.Helper()
	blocks := make(map[string]string)
	for _, file := range files(t, func(path string) bool {
		return !strings.HasSuffix(path, "_test.go") && !strings.Contains("/"+path, "/internal/")
	}) {
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			var doc *ast.CommentGroup
			switch n := n.(type) {
			case *ast.File:
				doc = n.Doc
			case *ast.FuncDecl:
				doc = n.Doc
			case *ast.GenDecl:
				doc = n.Doc
			case *ast.ValueSpec:
				doc = n.Doc
			case *ast.TypeSpec:
				doc = n.Doc
			case *ast.Field:
				doc = n.Doc
			}
			for _, block := range new(comment.Parser).Parse(doc.Text()).Content {
				if code, ok := block.(*comment.Code); ok {
					first, _, _ := strings.Cut(code.Text, "\n")
					blocks[set.Position(doc.Pos()).String()+", "+first] = code.Text
				}
			}
			return parsed.Name.Name != "main" // of a command, go doc shows only the package's comment
		})
	}
	return blocks
}

// tokens returns the tokens of Go code, without comments and without the name of this
// package, which its own files leave out.
func tokens(code string) string {
	var s scanner.Scanner
	set := token.NewFileSet()
	s.Init(set.AddFile("", set.Base(), len(code)), []byte(code), nil, 0)
	var b strings.Builder
	b.WriteByte(' ')
	for {
		_, tok, text := s.Scan()
		if tok == token.EOF {
			return strings.ReplaceAll(b.String(), " ratelimit . ", " ")
		}
		if text == "" || tok == token.SEMICOLON {
			text = tok.String()
		}
		b.WriteString(text + " ")
	}
}
