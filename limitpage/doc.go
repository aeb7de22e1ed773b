// Package limitpage serves a page that shows what the limiters of a process are doing: how
// much they grant and deny, now and over the last five minutes, which keys are denied most,
// what their stores hold, and how Redis is.
//
//	page := limitpage.New()
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
//		ratelimit.WithName("api"), ratelimit.WithObserver(page)))
//	if err := page.Add(limiter); err != nil {
//		log.Fatal(err)
//	}
//	http.Handle("/debug/ratelimit/", page)
//
// The page looks up single keys as well. It is one document without external resources, and
// updates itself every second.
//
// With ?format=json, the handler returns the same as JSON, whose field names stay the same in
// later versions, which may add fields. Durations are in seconds, times in milliseconds since
// the Unix epoch. A key is looked up with ?format=json&limiter=api&key=..., or by a POST of
// the same fields, which keeps the key out of the logs of proxies.
//
// # Who may see it
//
// As with net/http/pprof, the handler does not ask who is there. Serve it on an internal
// address, or behind a handler that does. Keys may be personal data: see [WithHashedKeys].
// Nobody can change anything, unless [WithReset] is given; then browsers cannot be made to do
// so by pages of other origins.
//
// # What it costs
//
// For each decision, the page reads the clock and adds to two counters: about 60 ns. A denial
// also enters the list of denied keys: about 100 ns more (go test -bench Observe ./limitpage
// measures it). It allocates nothing, except for a key
// that enters that list. There is no goroutine. Each limiter takes about 7 kB, and its list of
// keys. The stores are asked for their counters, and limiters for keys, only while somebody looks
// at the page: once a second.
package limitpage
