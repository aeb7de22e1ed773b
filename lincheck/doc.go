// Package lincheck checks that concurrent histories of a limiter are linearizable: the
// results of concurrent calls equal those of the same calls made one after the other, in
// some order. It contains only tests, and is a separate module because of their
// dependencies.
package lincheck
