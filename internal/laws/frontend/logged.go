package frontend

import (
	"log/slog"
	"strings"
	"sync"
)

// A log has what is logged by slog until it is ended.
type log struct {
	mu     sync.Mutex
	lines  strings.Builder
	before *slog.Logger
}

func capture() *log {
	l := &log{before: slog.Default()}
	slog.SetDefault(slog.New(slog.NewTextHandler(l, nil)))
	return l
}

// Write implements [io.Writer]. Timers call it, too.
func (l *log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(line)
}

func (l *log) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

func (l *log) end() { slog.SetDefault(l.before) }
