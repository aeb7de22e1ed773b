package rules

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
)

// logSafely logs with slog, in a goroutine that no code of the program has started. There,
// nobody could recover from a panic of the program's log handler, which would end the process. So
// logSafely writes the panic to the standard error, and returns.
func logSafely(ctx context.Context, level slog.Level, text string, args ...any) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "rules: a log handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	slog.Log(ctx, level, text, args...)
}
