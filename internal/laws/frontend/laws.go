package frontend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

var laws = []law{
	{"refuses beyond the limit", refuses},
	{"says that no wait helps", refusesForever},
	{"lets pass in shadow", shadows},
	{"leaves failures to the policy", heedsPolicy},
	{"refuses without a key", needsKey},
	{"shows no error of the program", keepsSecrets},
	{"tells mistakes at the start", tellsMistakes},
	{"skips without asking", skips},
	{"leaves out who has left", leavesOut},
	{"decides in memory in any case", decidesInMemory},
	{"gives up at the deadline", givesUp},
	{"tells what is left", tellsTheTruth},
	{"releases what was in flight", releases},
	{"settles what a call has cost", settles},
	{"settles by the status", settlesByStatus},
}

// refuses: a call over the limit is refused, does not get to the handler, spends nothing, and is
// told which limit it has exceeded and after what time it would be granted. Callers with other keys
// are not concerned.
func refuses(t *trial) {
	p := t.serve(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1), Burst: 2})
	for range 2 {
		p.call(Handled, "ann", "within the limit")
	}
	for range 3 {
		a := p.call(Refused, "ann", "beyond the limit")
		p.require(a.RetryAfter == time.Minute, "a token comes each minute: told %v", a.RetryAfter)
		p.require(a.Policy == "default", "the limit's name is %q", a.Policy)
		p.require(strings.Contains(a.Text, "Not enough of the limit is left for now."),
			"the client reads %q", a.Text)
	}
	p.call(Handled, "ben", "another caller")
	p.clk.Add(time.Minute - 1)
	a := p.call(Refused, "ann", "a nanosecond too early")
	p.require(a.RetryAfter > 0 && a.RetryAfter <= time.Second,
		"a nanosecond too early: told %v", a.RetryAfter)
	p.clk.Add(1)
	p.call(Handled, "ann", "after the time it was told")
}

// refusesForever: a call that costs more than the limit ever grants is told no time. It spends
// nothing.
func refusesForever(t *trial) {
	cost := 3
	p := t.serve(ratelimit.FixedWindow{Limit: 2, Window: time.Hour},
		with(httplimit.WithCost(func(*http.Request) int { return cost })))
	a := p.call(Refused, "ann", "3 events of 2")
	p.require(a.RetryAfter == 0, "it is told to wait for %v in vain", a.RetryAfter)
	p.require(a.Policy == "default", "the limit's name is %q", a.Policy)
	p.require(strings.Contains(a.Text, "The request exceeds what the limit ever allows at once."),
		"the client reads %q", a.Text)
	cost = 2
	p.call(Handled, "ann", "2 events of 2")
}

// shadows: in shadow, all calls pass, also if the store fails. The program is told of those that
// would have been refused, with the decision, and observers see the denials. No client is told.
func shadows(t *trial) {
	p := t.serve(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, inShadow)
	p.noFields(p.call(Handled, "ann", "within the limit"), "in shadow")
	p.require(len(p.shadowed) == 0, "the program is told of a call within the limit")
	for i := range 2 {
		p.noFields(p.call(Handled, "ann", "beyond the limit"), "in shadow")
		p.require(len(p.shadowed) == i+1, "%d calls beyond the limit: the program is told of %d",
			i+1, len(p.shadowed))
	}
	for _, d := range p.shadowed {
		p.require(!d.Allowed && d.Limit == 1 && d.Remaining == 0 && d.RetryAfter > 0,
			"the program is told %+v", d)
	}
	p.require(p.decided == 3 && p.denied == 2, "observers see %d of %d calls denied",
		p.denied, p.decided)

	p = t.serve(ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
		inShadow, failing, withLimiter(ratelimit.WithFailurePolicy(ratelimit.FailClosed())))
	p.noFields(p.call(Handled, "ann", "the store fails"), "in shadow")
	p.require(len(p.shadowed) == 1, "the store fails: the program is told of %d refusals",
		len(p.shadowed))
}

