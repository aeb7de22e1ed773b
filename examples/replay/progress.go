package main

import (
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows a bar on w while something long goes on, if w is a terminal.
// Otherwise, and for less than least, it returns a bar that shows nothing.
func progress(w io.Writer, what string, total, least int64, bytes bool) *progressbar.ProgressBar {
	if f, ok := w.(*os.File); !ok || total < least || !term.IsTerminal(int(f.Fd())) {
		return progressbar.DefaultSilent(total)
	}
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionFullWidth(),
		progressbar.OptionThrottle(100e6),
		progressbar.OptionClearOnFinish(),
	)
}

// watched returns what reads r and moves bar. A pipe has no size, and a log that is
// written has more than it had: what bar makes of that is no error of the log.
func watched(r io.Reader, bar *progressbar.ProgressBar) io.Reader {
	return io.TeeReader(r, mover{bar})
}

type mover struct{ bar *progressbar.ProgressBar }

func (m mover) Write(p []byte) (int, error) {
	_ = m.bar.Add(len(p))
	return len(p), nil
}
