// Command redis compares limiters that share a limit through Redis. It starts a server, lets callers ask
// each limiter in turn, and prints a table: a group of lines for each set-up, and a column for each
// limiter.
//
//	go run ./benchmarks/redis                                        # 16 set-ups, five minutes
//	go run ./benchmarks/redis -pool callers,default                  # with both sizes of connection pools
//	go run ./benchmarks/redis -callers 64 -away 0.5ms                # one set-up, 15 seconds
//	go run ./benchmarks/redis -callers 64 -away 0 -columns lib-goredis -profile cpu.out
//
// The figures are medians of rounds. In a round, each limiter is asked for a moment, so that what
// disturbs the machine meets all of them. With -bench it prints each round for benchstat instead: see
// BENCHMARKS.md for how to compare two trees.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/peers"
	"github.com/ratelimit-go/ratelimit/benchmarks/server"
)

// usual are the columns of the table that is printed by default.
const usual = "lib-goredis,lib-rueidis,redis_rate,redis_rate-auto,redis_rate-duplex,ulule,throttled,floor"

func main() {
	if isWire(os.Args) {
		exitWith(runWire(os.Args))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exitWith(run(ctx, os.Args[1:], os.Stdout))
}

func exitWith(err error) {
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Options are what is measured, and how.
type options struct {
	callers []int
	away    []time.Duration
	pools   []string
	traffic []traffic
	columns []string

	rounds  int
	round   time.Duration
	bench   bool
	profile string
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("redis", flag.ContinueOnError)
	callers := flags.String("callers", "1,8,64,512", "numbers of concurrent callers")
	away := flags.String("away", "0,0.5ms,1ms,2ms", "delays of each way to the server")
	pools := flags.String("pool", "callers", "connections of go-redis: callers is one for each of them, default is its own choice")
	kinds := flags.String("traffic", "many", "many keys of each caller, all granted; one hot key, all granted; or one key, all denied")
	columns := flags.String("columns", usual, "limiters: some of "+strings.Join(slices.Sorted(maps.Keys(dials())), ","))
	flags.IntVar(&o.rounds, "rounds", 5, "rounds, after one that is not counted")
	flags.DurationVar(&o.round, "round", 300*time.Millisecond, "time of a limiter in a round")
	flags.BoolVar(&o.bench, "bench", false, "print each round, in the format of Go benchmarks")
	flags.StringVar(&o.profile, "profile", "", "write a CPU profile of this process to a file")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.rounds < 1 || o.round <= 0 {
		return o, fmt.Errorf("wrong arguments: %q", args)
	}
	var errs [5]error
	o.callers, errs[0] = list(*callers, func(s string) (int, bool) {
		n, err := strconv.Atoi(s)
		return n, err == nil && n > 0
	})
	o.away, errs[1] = list(*away, func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && d >= 0
	})
	o.pools, errs[2] = list(*pools, func(s string) (string, bool) { return s, s == "callers" || s == "default" })
	o.traffic, errs[3] = list(*kinds, func(s string) (traffic, bool) {
		i := slices.IndexFunc(traffics, func(t traffic) bool { return t.name == s })
		if i < 0 {
			return traffic{}, false
		}
		return traffics[i], true
	})
	o.columns, errs[4] = list(*columns, func(s string) (string, bool) { return s, dials()[s] != nil })
	return o, errors.Join(errs[:]...)
}

// list parses values with commas between them.
func list[T any](text string, parse func(string) (T, bool)) ([]T, error) {
	var values []T
	for s := range strings.SplitSeq(text, ",") {
		v, ok := parse(s)
		if !ok {
			return nil, fmt.Errorf("%q is not one of the values that are possible there", s)
		}
		values = append(values, v)
	}
	return values, nil
}

// dials returns all limiters in Redis, by the name of their column.
func dials() map[string]peers.Dial {
	all := make(map[string]peers.Dial)
	for _, p := range peers.All() {
		maps.Copy(all, p.Redis)
	}
	return all
}

// run measures all set-ups, and prints each when it is done.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	processes := context.WithoutCancel(ctx) // an interrupt ends the round before the server
	s, err := server.Start(processes)
	if err != nil {
		return err
	}
	defer s.Stop()
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if !o.bench {
		printHead(out, o.columns)
	}
	var failures []error
	for _, t := range o.traffic {
		for _, away := range o.away {
			addr, end, err := at(processes, s, away)
			if err != nil {
				return err
			}
			for _, pool := range o.pools {
				for _, callers := range o.callers {
					u := setUp{callers, away, pool, t}
					results, err := u.measure(ctx, s, addr, o)
					if ctx.Err() != nil {
						end()
						return ctx.Err()
					}
					if err != nil {
						failures = append(failures, err)
					}
					if o.bench {
						printRounds(out, u, o.columns, results)
					} else {
						printRow(out, u, results)
					}
				}
			}
			end()
		}
	}
	return errors.Join(failures...)
}
