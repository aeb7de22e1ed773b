package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// site is a small shop: pages, their parts, an API, and a login that always fails.
// Responses take from 20 to 1500 ms of the log's time, as on a real site.
func site(clk *fastClock) http.Handler {
	filler := bytes.Repeat([]byte("All work and no play makes a dull response. "), 1024)
	answer := func(status int, slowest time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			h := fnv.New32a()
			h.Write([]byte(r.URL.Path))
			x := h.Sum32()
			clk.sleep(r.Context(), 20*time.Millisecond+time.Duration(x%1000)*slowest/1000)
			w.WriteHeader(status)
			w.Write(filler[:200+x%uint32(len(filler)-200)])
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", answer(http.StatusOK, 600*time.Millisecond))
	mux.Handle("GET /static/", answer(http.StatusOK, 100*time.Millisecond))
	mux.Handle("GET /api/", answer(http.StatusOK, 200*time.Millisecond))
	mux.Handle("GET /search", answer(http.StatusOK, 1500*time.Millisecond))
	mux.Handle("GET /healthz", answer(http.StatusOK, 0))
	mux.Handle("POST /login", answer(http.StatusUnauthorized, 400*time.Millisecond))
	return mux
}

// An accessLog collects one line per request in Combined Log Format. As in Apache's log, a
// line has the time at which its request began and is written when the request is done, so
// lines are not exactly in the order of their times.
type accessLog struct {
	clock *fastClock

	mu    sync.Mutex // protects the fields below
	text  bytes.Buffer
	lines int
}

func (l *accessLog) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := l.clock.now()
		m := &meter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(m, r)
		l.add(r, began, m.status, m.size)
	})
}

func (l *accessLog) add(r *http.Request, began time.Time, status, size int) {
	referer := r.Referer()
	if referer == "" {
		referer = "-"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.text, "%s - - [%s] %q %d %d %q %q\n",
		publicAddr(r.RemoteAddr), began.UTC().Format("02/Jan/2006:15:04:05 -0700"),
		r.Method+" "+r.URL.RequestURI()+" "+r.Proto, status, size, referer, r.UserAgent())
	l.lines++
}

func (l *accessLog) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.text.Bytes())
}

func (l *accessLog) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines
}

// A meter records the status and the size of a response.
type meter struct {
	http.ResponseWriter
	status, size int
}

func (m *meter) WriteHeader(status int) {
	m.status = status
	m.ResponseWriter.WriteHeader(status)
}

func (m *meter) Write(p []byte) (int, error) {
	n, err := m.ResponseWriter.Write(p)
	m.size += n
	return n, err
}

// documentation has the ranges, reserved for documentation (RFC 5737, RFC 3849), that
// element i uses for clients that dial from 127.0.i.x. IPv6 clients have a /64 each,
// because providers assign at least that to a customer.
var documentation = []string{"192.0.2.%d", "198.51.100.%d", "203.0.113.%d", "2001:db8:0:%x::1"}

// publicAddr maps the loopback address of a client, with or without a port, to
// the address that the log shows.
func publicAddr(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.Is4() {
		return host
	}
	b := addr.As4()
	if b[0] != 127 || int(b[2]) >= len(documentation) {
		return host
	}
	return fmt.Sprintf(documentation[b[2]], b[3])
}
