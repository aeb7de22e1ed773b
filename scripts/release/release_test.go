package main

import (
	"cmp"
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
)

func TestMain(m *testing.M) {
	if err := forgetRepo(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// The version that TestRelease releases, which has never been published.
const version = "v0.999.0"

// TestRelease releases the files of this work tree in a scratch repository, and uses the
// modules as users do: from a module proxy, with an empty module cache. The go command packs
// the files of the proxy from the tags of the scratch repository, as a public proxy would.
// Other modules come from the usual module cache or proxy.
func TestRelease(t *testing.T) {
	ctx := t.Context()
	tree := scratch(t)
	before := state(t, tree)
	var out strings.Builder
	require.NoError(t, (&release{version: version, out: &out}).run(ctx, string(tree)))
	require.Equal(t, before, state(t, tree), "without -tag nothing changes")
	require.Contains(t, out.String(), "Nothing has been changed")
	require.NoError(t, (&release{version: version, tag: true, out: &out}).run(ctx, string(tree)))

	modules, err := readModules(ctx, tree)
	require.NoError(t, err)
	root := modules[0].path
	tagged := slices.DeleteFunc(slices.Clone(modules), func(m *gomod) bool { return !m.released() })
	user := newUser(t, tree, tagged)

	t.Run("development", func(t *testing.T) {
		assert.NotContains(t, state(t, tree), "M ")
		for _, m := range modules {
			develop := goCommand{dir: filepath.Join(string(tree), m.dir), env: []string{"GOWORK=off"}}
			develop.run(t, "list", "-mod=readonly", "-deps", "-test", "./...")
		}
	})
	t.Run("tag", func(t *testing.T) {
		_, err := tree.git(ctx, "checkout", "--quiet", version)
		require.NoError(t, err)
		for _, m := range modules {
			user.in(filepath.Join(string(tree), m.dir)).run(t, "list", "-mod=readonly", "-deps", "-test", "./...")
		}
	})
	for _, m := range tagged {
		t.Run(cmp.Or(m.dir, "root"), func(t *testing.T) { getModule(t, user.in(t.TempDir()), root, m) })
	}
	for _, doc := range []string{"README.md", "VERSIONING.md"} {
		t.Run(doc, func(t *testing.T) { runCode(t, user.in(t.TempDir()), tree, tagged, doc) })
	}
}

// getModule gets m into an empty module, and compiles its packages.
func getModule(t *testing.T, user goCommand, root string, m *gomod) {
	user.run(t, "mod", "init", "example.com/user")
	user.run(t, "get", m.path+"@"+version)
	text, err := os.ReadFile(filepath.Join(user.dir, "go.mod"))
	require.NoError(t, err)
	got, err := modfile.Parse("go.mod", text, nil)
	require.NoError(t, err)
	for _, r := range got.Require {
		if r.Mod.Path == root || strings.HasPrefix(r.Mod.Path, root+"/") {
			assert.Equal(t, version, r.Mod.Version, r.Mod.Path)
		}
	}

	var packages []string
	const form = "{{if .GoFiles}}{{.Name}} {{.ImportPath}} {{.Module.Path}}{{end}}" // empty if it has only tests
	for line := range strings.Lines(user.run(t, "list", "-find", "-f", form, m.path+"/...")) {
		if f := strings.Fields(line); len(f) > 0 && f[2] == m.path && !strings.Contains(f[1], "/internal/") {
			assert.NotEqual(t, "main", f[0], "%s: users import no programs", f[1])
			packages = append(packages, f[1])
		}
	}
	require.NotEmpty(t, packages, "users import nothing of it")
	user.run(t, append([]string{"get"}, packages...)...)
	user.run(t, append([]string{"build"}, packages...)...)
}

// runCode compiles the Go code in a document, and runs the examples that it is copied from.
func runCode(t *testing.T, user goCommand, tree repo, modules []*gomod, doc string) {
	examples := readExamples(t, tree)
	text, err := os.ReadFile(filepath.Join(string(tree), doc))
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, blocks)

	user.run(t, "mod", "init", "example.com/user")
	var needed []string
	for i, block := range blocks {
		name, code := "main.go", block[1]
		file, err := parser.ParseFile(token.NewFileSet(), "", code, parser.ImportsOnly)
		if err != nil { // a part of an example
			at := slices.IndexFunc(examples, func(text string) bool {
				return strings.Contains(unindented(text), unindented(code))
			})
			require.GreaterOrEqual(t, at, 0, "no example has this code of %s:\n%s", doc, code)
			name, code = "example_test.go", examples[at]
			file, err = parser.ParseFile(token.NewFileSet(), "", code, parser.ImportsOnly)
			require.NoError(t, err)
		}
		dir := filepath.Join(user.dir, fmt.Sprintf("block%d", i))
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(code), 0o644))
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if m := moduleOf(modules, path); m != nil {
				needed = append(needed, m.path+"@"+version)
			}
		}
	}
	require.NotEmpty(t, needed)
	user.run(t, append([]string{"get"}, needed...)...)
	user.run(t, "get", "-t", "./...") // the other modules that the code imports
	// Vet would complain that the names of the examples refer to nothing.
	user.run(t, "test", "-vet=off", "-count=1", "./...")
}

