package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// A recorder is a ResponseWriter that notes the status and the length of a response. Its
// methods are those that every ResponseWriter can have; as adds the others. It is used by one
// goroutine at a time, like the ResponseWriter in it.
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

// FlushError is for [http.ResponseController]. It fails if the ResponseWriter cannot flush.
func (w *recorder) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if err == nil {
		w.sent(http.StatusOK)
	}
	return err
}

// Unwrap is for the other methods of [http.ResponseController].
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type flusher struct{ w *recorder }

func (f flusher) Flush() {
	f.w.ResponseWriter.(http.Flusher).Flush()
	f.w.sent(http.StatusOK)
}

type readerFrom struct{ w *recorder }

func (f readerFrom) ReadFrom(src io.Reader) (int64, error) {
	n, err := f.w.ResponseWriter.(io.ReaderFrom).ReadFrom(src)
	if n > 0 {
		f.w.wrote(n)
	}
	return n, err
}

type hijacker struct{ w *recorder }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := h.w.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil {
		h.w.sent(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

type pusher struct{ w *recorder }

func (p pusher) Push(target string, opts *http.PushOptions) error {
	return p.w.ResponseWriter.(http.Pusher).Push(target, opts)
}

// as returns w with those of the optional interfaces that its ResponseWriter has. A handler
// that looks for one finds it only if it works, so there is a type for each combination.
func (w *recorder) as() http.ResponseWriter {
	const (
		flushes = 1 << iota
		reads
		hijacks
		pushes
	)
	var has int
	if _, ok := w.ResponseWriter.(http.Flusher); ok {
		has |= flushes
	}
	if _, ok := w.ResponseWriter.(io.ReaderFrom); ok {
		has |= reads
	}
	if _, ok := w.ResponseWriter.(http.Hijacker); ok {
		has |= hijacks
	}
	if _, ok := w.ResponseWriter.(http.Pusher); ok {
		has |= pushes
	}
	f, r, h, p := flusher{w}, readerFrom{w}, hijacker{w}, pusher{w}
	switch has {
	case flushes:
		return struct {
			*recorder
			flusher
		}{w, f}
	case reads:
		return struct {
			*recorder
			readerFrom
		}{w, r}
	case flushes | reads:
		return struct {
			*recorder
			flusher
			readerFrom
		}{w, f, r}
	case hijacks:
		return struct {
			*recorder
			hijacker
		}{w, h}
	case flushes | hijacks:
		return struct {
			*recorder
			flusher
			hijacker
		}{w, f, h}
	case reads | hijacks:
		return struct {
			*recorder
			readerFrom
			hijacker
		}{w, r, h}
	case flushes | reads | hijacks: // HTTP/1
		return struct {
			*recorder
			flusher
			readerFrom
			hijacker
		}{w, f, r, h}
	case pushes:
		return struct {
			*recorder
			pusher
		}{w, p}
	case flushes | pushes: // HTTP/2
		return struct {
			*recorder
			flusher
			pusher
		}{w, f, p}
	case reads | pushes:
		return struct {
			*recorder
			readerFrom
			pusher
		}{w, r, p}
	case flushes | reads | pushes:
		return struct {
			*recorder
			flusher
			readerFrom
			pusher
		}{w, f, r, p}
	case hijacks | pushes:
		return struct {
			*recorder
			hijacker
			pusher
		}{w, h, p}
	case flushes | hijacks | pushes:
		return struct {
			*recorder
			flusher
			hijacker
			pusher
		}{w, f, h, p}
	case reads | hijacks | pushes:
		return struct {
			*recorder
			readerFrom
			hijacker
			pusher
		}{w, r, h, p}
	case flushes | reads | hijacks | pushes:
		return struct {
			*recorder
			flusher
			readerFrom
			hijacker
			pusher
		}{w, f, r, h, p}
	}
	return w
}
