package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// A recorder is a ResponseWriter that notes the status and the length of a response. It is used by
// one goroutine at a time, like the ResponseWriter in it. It always has the methods of
// [http.Flusher], [http.Hijacker] and [io.ReaderFrom], whatever the ResponseWriter in it can do.
//
// [http.MaxBytesReader] asks net/http's own ResponseWriter to close the connection, by a
// method that no other package can have. Behind a recorder, net/http closes it only if the
// client sends much more.
type recorder struct {
	http.ResponseWriter
	status  int   // the final one; 0 until the header is sent
	written int64 // bytes of the body

	// atHeader, unless it is nil, is called with the final status, before anything is sent that a
	// client may be slow to read.
	atHeader func(status int)
}

// WriteHeader implements [http.ResponseWriter].
func (w *recorder) WriteHeader(status int) {
	if status >= 200 && status <= 999 || status == http.StatusSwitchingProtocols {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status) // which panics if status is invalid
}

// begin notes the status that is sent now, unless one was sent before.
func (w *recorder) begin(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	if w.atHeader != nil {
		w.atHeader(status)
	}
}

// Write implements [io.Writer]. The first Write sends the header.
func (w *recorder) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.written += int64(n)
	return n, err
}

// WriteString implements [io.StringWriter], for [io.WriteString], which would copy s.
func (w *recorder) WriteString(s string) (int, error) {
	w.begin(http.StatusOK)
	n, err := io.WriteString(w.ResponseWriter, s)
	w.written += int64(n)
	return n, err
}

// Flush implements [http.Flusher]. It does nothing if the ResponseWriter cannot flush.
func (w *recorder) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController]. The error matches [http.ErrNotSupported] if the
// ResponseWriter cannot flush.
func (w *recorder) FlushError() error {
	if canFlush(w.ResponseWriter) {
		w.begin(http.StatusOK)
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// canFlush reports whether [http.ResponseController] can flush w.
func canFlush(w http.ResponseWriter) bool {
	for {
		switch inner := w.(type) {
		case *recorder: // of another middleware, which has a Flush whatever is inside
			w = inner.ResponseWriter
		case interface{ FlushError() error }, http.Flusher:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = inner.Unwrap()
		default:
			return false
		}
	}
}

// Unwrap is for the other methods of [http.ResponseController].
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements [http.Hijacker]. The error matches [http.ErrNotSupported] if the ResponseWriter
// cannot hand out the connection, as over HTTP/2.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.begin(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

// ReadFrom implements [io.ReaderFrom], for [io.Copy]: net/http's ResponseWriter lets the operating
// system copy a file. The recorder copies by Write without a ReaderFrom in it, and if it must know
// that src has something to send before the header is sent.
func (w *recorder) ReadFrom(src io.Reader) (int64, error) {
	inner, ok := w.ResponseWriter.(io.ReaderFrom)
	if !ok || w.status == 0 && w.atHeader != nil {
		return io.Copy(struct{ io.Writer }{w}, src)
	}
	n, err := inner.ReadFrom(src)
	if n > 0 { // otherwise the header is not sent yet
		w.begin(http.StatusOK)
	}
	w.written += n
	return n, err
}
