//go:build unix

package main

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
	"github.com/ratelimit-go/ratelimit/redisstore"
	rueidisstore "github.com/ratelimit-go/ratelimit/redisstore/rueidis"
)

// A decider makes a decision on a key for one of the callers, and reports whether it was right.
type decider struct {
	name  string
	ask   func(caller int, key string) bool
	visit func(caller int, key string) bool // spends an event of a new key; nil if it goes on where the one before it ended
}

// BenchmarkScripts measures what a decision in Redis costs, with as many callers as in R1: how long
// its scripts run (usec_per_call of INFO commandstats), the CPU time of the server and of this
// process, and the time that passes. The deciders take turns on an empty server, and each metric is
// the least of ten turns. It takes two minutes. The report has its figures:
//
//	go test -run '^$' -bench Scripts -benchtime 1x ./benchmarks
//
// The scripts that decide nothing, in parentheses, show what the commands in the others take. Hold
// and Settle apart are all holds of a turn, and then all their settlements; in "Hold and Settle",
// each hold is settled at once.
func BenchmarkScripts(b *testing.B) {
	s := needServer(b)
	deciders := deciders(b, s)
	const turns, perTurn = 10, 250 * callers
	keys := newKeys(perTurn)
	best := make([]costs, len(deciders))
	for turn := range turns {
		for i, d := range deciders {
			if d.visit != nil {
				if err := s.flush(); err != nil {
					b.Fatal(err)
				}
				wrong := parallel(callers, func(caller int) (wrong int) {
					for j := caller; j < perTurn; j += callers {
						if !d.visit(caller, keys.at(j)) {
							wrong++
						}
					}
					return wrong
				})
				if wrong > 0 {
					b.Fatalf("%s gives %d wrong answers to new keys", d.name, wrong)
				}
			}
			c, wrong := s.measure(b, perTurn, func(caller int) (wrong int) {
				random := rand.New(rand.NewPCG(uint64(turn), uint64(caller)))
				for range perTurn / callers {
					if !d.ask(caller, keys.at(random.IntN(perTurn))) {
						wrong++
					}
				}
				return wrong
			})
			if wrong > 0 {
				b.Fatalf("%s gives %d wrong answers", d.name, wrong)
			}
			if turn == 0 {
				best[i] = c
			}
			best[i] = best[i].least(c)
		}
	}
	for i, d := range deciders {
		b.Run(d.name, func(b *testing.B) {
			b.ReportMetric(best[i].script, "µs/script")
			b.ReportMetric(best[i].server, "server-µs/decision")
			b.ReportMetric(best[i].client, "client-µs/decision")
			b.ReportMetric(best[i].wall, "µs/decision")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// costs are those of a decision, in microseconds.
type costs struct{ script, server, client, wall float64 }

func (c costs) least(d costs) costs {
	return costs{min(c.script, d.script), min(c.server, d.server), min(c.client, d.client), min(c.wall, d.wall)}
}

// measure lets each caller make its part of n decisions.
func (s *server) measure(b *testing.B, n int, ask func(caller int) (wrong int)) (_ costs, wrong int) {
	b.Helper()
	if err := s.admin.ConfigResetStat(context.Background()).Err(); err != nil {
		b.Fatal(err)
	}
	server, client, start := s.cpu(b), cpu(b), time.Now()
	wrong = parallel(callers, ask)
	wall := time.Since(start)
	client, server = cpu(b)-client, s.cpu(b)-server
	stats, err := s.info("commandstats", "cmdstat_evalsha")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(stats, "usec_per_call=")
	text, _, _ := strings.Cut(rest, ",")
	script, err := strconv.ParseFloat(text, 64)
	if err != nil {
		b.Fatal(err)
	}
	return costs{script, server / float64(n), client / float64(n), float64(wall.Microseconds()) / float64(n)}, wrong
}

// cpu returns the CPU time of the server, in microseconds.
func (s *server) cpu(b *testing.B) (sum float64) {
	b.Helper()
	for _, name := range []string{"used_cpu_sys_main_thread", "used_cpu_user_main_thread"} {
		text, err := s.info("cpu", name)
		if err != nil {
			b.Fatal(err)
		}
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += seconds * 1e6
	}
	return sum
}

// cpu returns the CPU time of this process, in microseconds.
func cpu(b *testing.B) float64 {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e3
}

// text264 does what the scripts of windows of 60 segments must do: it reads the time and a state of
// 264 bytes, and writes it after it has replaced a part.
const text264 = `local call, sub = redis.call, string.sub
local t = call('TIME')
local state = call('GET', KEYS[1]) or string.rep('x', 264)
call('PSETEX', KEYS[1], 3600000, sub(state, 1, 128) .. t[2] + 1000000 .. sub(state, 136))
return state`

func deciders(b *testing.B, s *server) (all []decider) {
	b.Helper()
	for _, of := range []struct{ name, text string }{
		{"(nothing)", "return ''"},
		{"(TIME)", "redis.call('TIME') return ''"},
		{"(GET)", "redis.call('GET', KEYS[1]) return ''"},
		{"(PSETEX)", "redis.call('PSETEX', KEYS[1], 3600000, '1234567890123456') return ''"},
		{"(264 bytes)", text264},
	} {
		client := s.dial(b)
		ctx := context.Background()
		sha, err := client.Do(ctx, client.B().ScriptLoad().Script(of.text).Build()).ToString()
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, newDecider(of.name, func(key string) bool {
			return client.Do(ctx, client.B().Evalsha().Sha1(sha).Numkeys(1).Key("script:"+key).Build()).Error() == nil
		}))
	}
	for _, c := range contenders.All() {
		switch {
		case c.Dial == nil || c.Name == contenders.Lease || c.Role == contenders.Weighed:
			continue
		case c.Module != contenders.ModulePath && c.Name != contenders.RedisRate && c.Name != contenders.BareScript:
			continue
		}
		allow, end, err := c.Dial(s.addr, contenders.Lavish, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(end)
		all = append(all, newDecider(c.Name, func(key string) bool { return allow(key) == contenders.Allowed }))
	}
	rate := ratelimit.Every(contenders.Lavish.Every)
	hold, settle := s.holding(b, ratelimit.TokenBucket{Rate: rate, Burst: contenders.Lavish.Burst})
	all = append(all, hold, settle)
	limit := contenders.Lavish.Burst
	for _, of := range []struct {
		name string
		alg  ratelimit.Algorithm
	}{
		{"leaky bucket", ratelimit.LeakyBucket{Rate: rate, Capacity: limit}},
		{"refill by interval", ratelimit.TokenBucket{Rate: rate, Burst: limit, Refill: ratelimit.RefillInterval}},
		{"fixed window", ratelimit.FixedWindow{Limit: limit, Window: time.Hour}},
		{"sliding window", ratelimit.SlidingWindow{Limit: limit, Window: time.Hour}},
		{"sliding log", ratelimit.SlidingLog{Limit: limit, Window: time.Hour}},
		{"warming up", ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1e6), Warmup: time.Minute}},
	} {
		all = append(all, s.taking(b, of.name, of.alg))
	}
	return all
}

func (s *server) dial(b *testing.B) rueidis.Client {
	b.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.addr}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	return client
}

func (s *server) limiter(b *testing.B, alg ratelimit.Algorithm, name string) ratelimit.Limiter {
	b.Helper()
	store, err := rueidisstore.New(s.dial(b), redisstore.WithTimeout(time.Second))
	if err != nil {
		b.Fatal(err)
	}
	l, err := ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName(name))
	if err != nil {
		b.Fatal(err)
	}
	return l
}

