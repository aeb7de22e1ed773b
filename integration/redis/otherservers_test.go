package redis_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The other tests run on the first program that find finds. TestOtherServers runs those that may
// tell programs apart on each other program in PATH. To run tests on a program elsewhere, set
// RATELIMIT_REDIS to its path.

// programs are the names of servers that the store is tested on.
var programs = []string{"redis-server", "valkey-server", "redict-server", "keydb-server"}

// testsOfServers are tests of what a program may do in its own way: scripts, permissions, TLS, memory
// limits, expiry, clusters, replicas and sentinels, and the words of errors. docs/redis.md says what
// they cover, and on which versions they have passed.
const testsOfServers = "TestServer|TestContract|TestConformance|FuzzScripts|TestUser|TestCommands|TestTLS|TestReset|" +
	"TestCrash|TestCut|TestScriptFlush|TestReadOnly|TestMaxMemory|TestTimeToLive|TestUnreadableValue|" +
	"TestTakeAllIsOneCall|TestClusterConformance|TestMovingSlot|TestTakeAllInMovingSlot|TestEachInCluster|" +
	"TestFailover|TestSentinel|TestUnwillingServer|TestReplicas|TestRegions"

func TestOtherServers(t *testing.T) {
	if os.Getenv(programVariable) != "" {
		t.Skip("RATELIMIT_REDIS chooses one program")
	}
	usual, err := os.Stat(find(t))
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		file, err := os.Stat(path)
		if err == nil && !os.SameFile(file, usual) { // one may be a link to another
			others = append(others, path)
		}
	}
	if len(others) == 0 {
		t.Skipf("SKIPPED: only one of %v is installed", programs)
	}
	for _, path := range others {
		t.Run(filepath.Base(path), func(t *testing.T) {
			runAgain(t, testsOfServers, programVariable+"="+path)
		})
	}
}
