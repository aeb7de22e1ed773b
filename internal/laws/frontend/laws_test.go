package frontend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// configured is NetHTTP, started with another config.
func configured(change func(c *Config)) FrontEnd {
	return func(c *Config) (Server, error) {
		change(c)
		return NetHTTP(c)
	}
}

// optioned is NetHTTP with further options.
func optioned(opts ...httplimit.Option) FrontEnd {
	return configured(func(c *Config) { c.Options = append(c.Options, opts...) })
}

// answering is NetHTTP, whose answers are changed.
func answering(change func(a *Answer)) FrontEnd {
	return served(func(_ *Config, call Call, serve Server) Answer {
		a := serve(call)
		change(&a)
		return a
	})
}

// served is NetHTTP, whose calls are made in another way.
func served(make func(c *Config, call Call, serve Server) Answer) FrontEnd {
	return func(c *Config) (Server, error) {
		serve, err := NetHTTP(c)
		return func(call Call) Answer { return make(c, call, serve) }, err
	}
}

// limitedBy is NetHTTP with another limiter.
func limitedBy(change func(l ratelimit.Limiter) ratelimit.Limiter) FrontEnd {
	return Middleware(func(c *Config) (func(http.Handler) http.Handler, error) {
		l, err := c.NewLimiter()
		if err != nil {
			return nil, err
		}
		return httplimit.Middleware(change(l), c.HTTPOptions()...), nil
	})
}

// A charging limiter counts what it refuses.
type charging struct{ ratelimit.Limiter }

func (l charging) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	d, err := l.Limiter.Take(ctx, key, n)
	if !d.Allowed {
		_, _ = l.Charge(ctx, key, 1)
	}
	return d, err
}

// An unmarking limiter does not say that its policy has decided.
type unmarking struct{ ratelimit.Limiter }

func (l unmarking) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	d, err := l.Limiter.Take(ctx, key, n)
	d.Degraded = false
	return d, err
}

// A secretive limiter does not tell its algorithm.
type secretive struct{ ratelimit.Limiter }

func (secretive) Describe() ratelimit.Info { return ratelimit.Info{} }

// An asking server asks the limiter once more for each call.
func asking(c *Config) (Server, error) {
	l, err := c.NewLimiter()
	if err != nil {
		return nil, err
	}
	serve, err := NetHTTP(c)
	return func(call Call) Answer {
		l.Allow(call.User)
		return serve(call)
	}, err
}

// A broken front end breaks a law.
type broken struct {
	says     string // part of what is said about it
	frontEnd FrontEnd
}

