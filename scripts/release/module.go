package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// notReleased are the directories whose modules users do not import: benchmarks, examples and tests.
// These modules have no tags, and always replace the others with their directories.
var notReleased = []string{
	"benchmarks", "examples", "integration",
}

// A gomod is the root module or one that requires it.
type gomod struct {
	dir  string // from the root of the repository, with slashes; "" for the root module
	path string
	file *modfile.File
	sum  []byte // go.sum during development; nil if there is none
}

// tag returns the git tag of the module at version.
func (m *gomod) tag(version string) string { return path.Join(m.dir, version) }

// released reports whether users import the module.
func (m *gomod) released() bool {
	return !slices.ContainsFunc(notReleased, func(dir string) bool { return m.dir == dir })
}

func (m *gomod) requires(path string) bool {
	return slices.ContainsFunc(m.file.Require, func(r *modfile.Require) bool { return r.Mod.Path == path })
}

// readModules returns the modules of the tree, each after those that it requires. They are the
// modules that go.work lists, except tools like this one, which do not require the root module.
func readModules(ctx context.Context, tree repo) ([]*gomod, error) {
	all, err := readWork(tree)
	if err != nil {
		return nil, err
	}
	files, err := tree.lines(ctx, "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		dir := strings.TrimSuffix(strings.TrimSuffix(f, "go.mod"), "/")
		if !slices.ContainsFunc(all, func(m *gomod) bool { return m.dir == dir }) {
			return nil, fmt.Errorf("%s belongs to a module that go.work does not list: add it to go.work", f)
		}
	}

	root := slices.IndexFunc(all, func(m *gomod) bool { return m.dir == "" })
	if root < 0 {
		return nil, fmt.Errorf("go.work does not list the root module")
	}
	rootPath := all[root].path
	all = slices.DeleteFunc(all, func(m *gomod) bool { return m.path != rootPath && !m.requires(rootPath) })
	return sorted(all)
}

func readWork(tree repo) ([]*gomod, error) {
	text, err := os.ReadFile(filepath.Join(string(tree), "go.work"))
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, err
	}
	var all []*gomod
	for _, use := range work.Use {
		m := &gomod{dir: path.Clean(use.Path)}
		if m.dir == "." {
			m.dir = ""
		}
		name := path.Join(m.dir, "go.mod")
		text, err := os.ReadFile(filepath.Join(string(tree), filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		if m.file, err = modfile.Parse(name, text, nil); err != nil {
			return nil, err
		}
		if m.file.Module == nil {
			return nil, fmt.Errorf("%s has no module directive", name)
		}
		m.path = m.file.Module.Mod.Path
		m.sum, err = os.ReadFile(filepath.Join(string(tree), filepath.FromSlash(m.dir), "go.sum"))
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// sorted returns the modules, each after those that it requires.
func sorted(all []*gomod) ([]*gomod, error) {
	var done []*gomod
	for len(all) > 0 {
		next := slices.IndexFunc(all, func(m *gomod) bool {
			return !slices.ContainsFunc(all, func(other *gomod) bool { return m.requires(other.path) })
		})
		if next < 0 {
			return nil, fmt.Errorf("the modules at %s and others require each other", all[0].path)
		}
		done = append(done, all[next])
		all = slices.Delete(all, next, next+1)
	}
	return done, nil
}

// require sets the versions of the modules of this repository that m requires.
func (m *gomod) require(all []*gomod, version string) error {
	for _, other := range all {
		if !m.requires(other.path) {
			continue
		}
		if m.released() && !other.released() {
			return fmt.Errorf("%s requires %s, which is not released", m.path, other.path)
		}
		if err := m.file.AddRequire(other.path, version); err != nil {
			return err
		}
	}
	return nil
}

// dropReplaces removes the replace directives for development. The go command ignores those
// of a dependency, but go run and go install refuse a module that has any.
func (m *gomod) dropReplaces(all []*gomod) error {
	for _, r := range slices.Clone(m.file.Replace) {
		if !slices.ContainsFunc(all, func(other *gomod) bool { return other.path == r.Old.Path }) {
			return fmt.Errorf("%s replaces %s, which is not a module of this repository: users would not get the replacement",
				m.path, r.Old.Path)
		}
		if err := m.file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	return nil
}

// writeMod writes m.file to go.mod.
func (m *gomod) writeMod(tree repo) error {
	m.file.Cleanup()
	text, err := m.file.Format()
	if err != nil {
		return err
	}
	return m.writeFile(tree, "go.mod", text)
}

// writeFile writes a file of the module, or removes it if text is empty.
func (m *gomod) writeFile(tree repo, name string, text []byte) error {
	name = filepath.Join(string(tree), filepath.FromSlash(m.dir), name)
	if len(text) == 0 {
		return os.RemoveAll(name)
	}
	return os.WriteFile(name, text, 0o644)
}

// sums returns the lines of go.sum for m at version, with the files of the given commit or
// tree.
func (m *gomod) sums(tree repo, revision, version string) ([]byte, error) {
	f, err := os.CreateTemp("", "release-*.zip")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	at := module.Version{Path: m.path, Version: version}
	if err := zip.CreateFromVCS(f, at, string(tree), revision, m.dir); err != nil {
		return nil, fmt.Errorf("packing %s: %w", m.path, err)
	}
	all, err := dirhash.HashZip(f.Name(), dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	mod, err := m.file.Format()
	if err != nil {
		return nil, err
	}
	alone, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(mod)), nil
	})
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s %s %s\n%s %s/go.mod %s\n", m.path, version, all, m.path, version, alone), nil
}

// addSums adds lines to a go.sum, in the order of the go command.
func addSums(sum, lines []byte) []byte {
	hashes := map[module.Version]string{}
	for line := range bytes.Lines(slices.Concat(sum, lines)) {
		if f := strings.Fields(string(line)); len(f) == 3 {
			hashes[module.Version{Path: f[0], Version: f[1]}] = f[2]
		}
	}
	modules := slices.Collect(maps.Keys(hashes))
	module.Sort(modules)
	var b []byte
	for _, m := range modules {
		b = fmt.Appendf(b, "%s %s %s\n", m.Path, m.Version, hashes[m])
	}
	return b
}
