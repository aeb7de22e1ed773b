// Package client limits the requests that a client sends, with a [ratelimit.Limiter], so that the
// client stays within a server's limit:
//
//	c := &http.Client{Transport: &client.Transport{Limiter: limiter, Quota: client.RateLimit}}
//
// [Transport] makes requests of net/http wait for their turn, honours a server's Retry-After and,
// with Quota, slows down before it is refused. [Turns] do the same for other protocols; packages
// grpclimit and connectlimit are made of them. Package httplimit is for servers.
package client
