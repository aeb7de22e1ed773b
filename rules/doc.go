// Package rules provides limits that can change while a service runs: a table of
// throttled calls that administrators edit, and limits per key that are looked up in a
// configuration store.
//
// # The throttle table
//
// A [Rule] names a call and its limit. A [Set] loads all rules from a [Source] (a SQL
// table, a file, or the program itself), keeps them in memory, and reloads them at
// intervals:
//
//	set, err := rules.New(ctx, rules.SQL(db))
//	if err != nil {
//		log.Fatal(err)
//	}
//	log.Fatal(http.ListenAndServe(":8080", set.Middleware()(mux)))
//
// Calls that no rule names are not throttled. Each rule's limit applies to each
// subject separately; the subject is by default the client's address. An edit takes
// effect with the next load. The events counted so far are kept, even if a rule is
// deleted and added again, as [ratelimit.WithLimits] describes for each algorithm: only
// an edit from one kind of limit to another gives subjects a fresh quota. If a rule is
// invalid, its last valid version stays in force and [Set.Status] reports it; the other rules
// are loaded.
//
// A call of an in-flight rule counts while its handler runs: see [Set.Middleware] and
// [Set.Hold].
//
// HTTP handlers interpret some paths differently. A call counts against the rules for
// all these interpretations: see [Rule].
//
// # Limits per key
//
// [Cached] makes a lookup in a database or another store suitable for
// [ratelimit.WithLimits]. It returns the limit of a known key at once, even while the
// store hangs, and looks up only a few keys at a time. If the lookup of an unknown key fails,
// the limiter's own limit applies until one succeeds:
//
//	lookup, err := rules.Cached(rules.SQLLimits(db,
//		"SELECT 60, per_minute FROM customers JOIN plans ON plan = plans.name WHERE customers.id = $1", nil))
//	if err != nil {
//		log.Fatal(err)
//	}
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)},
//		ratelimit.WithLimits(lookup.Limit)))
//
// The page [docs/rules.md] is an introduction.
//
// [docs/rules.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/rules.md
package rules
