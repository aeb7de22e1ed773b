// Package limitpage serves a page that shows what the limiters of a process are doing: which
// keys are denied most, since when and by which limit, how much each limiter grants and denies, now
// and over the last five minutes, which stores fail and why, what they hold, and how Redis is.
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
// With ?format=json, the handler returns the same as JSON, whose field names stay the same in
// later versions, which may add fields. Durations are in seconds, times in milliseconds since
// the Unix epoch. The fields of stores are those of [ratelimit.MemoryStats] or
// [github.com/ratelimit-go/ratelimit/redisstore.Stats], and those of decisions are those of
// [ratelimit.Decision], in lower camel case.
//
// The seconds of a limiter are the decisions of each whole second of the last five minutes, or
// of those from the Unix time T on with &since=T.
//
// A key is looked up with ?format=json&limiter=api&key=..., or by a POST of the same fields as a
// form, which keeps the key out of the logs of proxies. In place of key, id may be the id of a key
// in the list of denied keys. The key in an answer is for people to read: it is the key itself only
// if verbatim is true.
//
// # Who may see it
//
// Like net/http/pprof, the handler does not authenticate its callers. Serve it on an internal
// address, or behind a handler that does. Keys may be personal data: see [WithHashedKeys].
// Nobody can change anything, unless [WithReset] is given. In plain HTTP, the handler answers only
// under names that nobody else can register, and those of [WithHosts].
//
// The handler refuses a POST that a browser sends on behalf of a page of another origin, as
// [net/http.CrossOriginProtection] defines it. A proxy in front of it should forward the Host
// header as it is: if it does not, and browsers talk to it in plain HTTP, their look-ups and resets
// are refused, too.
//
// # What it costs
//
// A limiter with an observer computes all of each Decision. For each, the page reads the clock and
// adds to two counters, and a denial enters the list of denied keys. So Allow takes about 140 ns
// longer if it grants, and 210 if it denies (go test -bench Allow ./limitpage measures it). It
// allocates nothing, except for a key that enters that list. There is no goroutine.
//
// Each limiter takes about 11 kB, and the memory of an observe.TopDenied(32) once keys are denied:
// about 30 kB (see [observe.DeniedKeys]).
//
// The stores are asked for their counters, and limiters for keys, only while somebody looks
// at the page: once a second for each who does.
//
// The page [docs/observe.md] is an introduction.
//
// [docs/observe.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/observe.md
package limitpage
