package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

var (
	unreleased = regexp.MustCompile(`(?m)^## \[Unreleased\][ \t]*$`)
	section    = regexp.MustCompile(`(?m)^## `)
	entry      = regexp.MustCompile(`(?m)^- `)
)

// releaseChangelog moves the entries under Unreleased under the heading of a version, and
// leaves an empty Unreleased above it.
func releaseChangelog(text, version string, date time.Time) (string, error) {
	at := unreleased.FindStringIndex(text)
	if at == nil {
		return "", errors.New("CHANGELOG.md has no heading [Unreleased]")
	}
	entries := text[at[1]:]
	if next := section.FindStringIndex(entries); next != nil {
		entries = entries[:next[0]]
	}
	if !entry.MatchString(entries) {
		return "", errors.New("CHANGELOG.md has no entries under [Unreleased]: list the changes for users")
	}
	heading := fmt.Sprintf("\n\n## [%s] - %s", strings.TrimPrefix(version, "v"), date.UTC().Format(time.DateOnly))
	return text[:at[1]] + heading + text[at[1]:], nil
}