var errDown = errors.New("no route to the store")

// failing makes the store fail.
func failing(c *Config, _ *place) {
	db := newDatabase()
	db.err = errDown
	c.Limiter = append(c.Limiter, ratelimit.WithStore(ratelimit.NewStore(db)))
}

// heedsPolicy: if the store fails, the FailurePolicy of the limiter decides, and the program is
// told the error. FailOpen lets the call pass. FailClosed refuses it, for a second, and names no
// limit, because none was checked. A Fallback decides as a limit does. What is left of the limit
// itself is not known, and not told. The limiter logs the failure, and the front end does not.
func heedsPolicy(t *trial) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)}
	under := func(policy ratelimit.FailurePolicy) *place {
		return t.serve(bucket, failing, withLimiter(ratelimit.WithFailurePolicy(policy)))
	}
	toldOf := func(p *place, calls int) {
		p.require(len(p.storeErrors) == calls && errors.Is(errors.Join(p.storeErrors...), errDown),
			"%d calls: the program is told %v", calls, p.storeErrors)
	}

	p := under(ratelimit.FailOpen())
	for range 3 {
		p.noFields(p.call(Handled, "ann", "FailOpen"), "FailOpen")
	}
	toldOf(p, 3)

	p = under(ratelimit.FailClosed())
	a := p.call(Unchecked, "ann", "FailClosed")
	p.require(a.RetryAfter == time.Second, "FailClosed: told to wait for %v", a.RetryAfter)
	p.require(a.Policy == "", "FailClosed: told of the limit %q", a.Policy)
	p.require(strings.Contains(a.Text, "The limit cannot be checked at the moment."),
		"FailClosed: the client reads %q", a.Text)
	p.retryField(a, "FailClosed")
	a.Fields.Del("Retry-After")
	p.noFields(a, "FailClosed")
	toldOf(p, 1)

	local, err := ratelimit.New(bucket, ratelimit.WithClock(p.clk))
	p.require(err == nil, "%v", err)
	p = under(ratelimit.Fallback(local))
	a = p.call(Handled, "ann", "within the limit of the Fallback")
	p.require(a.Fields.Get("RateLimit") == `"default";r=0`,
		"the client is told %s", a.Fields.Get("RateLimit"))
	a = p.call(Refused, "ann", "beyond the limit of the Fallback")
	p.require(a.RetryAfter == time.Minute && a.Policy == "default",
		"a token of the Fallback comes in a minute: told %v of %q", a.RetryAfter, a.Policy)
	p.require(a.Fields.Get("RateLimit-Policy") == "", "the client is told a limit")
	toldOf(p, 2)

	logged := capture()
	defer logged.end()
	p = t.serve(bucket, failing, func(c *Config, _ *place) {
		c.Options = []httplimit.Option{byUser}
		c.Limiter = append(c.Limiter, ratelimit.WithFailureLog(slog.Default()))
	})
	p.call(Handled, "ann", "the log is told")
	p.require(strings.Count(logged.text(), "\n") == 1 && strings.Contains(logged.text(), errDown.Error()),
		"the limiter logs its failure: the log has %q", logged.text())
}

// needsKey: a call without a key, or with an empty one, is refused without asking the limit, and
// its client is told what is missing. In shadow it passes, and the program is told of it.
func needsKey(t *trial) {
	minute := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)}
	p := t.serve(minute)
	for range 2 {
		a := p.call(NoKey, "", "without the field")
		p.noFields(a, "without the field")
		p.require(strings.Contains(a.Text, "User is missing"), "the client reads %q", a.Text)
	}
	p.call(Handled, "ann", "with the field")
	p.require(p.decided == 1, "the limit was asked %d times for one key", p.decided)

	empty := httplimit.WithKey(func(*http.Request) (string, error) { return "", nil })
	p = t.serve(minute, with(empty))
	a := p.call(NoKey, "ann", "with an empty key")
	p.require(strings.Contains(a.Text, "the key is empty"), "the client reads %q", a.Text)

	var told []ratelimit.Decision
	p = t.serve(minute, with(httplimit.WithShadow(1, func(_ *http.Request, d ratelimit.Decision) {
		told = append(told, d)
	})))
	p.noFields(p.call(Handled, "", "without the field, in shadow"), "in shadow")
	p.require(len(told) == 1 && told[0] == ratelimit.Decision{},
		"without a key, in shadow: the program is told %v", told)
}

