package main

import (
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A repository of four modules: the root, one that requires it, an example, and a tool.
var small = map[string]string{
	"go.work":         "go 1.26\n\nuse (\n\t.\n\t./nested\n\t./examples\n\t./tool\n)\n",
	"go.mod":          "module example.com/root\n\ngo 1.26\n",
	"nested/go.mod":   "module example.com/root/nested\n\ngo 1.26\n\nrequire example.com/root v0.0.0\n\nreplace example.com/root => ../\n",
	"examples/go.mod": "module example.com/root/examples\n\ngo 1.26\n\nrequire example.com/root v0.0.0\n\nreplace example.com/root => ../\n",
	"tool/go.mod":     "module example.com/root/tool\n\ngo 1.26\n",
	"CHANGELOG.md":    "## [Unreleased]\n\n- This.\n",
	"root.go":         "package root\n",
	"nested/nest.go":  "package nested\n",
	"examples/try.go": "package main\n",
	"tool/toolish.go": "package tool\n",
}

func smallRepo(t *testing.T, changed map[string]string) repo {
	files := maps.Clone(small)
	maps.Copy(files, changed)
	tree := repo(t.TempDir())
	for name, text := range files {
		name = filepath.Join(string(tree), name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	initRepo(t, tree)
	return tree
}

// TestRefusals checks that a tree that cannot be released is refused, with the reason, before
// anything changes.
func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		version string            // "" is v0.2.0
		files   map[string]string // of the repository
		git     []string          // run in it first
		want    string
	}{
		"not a version":     {version: "0.2.0", want: `invalid version "0.2.0": must be of the form v1.2.3`},
		"half a version":    {version: "v0.2", want: `invalid version "v0.2": must be of the form v1.2.3`},
		"build metadata":    {version: "v0.2.0+linux", want: `invalid version "v0.2.0+linux": must be of the form v1.2.3`},
		"major version":     {version: "v2.0.0", want: "version v2.0.0 does not fit the module path example.com/root"},
		"not newer":         {git: []string{"tag", "v0.10.0"}, want: "version v0.2.0 is not newer than the last one, v0.10.0"},
		"candidate of last": {version: "v0.2.0-rc.1", git: []string{"tag", "v0.2.0"}, want: "is not newer than the last one, v0.2.0"},
		"half released":     {git: []string{"tag", "nested/v0.2.0"}, want: "tag nested/v0.2.0 already exists"},
		"changed tree":      {git: []string{"rm", "--quiet", "root.go"}, want: "uncommitted changes:\nD  root.go"},
		"no branch":         {git: []string{"checkout", "--quiet", "--detach"}, want: "no branch is checked out"},
		"nothing to tell":   {files: map[string]string{"CHANGELOG.md": "## [Unreleased]\n"}, want: "no entries under [Unreleased]"},
		"module forgotten":  {files: map[string]string{"other/go.mod": "module example.com/root/other\n"}, want: "other/go.mod belongs to a module that go.work does not list"},
		"requires an example": {
			files: map[string]string{"nested/go.mod": small["nested/go.mod"] + "\nrequire example.com/root/examples v0.0.0\n"},
			want:  "example.com/root/nested requires example.com/root/examples, which is not released",
		},
		"replaces another": {
			files: map[string]string{"nested/go.mod": small["nested/go.mod"] + "\nreplace example.com/fork => ../fork\n"},
			want:  "example.com/root/nested replaces example.com/fork, which is not a module of this repository",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree := smallRepo(t, tt.files)
			if tt.git != nil {
				_, err := tree.git(t.Context(), tt.git...)
				require.NoError(t, err)
			}
			before := state(t, tree)
			if tt.version == "" {
				tt.version = "v0.2.0"
			}
			r := release{version: tt.version, tag: true, out: io.Discard}
			assert.ErrorContains(t, r.run(t.Context(), string(tree)), tt.want)
			assert.Equal(t, before, state(t, tree))
		})
	}
}

