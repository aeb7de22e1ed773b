// Package seen_test has the laws of observers: which calls they see, and which decisions. The tests
// of the observers of package observe are in that package.
package seen_test
