// Replay answers the question "what would this limit do to my traffic?". It reads an access log,
// and replays each request on a simulated clock through one limiter for each algorithm. A table and
// a page with plots show which requests each algorithm would have allowed and denied:
//
//	go run ./examples/replay
//	go run ./examples/replay -limit 100/1m -burst 20 /var/log/nginx/access.log
//	go run ./examples/replay -limit 1000/day@Europe/London access.log
//	go run ./examples/replay -limit 10/s -key ip+path -alg token,sliding access.log.gz
//	zcat access.log.*.gz | go run ./examples/replay -o report.html -
//
// Without a log, replay uses one of its own. It reads common and combined logs (Apache, nginx),
// lines of JSON, lines of "time key [n]", and with -pattern lines of any other text: see
// docs/replay.md.
package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	_ "time/tzdata" // so that -limit knows all zones on a machine without zone data
)

//go:embed testdata/access.log.gz
var bundled []byte

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

// settings are the settings of the command line.
type settings struct {
	limit      limit
	read       readOptions
	candidates []candidate
	page       string // the file to write, or "" for none
	log        string // the file to read; "-" is standard input, "" is replay's own log
}

func parseArgs(args []string, stderr io.Writer) (settings, error) {
	s := settings{read: readOptions{layouts: anyLayouts}}
	fs := flag.NewFlagSet("replay", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // an error is returned, without a list of all flags; -h lists them
	limit := fs.String("limit", "60/1m", "the limit as `events/span`, such as 10/s, 100/1m or 5/250ms; or in each day, week, month,\nquarter or year of a time zone, such as 1000/day@Europe/London; without a zone in UTC")
	burst := fs.Int("burst", 0, "the most events, `n`, that buckets allow at once; 0 means the events of -limit")
	fs.StringVar(&s.read.by, "key", byIP, "the `key` that has a limit of its own: ip, path or ip+path")
	algorithms := fs.String("alg", "", "the algorithms to try: all, or a `list` of some of "+allAlgorithms+",\nand "+calendarID+" with a -limit such as 1000/day; by default all but warmup")
	fields := fs.String("json", "", "the fields with the `TIME,KEY[,PATH]` of JSON lines, such as ts,user.id,request.uri")
	pattern := fs.String("pattern", "", "a `regexp` that finds requests in lines, with the groups (?<time>…), (?<key>…) and, if they\ncount as several events, (?<n>…); with (?<path>…), -key can be path or ip+path")
	layout := fs.String("time", "", "the `layout` of times, as for Go's time.Parse: 02/Jan/2006:15:04:05.000")
	fs.StringVar(&s.page, "o", "replay.html", "the `file` for the page with the plots; -o '' writes none")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "Usage: replay [flags] [access.log | -]")
			fs.SetOutput(stderr)
			fs.PrintDefaults()
		}
		return s, err
	}
	var err error
	s.limit, err = parseLimit(*limit)
	if err != nil {
		return s, fmt.Errorf("-limit: %w", err)
	}
	s.read.format, err = parseFormat(*pattern, *fields)
	if err != nil {
		return s, err
	}
	s.log, s.limit.burst = fs.Arg(0), cmp.Or(*burst, s.limit.rate.Events)
	if *layout != "" {
		s.read.layouts = []string{*layout}
	}
	switch {
	case *burst < 0:
		return s, fmt.Errorf("-burst %d: must be at least 1, or 0 for the events of -limit", *burst)
	case keyNouns[s.read.by] == "":
		return s, fmt.Errorf("-key %q: must be ip, path or ip+path", s.read.by)
	case fs.NArg() > 1:
		return s, fmt.Errorf("%d logs given, the second is %q: give one, or pipe several into standard input and give -", fs.NArg(), fs.Arg(1))
	}
	s.candidates, err = s.limit.candidates(*algorithms)
	return s, err
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	s, err := parseArgs(args, stderr)
	if err != nil {
		return err
	}
	if err := checkOutput(s.page); err != nil {
		return err
	}
	t, err := readLog(s, stdin)
	if err != nil {
		return err
	}
	for _, problem := range t.problems() {
		fmt.Fprintln(stderr, problem)
	}
	outcomes, err := replay(t, s.candidates)
	if err != nil {
		return err
	}
	if err := writeTable(stdout, t, s.limit, outcomes); err != nil {
		return err
	}
	suggestion, err := suggest(t, s.limit, s.candidates[0].id, s.candidates[0].name)
	if err != nil {
		return err
	}
	if suggestion != "" {
		if _, err := fmt.Fprintf(stdout, "\n%s\n", suggestion); err != nil {
			return err
		}
	}
	if s.page == "" {
		return nil
	}
	var html bytes.Buffer
	if err := writePage(&html, t, s.limit, outcomes, suggestion); err != nil {
		return err
	}
	if err := os.WriteFile(s.page, html.Bytes(), 0o644); err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	_, err = fmt.Fprintf(stdout, "\nplots: %s\n", s.page)
	return err
}

// pageStart is the beginning of each page. Its last line names replay, so that checkOutput
// recognizes a page.
var pageStart, _, _ = strings.Cut(pageHTML, `<meta name="viewport"`)

// checkOutput returns an error if the file has anything other than a page of replay, such as the
// log: to write a page would destroy it.
func checkOutput(name string) error {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil // writing the page reports what is wrong, if anything
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	defer f.Close()
	start := make([]byte, len(pageStart))
	if _, err := io.ReadFull(f, start); err != nil || string(start) != pageStart {
		return fmt.Errorf("-o %s: this file exists, and is not a page of replay: give another name, or remove the file first", name)
	}
	return nil
}

// readLog reads the log that the command line names.
func readLog(s settings, stdin io.Reader) (*trace, error) {
	switch s.log {
	case "":
		return readTrace(bytes.NewReader(bundled), "the bundled log", s.read)
	case "-":
		return readTrace(stdin, "standard input", s.read)
	}
	f, err := os.Open(s.log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readTrace(f, s.log, s.read)
}