// keepsSecrets: if the program cannot tell the key, even by a mistake of its own, or the cost is
// not a number of events, the call is refused as one without a key. The client does not see the
// error of the program. It is logged, once a second.
func keepsSecrets(t *trial) {
	logged := capture()
	defer logged.end()
	secret := fmt.Errorf("%w: no sessions at db-7", ratelimit.ErrInvalid)
	p := t.serve(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)},
		with(httplimit.WithKey(func(*http.Request) (string, error) { return "", secret })))
	for range 3 {
		a := p.call(NoKey, "ann", "the key is not known")
		p.noFields(a, "the key is not known")
		p.require(strings.Contains(a.Text, "cannot determine the client of this request"),
			"the client reads %q", a.Text)
		p.require(!strings.Contains(a.Text, "db-7"), "the client reads %q", a.Text)
	}
	p.require(strings.Count(logged.text(), "db-7") == 1, "3 calls in a second: the log has %q",
		logged.text())
	p = t.serve(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)},
		with(httplimit.WithCost(func(*http.Request) int { return -1 })))
	p.call(NoKey, "ann", "a negative cost")
}

// tellsMistakes: a front end without a limit, or with an option that is invalid or cannot be
// combined with another one, does not start. Its error matches ErrInvalid.
func tellsMistakes(t *trial) {
	other := ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}))
	also := httplimit.WithAlso(other, key.Everybody(), "also")
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)}
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		opts []httplimit.Option
	}{
		"no limit":                 {nil, nil},
		"a nil option":             {bucket, []httplimit.Option{nil}},
		"WithKey(nil)":             {bucket, []httplimit.Option{httplimit.WithKey(nil)}},
		"WithSkip(nil)":            {bucket, []httplimit.Option{httplimit.WithSkip(nil)}},
		"WithStatus(42)":           {bucket, []httplimit.Option{httplimit.WithStatus(42)}},
		"WithHeaders(-1)":          {bucket, []httplimit.Option{httplimit.WithHeaders(-1)}},
		"a name that is not ASCII": {bucket, []httplimit.Option{httplimit.WithPolicyName("ü")}},
		"WithAlso(nil)": {bucket, []httplimit.Option{
			httplimit.WithAlso(nil, key.Everybody(), "also"),
		}},
		"two of a name": {bucket, []httplimit.Option{also, also}},
		"WithShaping and WithAlso": {bucket, []httplimit.Option{
			httplimit.WithShaping(time.Second), also,
		}},
	} {
		_, err := t.start(tt.alg, with(tt.opts...))
		t.require(errors.Is(err, ratelimit.ErrInvalid), "%s: the error is %v", name, err)
	}
}

// skips: a call that is skipped, or is free, passes without asking the limit, also beyond it and
// without a key, and is told nothing.
func skips(t *trial) {
	cost := 1
	p := t.serve(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, with(
		httplimit.WithSkip(func(r *http.Request) bool { return r.Header.Get(user) == "health" }),
		httplimit.WithCost(func(*http.Request) int { return cost }),
	))
	free := func(when string) {
		for _, user := range []string{"ann", ""} {
			cost = 0
			p.noFields(p.call(Handled, user, when), when)
			cost = 1
		}
	}
	p.noFields(p.call(Handled, "health", "skipped"), "skipped")
	p.noFields(p.call(Handled, "health", "skipped again"), "skipped again")
	free("free")
	p.require(p.decided == 0, "calls that are skipped or free: the limit was asked %d times",
		p.decided)
	p.call(Handled, "ann", "the first call that counts")
	p.call(Refused, "ann", "the second call that counts")
	p.noFields(p.call(Handled, "health", "skipped beyond"), "skipped beyond")
	free("free beyond")
	p.require(p.decided == 2, "two calls that count: the limit was asked %d times", p.decided)
}