// brokenFrontEnds are, for each law, front ends that break it, each in one way.
var brokenFrontEnds = map[string]map[string]broken{
	"refuses beyond the limit": {
		"lets all pass": {"beyond the limit: the call is handled", configured(func(c *Config) {
			c.Algorithm = ratelimit.Unlimited{}
		})},
		"handles what it refuses": {"beyond the limit: a call that is over a limit: the handler got 1 calls",
			served(func(c *Config, call Call, serve Server) Answer {
				a := serve(call)
				if a.Outcome == Refused {
					_ = c.Handle(call.Context)
				}
				return a
			})},
		"does not handle what passes": {"within the limit: a call that is handled: the handler got 0 calls",
			configured(func(c *Config) { c.Handle = func(context.Context) error { return nil } })},
		"counts what it refuses": {"a token comes each minute: told 2m0s",
			limitedBy(func(l ratelimit.Limiter) ratelimit.Limiter { return charging{l} })},
		"has one limit for all": {"another caller: the call is over a limit", optioned(httplimit.WithKey(key.Everybody()))},
		"tells a client to retry too early": {"told 59s",
			answering(func(a *Answer) { a.RetryAfter = max(0, a.RetryAfter-time.Second) })},
		"tells a client to retry at once": {"a nanosecond too early: told 0s",
			answering(func(a *Answer) { a.RetryAfter = a.RetryAfter.Truncate(time.Minute) })},
		"names no limit":   {`the limit's name is ""`, answering(func(a *Answer) { a.Policy = "" })},
		"gives no reason":  {"the client is not told why", answering(func(a *Answer) { a.Text = "" })},
		"gives no reasons": {`the client reads "no"`, answering(func(a *Answer) { a.Text = "no" })},
		"tells clients that pass to wait": {"within the limit: a call that passes tells its client to wait for 1s",
			answering(func(a *Answer) { a.RetryAfter = max(time.Second, a.RetryAfter) })},
	},
	"says that no wait helps": {
		"tells a client to wait in vain": {"to wait for 1h0m0s in vain", answering(func(a *Answer) {
			if a.Outcome == Refused {
				a.RetryAfter = time.Hour
			}
		})},
		"counts what never fits": {"2 events of 2: the call is over a limit",
			limitedBy(func(l ratelimit.Limiter) ratelimit.Limiter { return charging{l} })},
	},
	"lets pass in shadow": {
		"enforces what is in shadow": {"the call is over a limit, and not handled", configured(func(c *Config) { c.Shadow = nil })},
		"tells nobody of the shadow": {"1 calls beyond the limit: the program is told of 0", configured(func(c *Config) {
			if c.Shadow != nil {
				c.Shadow = func(ratelimit.Decision) {}
			}
		})},
		"tells a shadow without its decision": {"the program is told {", configured(func(c *Config) {
			if report := c.Shadow; report != nil {
				c.Shadow = func(ratelimit.Decision) { report(ratelimit.Decision{}) }
			}
		})},
		"shows the shadow": {`in shadow: the client is told Ratelimit: "default";r=1`,
			answering(func(a *Answer) { a.Fields.Set("RateLimit", `"default";r=1`) })},
		"does not ask in shadow": {"observers see 0 of 0 calls denied", func(c *Config) (Server, error) {
			if c.Shadow == nil {
				return NetHTTP(c)
			}
			return ServerOf(HandlerOf(c)), nil
		}},
	},
	"leaves failures to the policy": {
		"is always open": {"FailClosed: the call is handled",
			configured(func(c *Config) { c.Limiter = append(c.Limiter, ratelimit.WithFailurePolicy(ratelimit.FailOpen())) })},
		"is always closed": {"FailOpen: the call is refused without a limit",
			configured(func(c *Config) { c.Limiter = append(c.Limiter, ratelimit.WithFailurePolicy(ratelimit.FailClosed())) })},
		"keeps failures to itself": {"3 calls: the program is told []",
			optioned(httplimit.WithStoreError(func(*http.Request, error) {}))},
		"blames clients for failures": {"FailClosed: the call is over a limit", answering(func(a *Answer) {
			if a.Outcome == Unchecked {
				a.Outcome = Refused
			}
		})},
		"tells what is left of a limit that was not asked": {"FailClosed: the client is told Ratelimit",
			answering(func(a *Answer) {
				if a.Outcome == Unchecked {
					a.Fields.Set("RateLimit", `"default";r=0`)
				}
			})},
		"names a limit for failures": {`FailClosed: told of the limit "default"`,
			answering(func(a *Answer) { a.Policy = "default" })},
		"logs what the limiter logs": {"the limiter logs its failure: the log has", limitedBy(
			func(l ratelimit.Limiter) ratelimit.Limiter { return unmarking{l} })},
	},
	"refuses without a key": {
		"shares a key among those without": {"without the field: the call is handled",
			optioned(httplimit.WithKey(key.Everybody()))},
		"asks before it has a key": {"the limit was asked 4 times for one key", asking},
		"does not say what is missing": {`the client reads "no"`,
			answering(func(a *Answer) { a.Text = "no" })},
	},
	"shows no error of the program": {
		"shows errors": {"db-7", optioned(httplimit.WithRefusal(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				v, _ := httplimit.VerdictOf(r.Context())
				http.Error(w, v.Explain()+": "+v.Err.Error(), v.Status())
			})))},
		"logs no errors": {`the log has ""`, optioned(httplimit.WithRefusal(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				v, _ := httplimit.VerdictOf(r.Context())
				http.Error(w, "cannot determine the client of this request", v.Status())
			})))},
		"logs a secret each time": {"3 calls in a second: the log has", served(
			func(_ *Config, call Call, serve Server) Answer {
				a := serve(call)
				if a.Outcome == NoKey {
					slog.Warn("no sessions at db-7")
				}
				return a
			})},
	},
	"tells mistakes at the start": {
		"starts with mistakes": {"the error is <nil>", func(c *Config) (Server, error) {
			return func(call Call) Answer {
				serve, err := NetHTTP(c)
				if err != nil {
					return Answer{Outcome: Failed}
				}
				return serve(call)
			}, nil
		}},
		"panics with a text": {"a panic without an error", func(c *Config) (Server, error) {
			defer func() {
				if p := recover(); p != nil {
					panic(fmt.Sprint(p))
				}
			}()
			return NetHTTP(c)
		}},
	},
	"skips without asking": {
		"asks for what is skipped": {"skipped or free: the limit was asked 4 times", asking},
		"has nothing that is free": {"free: the call is without a key, and not handled",
			optioned(httplimit.WithCost(func(*http.Request) int { return 1 }))},
		"skips nothing": {"skipped: the client is told Ratelimit",
			optioned(httplimit.WithSkip(func(*http.Request) bool { return false }))},
	},
	"leaves out who has left": {
		"handles calls of those who have left": {"its client has left: the call is handled", served(
			func(_ *Config, call Call, serve Server) Answer {
				if _, hasDeadline := call.Context.Deadline(); !hasDeadline && call.Context.Err() != nil {
					call.Context = context.WithoutCancel(call.Context)
				}
				return serve(call)
			})},
		"spends for those who have left": {"and not r=2", served(
			func(_ *Config, call Call, serve Server) Answer {
				a := serve(call)
				if a.Outcome == Ended {
					serve(Call{Context: context.Background(), User: call.User})
				}
				return a
			})},
		"refuses those who have left in shadow": {"in shadow: the handler got 0 calls", served(
			func(_ *Config, call Call, serve Server) Answer {
				if call.Context.Err() != nil {
					return Answer{Outcome: Ended}
				}
				return serve(call)
			})},
		"tells of shadows of those who have left": {"it is not refused: the program is told", served(
			func(c *Config, call Call, serve Server) Answer {
				if _, hasDeadline := call.Context.Deadline(); !hasDeadline && call.Context.Err() != nil {
					for range 4 { // more than the limit
						serve(Call{Context: context.WithoutCancel(call.Context), User: call.User})
					}
				}
				return serve(call)
			})},
	},
	"decides in memory in any case": {
		"takes half-closed connections for left": {"within the limit: the call is ended", served(
			func(_ *Config, call Call, serve Server) Answer {
				if call.Context.Err() != nil {
					return Answer{Outcome: Ended}
				}
				return serve(call)
			})},
		"leaves those who have left uncounted": {"and not r=0", served(
			func(c *Config, call Call, serve Server) Answer {
				if call.Context.Err() != nil {
					return Answer{Outcome: Handled}
				}
				return serve(call)
			})},
	},
	"gives up at the deadline": {
		"refuses in shadow what is too late": {"too late, in shadow: the handler got 0 calls", served(
			func(_ *Config, call Call, serve Server) Answer {
				if call.Context.Err() != nil {
					return Answer{Outcome: Ended}
				}
				return serve(call)
			})},
		"does not know deadlines": {"too late, in memory: the call is handled", served(
			func(_ *Config, call Call, serve Server) Answer {
				if call.Context.Err() != nil {
					call.Context = context.Background()
				}
				return serve(call)
			})},
		"lets the policy decide": {"too late while asking: the call is handled", served(
			func(_ *Config, call Call, serve Server) Answer {
				a := serve(call)
				if a.Outcome == Ended {
					return serve(Call{Context: context.Background(), User: call.User})
				}
				return a
			})},
	},
	"tells what is left": {
		"tells what was left before": {"told", func(c *Config) (Server, error) {
			serve, err := NetHTTP(c)
			var first http.Header
			return func(call Call) Answer {
				a := serve(call)
				if first == nil {
					first = a.Fields.Clone()
				}
				first.Set("Retry-After", a.Fields.Get("Retry-After"))
				a.Fields = first
				return a
			}, err
		}},
		"tells more than is left": {"told 5 and 5", answering(func(a *Answer) {
			told := a.Fields.Get("RateLimit")
			for r := 4; r >= 0; r-- {
				if before := fmt.Sprintf(`"default";r=%d`, r); strings.HasPrefix(told, before) {
					a.Fields.Set("RateLimit", fmt.Sprintf(`"default";r=%d`, r+1)+told[len(before):])
					return
				}
			}
		})},
		"has no field of the wait": {"told to wait for 30s and for ", answering(func(a *Answer) { a.Fields.Del("Retry-After") })},
		"tells too much": {
			"None: the client is told Ratelimit-Policy",
			answering(func(a *Answer) { a.Fields.Set("RateLimit-Policy", `"default";q=5`) }),
		},
	},
	"releases what was in flight": {
		"holds until the timeout": {"the call is over a limit, and not handled",
			limitedBy(func(l ratelimit.Limiter) ratelimit.Limiter { return secretive{l} })},
		"releases before the handler has returned": {"while one is in flight: the call is handled",
			Gated(func(a *httplimit.Admission, w http.ResponseWriter, next http.Handler) {
				a.Done(http.StatusOK, 0)
				next.ServeHTTP(w, RequestOf(a))
			})},
		"forgets handlers that panic": {"its handler has panicked: the call is over a limit",
			Gated(func(a *httplimit.Admission, w http.ResponseWriter, next http.Handler) {
				next.ServeHTTP(w, RequestOf(a))
				a.Done(http.StatusOK, 0)
			})},
		"ends panics": {"its handler has panicked: the panic is <nil>", served(
			func(_ *Config, call Call, serve Server) (a Answer) {
				defer func() { _ = recover() }()
				return serve(call)
			})},
		"releases when the client leaves": {"its handler runs, but its client has left: the call is handled", leavers},
		"tells a client to wait for the timeout": {"it may end at once, and not in 1h0m0s",
			answering(func(a *Answer) {
				if a.Outcome == Refused {
					a.RetryAfter = time.Hour
				}
			})},
	},
	"settles what a call has cost": {
		"has no account for the handler": {"4 are spent, and one is held", configured(func(c *Config) {
			handle := c.Handle
			c.Handle = func(context.Context) error { return handle(context.Background()) }
		})},
		"settles before the handler": {"4 are spent, and one is held",
			Gated(func(a *httplimit.Admission, w http.ResponseWriter, next http.Handler) {
				a.Done(http.StatusOK, 0)
				next.ServeHTTP(w, RequestOf(a))
			})},
	},
	"settles by the status": {
		"takes successes for failures": {"nothing is spent, and one is held",
			Gated(func(a *httplimit.Admission, w http.ResponseWriter, next http.Handler) {
				defer a.Done(http.StatusInternalServerError, 0)
				next.ServeHTTP(w, RequestOf(a))
			})},
		"takes failures for successes": {"twice 7 are spent, and one is held",
			Gated(func(a *httplimit.Admission, w http.ResponseWriter, next http.Handler) {
				defer a.Done(http.StatusOK, 0)
				next.ServeHTTP(w, RequestOf(a))
			})},
	},
}

