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
	status  int   // the final one; 0 until it is sent
	written int64 // bytes of the body
}

// WriteHeader implements [http.ResponseWriter].
func (w *recorder) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status) // which panics if status is invalid
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.sent(status)
	}
}

// sent notes the status, unless one was sent before.
func (w *recorder) sent(status int) {
	if w.status == 0 {
		w.status = status
	}
}

// Write implements [io.Writer].
func (w *recorder) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.wrote(int64(n))
	return n, err
}

// WriteString implements [io.StringWriter], for [io.WriteString], which would copy s.
func (w *recorder) WriteString(s string) (int, error) {
	n, err := io.WriteString(w.ResponseWriter, s)
	w.wrote(int64(n))
	return n, err
}

// wrote notes n bytes of the body, and that the first of them sends the header.
func (w *recorder) wrote(n int64) {
	w.sent(http.StatusOK)
	w.written += n
}

// Flush implements [http.Flusher]. It does nothing if the ResponseWriter cannot flush.
func (w *recorder) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController]. The error matches [http.ErrNotSupported] if the
// ResponseWriter cannot flush.
func (w *recorder) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if err == nil {
		w.sent(http.StatusOK)
	}
	return err
}

// Unwrap is for the other methods of [http.ResponseController].
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements [http.Hijacker]. The error matches [http.ErrNotSupported] if the ResponseWriter
// cannot hand out the connection, as over HTTP/2.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.sent(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

// ReadFrom implements [io.ReaderFrom], for [io.Copy]: net/http's ResponseWriter lets the operating
// system copy a file. Without a ReaderFrom in it, the recorder copies by Write.
func (w *recorder) ReadFrom(src io.Reader) (int64, error) {
	inner, ok := w.ResponseWriter.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{w}, src)
	}
	n, err := inner.ReadFrom(src)
	if n > 0 { // otherwise the header is not sent yet
		w.wrote(n)
	}
	return n, err
}
