package redis_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// greetings are commands by which clients introduce themselves, and look for a cluster.
var greetings = []string{"hello", "client", "cluster"}

// TestCommands: a proxy or a user needs to let through only the commands that docs/redis.md names.
// Besides the greetings of its client, the store sends EVALSHA, EVAL and, for Reset, DEL. If a server
// carries out nothing for now, the store gives up a connection with QUIT and PING.
func TestCommands(t *testing.T) {
	for name, create := range makers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			m := startMonitor(t, s)
			useAll(t, func(opts ...redisstore.Option) *redisstore.Store { return create(t, s.addr(), opts...) })
			assert.Equal(t, []string{"del", "eval", "evalsha"}, m.sent(t))
			if major(t, s.path) < 7 {
				return // its MONITOR does not show QUIT
			}

			take := takes(t, create(t, s.addr(), redisstore.WithTimeout(patient)))
			assert.Equal(t, []string{"evalsha"}, m.sent(t))
			s.do("REPLICAOF", "127.0.0.1", freePort(t)) // there is no primary; MONITOR does not show this command
			var sent []string
			eventually(t, "the store gives up a connection", func() bool {
				assert.False(t, take(), "a replica carries out no write")
				sent = append(sent, m.sent(t)...)
				return slices.Contains(sent, "quit") && slices.Contains(sent, "ping")
			})
			s.do("REPLICAOF", "NO", "ONE")
			eventually(t, "Redis decides again", take)
			slices.Sort(sent)
			assert.Equal(t, []string{"evalsha", "ping", "quit"}, slices.Compact(sent))
		})
	}
}

// monitored is a line of MONITOR, such as +1700000000.123456 [0 127.0.0.1:1234] "GET" "k".
var monitored = regexp.MustCompile(`^\+[0-9.]+ \[\d+ (\S+)\] "([^"]*)"`)

// sent returns the names of the commands that clients have sent since the last call, in order and
// without greetings. Those of scripts are not among them.
func (m *monitor) sent(t *testing.T) []string {
	t.Helper()
	m.of.do("ECHO", "the end")
	commands := map[string]bool{}
	for {
		line, err := m.r.ReadString('\n')
		require.NoError(t, err)
		match := monitored.FindStringSubmatch(line)
		require.NotNil(t, match, "%s", line)
		command := strings.ToLower(match[2])
		switch {
		case command == "echo":
			return slices.Sorted(maps.Keys(commands))
		case match[1] != "lua" && !slices.Contains(greetings, command):
			commands[command] = true
		}
	}
}
