package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

const accessLine = `192.0.2.1 - - [02/Mar/2026:09:00:01 +0000] "GET /a HTTP/1.1" 200 12` + "\n"

// A first field that is not an address suggests that the format is another one, and
// limiting by it would be meaningless.
func TestClientsThatAreNoAddresses(t *testing.T) {
	named := strings.ReplaceAll(accessLine, "192.0.2.1", "shop.example")
	prefixed := "2026-03-02 09:00:01 " + accessLine
	manyGood := strings.Repeat(accessLine, maxHeld)
	for _, c := range []struct {
		name string
		log  string
		o    readOptions
		want string // in the error; none if empty
	}{
		{"all", strings.Repeat(named, 3), readOptions{by: byIP}, `is not an IP address in 3 of 3 requests; in line 1 it is "shop.example"`},
		{"most", accessLine + named + named, readOptions{by: byIP}, `is not an IP address in 2 of 3 requests; in line 2 it is "shop.example"`},
		{"half", accessLine + named, readOptions{by: byIP}, ""},
		{"most, after many that are", manyGood + strings.Repeat(named, maxHeld+1), readOptions{by: byIP}, "is not an IP address in 1,001 of 2,001 requests; in line 1001 it is"},
		{"by pairs", named, readOptions{by: byIPPath}, "is not an IP address"},
		{"by paths", named, readOptions{by: byPath}, ""},
		{"format given", named, readOptions{by: byIP, format: mustFormat(t, "combined")}, ""},
		{"an unknown prefix", prefixed, readOptions{by: byIP}, `in line 1 it is "2026-03-02":` + "\n    2026-03-02 09:00:01 192.0.2.1 - -"},
		{"a key in JSON", `{"ts":1772442001,"client":"alice"}`, readOptions{by: byIP}, `in line 1 it is "alice"`},
		{"a key in JSON that is given", `{"ts":1772442001,"client":"alice"}`,
			readOptions{by: byIP, format: jsonFormat, json: jsonFields{key: "client"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := readTrace(strings.NewReader(c.log), "test.log", c.o)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if c.o.by != byPath && (tr.names == 0 || tr.name == "") {
					t.Errorf("%d names, such as %q; want some", tr.names, tr.name)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "-format") {
				t.Errorf("error %v, want %q and -format in it", err, c.want)
			}
		})
	}
}

// A service may write thousands of other lines before the first request.
func TestFormatIsFoundLate(t *testing.T) {
	for name, noise := range map[string]string{
		"few":                            "started\n",
		"many":                           strings.Repeat("LOG:  checkpoint complete\n", 3*maxHeld+7),
		"long":                           strings.Repeat("x", maxHeldBytes/2) + "\n" + strings.Repeat("y", maxHeldBytes-2) + "\n",
		"too long":                       strings.Repeat("x", 3*maxLine) + "\n",
		"in brackets":                    strings.Repeat("[error] open() failed\n", maxHeld),
		"JSON":                           strings.Repeat(`{"level":"info","ts":1772442000,"msg":"started"}`+"\n", maxHeld),
		"junk that looks like a request": strings.Repeat(strings.Repeat("\x00\xff junk\n", 999)+"5 key\n", 2),
		"times and one word":             strings.Repeat("2026-03-02T09:00:00Z nginx started as a daemon\n", maxHeld),
	} {
		t.Run(name, func(t *testing.T) {
			tr := mustRead(t, noise+strings.Repeat(accessLine, 5), byIP)
			if tr.format != "Common or Combined Log Format" || len(tr.requests) != 5 || !reflect.DeepEqual(tr.keys, []string{"192.0.2.1"}) {
				t.Errorf("%s: %d requests of %q; want 5 of 192.0.2.1", tr.format, len(tr.requests), tr.keys)
			}
			skipped := 0
			for _, s := range tr.skips {
				skipped += s.count
			}
			if want := strings.Count(noise, "\n"); skipped != want {
				t.Errorf("%d skipped, want %d: %v", skipped, want, tr.skips)
			}
		})
	}
}

// A log is read in one format: the one that most of its first lines have.
func TestMixedFormats(t *testing.T) {
	tr := mustRead(t, strings.Repeat("1772442001 alice\n", 3)+strings.Repeat(accessLine, 4), byIP)
	if tr.format != "Common or Combined Log Format" || len(tr.requests) != 4 {
		t.Errorf("%s: %d requests, want 4 in Combined Log Format", tr.format, len(tr.requests))
	}
	if want := []skip{{skipForeign, 3, 1, "1772442001 alice"}}; !reflect.DeepEqual(tr.skips, want) {
		t.Errorf("skipped %v, want %v", tr.skips, want)
	}
}

func TestJSONFields(t *testing.T) {
	const line = `{"a":{"t":1772442001000},"b":{"c.d":"alice"},"e.f":"192.0.2.1","ts":1,"ip":"192.0.2.9","u":"/x","uri":"/y"}`
	for _, c := range []struct {
		fields string
		by     keyKind
		format string
		at     int64
		key    string
		keys   string
	}{
		{"", byIPPath, "(time=ts,key=ip,path=uri)", 1e9, "192.0.2.9 /y", "pairs of address and path"},
		{"time=a.t", byIP, "(time=a.t,key=ip)", 1772442001e9, "192.0.2.9", "addresses"},
		{"time=a.t,key=e.f", byIP, "(time=a.t,key=e.f)", 1772442001e9, "192.0.2.1", "addresses"},
		{" key = u , path=u", byIPPath, "(time=ts,key=u,path=u)", 1e9, "/x /x", "pairs of client and path"},
		{"key=a.t", byIP, "(time=ts,key=a.t)", 1e9, "1772442001000", "clients"},
	} {
		fields, err := parseJSONFields(c.fields)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := readTrace(strings.NewReader(line), "test.log", readOptions{by: c.by, format: jsonFormat, json: fields})
		if err != nil {
			t.Errorf("%s: %v", c.fields, err)
			continue
		}
		if r := tr.requests[0]; tr.format != "JSON lines "+c.format || r.at != c.at || tr.keys[r.key] != c.key || tr.keyNoun(2) != c.keys {
			t.Errorf("%s: %s, %d %q, %s; want %s, %d %q, %s", c.fields,
				tr.format, r.at, tr.keys[r.key], tr.keyNoun(2), c.format, c.at, c.key, c.keys)
		}
	}
}

// A compressed file that is cut off or damaged is read up to that point. The incomplete last line
// is left out.
func TestDamagedCompression(t *testing.T) {
	pack := func(w io.WriteCloser, err error) {
		t.Helper()
		for i := 0; i < 20_000 && err == nil; i++ {
			_, err = fmt.Fprintf(w, "%d key%d\n", 1772442001+i, i*i%7919)
		}
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	var zipped, xzipped, zstandard bytes.Buffer
	pack(gzip.NewWriter(&zipped), nil)
	pack(xz.NewWriter(&xzipped))
	pack(zstd.NewWriter(&zstandard))
	for _, packed := range []bytes.Buffer{zipped, xzipped, zstandard} {
		tr, err := readTrace(&packed, "test.log", readOptions{by: byIP})
		if err != nil || len(tr.requests) != 20_000 || tr.damage != nil {
			t.Fatalf("whole: %v, error %v; want 20,000 requests, no damage", tr, err)
		}
	}
	whole := zipped.Bytes()
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 0x55
	for name, text := range map[string][]byte{
		"cut off":          whole[:len(whole)*2/3],
		"cut off at once":  whole[:len(whole)-1],
		"wrong checksum":   append(bytes.Clone(whole[:len(whole)-8]), 0, 0, 0, 0, 0, 0, 0, 0),
		"something behind": append(bytes.Clone(whole), "garbage that is no gzip stream"...),
		"a byte changed":   flipped,
		"xz":               xzipped.Bytes()[:xzipped.Len()-20],
		"zstd":             zstandard.Bytes()[:zstandard.Len()*2/3],
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := readTrace(bytes.NewReader(text), "test.log", readOptions{by: byIP})
			if err != nil {
				t.Fatal(err)
			}
			if tr.damage == nil || len(tr.requests) < 1000 || tr.lines < len(tr.requests) {
				t.Errorf("%d requests of %d lines, damage %v; want many, and damage", len(tr.requests), tr.lines, tr.damage)
			}
			if name == "a byte changed" {
				return
			}
			for i, r := range tr.requests {
				if want := fmt.Sprintf("key%d", i*i%7919); tr.keys[r.key] != want {
					t.Fatalf("request %d has key %s, want %s", i, tr.keys[r.key], want)
				}
			}
			var stderr bytes.Buffer
			reportSkips(&stderr, tr)
			if want := fmt.Sprintf("cut off after line %s (%v)", comma(int64(tr.lines)), tr.damage); !strings.Contains(stderr.String(), want) {
				t.Errorf("reported %q, want %q in it", stderr.String(), want)
			}
			if f := fmt.Sprint(facts(tr)); !strings.Contains(f, "cut off") {
				t.Errorf("the page's facts do not say that it was cut off: %s", f)
			}
		})
	}

	if _, err := readTrace(bytes.NewReader(whole[:20]), "test.log", readOptions{by: byIP}); err == nil || !strings.Contains(err.Error(), "ends early") {
		t.Errorf("cut off in the first line: error %v, want one that says so", err)
	}
	// A read error is still an error, and not damage.
	if _, err := readTrace(io.MultiReader(bytes.NewReader(whole[:len(whole)/2]), iotest.ErrReader(iotest.ErrTimeout)), "test.log", readOptions{by: byIP}); err == nil {
		t.Error("no error of a reader that fails")
	}
}