// leavesOut: a call whose client has left, before the store was asked or meanwhile, is refused
// without asking its handler, spends nothing, and is no failure of the store.
func leavesOut(t *trial) {
	window := ratelimit.FixedWindow{Limit: 3, Window: time.Hour}
	db := newDatabase()
	elsewhere := withLimiter(ratelimit.WithStore(ratelimit.NewStore(db)))
	ctx, leave := context.WithCancel(context.Background())
	p := t.serve(window, elsewhere)
	db.during(func() {
		p.callWithin(ctx, Ended, "ann", "its client leaves while the store is asked")
	}, leave)
	p.callWithin(ctx, Ended, "ann", "its client has left")
	p.require(len(p.storeErrors) == 0, "clients have left: the program is told %v", p.storeErrors)
	p.left(2, "after calls whose clients have left")

	p = t.serve(window, elsewhere, with(untold(t)))
	p.callHandled(ctx, "ann", "its client has left, in shadow")
	p.require(p.decided == 0, "its client has left, in shadow: the limit has decided")
}

// untold lets all calls pass. It is a fault if one would have been refused.
func untold(t *trial) httplimit.Option {
	return httplimit.WithShadow(1, func(_ *http.Request, d ratelimit.Decision) {
		t.require(false, "it is not refused: the program is told %+v", d)
	})
}

// decidesInMemory: in memory, and without a lookup, a call whose client has left is decided as all
// others are, because a client that has closed its side of the connection looks the same.
func decidesInMemory(t *trial) {
	gone, leave := context.WithCancel(context.Background())
	leave()
	p := t.serve(ratelimit.FixedWindow{Limit: 2, Window: time.Hour})
	p.callWithin(gone, Handled, "ann", "within the limit")
	p.left(0, "after a call whose client has left")
	p.callWithin(gone, Refused, "ann", "beyond the limit")
}

// givesUp: a call whose deadline has passed, or passes while the store is asked, is refused without
// asking its handler, whatever the FailurePolicy says, and spends nothing.
func givesUp(t *trial) {
	window := ratelimit.FixedWindow{Limit: 3, Window: time.Hour}
	p := t.serve(window)
	past, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	p.noFields(p.callWithin(past, Ended, "ann", "too late, in memory"), "too late")
	p.left(2, "after a call that was too late")

	db := newDatabase()
	p = t.serve(window, withLimiter(ratelimit.WithStore(ratelimit.NewStore(db)),
		ratelimit.WithFailurePolicy(ratelimit.FailOpen())))
	soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	db.during(func() {
		p.noFields(p.callWithin(soon, Ended, "ann", "too late while asking"), "too late")
	}, func() {})
	p.left(2, "after a call whose deadline passed while the store was asked")

	p = t.serve(window, with(untold(t)))
	p.callHandled(past, "ann", "too late, in shadow")
}

// left makes a call of ann that passes, and requires that it leaves n events.
func (p *place) left(n int, when string) {
	told := p.call(Handled, "ann", when).Fields.Get("RateLimit")
	p.require(strings.HasPrefix(told, fmt.Sprintf(`"default";r=%d`, n)),
		"%s: the next call is told %s, and not r=%d", when, told, n)
}

