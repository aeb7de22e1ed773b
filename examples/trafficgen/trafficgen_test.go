package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPublicAddr(t *testing.T) {
	for remote, want := range map[string]string{
		"127.0.0.10:5000":  "192.0.2.10",
		"127.0.1.77:5000":  "198.51.100.77",
		"127.0.2.66":       "203.0.113.66",
		"127.0.3.16:5000":  "2001:db8:0:10::1",
		"127.0.9.1:5000":   "127.0.9.1",   // has no range
		"[::1]:5000":       "::1",         // not one of ours
		"192.0.2.1:80":     "192.0.2.1",   // nor this
		"@":                "@",           // a Unix socket
		"localhost:http":   "localhost",   // not an address
		"127.0.0.255:5000": "192.0.2.255", // the last one
	} {
		if got := publicAddr(remote); got != want {
			t.Errorf("publicAddr(%q) = %q, want %q", remote, got, want)
		}
	}
}

func TestAccessLogLine(t *testing.T) {
	accesses := &accessLog{clock: newFastClock(time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC), 1)}
	r := httptest.NewRequest("GET", `/search?q="x"`, nil)
	r.RemoteAddr = "127.0.2.66:4711"
	r.Header.Set("User-Agent", `say "hi"`)
	accesses.wrap(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)

	want := `203.0.113.66 - - [02/Mar/2026:09:00:00 +0000] "GET /search?q=\"x\" HTTP/1.1" 404 19 "-" "say \"hi\""` + "\n"
	if got := string(accesses.bytes()); got != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

// handlerTransport passes requests to a handler as if they came from addr, so that an
// hour of traffic takes no real time in a synctest bubble.
type handlerTransport struct {
	addr    string
	handler http.Handler
}

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context())
	in.RemoteAddr = h.addr + ":4711"
	in.RequestURI = r.URL.RequestURI()
	rec := httptest.NewRecorder()
	h.handler.ServeHTTP(rec, in)
	return rec.Result(), nil
}

func TestCrowdMakesAnHourOfTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		clk := newFastClock(from, 60)
		accesses := &accessLog{clock: clk}
		handler := accesses.wrap(site(clk))
		err := crowd{
			clock: clk, base: "http://shop.example", seed: 1, from: from, span: time.Hour,
			dial: func(addr string) http.RoundTripper { return handlerTransport{addr, handler} },
		}.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(from); took.Round(time.Second) != time.Minute {
			t.Errorf("an hour at 60 times the speed took %v, want 1m", took)
		}

		lines := bytes.Split(bytes.TrimSpace(accesses.bytes()), []byte("\n"))
		if len(lines) < 5_000 || len(lines) > 20_000 {
			t.Errorf("%d lines, want from 5,000 to 20,000", len(lines))
		}
		combined := regexp.MustCompile(`^(\S+) - - \[\d\d/\w{3}/\d{4}:[\d:]{8} \+0000\] "(GET|POST) /\S* HTTP/1\.1" \d{3} \d+ "[^"]*" "[^"]+"$`)
		perAddr := map[string]int{}
		for _, line := range lines {
			m := combined.FindSubmatch(line)
			if m == nil {
				t.Fatalf("not in Combined Log Format: %s", line)
			}
			perAddr[string(m[1])]++
		}
		if scraper := perAddr["203.0.113.66"]; scraper < len(lines)/10 {
			t.Errorf("the scraper made %d of %d requests, want more than a tenth", scraper, len(lines))
		}
		if monitor := perAddr["198.51.100.200"]; monitor < 115 || monitor > 121 {
			t.Errorf("the monitor made %d requests, want one each 30 s: about 120", monitor)
		}
		if len(perAddr) < 50 {
			t.Errorf("%d addresses, want at least 50", len(perAddr))
		}
	})
}

func TestCrowdReportsWhyAClientCannotConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("cannot assign requested address")
		from := time.Now()
		err := crowd{
			clock: newFastClock(from, 60), base: "http://shop.example", from: from, span: time.Hour,
			dial: func(string) http.RoundTripper { return failing{broken} },
		}.run(t.Context())
		if !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

func TestFlagErrors(t *testing.T) {
	for args, want := range map[string]string{
		"-speedup 0":       "must be greater than 0",
		"-start yesterday": "must be a time such as",
		"out.log":          "unexpected argument",
	} {
		err := run(context.Background(), strings.Fields(args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", args, err, want)
		}
	}
}
