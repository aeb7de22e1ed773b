package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// mustRead reads a log that is part of a test.
func mustRead(t testing.TB, text string, by keyKind) *trace {
	t.Helper()
	tr, err := readTrace(strings.NewReader(text), "test.log", readOptions{by: by})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestReadTraceSortsAndCounts(t *testing.T) {
	tr := mustRead(t, `# time key n
100 a
103 b

102 a
103 c
hello
101 b 5
101 a
99 c x
`, byIP)

	want := []request{{100e9, 0, 1}, {101e9, 1, 5}, {101e9, 0, 1}, {102e9, 0, 1}, {103e9, 1, 1}, {103e9, 2, 1}}
	if !reflect.DeepEqual(tr.requests, want) {
		t.Errorf("requests %v, want %v", tr.requests, want)
	}
	if want := []string{"a", "b", "c"}; !reflect.DeepEqual(tr.keys, want) {
		t.Errorf("keys %q, want %q", tr.keys, want)
	}
	if want := []skip{{skipBlank, 2, 1, "# time key n"}, {skipForeign, 1, 7, "hello"}, {skipCount, 1, 10, "99 c x"}}; !reflect.DeepEqual(tr.skips, want) {
		t.Errorf("skips %v, want %v", tr.skips, want)
	}
	if tr.lines != 10 || tr.late != 3 || tr.lateLine != 5 || tr.total != 10 || !tr.weighted || tr.subsecond {
		t.Errorf("lines %d, late %d from line %d, total %d, weighted %v, subsecond %v; want 10, 3 from 5, 10, true, false",
			tr.lines, tr.late, tr.lateLine, tr.total, tr.weighted, tr.subsecond)
	}
}

func TestReadTraceTakesEveryWrapping(t *testing.T) {
	zip := func(parts ...string) string {
		var b bytes.Buffer
		for _, p := range parts {
			z := gzip.NewWriter(&b)
			io.WriteString(z, p)
			z.Close()
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"plain":                           "1 a\n2 b\n",
		"no last line break":              "1 a\n2 b",
		"Windows line breaks":             "1 a\r\n2 b\r\n",
		"byte order mark":                 "\ufeff1 a\n2 b\n",
		"UTF-16, as PowerShell writes it": "\xff\xfe1\x00 \x00a\x00\n\x002\x00 \x00b\x00\r\x00\n\x00",
		"UTF-16, big endian":              "\xfe\xff\x001\x00 \x00a\x00\n\x002\x00 \x00b\x00\n",
		"gzip":                            zip("1 a\n2 b\n"),
		"gzip in two parts":               zip("1 a\n", "2 b\n"),
		"bzip2":                           "BZh91AY&SY\xf3\xa5\x01~\x00\x00\x02Y\x00\x00\x10@\x000\x000\x00 \x00!\xa6\x99\xa0\xc0\x02\x95\v\v\xb9\"\x9c(Hy\xd2\x80\xbf\x00",
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := readTrace(iotest.OneByteReader(strings.NewReader(text)), "test.log", readOptions{by: byIP})
			if err != nil {
				t.Fatal(err)
			}
			if len(tr.requests) != 2 || tr.lines != 2 || len(tr.skips) != 0 {
				t.Errorf("%d requests, %d lines, skipped %v; want 2, 2, none", len(tr.requests), tr.lines, tr.skips)
			}
		})
	}
}

func TestReadTracePassesByLinesThatAreTooLong(t *testing.T) {
	tr := mustRead(t, "1 a\n2 "+strings.Repeat("b", 3<<20)+"\n3 c\n4 "+strings.Repeat("d", 3<<20), byIP)
	if want := []string{"a", "c"}; !reflect.DeepEqual(tr.keys, want) {
		t.Errorf("keys %q, want %q", tr.keys, want)
	}
	if want := []skip{{skipTooLong, 2, 2, ""}}; tr.lines != 4 || !reflect.DeepEqual(tr.skips, want) {
		t.Errorf("%d lines, skipped %v; want 4, %v", tr.lines, tr.skips, want)
	}
}

func TestReadTraceErrors(t *testing.T) {
	broken := errors.New("broken pipe")
	for name, c := range map[string]struct {
		log  io.Reader
		want []string
	}{
		"empty":        {strings.NewReader(""), []string{"test.log: the log is empty"}},
		"nothing read": {strings.NewReader("a b\nc d\n\n"), []string{"no request in 3 lines", "2 skipped (the first is line 1)", string(skipForeign), "\n    a b\n", "-format"}},
		"cut gzip":     {strings.NewReader("\x1f\x8b\x08"), []string{"begins like a gzip file", "unexpected EOF"}},
		"reader fails": {io.MultiReader(strings.NewReader("1 a\n"), iotest.ErrReader(broken)), []string{"test.log: line 2", "broken pipe"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readTrace(c.log, "test.log", readOptions{by: byIP})
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
		})
	}
}

func TestNouns(t *testing.T) {
	const access = `192.0.2.1 - - [02/Mar/2026:09:00:01 +0000] "GET /a HTTP/1.1" 200 1`
	for _, c := range []struct {
		log         string
		by          keyKind
		noun        string
		key, keys   string
		limitPhrase string
	}{
		{access, byIP, "request", "address", "addresses", "60 requests per minute for each address"},
		{access, byPath, "request", "path", "paths", "60 requests per minute for each path"},
		{access, byIPPath, "request", "pair of address and path", "pairs of address and path", "60 requests per minute for each pair of address and path"},
		{"1 a", byIP, "request", "key", "keys", "60 requests per minute for each key"},
		{"1 a 2", byIP, "event", "key", "keys", "60 events per minute for each key"},
	} {
		tr := mustRead(t, c.log, c.by)
		if tr.noun(1) != c.noun || tr.keyNoun(1) != c.key || tr.keyNoun(2) != c.keys {
			t.Errorf("%s by %s: %q, %q, %q; want %q, %q, %q", c.log, c.by, tr.noun(1), tr.keyNoun(1), tr.keyNoun(2), c.noun, c.key, c.keys)
		}
		if got := minuteLimit(60, 60).inWords(tr); got != c.limitPhrase {
			t.Errorf("limit %q, want %q", got, c.limitPhrase)
		}
	}
}
