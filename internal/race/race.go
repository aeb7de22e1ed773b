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
