package httplimit

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/ratelimit-go/ratelimit"
)

// problemType is the type of problem (RFC 9457) that a refusal is.
const problemType = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// A refusal answers requests over the limit: with a problem if the client takes
// one, otherwise in plain text.
type refusal struct {
	status int
	before []byte   // the body, up to its detail
	after  [][]byte // the rest, for each part of the policy
	failed []byte   // the body if nobody knows whether the quota is exceeded
}

func newRefusal(status int, names []string) *refusal {
	f := &refusal{status: status}
	f.before = fmt.Appendf(nil, `{"type":%q,"title":"Quota exceeded","status":%d,"detail":"`, problemType, status)
	for _, name := range names {
		quoted, err := json.Marshal(name)
		if err != nil {
			panic(err) // a string
		}
		f.after = append(f.after, fmt.Appendf(nil, `","violated-policies":[%s]}`, quoted))
	}
	title := http.StatusText(status)
	if title == "" { // as of 499
		title = "Limit unavailable"
	}
	f.failed = fmt.Appendf(nil, `{"type":"about:blank","title":%q,"status":%d,"detail":"%s"}`,
		title, status, detail(ratelimit.Decision{Degraded: true}))
	return f
}

// detail says what is the matter, in characters that JSON takes as they are.
func detail(d ratelimit.Decision) string {
	switch {
	case d.Degraded:
		return "The limit cannot be looked up at present."
	case d.RetryAfter == ratelimit.Never:
		return "The request is more than the limit ever allows at once."
	}
	return "Not enough is left of the limit for now."
}

// problemJSON is the media type of a problem.
const problemJSON = "application/problem+json"

// answer refuses a request on which d was decided, by a part of the policy.
func (f *refusal) answer(w http.ResponseWriter, r *http.Request, d ratelimit.Decision, part int) {
	h := w.Header()
	h["Cache-Control"] = []string{"no-store"}
	var body []byte
	switch {
	case !takesProblem(r.Header["Accept"]):
		h["Content-Type"], h["X-Content-Type-Options"] = []string{"text/plain; charset=utf-8"}, []string{"nosniff"}
		body = append([]byte(detail(d)), '\n')
	case d.Degraded:
		h["Content-Type"] = []string{problemJSON}
		body = f.failed
	default:
		h["Content-Type"] = []string{problemJSON}
		body = slices.Concat(f.before, []byte(detail(d)), f.after[part])
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(body)
}
