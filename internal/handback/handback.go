// Package handback carries what a handler has set in its copy of a request back to the request that
// its copy was made of.
package handback

import "net/http"

// Set sets in r what net/http and outer handlers look for in it, and what a handler may have set in
// inner, a copy of r: the route, and the form whose files are to be removed.
func Set(r, inner *http.Request) {
	if r.MultipartForm == nil && inner.MultipartForm != nil {
		r.MultipartForm = inner.MultipartForm
	}
	if r.Pattern != inner.Pattern {
		r.Pattern = inner.Pattern
	}
}
