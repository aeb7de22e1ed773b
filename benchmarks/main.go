// Command benchmarks compares this library with other rate limiters, all in one harness and
// each through its own public API, and writes the results to BENCHMARKS.md and
// docs/benchmarks.svg. Run it in the root of the repository:
//
//	go run ./benchmarks                      # everything: up to fifteen minutes
//	go run ./benchmarks -run '^(S1|I1k)$'    # some scenarios, to the terminal
//	go run ./benchmarks -run '^R'            # those in Redis, to the terminal
//	go run ./benchmarks -only 'ratelimit$'   # some contenders, to the terminal
//	go run ./benchmarks -quick               # check that everything works
//
// If a contender gives a wrong answer, the command fails after it has written the results of
// the others.
//
// For limiters in Redis it starts a redis-server or valkey-server from PATH on a free port. If
// neither is installed, it leaves these limiters out and says so.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// memoryLimit keeps garbage from using all memory. It is far above the live data of any
// contender.
const memoryLimit = 8 << 30

func main() {
	serveIfWire()
	logging.Disable() // go-redis logs connections that are closed while they are in use
	debug.SetMemoryLimit(memoryLimit)
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "benchmarks:", err)
		}
		os.Exit(1)
	}
}

// run runs the command with the given arguments.
func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		out   = flags.String("o", "BENCHMARKS.md", "write the report to this `file`")
		svg   = flags.String("plot", "docs/benchmarks.svg", "write the plot to this `file`")
		short = flags.Bool("quick", false, "do everything once on a small scale, to check that it works")
		which = flags.String("run", "", "run only the scenarios whose id, such as S4h, heap-1M or R1, matches this `regexp`")
		who   = flags.String("only", "", "run only the contenders whose name matches this `regexp`")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: see -help for the flags", flags.Arg(0))
	}
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	partial := *short || *which != "" || *who != ""
	toFile := !partial || given["o"] // so that a partial run does not overwrite the full report by accident
	if toFile && !given["o"] {
		if err := inRoot(); err != nil {
			return err
		}
	}

	b := bench{sizes: full, progress: func(format string, args ...any) { fmt.Fprintf(stderr, format, args...) }}
	if *short {
		b.sizes = quick
	}
	var err error
	if b.wanted, err = wanted(*which, b.sizes); err != nil {
		return err
	}
	if b.contenders, err = takingPart(*who); err != nil {
		return err
	}

	start := time.Now()
	res, err := b.run()
	if err != nil {
		return err
	}
	r := report{
		Command: command(flags),
		Date:    start.UTC().Format("2006-01-02"),
		Took:    time.Since(start).Round(time.Second),
		Machine: thisMachine(),
		Quick:   *short,
		Partial: *which != "" || *who != "",
	}
	r.tables(b.sizes, res, b.contenders)
	if toFile || given["plot"] {
		if err := writePlot(*svg, res, b.contenders); err != nil {
			return err
		}
	}
	if toFile {
		if r.Plot, err = relative(*out, *svg); err != nil {
			return err
		}
		var text bytes.Buffer
		if err := r.write(&text); err != nil {
			return err
		}
		if err := os.WriteFile(*out, text.Bytes(), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s\n%s\n%s\n%s and %s are written\n", r.Targets, r.Algorithms, r.Redis.summary(), *out, *svg)
	} else if err := r.write(stdout); err != nil {
		return err
	}
	return res.check(scenarios(b.sizes))
}

// inRoot returns an error unless the working directory is the root of the repository, to
// which the default paths are relative.
func inRoot() error {
	mod, err := os.ReadFile("go.mod")
	if err != nil || !bytes.HasPrefix(mod, []byte("module github.com/ratelimit-go/ratelimit\n")) {
		return errors.New("this is not the root of the repository: change to it, or set the files to write with -o and -plot")
	}
	return nil
}

// wanted returns a function that reports whether a scenario matches pattern.
func wanted(pattern string, s sizes) (func(id string) bool, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	ids := make([]string, 0)
	for _, sc := range scenarios(s) {
		ids = append(ids, sc.id)
	}
	if !slices.ContainsFunc(ids, re.MatchString) {
		return nil, fmt.Errorf("-run: no scenario matches %q; the scenarios are %s", pattern, strings.Join(ids, ", "))
	}
	return re.MatchString, nil
}

// takingPart returns the contenders whose names match pattern, and the one that measures the
// harness.
func takingPart(pattern string) ([]contenders.Contender, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	var names []string
	var matching []contenders.Contender
	found := false
	for _, c := range contenders.All() {
		matches := re.MatchString(c.Name)
		found = found || matches
		if c.Role == contenders.Floor || matches {
			matching = append(matching, c)
		}
		names = append(names, c.Name)
	}
	if !found {
		return nil, fmt.Errorf("-only: no contender matches %q; the contenders are: %s", pattern, strings.Join(names, "; "))
	}
	return matching, nil
}

// command returns the command line that repeats this run, without the paths of -o and
// -plot.
func command(flags *flag.FlagSet) string {
	words := []string{"go run ./benchmarks"}
	flags.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "o", "plot":
		case "quick":
			words = append(words, "-quick")
		default:
			words = append(words, fmt.Sprintf("-%s '%s'", f.Name, f.Value))
		}
	})
	return strings.Join(words, " ")
}

// relative returns the path of the plot at svg relative to the report at out.
func relative(out, svg string) (string, error) {
	out, err := filepath.Abs(out)
	if err != nil {
		return "", err
	}
	svg, err = filepath.Abs(svg)
	if err != nil {
		return "", err
	}
	path, err := filepath.Rel(filepath.Dir(out), svg)
	return filepath.ToSlash(path), err
}
