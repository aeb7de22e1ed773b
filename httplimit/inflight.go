package httplimit

// WithInFlight is for a limiter whose keys have limits of their own ([ratelimit.WithLimits]), if
// some of these are a [ratelimit.InFlight] or have one in them. It makes the middleware hold
// each request until its handler returns or panics, and then release it. Without it, a request
// of such a key counts for the Timeout. A limiter of one's own that does not tell its
// algorithm (see [ratelimit.Limiter]) needs it as well. It is not needed if the algorithm is known.
//
// The middleware then calls [ratelimit.Limiter.Hold] instead of Take, and the store once more
// when the handler is done, for the requests of all keys. Those without an InFlight stay as
// spent as without WithInFlight.
func WithInFlight() Option {
	return option(func(c *config) { c.inFlight = true })
}
