// Package limitpage serves a page that shows what the limiters of a process are doing:
//
//   - which keys are denied most, since when and by which limit, and which use most;
//   - how much each limiter grants and denies, now and over the last five minutes;
//   - which stores fail and why, what the stores hold, and how fast Redis answers.
//
// Limiters that deny most come first.
//
//	page := limitpage.New()
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
//		ratelimit.WithName("api"), ratelimit.WithObserver(page.Observe)))
//	if err := page.Add(limiter); err != nil {
//		log.Fatal(err)
//	}
//	http.Handle("/debug/ratelimit/", page)
//
// The page looks up single keys as well, and finds limiters and keys by parts of their names. It is
// one document without external resources, and updates itself every second.
//
// # JSON
//
// With ?format=json, the handler returns the data of the page as JSON. Later versions may add
// fields, and keep the names of these. Durations are in seconds, times in milliseconds since the
// Unix epoch. The fields of a store have the names of those of [ratelimit.MemoryStats] or
// [github.com/ratelimit-go/ratelimit/redisstore.Stats], and the fields of a decision those of
// [ratelimit.Decision], in lower camel case.
//
// The field seconds of a limiter counts its decisions in each whole second of the last five
// minutes. With &since=T, it begins no earlier than at the Unix time T, in seconds. The lists top
// and used of a limiter have up to 32 keys. With &keys=N, the lists of all limiters have the N keys
// with the greatest counts together.
//
// A request with ?format=json&limiter=api&key=... looks up a key. So does a POST of the fields
// limiter and key as a form, which keeps the key out of the logs of proxies. A key in a list can
// also be named by its id, with the field id in place of key. The key in an answer is for people to
// read: it is the key itself only if verbatim is true.
//
// # Who may see it
//
// Like net/http/pprof, the handler does not authenticate its callers. Serve it on an internal
// address, or behind a handler that does. Keys may be personal data: see [WithHashedKeys].
// Without [WithReset], the page changes nothing. In plain HTTP, the handler answers only under
// names that nobody else can register, and under the names of [WithHosts].
//
// The handler refuses a POST that a browser sends on behalf of a page of another origin, as
// [net/http.CrossOriginProtection] defines it. A proxy in front of the handler should forward the
// Host header unchanged. If the proxy changes the header, and browsers talk to the proxy in plain
// HTTP, the handler also refuses the lookups and resets of its own page.
//
// # What it costs
//
// A limiter with an observer computes each Decision in full. For each decision, the page reads the
// clock and adds to two counters, and counts for the key in one of two lists. So Allow takes about
// 210 ns longer (go test -bench Allow ./limitpage). Only a key that enters a list allocates memory.
// The page has no goroutine.
//
// Each limiter takes about 11 kB. Once keys are used, and once keys are denied, it also takes the
// memory of an observe.TopUsed(32) or observe.TopDenied(32): about 30 kB each (see
// [observe.TopKeys]).
//
// The page asks the stores for their counters, and a limiter for the key that is looked up, only
// while somebody looks at the page: once a second for each viewer. A viewer gets up to 200 keys of
// each kind, or all keys while looking for a name. With 256 limiters whose lists are full, that is
// 185 kB a second instead of 2.8 MB, before compression.
//
// The page [docs/observe.md] is an introduction.
//
// [docs/observe.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/observe.md
package limitpage
