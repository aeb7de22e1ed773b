// Package rules keeps limits that change while a service runs: a table of
// throttled calls that administrators edit, and limits per key that are looked up
// in a configuration store.
//
// # The throttle table
//
// A [Rule] names a call and its limit. A [Set] loads all rules from a [Source] (a
// SQL table, a file, or the program itself), keeps them in memory, and loads them
// again every so often:
//
//	set, err := rules.New(ctx, rules.SQL(db))
//	...
//	defer set.Close()
//	http.ListenAndServe(":8080", set.Middleware()(mux))
//
// Calls that no rule names are not throttled. Each subject, by default the
// client's address, has each rule's limit for itself. An edit is in force after
// the next load, and gives nobody a fresh quota: what has been used is kept, as
// [ratelimit.WithLimits] says for each algorithm, also if a rule is deleted and put
// back. A rule that cannot be used keeps its last good version, and [Set.Status] says
// so; the others are loaded.
//
// Handlers read some paths in different ways. A call counts against the rules of all of
// these: see [Rule].
//
// # Limits per key
//
// [Cached] makes a lookup in a database or another store fit for
// [ratelimit.WithLimits]: the limit of a key that is known is told at once, also while the
// store hangs, and the store is asked for a few keys at a time:
//
//	lookup, err := rules.Cached(rules.SQLLimits(db, "SELECT time_window_sec, capacity FROM limits WHERE config_key = $1", nil))
//	...
//	limiter, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}, ratelimit.WithLimits(lookup.Limit))
package rules
