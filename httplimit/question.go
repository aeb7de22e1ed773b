package httplimit

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/ascii"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A question is what the limits of a request are asked.
type question struct {
	n      int   // how many events the request counts as
	costs  []int // the same for each limit, if one has a costing of its own
	isFree bool  // whether the request counts in no limit: then the rest is empty

	subject string            // the key of WithKey
	limits  []*namedLimit     // that the request counts in, and that are enforced
	key     string            // the key in the first limit
	bounds  []ratelimit.Bound // the keys in all limits, if there are several; else nil
	shadows []Limit           // that are asked when the others have let the request pass
	flies   bool              // whether one of all these has an InFlight

	// Whether events are held until the request is done: to be settled, as what is in flight, or
	// because the deadline of the request may pass before the limits have answered.
	holds     bool
	answersIn time.Duration // of all limits, see namedLimit
}

// systemClock is for limiters that do not tell their clock.
var systemClock = clock.New()

// clock returns the clock of the first of the limits.
func (q *question) clock() clock.Clock {
	if clk := q.limits[0].info.Clock; clk != nil {
		return clk
	}
	return systemClock
}

// ask makes q the question that r is.
func (g *Gate) ask(r *http.Request, q *question) error {
	if err := g.askCosts(r, q); err != nil || q.isFree {
		return err
	}
	subject, err := requestKey(g.key, r)
	if err != nil {
		return err
	}
	q.subject, q.key, q.limits, q.flies = subject, subject, g.limits, g.flies
	q.answersIn = g.answersIn
	switch {
	case g.limitsOf != nil:
		err = g.askLimitsOf(r, q)
	case len(g.limits) > 1:
		q.bounds = make([]ratelimit.Bound, 0, len(g.limits))
		q.bounds = append(q.bounds, ratelimit.For(g.limits[0].limiter, q.key, g.ends...))
		err = g.addBounds(r, q, g.limits[1:])
	}
	delay := time.Duration(0)
	if g.shapes(q) {
		delay = g.shaping
		q.answersIn *= mostAsked
	}
	q.holds = g.settles || q.flies ||
		q.answersIn > 0 && mayEndWithin(r.Context(), delay, q.answersIn)
	return err
}

// askCosts sets how many events r counts as.
func (g *Gate) askCosts(r *http.Request, q *question) (err error) {
	q.n, err = g.costOf(r)
	if err != nil {
		return err
	}
	q.isFree = q.n == 0
	if !g.hasOwnCosts {
		return nil
	}
	q.costs = make([]int, len(g.limits))
	for i, l := range g.limits {
		q.costs[i] = q.n
		if l.costs() {
			if q.costs[i], err = l.costOf(r); err != nil {
				return err
			}
		}
		q.isFree = q.isFree && q.costs[i] == 0
	}
	return nil
}

// askLimitsOf adds the limits of g.limitsOf to q, and then those of WithAlso.
func (g *Gate) askLimitsOf(r *http.Request, q *question) error {
	found, err := g.limitsOf(r, q.subject)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		q.isFree = true
		return nil
	}
	q.limits = make([]*namedLimit, 0, len(found)+len(g.limits))
	for _, one := range found {
		if param.IsNil(one.Limiter) {
			return invalid("the Limiter of a Limit", nil,
				"must be a Limiter, such as ratelimit.New returns")
		}
		l := g.limitFor(&one, q.limits)
		q.flies = q.flies || one.InFlight || l.flies
		q.answersIn += l.answersIn
		if one.Shadow != nil {
			q.shadows = append(q.shadows, one)
			continue
		}
		q.limits = append(q.limits, l)
		q.bounds = append(q.bounds, ratelimit.For(one.Limiter, one.Key, g.ends...))
	}
	if q.costs != nil {
		q.costs = append(slices.Repeat([]int{q.n}, len(q.limits)), q.costs...)
	}
	if err := g.addBounds(r, q, g.limits); err != nil {
		return err
	}
	q.limits = append(q.limits, g.limits...)
	if len(q.bounds) == 1 && q.costs == nil {
		q.key, q.bounds = q.bounds[0].Key(), nil
	}
	return nil
}

// limitFor returns the limiter of one by a name by which clients can tell it, and its parts, from
// others and from those of WithAlso: by the name of one, if that is possible.
func (g *Gate) limitFor(one *Limit, others []*namedLimit) *namedLimit {
	name := one.Name
	if !ascii.IsPrintable(name) {
		name = g.name
	}
	l := g.known.limit(name, one.Limiter, g.status)
	for i := 2; slices.ContainsFunc(others, l.sharesName) ||
		slices.ContainsFunc(g.limits, l.sharesName); i++ {
		l = g.known.limit(name+"-"+strconv.Itoa(i), one.Limiter, g.status)
	}
	return l
}

// addBounds adds the keys of r in limits that have a key and perhaps a costing of their own.
func (g *Gate) addBounds(r *http.Request, q *question, limits []*namedLimit) error {
	for _, l := range limits {
		key, err := requestKey(l.key, r)
		if err != nil {
			return err
		}
		if l.costs() {
			n := q.costs[len(q.bounds)]
			q.bounds = append(q.bounds, ratelimit.For(l.limiter, key, l.ends...).N(n))
		} else {
			q.bounds = append(q.bounds, ratelimit.For(l.limiter, key, g.ends...))
		}
	}
	return nil
}

// requestKey returns the key of r.
func requestKey(f key.Func, r *http.Request) (string, error) {
	k, err := f(r)
	if err == nil && k == "" {
		return "", errEmptyKey
	}
	return k, err
}

// errEmptyKey refuses an empty key, which clients would share by mistake.
var errEmptyKey = fmt.Errorf("%w: the key is empty", key.ErrNone)