func (s *server) taking(b *testing.B, name string, alg ratelimit.Algorithm) decider {
	b.Helper()
	l := s.limiter(b, alg, name)
	return newDecider(name, func(key string) bool {
		d, err := l.Take(context.Background(), key, 1)
		return err == nil && !d.Degraded // a limiter that warms up may deny the second of two at once
	})
}

// holding returns a decider that holds two events, and one that settles one of each of these holds.
func (s *server) holding(b *testing.B, alg ratelimit.Algorithm) (hold, settle decider) {
	b.Helper()
	l := s.limiter(b, alg, "held")
	var held [callers][]*ratelimit.Reservation
	hold = decider{name: "Hold", ask: func(caller int, key string) bool {
		r, d, err := l.Hold(context.Background(), key, 2)
		held[caller] = append(held[caller], r)
		return err == nil && d.Allowed && !d.Degraded
	}}
	settle = decider{name: "Settle", ask: func(caller int, _ string) bool {
		last := len(held[caller]) - 1
		r := held[caller][last]
		held[caller] = held[caller][:last]
		d, err := r.Settle(context.Background(), 1)
		return err == nil && !d.Degraded
	}}
	hold.visit = func(caller int, key string) bool { return hold.ask(caller, key) && settle.ask(caller, key) }
	return hold, settle
}

func newDecider(name string, ask func(key string) bool) decider {
	all := func(_ int, key string) bool { return ask(key) }
	return decider{name, all, all}
}
