package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	at := func(s string) int64 {
		t.Helper()
		x, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return x.UnixNano()
	}
	nine := at("2026-03-02T09:00:01Z")
	const stamp = "[02/Mar/2026:09:00:01 +0000]"

	for _, c := range []struct {
		name string
		by   keyKind
		line string
		at   int64
		key  string
		n    int32
		err  error
	}{
		{"common", byIP, `192.0.2.1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, nine, "192.0.2.1", 1, nil},
		{"combined", byIP, `192.0.2.1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12 "-" "curl/8"`, nine, "192.0.2.1", 1, nil},
		{"IPv6", byIP, `2001:db8::1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, nine, "2001:db8::1", 1, nil},
		{"a host's name", byIP, `host.example - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, nine, "host.example", 1, nil},
		{"another zone", byIP, `192.0.2.1 - - [02/Mar/2026:14:30:01 +0530] "GET /a HTTP/1.1" 200 12`, nine, "192.0.2.1", 1, nil},
		{"a user with spaces and brackets", byIP, `192.0.2.1 - a [b] c ` + stamp + ` "GET /a HTTP/1.1" 200 12`, nine, "192.0.2.1", 1, nil},
		{"no request line", byIP, `192.0.2.1 - - ` + stamp + ` "-" 408 0 "-" "-"`, nine, "192.0.2.1", 1, nil},
		{"garbage for a request", byIP, `192.0.2.1 - - ` + stamp + ` "\x16\x03\x01" 400 150`, nine, "192.0.2.1", 1, nil},
		{"cut off in the user agent", byIP, `192.0.2.1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12 "-" "Mozi`, nine, "192.0.2.1", 1, nil},
		{"cut off behind the time", byIP, `192.0.2.1 - - ` + stamp, nine, "192.0.2.1", 1, nil},
		{"space around it", byIP, "  192.0.2.1 - - " + stamp + " \"GET /a HTTP/1.1\" 200 12\r", nine, "192.0.2.1", 1, nil},

		{"cut off in the time", byIP, `192.0.2.1 - - [02/Mar/2026:09:0`, 0, "", 0, skipTime},
		{"no such day", byIP, `192.0.2.1 - - [31/Feb/2026:09:00:01 +0000] "GET / HTTP/1.1" 200 1`, 0, "", 0, skipTime},
		{"no such month", byIP, `192.0.2.1 - - [02/Mär/2026:09:00:01 +0000] "GET / HTTP/1.1" 200 1`, 0, "", 0, skipTime},
		{"a year too far", byIP, `192.0.2.1 - - [02/Mar/9026:09:00:01 +0000] "GET / HTTP/1.1" 200 1`, 0, "", 0, skipTimeRange},
		{"an empty time", byIP, `192.0.2.1 - - [] "GET / HTTP/1.1" 200 1`, 0, "", 0, skipTime},
		{"prose", byIP, `the server was started`, 0, "", 0, skipForeign},
		{"one word", byIP, `started`, 0, "", 0, skipForeign},
		{"JSON", byIP, `{"time":"2026-03-02T09:00:01Z","ip":"192.0.2.1"}`, 0, "", 0, skipForeign},
		{"blank", byIP, " \t ", 0, "", 0, skipBlank},
		{"comment", byIP, "# time key", 0, "", 0, skipBlank},

		{"path", byPath, `192.0.2.1 - - ` + stamp + ` "GET /a/b HTTP/1.1" 200 12`, nine, "/a/b", 1, nil},
		{"path without its query", byPath, `192.0.2.1 - - ` + stamp + ` "GET /a?b=/c HTTP/1.1" 200 12`, nine, "/a", 1, nil},
		{"path with an escaped quote", byPath, `192.0.2.1 - - ` + stamp + ` "GET /a\"b\\ HTTP/1.1" 200 12`, nine, `/a\"b\\`, 1, nil},
		{"HTTP/0.9", byPath, `192.0.2.1 - - ` + stamp + ` "GET /a" 200 12`, nine, "/a", 1, nil},
		{"address and path", byIPPath, `192.0.2.1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, nine, "192.0.2.1 /a", 1, nil},
		{"no path", byPath, `192.0.2.1 - - ` + stamp + ` "-" 408 0`, 0, "", 0, skipNoPath},
		{"only a query", byPath, `192.0.2.1 - - ` + stamp + ` "GET ?a HTTP/1.1" 200 12`, 0, "", 0, skipNoPath},
		{"cut off in the path", byPath, `192.0.2.1 - - ` + stamp + ` "GET /a`, 0, "", 0, skipNoPath},
		{"cut off in an escape", byPath, `192.0.2.1 - - ` + stamp + ` "GET /a\`, 0, "", 0, skipNoPath},
		{"no request at all", byIPPath, `192.0.2.1 - - ` + stamp, 0, "", 0, skipNoPath},

		{"Unix seconds", byIP, `1772442001 alice`, nine, "alice", 1, nil},
		{"a fraction", byIP, `1772442001.25 alice`, nine + 250e6, "alice", 1, nil},
		{"nanoseconds and more", byIP, `1772442001.0000000019 alice`, nine + 1, "alice", 1, nil},
		{"before the epoch", byIP, `-1.5 alice`, -1.5e9, "alice", 1, nil},
		{"RFC 3339", byIP, `2026-03-02T09:00:01Z alice`, nine, "alice", 1, nil},
		{"RFC 3339 with all it may have", byIP, `2026-03-02t10:00:01.5+01:00 alice`, nine + 500e6, "alice", 1, nil},
		{"n", byIP, `1772442001 alice 3`, nine, "alice", 3, nil},
		{"tabs", byIP, "1772442001\talice\t3", nine, "alice", 3, nil},
		{"a key with a bracket", byIP, "1772442001 [::1]", nine, "[::1]", 1, nil},

		{"n is 0", byIP, `1772442001 alice 0`, 0, "", 0, skipCount},
		{"n is negative", byIP, `1772442001 alice -1`, 0, "", 0, skipCount},
		{"n is no number", byIP, `1772442001 alice many`, 0, "", 0, skipCount},
		{"n is too great", byIP, `1772442001 alice 2147483648`, 0, "", 0, skipCount},
		{"no key", byIP, `1772442001`, 0, "", 0, skipForeign},
		{"too many fields", byIP, `1772442001 alice 3 4`, 0, "", 0, skipForeign},
		{"far too many fields", byIP, `1772442001 a b c d e f`, 0, "", 0, skipForeign},
		{"milliseconds", byIP, `1772442001250 alice`, 0, "", 0, skipTimeRange},
		{"more digits than a number has", byIP, `99999999999999999999 alice`, 0, "", 0, skipTimeRange},
		{"no whole seconds", byIP, `-.5 alice`, 0, "", 0, skipTime},
		{"no such hour", byIP, `2026-03-02T25:00:01Z alice`, 0, "", 0, skipTime},
		{"year 0", byIP, `0000-01-01T00:00:00Z alice`, 0, "", 0, skipTimeRange},
		{"a path is asked for", byPath, `1772442001 alice`, 0, "", 0, skipPlainPath},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := lineParser{by: c.by}
			for range 2 { // the second time, the time stamp is known
				e, err := p.parse([]byte(c.line))
				if !errors.Is(err, c.err) {
					t.Fatalf("%s: error %v, want %v", c.line, err, c.err)
				}
				if err == nil && (e.at != c.at || string(e.key) != c.key || e.n != c.n) {
					t.Fatalf("%s: got %v %q %d, want %v %q %d", c.line,
						time.Unix(0, e.at).UTC(), e.key, e.n, time.Unix(0, c.at).UTC(), c.key, c.n)
				}
			}
		})
	}
}

// What is written in either format is read back as it was, whatever the fields
// hold; and no line whatever makes the parser fail.
func FuzzParse(f *testing.F) {
	f.Add("192.0.2.1", "-", "/a", int64(1772442001), `192.0.2.1 - - [02/Mar/2026:09:00:01 +0000] "GET /a HTTP/1.1"`)
	f.Add("[::1]", "a [b] \"c\"", "/\\\"", int64(-1), "1.5 a 3")
	f.Add("a", "", "?", int64(0), "-.5 a")
	f.Fuzz(func(t *testing.T, addr, user, path string, unix int64, line string) {
		for _, by := range []keyKind{byIP, byPath, byIPPath} {
			p := lineParser{by: by}
			if e, err := p.parse([]byte(line)); err == nil && (len(e.key) == 0 || e.n < 1) {
				t.Errorf("%q by %s: got key %q and n %d", line, by, e.key, e.n)
			}
		}

		word := func(s string) bool {
			fields := strings.Fields(s)
			return len(fields) == 1 && fields[0] == s && s[0] != '#'
		}
		if !word(addr) || unix < earliest || unix > latest {
			return
		}
		plain := lineParser{by: byIP}
		e, err := plain.parse(fmt.Appendf(nil, "%d %s 7", unix, addr))
		if err != nil || e.at != unix*1e9 || string(e.key) != addr || e.n != 7 {
			t.Errorf("%d %s 7: got %d %q %d, %v", unix, addr, e.at, e.key, e.n, err)
		}

		when := time.Unix(unix, 0).UTC()
		if looksLikeTime([]byte(addr)) || strings.Contains(user, "[") || !word(path) || strings.ContainsAny(path, `\"?`) {
			return
		}
		access := lineParser{by: byIPPath}
		s := fmt.Sprintf("%s - %s [%s] \"GET %s HTTP/1.1\" 200 1", addr, user, when.Format(clfTime), path)
		e, err = access.parse([]byte(s))
		if err != nil || e.at != when.UnixNano() || string(e.key) != addr+" "+path {
			t.Errorf("%s: got %d %q, %v", s, e.at, e.key, err)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	var lines [][]byte
	for i := range 1000 {
		stamp := time.Unix(1772442001+int64(i/3), 0).UTC().Format(clfTime)
		lines = append(lines, fmt.Appendf(nil, `192.0.2.%d - - [%s] "GET /images/%d.png HTTP/1.1" 200 203023 `+
			`"https://shop.example/products/1" "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"`, i%250, stamp, i))
	}
	p := lineParser{by: byIP}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, err := p.parse(lines[i%len(lines)]); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
