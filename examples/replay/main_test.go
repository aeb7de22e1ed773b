package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// runReplay runs the command and returns what it wrote.
func runReplay(t *testing.T, stdin string, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	if err := run(args, strings.NewReader(stdin), &out, &errs); err != nil {
		t.Fatalf("replay %q: %v", args, err)
	}
	return out.String(), errs.String()
}

func bundledTrace(t testing.TB) *trace {
	t.Helper()
	tr, err := readLog(settings{read: readOptions{by: byIP}}, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// The results for the bundled log are pinned: they change only if the log or a decision
// changes.
func TestBundledLog(t *testing.T) {
	got, _ := runReplay(t, "", "-o", "", "-alg", "all")
	want := `the bundled log: 12,224 requests from 52 addresses, 2026-03-02 09:00:00 UTC to 2026-03-02 09:59:59 UTC
format: Common or Combined Log Format
limit: 60 requests per minute for each address

algorithm                   allowed  denied  denied %  keys limited  worst key     its denials  longest wait
──────────────────────────────────────────────────────────────────────────────────────────────────────────────
token bucket                  9,649   2,575    21.1 %             5  203.0.113.66        1,744            1s
token bucket, at intervals    9,164   3,060    25.0 %             6  203.0.113.66        1,803           59s
leaky bucket                  9,649   2,575    21.1 %             5  203.0.113.66        1,744            1s
fixed window                  9,370   2,854    23.3 %             6  203.0.113.66        1,803           58s
fixed window, from first      9,164   3,060    25.0 %             6  203.0.113.66        1,803           59s
sliding window                9,215   3,009    24.6 %             6  203.0.113.66        1,817           59s
sliding log                   9,163   3,061    25.0 %             6  203.0.113.66        1,803           59s
rolling window                9,164   3,060    25.0 %             6  203.0.113.66        1,803           58s
warming up                    2,142  10,082    82.5 %            50  203.0.113.66        2,405         2.97s
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTable(t *testing.T) {
	stdout, stderr := runReplay(t, smallLog+"100 c\nhello\nworld\n", "-o", "", "-limit", "3/10s", "-alg", "token,log,fixed", "-")
	want := `standard input: 14 events from 3 keys, 1970-01-01 00:01:40.000 UTC to 1970-01-01 00:02:00.000 UTC
format: 'time key [n]'
limit: 3 events per 10s for each key

algorithm     allowed  denied  denied %  keys limited  worst key  its denials  longest wait
─────────────────────────────────────────────────────────────────────────────────────────────
token bucket        8       6    42.9 %             1  a                    6       forever
sliding log         7       7    50.0 %             1  a                    7       forever
fixed window        9       5    35.7 %             1  a                    5       forever
`
	if stdout != want {
		t.Errorf("got\n%s\nwant\n%s", stdout, want)
	}
	wantErr := `skipped 2 of 14 lines: not in the log's format (the first is line 13)
skipped 1 of 14 lines: blank or a comment (line 1)
sorted 1 of 14 lines that came after a later one (line 12)
`
	if stderr != wantErr {
		t.Errorf("standard error:\n%s\nwant\n%s", stderr, wantErr)
	}
}

func TestFileAndPage(t *testing.T) {
	dir := t.TempDir()
	access, page := filepath.Join(dir, "access.log"), filepath.Join(dir, "page.html")
	line := `192.0.2.1 - - [02/Mar/2026:09:00:01 +0000] "GET /a HTTP/1.1" 200 12` + "\n"
	if err := os.WriteFile(access, []byte(strings.Repeat(line, 5)), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, _ := runReplay(t, "", "-limit", "2/s", "-key", "ip+path", "-alg", "log", "-o", page, access)
	for _, want := range []string{"192.0.2.1 /a", "60.0 %", "plots: " + page} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(html, []byte("access.log")) {
		t.Error("the page does not name the log")
	}
}

// TestOverwritesOnlyPages checks that -o replaces no file but an empty one and a page, whatever the
// name of the file: the log itself, in particular.
func TestOverwritesOnlyPages(t *testing.T) {
	dir := t.TempDir()
	access, other, page := filepath.Join(dir, "access.log"), filepath.Join(dir, "other.html"), filepath.Join(dir, "page.html")
	texts := map[string]string{access: "1 a\n2 b\n", other: "<!DOCTYPE html>\n<html>\n", page: ""}
	for name, text := range texts {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link.html")
	if err := os.Symlink(access, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{access, link, other} {
		err := run([]string{"-o", name, access}, nil, io.Discard, io.Discard)
		if want := "-o " + name + ": this file exists, and is not a page of replay"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	for range 2 {
		runReplay(t, "", "-o", page, access)
	}
	for _, name := range []string{access, other} {
		if text, err := os.ReadFile(name); err != nil || string(text) != texts[name] {
			t.Errorf("%s is now %.20q, error %v; want %q", name, text, err, texts[name])
		}
	}
}

// TestWatched checks that a log may be a pipe, or grow while it is read.
func TestWatched(t *testing.T) {
	const log = "1 a\n2 b\n"
	for _, size := range []int64{0, 1, int64(len(log)), 100} {
		got, err := io.ReadAll(watched(strings.NewReader(log), progress(io.Discard, "reading", size, 0, true)))
		if err != nil || string(got) != log {
			t.Errorf("size %d: got %q, %v; want %q", size, got, err, log)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		args  string
		usage bool
		want  string
	}{
		{"-limit 5", true, `-limit: `},
		{"-limit 0/s", true, `-limit: `},
		{"-burst -1", true, `-burst -1: must be at least 1, or 0`},
		{"-key user", true, `-key "user": must be ip, path or ip+path`},
		{"-format clg", true, `-format "clg": must be one of auto, combined, vhost_combined, json`},
		{"-json ts", true, `-json "ts": must be some of time=FIELD`},
		{"-json time=ts,user=a", true, `-json "user=a": must be some of time=FIELD`},
		{"-json time=", true, `-json "time=": must be some of`},
		{"-json key=a,key=b", true, `-json "key=b": key is given twice`},
		{"-format s3 -json time=ts", true, "-json is for JSON lines, but -format is s3"},
		{"-format s3 -", false, "not in the log's format"},
		{"-alg bucket", true, `unknown algorithm "bucket": must be all, or a list of some of token,`},
		{"-colour", true, "flag provided but not defined: -colour"},
		{"a.log b.log", true, `2 logs given, the second is "b.log"`},
		{"no/such.log", false, "open no/such.log: "},
		{"-o no/such/page.html -", false, "-o: open no/such/page.html: "},
	} {
		err := run(strings.Fields(c.args), strings.NewReader("1 a\n"), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.args, err, c.want)
		}
		if got := errors.As(err, new(usageError)); got != c.usage {
			t.Errorf("%s: is a usage error: %v, want %v", c.args, got, c.usage)
		}
	}
	var help bytes.Buffer
	if err := run([]string{"-h"}, nil, io.Discard, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "-burst n") {
		t.Errorf("-h: got %v and %q, want %v and all flags", err, help.String(), flag.ErrHelp)
	}
}
