// Release prepares a release: it checks that version can be released, makes the
// two commits of a release, and tags every module. See RELEASING.md.
//
//	go run ./scripts/release [-tag] [-skip-tests] version
//
// Without -tag it does all of that in a temporary clone, shows the result, and
// changes nothing here. It never pushes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	tag := flag.Bool("tag", false, "add the commits to this branch, and the tags to this repository")
	skip := flag.Bool("skip-tests", false, "with -tag, do not run make test first")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: go run ./scripts/release [-tag] [-skip-tests] version")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := release{version: flag.Arg(0), tag: *tag, test: *tag && !*skip, out: os.Stdout}
	err := forgetRepo(ctx)
	if err == nil {
		err = r.run(ctx, ".")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}
