// Package seen_test has the laws of what observers are told of decisions. Package observe has those of its
// own observers.
package seen_test
