package redis_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// busOffset is the difference between a node's cluster bus port and its port.
const busOffset = 10_000

// freePort returns a port that is free now, with a free cluster bus port. Both are below the
// range of outgoing connections (from 32768 on Linux). In that range, a client that dials
// while its server is down may get the server's port: then the server cannot start again, or
// the client connects to itself.
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