// The cache of clients is bounded, and evicted clients are parsed again.
func TestClientsAreBounded(t *testing.T) {
	known := newClients()
	for i := range 3 * maxClients {
		addr := fmt.Sprintf("10.%d.%d.%d:%d", i>>16, i>>8&255, i&255, i%10_000)
		want, _, _ := strings.Cut(addr, ":")
		for range 2 {
			if got := known.of([]byte(addr)); got != (client{want, true}) {
				t.Fatalf("%s: %v, want %s", addr, got, want)
			}
		}
		if len(known.known) > maxClients {
			t.Fatalf("%d clients are remembered, want at most %d", len(known.known), maxClients)
		}
	}
}

// Errors say what is wrong with a log that has no readable line.
func TestNothingToRead(t *testing.T) {
	for text, want := range map[string]string{
		strings.Repeat("\x00junk\n", 99) + "5 key\n":               "no request in 100 lines; 100 skipped (the first is line 1): not in the log's format:\n    \ufffdjunk",
		strings.Repeat("x", 2*maxLine):                             "no request in 1 line; 1 skipped (line 1): longer than 1 MiB\nSet",
		"\n \r\n":                                                  "no request in 2 lines; 2 skipped (the first is line 1): blank or a comment\n",
		`{"ts":1772442001,"request":{"remote_ip":null}}`:           string(skipNoClient),
		`{"ts":"yesterday","ip":"192.0.2.1"}`:                      string(skipTime),
		"#Fields: date time c-ip\n2026-03-02 09:00:01 -\n":         string(skipNoClient),
		"#Fields: date time s-ip\n2026-03-02 09:00:01 192.0.2.1\n": string(skipNoFields),
	} {
		_, err := readTrace(strings.NewReader(text), "test.log", readOptions{by: byIP})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: error %v, want %q in it", text, err, want)
		}
	}
}
