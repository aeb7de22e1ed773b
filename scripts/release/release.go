package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// A release is one version of all modules that users import.
//
// The release commit changes CHANGELOG.md and every go.mod, which requires the other modules
// at this version and, if it is released, does not replace them with their directories. A second
// commit restores the replace directives. All tags point at the first commit.
type release struct {
	version string
	tag     bool // change the repository; otherwise only show what would change
	test    bool // with tag, run make test first
	out     io.Writer
}

// run makes the release in the repository that has dir in its work tree.
func (r *release) run(ctx context.Context, dir string) error {
	top, err := repo(dir).git(ctx, "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	here := repo(top)
	modules, err := readModules(ctx, here)
	if err != nil {
		return err
	}
	if err := r.check(ctx, here, modules); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	clone, err := here.clone(ctx, filepath.Join(tmp, "clone"))
	if err != nil {
		return err
	}
	released, next, err := r.commit(ctx, clone, modules)
	if err != nil {
		return err
	}
	history, err := clone.git(ctx, "log", "-2", "--reverse", "--stat", "--format=commit: %s")
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%s\n\n", history)
	tagged := slices.DeleteFunc(slices.Clone(modules), func(m *gomod) bool { return !m.released() })
	for _, m := range tagged {
		fmt.Fprintln(r.out, "tag:", m.tag(r.version))
	}

	if !r.tag {
		_, err := fmt.Fprintln(r.out, "\nNothing has been changed. Use -tag to make these commits and tags.")
		return err
	}
	if r.test {
		if err := r.makeTest(ctx, here); err != nil {
			return err
		}
	}
	return r.publish(ctx, here, clone, tagged, released, next)
}

// check returns an error unless the version can be released from the tree.
func (r *release) check(ctx context.Context, tree repo, modules []*gomod) error {
	v := r.version
	if semver.Canonical(v) != v {
		return fmt.Errorf("invalid version %q: must be of the form v1.2.3 or v1.2.3-rc.1", v)
	}
	for _, m := range modules {
		if _, major, ok := module.SplitPathVersion(m.path); !ok || !module.MatchPathMajor(v, major) {
			return fmt.Errorf("version %s does not fit the module path %s: from v2 on, paths end in the major version", v, m.path)
		}
	}
	if _, err := tree.git(ctx, "symbolic-ref", "HEAD"); err != nil {
		return fmt.Errorf("no branch is checked out to add the release's commits to: %w", err)
	}
	status, err := tree.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if status != "" {
		return fmt.Errorf("the work tree has uncommitted changes:\n%s", status)
	}

	tags, err := tree.lines(ctx, "tag", "--list")
	if err != nil {
		return err
	}
	for _, m := range modules {
		if slices.Contains(tags, m.tag(v)) {
			return fmt.Errorf("tag %s already exists", m.tag(v))
		}
	}
	tags = slices.DeleteFunc(tags, func(t string) bool { return !semver.IsValid(t) })
	semver.Sort(tags)
	if n := len(tags); n > 0 && semver.Compare(v, tags[n-1]) <= 0 {
		return fmt.Errorf("version %s is not newer than the last one, %s", v, tags[n-1])
	}
	return nil
}

func (r *release) makeTest(ctx context.Context, tree repo) error {
	cmd := exec.CommandContext(ctx, "make", "test")
	cmd.Dir = string(tree)
	cmd.Stdout, cmd.Stderr = r.out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("make test: %w", err)
	}
	return nil
}

// commit makes the release's two commits, and returns their hashes.
func (r *release) commit(ctx context.Context, tree repo, modules []*gomod) (released, next string, err error) {
	changelog := filepath.Join(string(tree), "CHANGELOG.md")
	text, err := os.ReadFile(changelog)
	if err != nil {
		return "", "", err
	}
	dated, err := releaseChangelog(string(text), r.version, time.Now())
	if err != nil {
		return "", "", err
	}
	if err := os.WriteFile(changelog, []byte(dated), 0o644); err != nil {
		return "", "", err
	}

	for _, m := range modules {
		if err := m.require(modules, r.version); err != nil {
			return "", "", err
		}
	}
	development := make([][]byte, len(modules))
	for i, m := range modules {
		if development[i], err = m.file.Format(); err != nil {
			return "", "", err
		}
		if m.released() {
			if err := m.dropReplaces(modules); err != nil {
				return "", "", err
			}
		}
		if err := m.writeMod(tree); err != nil {
			return "", "", err
		}
	}
	if err := r.writeSums(ctx, tree, modules); err != nil {
		return "", "", err
	}
	if released, err = tree.commit(ctx, "Release "+r.version); err != nil {
		return "", "", err
	}

	for i, m := range modules {
		if err := m.writeFile(tree, "go.mod", development[i]); err != nil {
			return "", "", err
		}
		if err := m.writeFile(tree, "go.sum", m.sum); err != nil {
			return "", "", err
		}
	}
	next, err = tree.commit(ctx, "Replace modules with their directories again, after "+r.version)
	return released, next, err
}

// writeSums adds the hashes of the modules to the go.sum of the modules that require them. A
// module is hashed after its own go.sum is complete.
func (r *release) writeSums(ctx context.Context, tree repo, modules []*gomod) error {
	lines := map[string][]byte{}
	for _, m := range modules {
		if !m.released() {
			continue // its go.sum needs no hashes of what it replaces
		}
		sum := m.sum
		for _, other := range modules {
			if m.requires(other.path) {
				sum = addSums(sum, lines[other.path])
			}
		}
		if err := m.writeFile(tree, "go.sum", sum); err != nil {
			return err
		}
		if _, err := tree.git(ctx, "add", "--all"); err != nil {
			return err
		}
		revision, err := tree.git(ctx, "write-tree")
		if err != nil {
			return err
		}
		if lines[m.path], err = m.sums(tree, revision, r.version); err != nil {
			return err
		}
	}
	return nil
}

// publish adds the commits to the branch, and the tags to the repository.
func (r *release) publish(ctx context.Context, here, clone repo, modules []*gomod, released, next string) error {
	if _, err := here.git(ctx, "fetch", "--quiet", "--no-tags", string(clone), "HEAD"); err != nil {
		return err
	}
	if _, err := here.git(ctx, "merge", "--quiet", "--ff-only", next); err != nil {
		return err
	}
	for _, m := range modules {
		tag := m.tag(r.version)
		if _, err := here.git(ctx, "tag", "--annotate", "--message", tag, tag, released); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(r.out, "\nTo publish it: git push --atomic --follow-tags")
	return err
}
