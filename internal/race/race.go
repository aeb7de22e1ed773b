// Package race reports whether a test runs under the race detector, where it takes ten
// times as long.
package race

// Few returns n, or a tenth of it under the race detector: for how often a test
// repeats what runs in one goroutine, where there is no race to find.
func Few(n int) uint64 {
	if enabled {
		n = (n + 9) / 10
	}
	return uint64(n)
}

// Alone skips a long test under the race detector if all of it runs in one goroutine.
func Alone(t interface{ Skip(args ...any) }) {
	if enabled {
		t.Skip("it runs in one goroutine, so there is no race to find")
	}
}
