package rules

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
)

// logError logs an error with slog, in a goroutine that no code of the program has started. There,
// nobody could recover from a panic of the program's log handler, which would end the process. So
// logError writes the panic to the standard error, and returns.
func logError(ctx context.Context, text string, args ...any) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "rules: a log handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	slog.ErrorContext(ctx, text, args...)
}
