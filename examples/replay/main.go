// Replay answers the question "what would this limit do to my traffic?" before the limit
// is enforced. It reads an access log, replays each request on a simulated clock through
// one limiter for each algorithm of -alg, and shows what each would have allowed and
// denied, in a table and on a page with plots.
//
// Run it in the root of the repository. Without arguments it replays a bundled log, which
// examples/trafficgen made:
//
//	go run ./examples/replay
//	go run ./examples/replay -limit 100/1m -burst 20 /var/log/nginx/access.log
//	go run ./examples/replay -limit 10/s -key ip+path -alg token,sliding access.log.gz
//	zcat access.log.*.gz | go run ./examples/replay -o report.html -
//
// It reads the following formats, and detects the format of a log from its first lines
// unless -format sets it:
//
//   - Common and Combined Log Format (Apache, nginx), and Apache's vhost_combined
//   - JSON lines (Caddy, Traefik, nginx with escape=json, Envoy and others); set the names
//     of the fields if they are not detected: -json time=ts,key=request.remote_ip
//   - W3C's extended log file format (IIS, CloudFront)
//   - the access logs of AWS's application and classic load balancers, and of S3
//   - HAProxy's HTTP log
//   - the default text logs of Envoy and Istio
//   - lines of "time key [n]", with the time in RFC 3339 or a Unix time
//
// Each line may be wrapped by syslog, docker compose logs, or a container runtime. Unix
// times may be in seconds, milliseconds, microseconds or nanoseconds; times without a zone
// are UTC. The file may be compressed with gzip, bzip2, xz or zstd; if it is cut off, the lines
// before that are replayed. Lines need not be in order. Lines that cannot be read are skipped, counted
// and reported.
//
// The key of an address is that of package httplimit: without its port, and for IPv6 its
// /64. Of a list of addresses, such as X-Forwarded-For's, the first one is used. In "time
// key [n]", the key may be any text.
//
// The table is written to standard output, and the page to replay.html (-o). Of the files that
// exist, only an empty one or an earlier page is overwritten.
package main

import (
	"bytes"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/ratelimit-go/ratelimit"
)

//go:embed testdata/access.log.gz
var bundled embed.FS

const bundledName = "testdata/access.log.gz"

func main() {
	err := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "replay: %v\nRun it with -h to see all flags.\n", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

// A usageError is an error in the command line.
type usageError struct{ error }

// settings are the settings of the command line.
type settings struct {
	limit      limit
	read       readOptions
	candidates []candidate
	page       string // the file to write, or "" for none
	log        string // the file to read; "-" is standard input, "" the bundled log
}

func parseArgs(args []string, stderr io.Writer) (settings, error) {
	fs := flag.NewFlagSet("replay", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are returned; only -h shows all flags
	rate := fs.String("limit", "60/1m", "the limit as `events/span`, such as 10/s, 100/1m or 5/250ms")
	burst := fs.Int("burst", 0, "the most events, `n`, that buckets allow at once; 0 means the events of -limit")
	by := fs.String("key", string(byIP), "the `key` that has a limit of its own: ip, path or ip+path")
	algorithms := fs.String("alg", defaultAlgorithms, "the algorithms to try: all, or a `list` of some of "+allAlgorithms+"\n")
	format := fs.String("format", "auto", "the `name` of the log's format: "+formatNames()+"\n")
	fields := fs.String("json", "", "the `fields` of JSON lines to read, such as time=ts,key=request.remote_ip,path=request.uri;\nthe others are detected")
	page := fs.String("o", "replay.html", "the `file` for the page with the plots; -o '' writes none")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "Usage: replay [flags] [access.log | -]")
			fs.SetOutput(stderr)
			fs.PrintDefaults()
			return settings{}, err
		}
		return settings{}, usageError{err}
	}

	s := settings{page: *page, log: fs.Arg(0)}
	var err error
	if s.limit.rate, err = ratelimit.ParseRate(*rate); err != nil {
		return s, usageError{fmt.Errorf("-limit: %w", err)}
	}
	s.limit.burst = *burst
	switch {
	case *burst < 0:
		return s, usageError{fmt.Errorf("-burst %d: must be at least 1, or 0 for the events of -limit", *burst)}
	case *burst == 0:
		s.limit.burst = s.limit.rate.Events
	}
	if s.read.by, err = parseKeyKind(*by); err != nil {
		return s, usageError{err}
	}
	if s.read.format, err = parseFormat(*format); err != nil {
		return s, usageError{err}
	}
	if s.read.json, err = parseJSONFields(*fields); err != nil {
		return s, usageError{err}
	}
	if *fields != "" {
		if s.read.format != nil && s.read.format != jsonFormat {
			return s, usageError{fmt.Errorf("-json is for JSON lines, but -format is %s", *format)}
		}
		s.read.format = jsonFormat
	}
	if s.candidates, err = candidates(*algorithms, s.limit); err != nil {
		return s, usageError{err}
	}
	if fs.NArg() > 1 {
		return s, usageError{fmt.Errorf("%d logs given, the second is %q: give one, or pipe several into standard input and give -", fs.NArg(), fs.Arg(1))}
	}
	return s, nil
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	s, err := parseArgs(args, stderr)
	if err != nil {
		return err
	}
	if err := checkOutput(s.page); err != nil {
		return err
	}
	t, err := readLog(s, stdin, stderr)
	if err != nil {
		return err
	}
	reportSkips(stderr, t)

	total := int64(len(t.requests)) * int64(len(s.candidates))
	bar := progress(stderr, "replaying", total, 2_000_000, false)
	outcomes, err := replay(t, s.candidates, func(n int) { bar.Add(n) })
	bar.Finish()
	if err != nil {
		return err
	}

	if err := writeTable(stdout, t, s.limit, outcomes); err != nil {
		return err
	}
	if s.page == "" {
		return nil
	}
	var html bytes.Buffer
	if err := writePage(&html, t, s.limit, outcomes); err != nil {
		return err
	}
	if err := os.WriteFile(s.page, html.Bytes(), 0o644); err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	_, err = fmt.Fprintf(stdout, "\nplots: %s\n", s.page)
	return err
}

