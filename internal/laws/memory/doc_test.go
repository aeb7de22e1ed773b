// Package memory_test has the laws of a MemoryStore that its users see: which keys it forgets, how
// it decides when it is full, and what it counts. The tests of internal/memory look at its tables.
//
// Nothing here is random: the tests are the same in CI and at night.
package memory_test
