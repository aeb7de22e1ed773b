// Package memory_test has the laws of a MemoryStore that its users see: which keys it forgets, what it does when it is
// full, and what it counts. How its tables work is tested in internal/memory.
//
// Nothing here is random: CI and the night run the same.
package memory_test
