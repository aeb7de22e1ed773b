package main

import (
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress returns a progress bar on w. The bar is invisible if w is not a terminal, or if
// total is less than least.
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

// watched returns a reader of r that advances bar. It ignores errors of bar, which occur if
// r is a pipe, whose size is unknown, or a log that grows while it is read.
func watched(r io.Reader, bar *progressbar.ProgressBar) io.Reader {
	return io.TeeReader(r, mover{bar})
}

type mover struct{ bar *progressbar.ProgressBar }

func (m mover) Write(p []byte) (int, error) {
	_ = m.bar.Add(len(p))
	return len(p), nil
}