// TestNextRelease checks that a release can follow another, and a candidate.
func TestNextRelease(t *testing.T) {
	tree := smallRepo(t, nil)
	for _, v := range []string{"v0.9.0", "v0.10.0-rc.1", "v0.10.0"} {
		name := filepath.Join(string(tree), "CHANGELOG.md")
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(name, unreleased.ReplaceAll(text, []byte("$0\n\n- More.\n")), 0o644))
		_, err = tree.commit(t.Context(), "Change something")
		require.NoError(t, err)

		require.NoError(t, (&release{version: v, tag: true, out: io.Discard}).run(t.Context(), string(tree)))
		released, err := tree.git(t.Context(), "show", v+":nested/go.mod")
		require.NoError(t, err)
		assert.Equal(t, "module example.com/root/nested\n\ngo 1.26\n\nrequire example.com/root "+v, released)
		next, err := os.ReadFile(filepath.Join(string(tree), "nested/go.mod"))
		require.NoError(t, err)
		assert.Equal(t, released+"\n\nreplace example.com/root => ../\n", string(next))
		sums, err := tree.lines(t.Context(), "ls-tree", "-r", "--name-only", v, "nested/go.sum")
		require.NoError(t, err)
		assert.NotEmpty(t, sums)
		assert.NoFileExists(t, filepath.Join(string(tree), "nested/go.sum"), "it had none before")
		for _, revision := range []string{v, "HEAD"} {
			example, err := tree.git(t.Context(), "show", revision+":examples/go.mod")
			require.NoError(t, err)
			assert.Equal(t, strings.ReplaceAll(strings.TrimSpace(small["examples/go.mod"]), "v0.0.0", v), example)
		}
	}
	tags, err := tree.lines(t.Context(), "tag", "--list")
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"v0.9.0", "v0.10.0-rc.1", "v0.10.0", "nested/v0.9.0", "nested/v0.10.0-rc.1", "nested/v0.10.0"}, tags,
		"the example and the tool are not released")
}

// TestUndo checks the commands of RELEASING.md that undo a release: what was committed before, and
// not pushed, stays.
func TestUndo(t *testing.T) {
	text, err := os.ReadFile("../../RELEASING.md")
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)(^ +git (reset|tag) .*\n)+`).FindString(string(text))
	require.NotEmpty(t, commands)

	tree := smallRepo(t, nil)
	require.NoError(t, os.WriteFile(filepath.Join(string(tree), "more.go"), []byte("package root\n"), 0o644))
	_, err = tree.commit(t.Context(), "Change something")
	require.NoError(t, err)
	_, err = tree.git(t.Context(), "tag", "v0.1.2")
	require.NoError(t, err)
	before := state(t, tree)

	require.NoError(t, (&release{version: "v1.2.3", tag: true, out: io.Discard}).run(t.Context(), string(tree)))
	require.NotEqual(t, before, state(t, tree))
	undo := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	undo.Dir = string(tree)
	out, err := undo.CombinedOutput()
	require.NoError(t, err, "%s%s", commands, out)
	assert.Equal(t, before, state(t, tree))
}

// TestReleaseAfterTests checks that nothing changes if a test fails.
func TestReleaseAfterTests(t *testing.T) {
	tree := smallRepo(t, map[string]string{"Makefile": "test:\n\t@false\n"})
	before := state(t, tree)
	err := (&release{version: "v0.2.0", tag: true, test: true, out: io.Discard}).run(t.Context(), string(tree))
	assert.ErrorContains(t, err, "make test")
	assert.Equal(t, before, state(t, tree))
}

func TestAddSums(t *testing.T) {
	got := addSums(
		[]byte("example.com/b v1.0.0 h1:b=\nexample.com/b v1.0.0/go.mod h1:bm=\n"),
		[]byte("example.com/a v0.10.0 h1:a=\nexample.com/a v0.10.0/go.mod h1:am=\nexample.com/a v0.9.0/go.mod h1:old=\n"),
	)
	assert.Equal(t, `example.com/a v0.9.0/go.mod h1:old=
example.com/a v0.10.0 h1:a=
example.com/a v0.10.0/go.mod h1:am=
example.com/b v1.0.0 h1:b=
example.com/b v1.0.0/go.mod h1:bm=
`, string(got))
}