// tellsTheTruth: the fields that a client is told are true, in every form. A call that costs r+1 is
// refused, and spends nothing. One that costs r passes. After t, all of q passes. A refusal has the
// time to wait as a field too, whether the others are sent or not.
func tellsTheTruth(t *trial) {
	forms := map[string]struct {
		form httplimit.Headers
		read func(h http.Header, now time.Time) (q, r, t int)
	}{
		"Standard": {httplimit.Standard, readStandard},
		"Draft7":   {httplimit.Draft7, readDraft7},
		"Legacy":   {httplimit.Legacy, readLegacy},
	}
	for name, form := range forms {
		cost := 1
		costs := httplimit.WithCost(func(*http.Request) int { return cost })
		p := t.serve(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1), Burst: 5},
			with(httplimit.WithHeaders(form.form), costs))
		told := func(want Outcome, n int, when string) (q, r, reset int) {
			cost = n
			a := p.call(want, "ann", name+", "+when)
			if want == Refused {
				p.retryField(a, name)
			}
			return form.read(a.Fields, p.clk.Now())
		}
		q, r, _ := told(Handled, 1, "the first call")
		p.require(q == 5 && r == 4, "%s: one of 5 is spent: told %d and %d", name, q, r)
		p.call(Handled, "ben", "another caller")
		p.clk.Add(30 * time.Second)
		_, refused, wait := told(Refused, r+1, "one more than was told to be left")
		p.require(refused == r, "%s: a refusal spends %d", name, r-refused)
		p.require(form.form == httplimit.Legacy || wait == 30,
			"%s: after a refusal, half a minute is told as %d s", name, wait)
		_, r, reset := told(Handled, r, "as much as was told to be left")
		p.require(r == 0, "%s: all is spent: told %d", name, r)
		p.clk.Add(time.Duration(reset)*time.Second - time.Minute)
		told(Refused, q, "all, a minute before all is back")
		p.clk.Add(time.Minute)
		told(Handled, q, "all, at the time when all is back")
	}

	p := t.serve(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)},
		with(httplimit.WithHeaders(httplimit.None)))
	p.noFields(p.call(Handled, "ann", "None"), "None")
	a := p.call(Refused, "ann", "None, beyond the limit")
	p.retryField(a, "None")
	a.Fields.Del("Retry-After")
	p.noFields(a, "None, beyond the limit")
}

// retryField requires that the field of a refusal tells the time that the client is told.
func (p *place) retryField(a Answer, when string) {
	seconds := (a.RetryAfter + time.Second - 1) / time.Second
	field := a.Fields.Get("Retry-After")
	p.require(field == strconv.Itoa(int(seconds)), "%s: the client is told to wait for %v and for %s",
		when, a.RetryAfter, field)
}

func readStandard(h http.Header, _ time.Time) (q, r, t int) {
	_, _ = fmt.Sscanf(h.Get("RateLimit"), `"default";r=%d;t=%d`, &r, &t)
	_, _ = fmt.Sscanf(h.Get("RateLimit-Policy"), `"default";q=%d`, &q)
	return q, r, t
}

func readDraft7(h http.Header, _ time.Time) (q, r, t int) {
	_, _ = fmt.Sscanf(h.Get("RateLimit"), "limit=%d, remaining=%d, reset=%d", &q, &r, &t)
	return q, r, t
}

func readLegacy(h http.Header, now time.Time) (q, r, t int) {
	number := func(name string) int {
		n, _ := strconv.Atoi(h.Get(name))
		return n
	}
	t = number("X-Ratelimit-Reset") - int(now.Unix())
	return number("X-Ratelimit-Limit"), number("X-Ratelimit-Remaining"), t
}

