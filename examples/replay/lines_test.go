package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// load makes a trace of lines, without the buffers that a reader needs.
func load(o readOptions, lines ...string) (*trace, error) {
	l := newLoader("test.log", o)
	for _, line := range lines {
		l.trace.lines++
		l.line(heldLine{l.trace.lines, []byte(line)})
	}
	return l.trace, l.finish()
}

// readOne reads one line twice, the second time with its time cached.
func readOne(format string, by keyKind, line string) (at int64, key string, n int32, err error) {
	f, err := parseFormat(format)
	if err != nil {
		return 0, "", 0, err
	}
	tr, err := load(readOptions{by: by, format: f}, line, line)
	if err != nil {
		return 0, "", 0, err
	}
	first, again := tr.requests[0], tr.requests[len(tr.requests)-1]
	if len(tr.requests) != 2 || again != first {
		return 0, "", 0, fmt.Errorf("read as %v", tr.requests)
	}
	return first.at, tr.keys[first.key], first.n, nil
}

func TestLines(t *testing.T) {
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
	type line struct {
		name string
		by   keyKind
		line string
		at   int64
		key  string
		n    int32
		err  error
	}

	for format, lines := range map[string][]line{
		"combined": {
			{"common", byIP, `192.0.2.1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, nine, "192.0.2.1", 1, nil},
			{"combined", byIP, `192.0.2.1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12 "-" "curl/8"`, nine, "192.0.2.1", 1, nil},
			{"IPv6", byIP, `2001:db8::1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, nine, "2001:db8::/64", 1, nil},
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
			{"an empty time", byIP, `192.0.2.1 - - [] "GET / HTTP/1.1" 200 1`, 0, "", 0, skipForeign},
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
			{"a name and a port", byIP, `host.example:443 - - ` + stamp, nine, "host.example", 1, nil},
			{"an address in IPv6 of an IPv4 one", byIP, `::ffff:192.0.2.1 - - ` + stamp, nine, "192.0.2.1", 1, nil},
			{"IPv6 with a zone", byIP, `fe80::1%eth0 - - ` + stamp, nine, "fe80::/64", 1, nil},
			{"IPv6 in brackets", byIP, `[2001:db8::1] - - ` + stamp, nine, "2001:db8::/64", 1, nil},
			{"IPv6 with a port", byIP, `[2001:db8::1]:443 - - ` + stamp, nine, "2001:db8::/64", 1, nil},
			{"IPv6 with a port, without brackets", byIP, `2001:db8:0:0:0:0:0:1:443 - - ` + stamp, nine, "2001:db8::/64", 1, nil},
			{"a broken bracket", byIP, `[2001:db8::1 - - ` + stamp, nine, "[2001:db8::1", 1, nil},
			{"a list without spaces", byIP, `192.0.2.1,198.51.100.7 - - ` + stamp, nine, "192.0.2.1", 1, nil},
			{"quotes", byIP, `"192.0.2.1" - - ` + stamp, nine, "192.0.2.1", 1, nil},
			{"a virtual host in front", byIP, `host.example:443 192.0.2.1 - - ` + stamp, 0, "", 0, skipForeign},
			{"no address", byIP, `- - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, 0, "", 0, skipNoClient},
			{"no address, and none is asked for", byPath, `- - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, nine, "/a", 1, nil},
			{"absolute URI", byPath, `192.0.2.1 - - ` + stamp + ` "GET http://shop.example/a/b?c HTTP/1.1" 200 12`, nine, "/a/b", 1, nil},
			{"absolute URI without a path", byPath, `192.0.2.1 - - ` + stamp + ` "GET http://shop.example?c HTTP/1.1" 200 12`, nine, "/", 1, nil},
			{"no URI", byPath, `192.0.2.1 - - ` + stamp + ` "OPTIONS * HTTP/1.1" 200 12`, nine, "*", 1, nil},
		},
		"vhost": {
			{"IPv6", byIPPath, `shop.example:443 2001:db8::1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, nine, "2001:db8::/64 /a", 1, nil},
			{"only a host", byIP, `shop.example:443`, 0, "", 0, skipForeign},
			{"only a host and an address", byIP, `shop.example:443 192.0.2.1`, 0, "", 0, skipForeign},
		},
		"plain": {
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
			{"more digits than a number has", byIP, `99999999999999999999 alice`, 0, "", 0, skipTimeRange},
			{"no whole seconds", byIP, `-.5 alice`, 0, "", 0, skipTime},
			{"no such hour", byIP, `2026-03-02T25:00:01Z alice`, 0, "", 0, skipTime},
			{"year 0", byIP, `0000-01-01T00:00:00Z alice`, 0, "", 0, skipTimeRange},
			{"a path is asked for", byPath, `1772442001 alice`, 0, "", 0, skipPlainPath},
			{"milliseconds", byIP, `1772442001250 alice`, nine + 250e6, "alice", 1, nil},
			{"milliseconds with a fraction", byIP, `1772442001250.125 alice`, nine + 250_125_000, "alice", 1, nil},
			{"microseconds", byIP, `1772442001250125 alice`, nine + 250_125_000, "alice", 1, nil},
			{"nanoseconds", byIP, `1772442001250125001.9 alice`, nine + 250_125_001, "alice", 1, nil},
			{"milliseconds before the epoch", byIP, `-200000000250.5 alice`, -200000000_250_500_000, "alice", 1, nil},
			{"a few seconds", byIP, `99 alice`, 99e9, "alice", 1, nil},
			{"too many seconds", byIP, `99999999999 alice`, 0, "", 0, skipTimeRange},
		},
		"json": {
			{"time and key", byIP, `{"ts":1772442001.5,"ip":"192.0.2.1"}`, nine + 500e6, "192.0.2.1", 1, nil},
			{"an exponent", byIP, `{"ts":1.7724420015e9,"ip":"192.0.2.1"}`, nine + 500e6, "192.0.2.1", 1, nil},
			{"milliseconds with an exponent", byIP, `{"ts":1.772442001500E+12,"ip":"192.0.2.1"}`, nine + 500e6, "192.0.2.1", 1, nil},
			{"a number that is too great", byIP, `{"ts":1e300,"ip":"192.0.2.1"}`, 0, "", 0, skipTimeRange},
			{"a number in quotes", byIP, `{"ts":"1772442001500","ip":"192.0.2.1"}`, nine + 500e6, "192.0.2.1", 1, nil},
			{"RFC 3339", byIP, `{"ts":"2026-03-02T10:00:01.5+01:00","ip":"192.0.2.1"}`, nine + 500e6, "192.0.2.1", 1, nil},
			{"ISO 8601", byIP, `{"ts":"2026-03-02T10:00:01.500+0100","ip":"192.0.2.1"}`, nine + 500e6, "192.0.2.1", 1, nil},
			{"no zone", byIP, `{"ts":"2026/03/02 09:00:01.5","ip":"192.0.2.1"}`, nine + 500e6, "192.0.2.1", 1, nil},
			{"an escape", byIPPath, `{"@timestamp":"2026-03-02 09:00:01","client":"192.0.2.1","request":"GET \/\u0061?b HTTP\/1.1"}`, nine, "192.0.2.1 /a", 1, nil},
			{"names with dots", byIPPath, `{"@timestamp":"2026-03-02 09:00:01Z","client.ip":"192.0.2.1","url.path":"/a"}`, nine, "192.0.2.1 /a", 1, nil},
			{"a client that is a name", byIP, `{"ts":1772442001,"client":"alice"}`, nine, "alice", 1, nil},
			{"a client that is a number", byIP, `{"ts":1772442001,"client":17}`, nine, "17", 1, nil},
			{"no client", byIP, `{"ts":1772442001,"msg":"started"}`, 0, "", 0, skipNoClient},
			{"a client that is an object", byIP, `{"ts":1772442001,"client":{"a":1}}`, 0, "", 0, skipNoClient},
			{"an empty client", byIP, `{"ts":1772442001,"client":""}`, 0, "", 0, skipNoClient},
			{"no time", byIP, `{"ip":"192.0.2.1"}`, 0, "", 0, skipNoTime},
			{"no path", byPath, `{"ts":1772442001,"ip":"192.0.2.1"}`, 0, "", 0, skipNoPath},
			{"cut off", byIP, `{"ts":1772442001.5,"ip":"192.0.2.1"`, 0, "", 0, skipForeign},
			{"no object", byIP, `[1772442001.5,"192.0.2.1"]`, 0, "", 0, skipForeign},
			{"deep", byIP, `{"ts":1772442001.5,"ip":` + strings.Repeat("[", 100_000) + `"192.0.2.1"`, 0, "", 0, skipForeign},
		},
		"s3": {
			{"nobody", byIP, `0 bucket ` + stamp + ` - - 3E57 S3.EXPIRE.OBJECT key "-" 200 -`, 0, "", 0, skipNoClient},
			{"cut off in the address", byIP, `0 bucket ` + stamp + ` 192.0.2.1`, 0, "", 0, skipForeign},
			{"no path", byPath, `0 bucket ` + stamp + ` 192.0.2.1 - 3E57 REST.COPY.PART_GET key "-" 200 -`, 0, "", 0, skipNoPath},
			{"another format", byIP, `192.0.2.1 - - ` + stamp + ` "GET /a HTTP/1.1" 200 12`, 0, "", 0, skipForeign},
		},
		"alb": {
			{"cut off in the address", byIP, `h2 2026-03-02T09:00:01.5Z app/shop 192.0.2.1`, 0, "", 0, skipForeign},
			{"cut off behind the target", byIP, `h2 2026-03-02T09:00:01.5Z app/shop 192.0.2.1:99 -`, nine + 500e6, "192.0.2.1", 1, nil},
			{"another kind", byIP, `tls 2026-03-02T09:00:01.5Z app/shop 192.0.2.1:99 - `, 0, "", 0, skipForeign},
			{"no such hour", byIP, `h2 2026-03-02T29:00:01.5Z app/shop 192.0.2.1:99 - `, 0, "", 0, skipTime},
			{"no path", byPath, `h2 2026-03-02T09:00:01.5Z app/shop 192.0.2.1:99 - "- http://shop.example:80- -"`, nine + 500e6, "/", 1, nil},
		},
		"haproxy": {
			{"no prefix", byIP, `192.0.2.1:33317 [02/Mar/2026:09:00:01.500] in b/s 0/0/0/0/0 200 1 - - ---- "GET /a HTTP/1.1"`, nine + 500e6, "192.0.2.1", 1, nil},
			{"IPv6 with a short port", byIP, `2001:db8::5:6:7:8:8080 [02/Mar/2026:09:00:01.500] in b/s`, nine + 500e6, "2001:db8::/64", 1, nil},
			{"TCP", byIP, `192.0.2.1:33317 [02/Mar/2026:09:00:01.500] in b/s 0/0/0 212 --`, nine + 500e6, "192.0.2.1", 1, nil},
			{"TCP has no path", byPath, `192.0.2.1:33317 [02/Mar/2026:09:00:01.500] in b/s 0/0/0 212 --`, 0, "", 0, skipNoPath},
			{"a bad request", byPath, `192.0.2.1:33317 [02/Mar/2026:09:00:01.500] in b/s 0/0/0 400 1 PR-- "<BADREQ>"`, 0, "", 0, skipNoPath},
			{"a Unix socket", byIP, `unix:1 [02/Mar/2026:09:00:01.500] in b/s 0/0/0 212 --`, nine + 500e6, "unix", 1, nil},
			{"another time", byIP, `192.0.2.1:33317 [2026-03-02T09:00:01] in b/s 0/0/0 212 --`, 0, "", 0, skipForeign},
		},
		"envoy": {
			{"nothing in the brackets", byIP, `] "GET /a HTTP/1.1" 200 - 0 1 2 3 "192.0.2.1" "-" "-" "-" "-"`, 0, "", 0, skipForeign},
			{"another time", byIP, `[02/Mar/2026:09:00:01 +0000] "GET /a HTTP/1.1" 200 - 0 1 2 3 "192.0.2.1" "-" "-" "-" "-"`, 0, "", 0, skipForeign},
			{"no such day", byIP, `[2026-02-31T09:00:01.500Z] "GET /a HTTP/1.1" 200 - 0 1 2 3 "192.0.2.1" "-" "-" "-" "-"`, 0, "", 0, skipTime},
			{"no X-Forwarded-For", byIP, `[2026-03-02T09:00:01.500Z] "GET /a HTTP/1.1" 200 - 0 1 2 3 "-" "-" "-" "-" "10.0.0.1:80"`, 0, "", 0, skipNoClient},
			{"cut off before the client", byIP, `[2026-03-02T09:00:01.500Z] "GET /a HTTP/1.1" 200 - via_upstream - "-" 0 1 2 3`, 0, "", 0, skipForeign},
			{"cut off in the client", byIP, `[2026-03-02T09:00:01.500Z] "GET /a HTTP/1.1" 200 - 0 1 2 3 "192.0.2`, 0, "", 0, skipForeign},
			{"cut off in the request", byIP, `[2026-03-02T09:00:01.500Z] "GET /a HT`, 0, "", 0, skipForeign},
			{"TCP", byIP, `[2026-03-02T09:00:01.500Z] "- - -" 0 - - - "-" 1 2 3 - "-" "-" "-" "-" "10.0.0.1:80" inbound|80|| 127.0.0.6:1 10.0.0.1:80 192.0.2.1:5 - -`, nine + 500e6, "192.0.2.1", 1, nil},
			{"TCP has no path", byPath, `[2026-03-02T09:00:01.500Z] "- - -" 0 - - - "-" 1 2 3 - "-" "-" "-" "-" "10.0.0.1:80" inbound|80|| 127.0.0.6:1 10.0.0.1:80 192.0.2.1:5 - -`, 0, "", 0, skipNoPath},
		},
		"w3c": {
			{"no fields named", byIP, `2026-03-02 09:00:01 192.0.2.1`, 0, "", 0, skipForeign},
		},
	} {
		for _, c := range lines {
			t.Run(format+"/"+c.name, func(t *testing.T) {
				at, key, n, err := readOne(format, c.by, c.line)
				if !errors.Is(err, c.err) || at != c.at || key != c.key || n != c.n {
					t.Errorf("%.200s: got %v %q %d, error %v; want %v %q %d, error %v", c.line,
						time.Unix(0, at).UTC(), key, n, err, time.Unix(0, c.at).UTC(), c.key, c.n, c.err)
				}
			})
		}
	}
}

// In W3C's format, directives before a line describe it.
func TestW3CFields(t *testing.T) {
	const rest = "2026-03-02 09:00:01 /a 192.0.2.1\n"
	for _, c := range []struct {
		fields string
		by     keyKind
		key    string
		err    error
	}{
		{"date time cs-uri-stem c-ip", byIPPath, "192.0.2.1 /a", nil},
		{"date time cs-uri-stem c-ip extra", byIP, "192.0.2.1", nil},
		{"date time other c-ip", byIP, "192.0.2.1", nil},
		{"date time other c-ip", byPath, "", skipNoFields},
		{"time date cs-uri-stem c-ip", byIP, "", skipTime},
		{"date time cs-uri-stem s-ip", byIP, "", skipNoFields},
		{"date cs-uri-stem c-ip", byIP, "", skipNoFields},
		{"", byIP, "", skipNoFields},
		{"date time cs-uri-stem extra c-ip", byIP, "", skipForeign},
	} {
		o := readOptions{by: c.by, format: mustFormat(t, "w3c")}
		tr, err := readTrace(strings.NewReader("#Fields: "+c.fields+"\n"+rest+"#Remark: none\n"+rest), "test.log", o)
		if !errors.Is(err, c.err) || err == nil && (len(tr.requests) != 2 || tr.keys[0] != c.key) {
			t.Errorf("%s by %s: %v, error %v; want %q, error %v", c.fields, c.by, tr, err, c.key, c.err)
		}
	}
}

func mustFormat(t testing.TB, name string) *format {
	t.Helper()
	f, err := parseFormat(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A request written in a format is read back unchanged, whatever its fields contain, and no
// line makes a reader panic.
func FuzzLines(f *testing.F) {
	f.Add("192.0.2.1", "-", "/a", int64(1772442001), `192.0.2.1 - - [02/Mar/2026:09:00:01 +0000] "GET /a HTTP/1.1"`)
	f.Add("[::1]", "a [b] \"c\"", "/\\\"", int64(-1), "1.5 a 3")
	f.Add("a", "", "?", int64(0), "-.5 a")
	f.Add("a", "", "/", int64(0), `{"ts":1,"ip":"192.0.2.1","uri":"/"}`)
	f.Add("a", "", "/", int64(0), "#Fields: date time c-ip cs-uri-stem\n2026-03-02 09:00:01 \"192.0.2.1 /a")
	f.Add("a", "", "/", int64(0), `h2 2026-03-02T09:00:01Z shop [2001:db8::1]:2817 - "GET / HTTP/1.1"`)
	f.Add("a", "", "/", int64(0), `o b [02/Mar/2026:09:00:01 +0000] 192.0.2.1 - - - - "GET / HTTP/1.1"`)
	f.Add("a", "", "/", int64(0), "<190>1 2026-03-02T09:00:01Z a b c d [x] 192.0.2.1:1 [02/Mar/2026:09:00:01.5] a \"GET / HTTP/1.1\"")
	f.Add("a", "", "/", int64(0), "Mar  2 09:00:01 a b: \x1b[36mweb |\x1b[0m 2026-03-02T09:00:01Z stdout F 192.0.2.1")
	f.Fuzz(func(t *testing.T, addr, user, path string, unix int64, line string) {
		for _, by := range []keyKind{byIP, byPath, byIPPath} {
			for _, format := range append(formats, nil) {
				tr, err := load(readOptions{by: by, format: format}, strings.Split(line, "\n")...)
				if err != nil {
					continue
				}
				for _, r := range tr.requests {
					if tr.keys[r.key] == "" || r.n < 1 {
						t.Errorf("%q by %s: got key %q and n %d", line, by, tr.keys[r.key], r.n)
					}
				}
			}
		}

		word := func(s string) bool {
			fields := strings.Fields(s)
			return len(fields) == 1 && fields[0] == s && s[0] != '#'
		}
		if !word(addr) || unix < earliest || unix > latest {
			return
		}
		at, key, n, err := readOne("plain", byIP, fmt.Sprintf("%d %s 7", unix, addr))
		if err != nil || at != unix*1e9 || key != addr || n != 7 {
			t.Errorf("%d %s 7: got %d %q %d, %v", unix, addr, at, key, n, err)
		}

		when := time.Unix(unix, 0).UTC()
		if strings.ContainsAny(addr, `:,"-#[`) || strings.Contains(user, "[") || strings.Contains(user, "\n") || !word(path) || strings.ContainsAny(path, `:\"?`) {
			return
		}
		at, key, _, err = readOne("combined", byIPPath,
			fmt.Sprintf("%s - %s [%s] \"GET %s HTTP/1.1\" 200 1", addr, user, when.Format(clfTime), path))
		if err != nil || at != when.UnixNano() || key != addr+" "+path {
			t.Errorf("%s %s %s: got %d %q, %v", addr, user, path, at, key, err)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	stamp := func(i int) time.Time { return time.Unix(1772442001+int64(i/3), 0).UTC() }
	for format, line := range map[string]func(i int) string{
		"combined": func(i int) string {
			return fmt.Sprintf(`192.0.2.%d - - [%s] "GET /images/%d.png HTTP/1.1" 200 203023 `+
				`"https://shop.example/products/1" "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"`,
				i%250, stamp(i).Format(clfTime), i)
		},
		"json": func(i int) string {
			return fmt.Sprintf(`{"level":"info","ts":%d.25,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"192.0.2.%d",`+
				`"remote_port":"41342","proto":"HTTP/2.0","method":"GET","host":"shop.example","uri":"/images/%d.png"},"duration":0.000929675,"status":200}`,
				stamp(i).Unix(), i%250, i)
		},
	} {
		b.Run("format="+format, func(b *testing.B) {
			l := newLoader("test.log", readOptions{by: byIP, format: mustFormat(b, format)})
			var lines []heldLine
			for i := range maxHeld {
				lines = append(lines, heldLine{i, []byte(line(i))})
			}
			s, _ := detect(lines, l.opts)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				r, err := s.parse(lines[i%len(lines)].text)
				if err != nil || l.clients.of(r.client).key == "" {
					b.Fatal(r, err)
				}
				i++
			}
		})
	}
}
