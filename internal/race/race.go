// Package race tells tests whether they run under the race detector, where they take
// ten times as long.
package race

// Few returns n, or a tenth of it under the race detector: for how often a test
// repeats what runs in one goroutine, where there is no race to find.
func Few(n int) uint64 {
	if enabled {
		n = (n + 9) / 10
	}
	return uint64(n)
}
