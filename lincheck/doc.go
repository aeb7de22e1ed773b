// Package lincheck checks that concurrent histories of a limiter are
// linearizable: that what goroutines were told at once, one could have been
// told call after call. It has nothing but tests, in a module of their own for
// the sake of their dependencies.
package lincheck
