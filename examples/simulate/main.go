// Simulate runs five processes that share one limit through a Redis which fails, in virtual time,
// and compares what docs/redis.md promises with what happened.
//
//	go run ./examples/simulate -seed 7
//
// The seed decides all: when clients ask, how long messages take, which faults there are and when.
// The same seed prints the same text (server.go says when it may not), so a run that breaks a promise
// can be looked at again, with -v request by request. If one was broken, simulate exits with 1.
//
//	go run ./examples/simulate -seeds 1000 -table
//
// This command runs a thousand seeds with one fault each, and prints the table of docs/redis.md.
//
// The processes are limiters in this program, each with a store, a client and a clock of its own.
// The server decides in Go as the scripts of Redis do. What only a real server can tell, such as
// what it replies while it loads its data, is not here: package integration/redis tests that.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"          //nolint:depguard // a bubble of testing/synctest has virtual time, and needs a T
	"testing/synctest" //nolint:depguard // for virtual time
)

func main() {
	args := os.Args[1:]
	os.Args = os.Args[:1] // package testing has flags of its own
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "simulate", F: func(t *testing.T) {
		err := run(t, args, os.Stdout)
		switch {
		case errors.Is(err, flag.ErrHelp):
		case err != nil:
			fmt.Fprintln(os.Stderr, "simulate:", err)
			os.Exit(1)
		}
		os.Exit(0) // before package testing reports that a test has passed
	}}}, nil, nil)
}

// run runs the simulation and writes it to out. If a promise was broken, run returns an error.
func run(t *testing.T, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	seed := flags.Uint64("seed", 1, "the `number` that decides all; with -seeds, the first one")
	seeds := flags.Int("seeds", 0, "run so many seeds, with one fault each, and print a line for each fault")
	asTable := flags.Bool("table", false, "print what the seeds found as the table of docs/redis.md")
	verbose := flags.Bool("v", false, "print each request")
	only := flags.String("fault", "", "let only this `fault` happen: "+strings.Join(kindNames(), ", "))
	policy := flags.String("policy", "", "the `policy` of failures: "+strings.Join(policies, ", "))
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: all settings are flags", flags.Arg(0))
	case *seeds < 0:
		return fmt.Errorf("-seeds %d: must be at least 1", *seeds)
	case *asTable && *seeds == 0:
		return errors.New("-table needs -seeds")
	case *policy != "" && !slices.Contains(policies, *policy):
		return fmt.Errorf("-policy %q: must be one of %s", *policy, strings.Join(policies, ", "))
	case *only != "" && !slices.Contains(kindNames(), *only):
		return fmt.Errorf("-fault %q: must be one of %s", *only, strings.Join(kindNames(), ", "))
	}
	if *seeds == 0 {
		p := newPlan(*seed, *policy, *only)
		f := simulate(t, p)
		v := judge(f)
		writeTrace(out, f, v, *verbose)
		return v.err(p)
	}
	var found []*verdict
	for i := range *seeds {
		p := singlePlan(*seed+uint64(i), i, *policy, *only)
		v := judge(simulate(t, p))
		if err := v.err(p); err != nil {
			return fmt.Errorf("%w\nsee it again: go run ./examples/simulate -seed %d -policy %s -fault %q -v",
				err, p.seed, p.policy, p.faults[0].name)
		}
		found = append(found, v)
	}
	writeTable(out, found, *asTable)
	return nil
}

// simulate runs a plan in a bubble, whose time passes only while all its goroutines wait.
func simulate(t *testing.T, p *plan) (f *fleet) {
	synctest.Test(t, func(*testing.T) {
		f = newFleet(p)
		f.run()
	})
	return f
}