// generator is a line of each page, by which replay knows its pages again.
const generator = `<meta name="generator" content="github.com/ratelimit-go/ratelimit/examples/replay">`

// checkOutput returns an error if writing a page to the file would destroy anything else, such as
// the log.
func checkOutput(name string) error {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil // writing the page reports what is wrong, if anything
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	defer f.Close()
	start, err := io.ReadAll(io.LimitReader(f, 512))
	if err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	if !bytes.HasPrefix(start, []byte("<!DOCTYPE html>")) || !bytes.Contains(start, []byte(generator)) {
		return fmt.Errorf("-o %s: this file exists, and is not a page of replay: give another name, or remove the file first", name)
	}
	return nil
}

// readLog reads the log that the command line names.
func readLog(s settings, stdin io.Reader, stderr io.Writer) (*trace, error) {
	switch s.log {
	case "":
		f, err := bundled.Open(bundledName)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readTrace(f, "the bundled log", s.read)
	case "-":
		return readTrace(stdin, "standard input", s.read)
	}
	f, err := os.Open(s.log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	bar := progress(stderr, "reading", info.Size(), 16<<20, true)
	defer bar.Finish()
	return readTrace(watched(f, bar), s.log, s.read)
}

// reportSkips reports the lines that are not in the replay, and other problems of the log.
func reportSkips(w io.Writer, t *trace) {
	for _, s := range t.skips {
		fmt.Fprintf(w, "skipped %s of %s lines: %s (%s %d)\n",
			comma(int64(s.count)), comma(int64(t.lines)), s.reason, lineOrFirst(s.count), s.line)
	}
	if t.names > 0 {
		fmt.Fprintf(w, "kept %s of %s requests although the client is not an IP address: %q (%s %d)\n",
			comma(int64(t.names)), comma(int64(len(t.requests))), safeKey(t.name, 60), lineOrFirst(t.names), t.nameLine)
	}
	if t.damage != nil {
		fmt.Fprintf(w, "the compressed file is damaged or cut off after line %s (%v): the lines before are replayed\n", comma(int64(t.lines)), t.damage)
	}
	if t.late > 0 {
		fmt.Fprintf(w, "sorted %s of %s lines that came after a later one (%s %d)\n",
			comma(int64(t.late)), comma(int64(t.lines)), lineOrFirst(t.late), t.lateLine)
	}
}