// releases: a call is in flight while its handler runs, even if its client has left, and no longer:
// the handler may return, fail or panic. A panic goes on. A call that is refused, or whose client
// leaves before the handler has it, is not in flight.
func releases(t *trial) {
	flight := ratelimit.InFlight{Limit: 1, Timeout: time.Hour}
	bug := errors.New("a bug")
	for name, change := range map[string]func(c *Config, db *database){
		"in memory": func(*Config, *database) {},
		"elsewhere": func(c *Config, db *database) {
			c.Limiter = append(c.Limiter, ratelimit.WithStore(ratelimit.NewStore(db)))
		},
		"settled": func(c *Config, _ *database) {
			c.Options = append(c.Options, httplimit.WithSettleAtEnd(httplimit.ByCost))
		},
	} {
		db := newDatabase()
		p := t.serve(flight, func(c *Config, _ *place) { change(c, db) })
		whileOneRuns := func(when string, end func() error) func(context.Context) error {
			return func(context.Context) error {
				p.handle = nil
				a := p.call(Refused, "ann", name+", while one is in flight")
				p.require(a.RetryAfter > 0 && a.RetryAfter <= time.Second,
					"%s: it may end at once, and not in %v", when, a.RetryAfter)
				p.call(Handled, "ben", name+", another caller")
				return end()
			}
		}
		var leave context.CancelFunc
		for way, end := range map[string]func() error{
			"its handler has returned": func() error { return nil },
			"its handler has failed":   func() error { return bug },
			"its handler has panicked": func() error { panic(bug) },
			"its client had left": func() error {
				leave()
				p.call(Refused, "ann", name+", its handler runs, but its client has left")
				return nil
			},
		} {
			var ctx context.Context
			ctx, leave = context.WithCancel(context.Background())
			p.handle = whileOneRuns(way, end)
			panicked := p.endOf(Call{Context: ctx, User: "ann"})
			p.require((panicked == any(bug)) == (way == "its handler has panicked"),
				"%s, %s: the panic is %v", name, way, panicked)
			leave()
			p.call(Handled, "ann", name+", "+way)
		}
		gone, leave := context.WithCancel(context.Background())
		if name == "elsewhere" {
			db.during(func() {
				p.callWithin(gone, Ended, "ann", "its client leaves while the store is asked")
			}, leave)
			p.call(Handled, "ann", "after one whose client has left")
		}
		leave()
		p.require(len(p.storeErrors) == 0, "%s: the program is told %v", name, p.storeErrors)
	}
}

// day is a limit of which what is spent can be read.
var day = ratelimit.FixedWindow{Limit: 100, Window: 24 * time.Hour}

// settles: with WithSettleAtEnd, a call has cost what its handler told Cost, whether that returns,
// fails or panics.
func settles(t *trial) {
	p := t.serve(day, with(httplimit.WithSettleAtEnd(httplimit.ByCost)))
	costs := func(n int, end func() error) func(context.Context) error {
		return func(ctx context.Context) error {
			httplimit.Cost(ctx, n)
			return end()
		}
	}
	bug := errors.New("a bug")
	p.handle = costs(4, func() error { return nil })
	p.call(Handled, "ann", "costs 4")
	p.handle = costs(0, func() error { return nil })
	p.left(95, "4 are spent, and one is held")
	p.handle = costs(5, func() error { return bug })
	p.call(Failed, "ann", "costs 5, and fails")
	p.handle = costs(6, func() error { panic(bug) })
	panicked := p.endOf(Call{Context: context.Background(), User: "ann"})
	p.require(panicked == any(bug), "the panic is %v", panicked)
	p.handle = costs(0, func() error { return nil })
	p.left(84, "4, 5 and 6 are spent, and one is held")
}

// settlesByStatus: with WithSettle, a call has cost what its status says. One that fails has a
// status that says so.
func settlesByStatus(t *trial) {
	p := t.serve(day, with(httplimit.WithSettle(func(_ *http.Request, status int) int {
		if status < http.StatusInternalServerError {
			return 0
		}
		return 7
	})))
	p.call(Handled, "ann", "free if it does not fail")
	p.left(99, "nothing is spent, and one is held")
	p.handle = func(context.Context) error { return errors.New("a fault") }
	p.call(Failed, "ann", "costs 7 if it fails")
	p.handle = func(context.Context) error { panic("a bug") }
	panicked := p.endOf(Call{Context: context.Background(), User: "ann"})
	p.require(panicked == any("a bug"), "the panic is %v", panicked)
	p.handle = nil
	p.left(85, "twice 7 are spent, and one is held")
}
