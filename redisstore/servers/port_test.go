package servers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// busOffset is how far above its port a node of a cluster listens for the others.
const busOffset = 10_000

// freePort returns a port that is free now, as is that of a cluster's bus. Both are
// below those that systems give to outgoing connections (from 32768 on Linux): there,
// a client that dials while its server is down may be given the server's port, and
// then the server cannot start again, or the client is connected to itself.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 12_000 + rand.IntN(busOffset)
		if free(port) && free(port+busOffset) {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

func free(port int) bool {
	l, err := net.Listen("tcp", local(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
