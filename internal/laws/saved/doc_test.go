// Package saved_test has the laws of a MemoryStore that is saved to a file and loaded: it decides as
// if the process had never ended, and a file is used as a whole or not at all.
package saved_test
