package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// runReplay runs the command and returns what it wrote.
func runReplay(t *testing.T, stdin string, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	require.NoError(t, run(args, strings.NewReader(stdin), &out, &errs), "replay %q", args)
	return out.String(), errs.String()
}

// fails runs the command, which must fail, and returns its error.
func fails(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	err := run(append([]string{"-o", ""}, args...), strings.NewReader(stdin), io.Discard, io.Discard)
	require.Error(t, err, "replay %q", args)
	return err.Error()
}

// read reads a log with the options of a command line.
func read(t *testing.T, stdin string, args ...string) *trace {
	t.Helper()
	s, err := parseArgs(args, io.Discard)
	require.NoError(t, err)
	tr, err := readLog(s, strings.NewReader(stdin))
	require.NoError(t, err)
	return tr
}

// The results for the bundled log are pinned: they change only if the log or a decision changes.
func TestBundledLog(t *testing.T) {
	got, problems := runReplay(t, "", "-o", "", "-alg", "all")
	assert.Equal(t, `the bundled log: 12,224 requests from 52 clients, 2026-03-02 09:00:00 UTC to 2026-03-02 09:59:59 UTC
format: Common or Combined Log Format
limit: 60/m for each client

algorithm                       allowed       denied     share  keys limited  longest wait   denied most
token bucket                      9,649        2,575    21.1 %             5            1s   203.0.113.66 1,744
token bucket, at intervals        9,164        3,060    25.0 %             6           59s   203.0.113.66 1,803
leaky bucket                      9,649        2,575    21.1 %             5            1s   203.0.113.66 1,744
fixed window                      9,370        2,854    23.3 %             6           58s   203.0.113.66 1,803
fixed window, from first          9,164        3,060    25.0 %             6           59s   203.0.113.66 1,803
sliding window                    9,215        3,009    24.6 %             6           59s   203.0.113.66 1,817
sliding log                       9,163        3,061    25.0 %             6           59s   203.0.113.66 1,803
rolling window                    9,164        3,060    25.0 %             6           58s   203.0.113.66 1,803
warming up                        2,142       10,082    82.5 %            50         2.97s   203.0.113.66 2,405

The 9 algorithms decide alike on 29.6 % of the requests. Where they do not, choose by what you promise to clients; in doubt, take the token bucket.

A token bucket of 162/m would deny at most 1 % of the requests, and one of 170/m anything to at most 1 % of the clients.
`, got)
	assert.Equal(t, "sorted 400 of 12,224 lines that came after a later one\n", problems)
}

// Each sample has the same four requests: at seconds 1, 2, 2 and 3, of two clients. One of them
// has two addresses of one /64.
func checkSample(t *testing.T, tr *trace) {
	t.Helper()
	assert.Equal(t, []string{"203.0.113.9", "2001:db8:1:2::/64"}, tr.keys)
	var got []request
	for _, r := range tr.requests {
		second := time.Unix(0, r.at).Sub(time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)).Truncate(time.Second)
		got = append(got, request{int64(second / time.Second), r.key, r.n})
	}
	assert.Equal(t, []request{{1, 0, 1}, {2, 1, 1}, {2, 0, 1}, {3, 1, 1}}, got)
}

// TestSamples reads the formats that need no -pattern.
func TestSamples(t *testing.T) {
	for _, name := range []string{
		"common", "combined", "combined-forwarded", "combined-ports", "caddy", "traefik", "envoy", "nginx-json", "nginx-json-msec",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", "formats", name+".log")
			checkSample(t, read(t, "", file))
			if name != "nginx-json-msec" {
				assert.Equal(t, []string{"/a", "/b", "/"}, read(t, "", "-key", "path", file).keys)
			}
		})
	}
}

