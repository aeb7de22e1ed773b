package logvalve

import (
	"fmt"
	"os"
	"runtime/debug"
)

// Safely calls f in a goroutine that no code of the program has started, such as that of a timer.
// There, nobody could recover from a panic of the program's log handler, clock or database, which
// would end the process. So Safely writes to the standard error that the thing that f does has
// panicked, and returns.
func Safely(what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "ratelimit: %s panicked: %v\n%s", what, p, debug.Stack())
		}
	}()
	f()
}
