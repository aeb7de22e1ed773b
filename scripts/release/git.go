package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// A repo is the work tree of a git repository.
type repo string

// git runs git in the work tree, and returns what it prints, without the last
// line break.
func (r repo) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = string(r)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s in %s: %w: %s", strings.Join(args, " "), r, err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSuffix(stdout.String(), "\n"), nil
}

// forgetRepo makes git use the repository of its working directory. A git hook, for example,
// runs with environment variables that name another one.
func forgetRepo(ctx context.Context) error {
	names, err := repo(".").lines(ctx, "rev-parse", "--local-env-vars")
	for _, name := range names {
		os.Unsetenv(name)
	}
	return err
}

// lines is like git for a command that prints a list.
func (r repo) lines(ctx context.Context, args ...string) ([]string, error) {
	out, err := r.git(ctx, args...)
	if out == "" {
		return nil, err
	}
	return strings.Split(out, "\n"), err
}

// clone makes a clone of the checked out commit in dir. Commits in the clone have the same
// author as commits here.
func (r repo) clone(ctx context.Context, dir string) (repo, error) {
	args := []string{"clone", "--quiet", "--shared", "--no-tags"}
	for _, key := range []string{"user.name", "user.email"} {
		if value, err := r.git(ctx, "config", key); err == nil {
			args = append(args, "--config", key+"="+value)
		}
	}
	_, err := r.git(ctx, append(args, ".", dir)...)
	return repo(dir), err
}

// commit commits all changes, and returns the commit's hash.
func (r repo) commit(ctx context.Context, message string) (string, error) {
	if _, err := r.git(ctx, "add", "--all"); err != nil {
		return "", err
	}
	if _, err := r.git(ctx, "commit", "--quiet", "--message", message); err != nil {
		return "", err
	}
	return r.git(ctx, "rev-parse", "HEAD")
}