// TestDocumentedPatterns runs each command of docs/replay.md that reads a sample, and checks that
// no sample is without one.
func TestDocumentedPatterns(t *testing.T) {
	page, err := os.ReadFile("../../docs/replay.md")
	require.NoError(t, err)
	files := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^ *go run ./examples/replay (.*) examples/replay/(testdata/formats/\S+)$`).FindAllSubmatch(page, -1) {
		file := string(line[2])
		t.Run(filepath.Base(file), func(t *testing.T) {
			// The arguments, of which some are in quotes.
			var args []string
			for _, arg := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllSubmatch(line[1], -1) {
				args = append(args, string(arg[1])+string(arg[2]))
			}
			checkSample(t, read(t, "", append(args, file)...))
			assert.Contains(t, args, "-pattern")
			files[file] = true
		})
	}
	for _, name := range []string{
		"envoy-text", "istio", "haproxy", "iis", "cloudfront", "s3", "alb", "elb", "combined-docker", "combined-jsonfile",
		"combined-compose", "combined-kubernetes", "combined-syslog", "combined-rsyslog", "vhost_combined",
	} {
		assert.Contains(t, files, "testdata/formats/"+name+".log")
	}
}

// No log is read as a common one whose first field is something else than the client.
func TestNoFormatIsMistaken(t *testing.T) {
	samples, err := filepath.Glob("testdata/formats/*.log")
	require.NoError(t, err)
	for _, file := range samples {
		s, err := parseArgs([]string{file}, io.Discard)
		require.NoError(t, err)
		if tr, err := readLog(s, nil); err == nil {
			checkSample(t, tr)
		}
	}
	assert.Contains(t, fails(t, `192.0.2.1:443 203.0.113.9 - - [02/Mar/2026:09:00:01 +0000] "GET / HTTP/1.1" 200 1`, "-"), "line 1: not a common")
}

func TestPlain(t *testing.T) {
	tr := read(t, "# time key n\n1772442001.25 a\n\n2026-03-02T10:00:01.25+01:00\tb 3\n"+
		"1772442001250 192.0.2.1:80\r\n1772442001250000 a 1\n1772442001250000000 a", "-")
	assert.Equal(t, []string{"a", "b", "192.0.2.1"}, tr.keys)
	for i, want := range []request{{0, 0, 1}, {0, 1, 3}, {0, 2, 1}, {0, 0, 1}, {0, 0, 1}} {
		want.at = time.Date(2026, 3, 2, 9, 0, 1, 250e6, time.UTC).UnixNano()
		assert.Equal(t, want, tr.requests[i])
	}
	assert.Equal(t, int64(7), tr.total)
}

func TestPattern(t *testing.T) {
	const log = "Mon 2 Mar 2026 9:05 PM;ann;3;/a?x\nMon 2 Mar 2026 9:06 PM;bob;;/b\n"
	const pattern = `^(?<time>[^;]*);(?<key>[^;]*);(?<n>[^;]*);(?<path>.*)$`
	tr := read(t, log, "-pattern", pattern, "-time", "Mon 2 Jan 2006 3:04 PM", "-")
	at := time.Date(2026, 3, 2, 21, 5, 0, 0, time.UTC).UnixNano()
	assert.Equal(t, []request{{at, 0, 3}, {at + int64(time.Minute), 1, 1}}, tr.requests)
	assert.Equal(t, []string{"ann", "bob"}, tr.keys)
	assert.Equal(t, []string{"ann /a", "bob /b"}, read(t, log, "-key", "ip+path", "-pattern", pattern, "-time", "Mon 2 Jan 2006 3:04 PM", "-").keys)
}

func TestJSONFields(t *testing.T) {
	tr := read(t, `{"@timestamp":"2026-03-02T09:00:01Z","user":{"id":7},"ip":"192.0.2.1","to":"/x?y"}`, "-json",
		"@timestamp,user.id,to", "-key", "ip+path", "-")
	assert.Equal(t, []string{"7 /x"}, tr.keys)
}

// A server does not know the client of each request, such as one over a Unix socket: it writes -, also
// in the first line.
func TestFirstClientUnknown(t *testing.T) {
	const log = `- - - [02/Mar/2026:09:00:01 +0000] "GET /a HTTP/1.1" 200 512
192.0.2.1 - - [02/Mar/2026:09:00:02 +0000] "GET /b HTTP/1.1" 200 512
`
	tr := read(t, log, "-")
	assert.Equal(t, []string{"192.0.2.1"}, tr.keys)
	require.Len(t, tr.problems(), 1)
	assert.Contains(t, tr.problems()[0], "skipped 1 of 2 lines: ")
	assert.Equal(t, []string{"/a", "/b"}, read(t, log, "-key", "path", "-").keys)
}

// A line that does not fit is counted and shown. A first line that nothing reads is an error.
func TestSkips(t *testing.T) {
	long := strings.Repeat("x", 2<<20)
	log := "# a comment\n100 a\nhello\x1b[2J\n" + long + "\n101 a 0\n102 a 2147483648\n1e300 a\n99999999999999999999 a\n8000000000 a\n\n103 b\nworld\n"
	tr := read(t, log, "-")
	assert.Equal(t, []string{"a", "b"}, tr.keys)
	assert.Equal(t, []string{
		"skipped 2 of 12 lines: blank or a comment; the first is line 1: # a comment",
		"skipped 3 of 12 lines: not in the log's format; the first is line 3: hello�[2J",
		"skipped 1 of 12 lines: longer than 1 MiB; the first is line 4",
		"skipped 2 of 12 lines: n is not an integer from 1 to 2147483647; the first is line 5: 101 a 0",
		"skipped 2 of 12 lines: the time is before 1970 or after 2200; the first is line 8: 99999999999999999999 a",
	}, tr.problems())

	for name, log := range map[string]string{
		"text":       "Jan 2 03:04:05 host sshd[1]: Accepted password for ann\n100 a\n",
		"binary":     "\x00\x01\xff\xfe\x1b]0;\x07\n100 a\n",
		"a long one": strings.Repeat("x", 1<<20-1) + "\n",
	} {
		got := fails(t, log, "-")
		assert.Contains(t, got, "standard input: line 1: not a common or combined log, JSON lines, or 'time key [n]'", name)
		assert.Contains(t, got, "-pattern '(?<key>", name)
		assert.Less(t, len(got), 3000, name)
		assert.NotContains(t, got, "\x1b", name)
	}
	assert.Contains(t, fails(t, "hello\n", "-pattern", "(?<time>x)(?<key>y)", "-"), "skipped 1 of 1 lines: not in the log's format; the first is line 1: hello")
	assert.Contains(t, fails(t, `{"at":1,"who":"a"}`, "-"), "give the names of the fields: -json TIME,KEY")
	assert.Contains(t, fails(t, "1 a", "-key", "path", "-"), "the path is missing")
	assert.Contains(t, fails(t, "", "-"), "it is empty")
}

func TestGzip(t *testing.T) {
	var log, packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	for i := range 20_000 {
		line := strings.Repeat("x", i%97)
		log.WriteString("100 a" + line + "\n")
	}
	_, err := w.Write(log.Bytes())
	require.NoError(t, err)
	require.NoError(t, w.Close())
	whole := read(t, packed.String(), "-")
	assert.Len(t, whole.requests, 20_000)
	assert.Empty(t, whole.problems())

	cut := read(t, packed.String()[:packed.Len()-packed.Len()/3], "-")
	assert.Less(t, len(cut.requests), 20_000)
	assert.Equal(t, whole.requests[:len(cut.requests)], cut.requests)
	assert.Contains(t, cut.problems()[0], "the compressed file is damaged or cut off after line ")
	assert.Contains(t, fails(t, "\x1f\x8bhello, world", "-"), "standard input begins like a gzip file and is none")
	assert.Contains(t, fails(t, packed.String()[:20], "-"), "cut off after line 0 (unexpected EOF)")
}

// -o replaces no file but an empty one and a page, whatever the name of the file.
func TestOverwritesOnlyPages(t *testing.T) {
	dir := t.TempDir()
	access, other, page := filepath.Join(dir, "access.log"), filepath.Join(dir, "other.html"), filepath.Join(dir, "page.html")
	texts := map[string]string{access: "1 a\n2 b\n", other: "<!DOCTYPE html>\n<html>\n" + strings.Repeat(" ", 1000), page: ""}
	for name, text := range texts {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	link := filepath.Join(dir, "link.html")
	require.NoError(t, os.Symlink(access, link))
	for _, name := range []string{access, link, other} {
		assert.Contains(t, fails(t, "", "-o", name, access), "-o "+name+": this file exists, and is not a page of replay")
	}
	for range 2 {
		stdout, _ := runReplay(t, "", "-o", page, access)
		assert.Contains(t, stdout, "plots: "+page)
	}
	for _, name := range []string{access, other} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, texts[name], string(text))
	}
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, string(html), "access.log")
}

func TestErrors(t *testing.T) {
	for args, want := range map[string]string{
		"-limit 5":               "-limit: ",
		"-limit many/day":        `-limit: "many/day": "many" is not a whole number of events`,
		"-limit 0/day":           "-limit: ratelimit: CalendarWindow.Limit is 0",
		"-limit 9/day@":          `-limit: "9/day@": name a time zone after the @, or leave it out for UTC`,
		"-limit 9/day@Mars":      `-limit: ratelimit: CalendarWindow.Zone is "Mars": it must be the name of a time zone`,
		"-limit 9/24h@UTC":       `-limit: "9/24h@UTC": only a day, week, month, quarter or year has a time zone`,
		"-limit 9/fortnight":     "-limit: ratelimit: Rate is",
		"-limit 9/months":        "or EVENTS/UNIT, such as 1000/day, of a day, week, month, quarter or year",
		"-alg calendar":          "-alg: calendar needs a -limit such as 1000/day@Europe/London",
		"-burst -1":              "-burst -1: must be at least 1, or 0",
		"-key user":              `-key "user": must be ip, path or ip+path`,
		"-json ts":               `-json "ts": must be the names of two or three fields`,
		"-json a,b -pattern x":   "-pattern and -json: give one of them",
		"-pattern (":             "-pattern: error parsing regexp",
		"-pattern (?<time>x)":    "needs the groups (?<time>…) and (?<key>…)",
		"-alg bucket":            `unknown algorithm "bucket": must be all, or a list of some of token,`,
		"-colour":                "flag provided but not defined: -colour",
		"a.log b.log":            `2 logs given, the second is "b.log"`,
		"no/such.log":            "open no/such.log: ",
		".":                      "read .: is a directory",
		"-o no/such/page.html -": "-o: open no/such/page.html: ",
	} {
		assert.Contains(t, fails(t, "1 a\n", strings.Fields(args)...), want, args)
	}
}

// A log on which the algorithms decide differently with 3 per 10 s, checked by hand. Key b must
// not affect key a.
func TestDecisions(t *testing.T) {
	tr := read(t, "100 a\n100 b\n109 a\n109 a\n109 a\n110 a\n111 a\n112.5 a\n119 a 4\n120 a\n", "-")
	l := limit{rate: ratelimit.Rate{Events: 3, Per: 10 * time.Second}, burst: 3}
	// By request: a b a a a, at 110, 111 and 112.5, the four at once, the last.
	for list, want := range map[string]string{
		"token":    "YYYYY nnY n Y", // at 109, 3 tokens again: one arrives every 3⅓ s
		"interval": "YYYYn YYY n Y", // the lump comes at 110
		"leaky":    "YYYYY nnY n Y",
		"fixed":    "YYYYn YYY n Y", // a new window at 110
		"first":    "YYYYn YYY n Y", // windows from 100, 110 and 120: the clock's, in this case
		"sliding":  "YYYYn nnn n Y", // at 112.5, ¾ of 3 still count: with 1 more, 3¼
		"log":      "YYYYn Ynn n Y", // at 120, only that of 110 (10 s old) no longer counts
	} {
		cs, err := l.candidates(list)
		require.NoError(t, err)
		outcomes, err := replay(tr, cs)
		require.NoError(t, err)
		o, got, denied := outcomes[0], "", int64(0)
		for i, r := range tr.requests {
			if o.denials[i] {
				got += "n"
				denied += int64(r.n)
			} else {
				got += "Y"
			}
		}
		assert.Equal(t, strings.ReplaceAll(want, " ", ""), got, list)
		assert.Equal(t, []int64{tr.total - denied, denied, 1}, []int64{o.allowed, o.denied, int64(o.limited)}, list)
		assert.Equal(t, []int64{denied, 0}, o.deniedOf, list)
		assert.Equal(t, ratelimit.Never, o.longestWait, "4 at once exceed the limit of 3")
	}
}

// The days of London, which set its clock forward on 29 March, have 24, 23 and 24 hours.
func TestCalendar(t *testing.T) {
	const log = "2026-03-28T12:00:00Z a\n2026-03-28T23:59:59Z a\n2026-03-29T00:00:00Z a\n2026-03-29T22:59:59Z a\n2026-03-29T23:00:00Z a\n"
	for flag, want := range map[string][]bool{
		"1/day@Europe/London": {false, true, false, true, false},
		"1/day":               {false, true, false, true, true}, // 28 and 29 March of UTC
		"1/week":              {false, true, true, true, true},  // until Sunday, 29 March
		"1/week@Asia/Tokyo":   {false, true, true, false, true}, // until Sunday, 15:00 UTC
		"1/month":             {false, true, true, true, true},
		"1/Month":             {false, true, true, true, true},
		"1/quarter":           {false, true, true, true, true},
		"1/year":              {false, true, true, true, true},
	} {
		s, err := parseArgs([]string{"-limit", flag, "-alg", "calendar", "-"}, io.Discard)
		require.NoError(t, err)
		outcomes, err := replay(read(t, log, "-"), s.candidates)
		require.NoError(t, err)
		assert.Equal(t, want, outcomes[0].denials, flag)
	}
	for list, n := range map[string]int{"": 9, "all": 10, "calendar": 1} {
		s, err := parseArgs([]string{"-limit", "5/month", "-alg", list}, io.Discard)
		require.NoError(t, err)
		assert.Len(t, s.candidates, n, list)
		assert.Equal(t, "calendar", s.candidates[0].id)
	}
	got, _ := runReplay(t, log, "-o", "", "-limit", "1/day@Europe/London", "-")
	assert.Contains(t, got, "limit: 1 in each day of Europe/London, or 1/d, for each key\n")
}

// With a burst below the limit, no algorithm's rate exceeds the limit, and each can be made.
func TestBurst(t *testing.T) {
	for _, l := range []limit{
		{rate: ratelimit.PerMinute(60), burst: 7},
		{rate: ratelimit.PerDay(1_000_000), burst: 1},
		{rate: ratelimit.Rate{Events: 7, Per: 11}, burst: 3},
	} {
		cs, err := l.candidates("all")
		require.NoError(t, err)
		_, err = replay(read(t, "1 a\n", "-"), cs)
		require.NoError(t, err)
		r := l.refill()
		assert.LessOrEqual(t, float64(r.Events)/float64(r.Per), float64(l.rate.Events)/float64(l.rate.Per))
	}
}

func TestLimitInWords(t *testing.T) {
	got, _ := runReplay(t, "1 a\n", "-o", "", "-limit", "3/10s", "-burst", "2000", "-")
	assert.Contains(t, got, "limit: 3/10s, burst 2,000, for each key\n")
}

// Only keys that were denied are listed as denied most.
func TestDeniedMost(t *testing.T) {
	for log, want := range map[string][]string{
		"0 busy 2\n0 some 4\n0 most 5\n0 rare 1\n": {"most", "some"},
		"0 busy 3\n0 rare 1\n":                     nil,
	} {
		tr := read(t, log, "-")
		cs, err := limit{rate: ratelimit.Rate{Events: 3, Per: time.Hour}, burst: 3}.candidates("fixed")
		require.NoError(t, err)
		outcomes, err := replay(tr, cs)
		require.NoError(t, err)
		var got []string
		for _, key := range mostLimited(tr, outcomes, make([]int64, len(tr.keys))) {
			got = append(got, tr.keys[key])
		}
		assert.Equal(t, want, got)
	}
}

// The plots count each event once, in few enough bins.
func TestPlots(t *testing.T) {
	for _, log := range []string{"0 a\n", "0 a\n7000000000 b 5\n", "100 a\n100.001 a\n100.002 b", "100 a\n100 a\n4000 a\n4000 b 3\n"} {
		tr := read(t, log, "-")
		cs, err := limit{rate: ratelimit.PerHour(1), burst: 1}.candidates("fixed")
		require.NoError(t, err)
		outcomes, err := replay(tr, cs)
		require.NoError(t, err)
		d := newPageData(tr, outcomes, []int{0})
		sum := func(row []int64) (n int64) {
			for _, x := range row {
				n += x
			}
			return n
		}
		assert.LessOrEqual(t, len(d.Lines[0].Offered), 400)
		assert.Equal(t, tr.total, sum(d.Lines[0].Offered))
		assert.Equal(t, outcomes[0].denied, sum(d.Lines[0].Denied[0]))
		assert.Equal(t, outcomes[0].deniedOf[0], sum(d.Lines[1].Denied[0]))
		assert.Zero(t, sum(d.Lines[0].Stricter[0]), "the reference is compared with itself")
		at := float64(slices.MinFunc(tr.requests, func(a, b request) int { return int(a.at - b.at) }).at) / 1e9
		assert.True(t, d.Start <= at && at < d.Start+d.Step, "the first bin has the first request")
	}
}
