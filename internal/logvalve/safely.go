package logvalve

import (
	"fmt"
	"os"
	"runtime/debug"
)

// Safely calls log in a goroutine that no code of the program has started, such as that of a timer.
// There, nobody could recover from a panic of the program's log handler, which would end the
// process. So Safely writes the panic to the standard error, and returns.
func Safely(log func()) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "ratelimit: a log handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	log()
}
