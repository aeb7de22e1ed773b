package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/internal/policy"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/handback"
)

// This file has what a client is told whose request is refused: the status, the reason, and the
// body, in the order in which Refuse says them. The header fields about the limits, and
// Retry-After, are in headers.go.

// Refuse answers a request that has not passed, as [Middleware] does. r is the request. Refuse does
// nothing if the request has passed.
func (a *Admission) Refuse(w http.ResponseWriter, r *http.Request) {
	if a.Passed || a.gate == nil {
		return
	}
	h := w.Header()
	if a.Err == nil {
		a.SetHeader(h)
	}
	prepareRefusal(h)
	switch {
	case a.gate.refusal != nil:
		inner := r.WithContext(a.inContext(r.Context()))
		defer handback.Set(r, inner)
		a.gate.refusal.ServeHTTP(w, inner)
	case a.isOver:
		w.WriteHeader(a.Status())
	case a.Err != nil:
		http.Error(w, a.Explain(), a.Status())
	default:
		a.answer(w, r)
	}
}

// Status returns the status of the answer to a request that is refused: 400 if its key or cost
// cannot be determined, 503 if its context has ended or no limit was checked, and otherwise that of
// [WithStatus], 429 by default. It is 0 if the request has passed.
func (v *Verdict) Status() int {
	switch {
	case v.Passed || v.gate == nil:
		return 0
	case v.isOver || v.Err == nil && !v.Decision.Checked():
		return http.StatusServiceUnavailable
	case v.Err != nil:
		return http.StatusBadRequest
	}
	return v.gate.status
}

// Explain returns what to tell a client whose request is refused with an Err. If its key or cost
// cannot be determined, that is why, if Err matches [key.ErrNone]. Other errors may contain what
// the client must not see. Explain logs those with slog, at most one line a second for each Gate;
// the attribute left_out is the number of errors omitted since the previous line.
func (v *Verdict) Explain() string {
	if v.isOver {
		return "the request has ended before it was handled"
	}
	const text = "cannot determine the client of this request"
	if errors.Is(v.Err, key.ErrNone) {
		return text + ": " + v.Err.Error()
	}
	if v.Err != nil && v.gate != nil {
		v.gate.keyWarnings.warn(v.request.Context(), "httplimit: "+text, v.Err)
	}
	return text
}

// failed is the body if no limit was checked. Its status is 503, because no client is known to
// exceed one.
var failed = fmt.Appendf(
	nil,
	`{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"%s"}`,
	unavailable,
)

// unavailable says why a request is refused if no limit was checked.
const unavailable = "The limit cannot be checked at the moment."

// detail says why a request is refused by a limit with the quota q, in characters that need no
// escape in JSON.
func (a *Admission) detail(q *policy.Quota) string {
	d := a.Decision
	switch {
	case !d.Checked():
		return unavailable
	case blocks(d):
		return "No requests are allowed."
	case d.RetryAfter == ratelimit.Never:
		return "The request exceeds what the limit ever allows at once."
	}
	// If no window begins then, a hold gives events back before the window ends.
	if at, ok := q.WindowAt(a.clock().Now().Add(d.RetryAfter)); ok {
		return "Not enough of the limit is left: it resets " +
			at.Format("2 January 2006, 15:04 ") + at.Location().String() + "."
	}
	return "Not enough of the limit is left for now."
}

// blocks reports whether d refuses every request, for ever, as a [ratelimit.Blocked] does.
func blocks(d ratelimit.Decision) bool { return d.Limit == 0 && d.RetryAfter == ratelimit.Never }

// fieldsOfContent describe the content of a response in its header.
var fieldsOfContent = [...]string{
	"Content-Length", "Content-Range", "Content-Disposition", "Etag", "Last-Modified",
}

// prepareRefusal makes a header that of a refusal, which nobody may keep. It removes what an outer
// handler has set for another body, as http.Error and http.FileServer do: otherwise the body may be
// cut off, or be taken for that of the resource. Content-Encoding stays, because a handler that
// compresses all responses may have set it.
func prepareRefusal(h http.Header) {
	for _, field := range fieldsOfContent {
		delete(h, field)
	}
	h["Cache-Control"] = []string{"no-store"}
}

// problemJSON is the media type of a problem.
const problemJSON = "application/problem+json"

// longestAccept bounds how much of Accept is read, so that to refuse a hostile client costs little.
const longestAccept = 1024

// prefersText reports whether a client that sends these Accept fields names plain text, and no
// media range that JSON is in. It reads no weights. Clients that send several fields, or a very
// long one, get JSON.
func prefersText(accept []string) bool {
	if len(accept) != 1 || len(accept[0]) > longestAccept {
		return false
	}
	text := false
	for item := range strings.SplitSeq(accept[0], ",") {
		media, _, _ := strings.Cut(item, ";")
		switch strings.ToLower(strings.Trim(media, " \t")) {
		case "application/json", problemJSON, "application/*", "*/*":
			return false
		case "text/plain":
			text = true
		}
	}
	return text
}

// answer refuses the request: with problem+json, unless the client prefers plain text. headers.go
// has already set Retry-After (seconds, rounded up), unless the request is never granted, and by
// default, if a limit was checked, RateLimit-Policy ("default";q=60;w=60) and RateLimit
// ("default";r=0;t=1).
func (a *Admission) answer(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	var body []byte
	switch {
	case prefersText(r.Header["Accept"]):
		h["Content-Type"] = []string{"text/plain; charset=utf-8"}
		h["X-Content-Type-Options"] = []string{"nosniff"}
		body = append([]byte(a.Detail), '\n')
	case !a.Decision.Checked():
		h["Content-Type"] = []string{problemJSON}
		body = failed
	default:
		h["Content-Type"] = []string{problemJSON}
		body = a.policies.Problem(a.told, a.Detail)
	}
	w.WriteHeader(a.Status())
	_, _ = w.Write(body)
}