// TestBroken checks that each law notices the front ends that break it.
func TestBroken(t *testing.T) {
	for _, l := range laws {
		require.NotEmpty(t, brokenFrontEnds[l.name], "front ends that break the law %q", l.name)
		for name, b := range brokenFrontEnds[l.name] {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					assert.Contains(t, strings.Join(l.faults(b.frontEnd), "\n"), b.says)
				})
			})
		}
	}
	assert.Len(t, brokenFrontEnds, len(laws))
}

// leavers is a Gate that releases a call when its client has left.
func leavers(c *Config) (Server, error) {
	var running []*httplimit.Admission
	serve, err := Gated(func(a *httplimit.Admission, w http.ResponseWriter, next http.Handler) {
		running = append(running, a)
		defer a.Done(http.StatusOK, 0)
		next.ServeHTTP(w, RequestOf(a))
	})(c)
	return func(call Call) Answer {
		for _, a := range running {
			if a.Context().Err() != nil {
				a.Done(http.StatusOK, 0)
			}
		}
		return serve(call)
	}, err
}

// TestNoServer checks that a front end which does not start keeps no law.
func TestNoServer(t *testing.T) {
	none := func(*Config) (Server, error) { return nil, errors.New("no port is free") }
	for _, l := range laws {
		assert.NotEmpty(t, l.faults(none), l.name)
	}
}
