package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// TestCloneIsUsable runs the commands by which README says how to use a clone of the repository, in a module that
// imports the root module and one more. They need a network only if nothing has fetched yet what these modules require.
func TestCloneIsUsable(t *testing.T) {
	budget.Alone(t)
	inRoot(t)
	root, err := filepath.Abs(".")
	require.NoError(t, err)
	readme := read(t, "README.md")
	if !strings.Contains(readme, "<!-- until the first version -->") {
		t.Skip("a version is published")
	}
	commands := regexp.MustCompile(`(?m)^    (go mod .*)$`).FindAllStringSubmatch(readme, -1)
	require.Len(t, commands, 2)
	replace, tidy := commands[0][1], commands[1][1]
	ofRules := strings.NewReplacer("ratelimit=", "ratelimit/rules=", "../ratelimit", "../ratelimit/rules").Replace(replace)

	dir := t.TempDir()
	const program = `package main

import (
	"fmt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/rules"
)

func main() { fmt.Println(ratelimit.Must(ratelimit.New(ratelimit.Blocked{})).Allow(rules.Schema)) }
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	for _, command := range []string{"go mod init example.com/service", replace, ofRules, tidy, "go build -o service ."} {
		words := strings.Fields(strings.ReplaceAll(command, "../ratelimit", root))
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOSUMDB=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
	}
}