// moduleOf returns the module that a package is in, or nil.
func moduleOf(modules []*gomod, path string) *gomod {
	var found *gomod
	for _, m := range modules {
		if strings.HasPrefix(path+"/", m.path+"/") && (found == nil || len(m.path) > len(found.path)) {
			found = m
		}
	}
	return found
}

func readExamples(t *testing.T, tree repo) []string {
	files, err := tree.lines(t.Context(), "ls-files", "example*_test.go", "*/example*_test.go")
	require.NoError(t, err)
	var texts []string
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(string(tree), f))
		require.NoError(t, err)
		texts = append(texts, string(text))
	}
	return texts
}

func unindented(code string) string { return strings.ReplaceAll(code, "\t", "") }

// scratch returns a new repository with the files of this work tree.
func scratch(t *testing.T) repo {
	top, err := repo(".").git(t.Context(), "rev-parse", "--show-toplevel")
	if err != nil {
		t.Skip("SKIPPED: this is not a clone of the repository:", err)
	}
	files, err := repo(top).lines(t.Context(), "ls-files", "--cached", "--others", "--exclude-standard")
	require.NoError(t, err)

	tree := repo(t.TempDir())
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(top, f))
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		require.NoError(t, err)
		to := filepath.Join(string(tree), f)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		if f == "CHANGELOG.md" { // between a release and the next change, Unreleased is empty
			text = unreleased.ReplaceAll(text, []byte("$0\n\n- A test.\n"))
		}
		require.NoError(t, os.WriteFile(to, text, 0o644))
	}
	initRepo(t, tree)
	return tree
}

// initRepo makes a repository with the files in the directory.
func initRepo(t *testing.T, tree repo) {
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"},
		{"config", "user.name", "Test"},
		{"config", "user.email", "test@example.com"},
		{"config", "commit.gpgsign", "false"},
		{"config", "tag.gpgsign", "false"},
	} {
		_, err := tree.git(t.Context(), args...)
		require.NoError(t, err)
	}
	_, err := tree.commit(t.Context(), "Scratch")
	require.NoError(t, err)
}

// state returns everything that a release can change.
func state(t *testing.T, tree repo) string {
	var all strings.Builder
	for _, args := range [][]string{{"status", "--porcelain"}, {"show-ref", "--head"}} {
		out, err := tree.git(t.Context(), args...)
		require.NoError(t, err)
		all.WriteString(out)
	}
	return all.String()
}

// A goCommand runs the go command in a directory.
type goCommand struct {
	dir string
	env []string
}

func (g goCommand) in(dir string) goCommand { return goCommand{dir: dir, env: g.env} }

func (g goCommand) run(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), g.env...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "go %s\n%s%s", strings.Join(args, " "), &stdout, &stderr)
	t.Logf("%.1fs go %s", time.Since(start).Seconds(), strings.Join(args, " "))
	return stdout.String()
}

// newUser returns the go command of a new user, who gets the modules of the tree from a file
// proxy.
func newUser(t *testing.T, tree repo, modules []*gomod) goCommand {
	// With -trimpath, the build cache can be reused between runs, although the path of the
	// module cache is different each time.
	env := []string{"GOENV=off", "GOWORK=off", "GOTOOLCHAIN=local", "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=",
		"GOFLAGS=-modcacherw -trimpath"}

	// The proxy has the files of a module cache that is filled from the repository.
	packed := t.TempDir()
	pack := goCommand{dir: t.TempDir(), env: append(env[:len(env):len(env)], "GOPROXY=direct", "GOMODCACHE="+packed,
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=url.file://"+filepath.ToSlash(string(tree))+".insteadOf",
		"GIT_CONFIG_VALUE_0=https://"+modules[0].path)}
	args := []string{"mod", "download"}
	for _, m := range modules {
		args = append(args, m.path+"@"+version)
	}
	pack.run(t, args...)

	usual := strings.Split(goCommand{dir: "."}.run(t, "env", "GOMODCACHE", "GOPROXY"), "\n")
	proxies := []string{fileURL(packed), fileURL(usual[0]), usual[1]}
	return goCommand{env: append(env, "GOPROXY="+strings.Join(proxies, ","), "GOMODCACHE="+t.TempDir())}
}

// fileURL returns the URL of a module cache as a proxy.
func fileURL(cache string) string {
	return "file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download"))
}
