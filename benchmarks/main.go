// Command benchmarks measures this library beside others that limit rates in
// memory, all through one harness and each through its own public API, and
// writes what it finds to BENCHMARKS.md and docs/benchmarks.svg. Run it in the
// root of the repository:
//
//	go run ./benchmarks                      # everything: up to ten minutes
//	go run ./benchmarks -run 'S[12]$'        # some scenarios, to the terminal
//	go run ./benchmarks -run '^R'            # those in Redis, to the terminal
//	go run ./benchmarks -only 'ratelimit$'   # some contenders, to the terminal
//	go run ./benchmarks -quick               # does it all still work?
//
// A wrong answer of any contender makes it fail, after it has written the rest.
//
// For limiters in Redis it starts a redis-server or valkey-server, if there is one
// in PATH, on a free port. Without one it leaves them out, and says so.
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

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// memoryLimit keeps the collector from letting garbage take all there is. It
// is far above what the live data of any contender needs.
const memoryLimit = 8 << 30

func main() {
	debug.SetMemoryLimit(memoryLimit)
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "benchmarks:", err)
		}
		os.Exit(1)
	}
}

// run is the program, with its arguments.
func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		out   = flags.String("o", "BENCHMARKS.md", "write the report to this `file`")
		svg   = flags.String("plot", "docs/benchmarks.svg", "write the plot to this `file`")
		short = flags.Bool("quick", false, "do everything once and on a small scale, to see that it works")
		which = flags.String("run", "", "take only the scenarios whose id, such as S4h, heap-1M or R1, matches this `regexp`")
		who   = flags.String("only", "", "take only the contenders whose name matches this `regexp`")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag: see -help", flags.Arg(0))
	}
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	partial := *short || *which != "" || *who != ""
	toFile := !partial || given["o"] // a part does not replace the whole by accident
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
		fmt.Fprintf(stdout, "%s\n%s\n%s and %s are written\n", r.Targets, r.Redis.summary(), *out, *svg)
	} else if err := r.write(stdout); err != nil {
		return err
	}
	return res.check(scenarios(b.sizes))
}

// inRoot returns an error unless this is the root of the repository, where the
// default paths lead to.
func inRoot() error {
	mod, err := os.ReadFile("go.mod")
	if err != nil || !bytes.HasPrefix(mod, []byte("module github.com/ratelimit-go/ratelimit\n")) {
		return errors.New("this is not the root of the repository: go there, or say with -o and -plot where to write")
	}
	return nil
}

// wanted returns which scenarios match pattern.
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
		return nil, fmt.Errorf("-run: no scenario matches %q; there are %s", pattern, strings.Join(ids, ", "))
	}
	return re.MatchString, nil
}

// takingPart returns the contenders whose names match pattern, and the one
// that shows what the harness costs.
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
		return nil, fmt.Errorf("-only: no contender matches %q; there are: %s", pattern, strings.Join(names, "; "))
	}
	return matching, nil
}

// command returns the command that does the same again, without the paths that
// it was told to write to.
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

// relative returns how the report at out refers to the plot at svg.
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
