package httplimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

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
	length int      // of both, and a detail
}

func newRefusal(status int, names []string) *refusal {
	f := &refusal{status: status}
	f.before = fmt.Appendf(nil, `{"type":%q,"title":"Quota exceeded","status":%d,"detail":"`, problemType, status)
	for _, name := range names {
		text, err := json.Marshal(name)
		if err != nil {
			panic(err) // a string
		}
		f.after = append(f.after, fmt.Appendf(nil, `","violated-policies":[%s]}`, text))
		f.length = max(f.length, len(f.before)+100+len(text))
	}
	return f
}

// detail says what is the matter, in characters that JSON takes as they are.
func detail(to []byte, d ratelimit.Decision) []byte {
	switch {
	case d.RetryAfter == ratelimit.Never:
		return append(to, "The request is more than the limit ever allows at once."...)
	case d.Degraded:
		return append(to, "The limit cannot be looked up at present."...)
	}
	to = append(to, "The limit of "...)
	to = strconv.AppendInt(to, int64(d.Limit), 10)
	return append(to, " is used up for now."...)
}

// answer refuses a request on which d was decided, by a part of the policy.
func (f *refusal) answer(w http.ResponseWriter, r *http.Request, d ratelimit.Decision, part int) {
	h := w.Header()
	body := make([]byte, 0, f.length)
	if takesProblem(r.Header["Accept"]) {
		h["Content-Type"] = []string{"application/problem+json"}
		body = append(detail(append(body, f.before...), d), f.after[part]...)
	} else {
		h["Content-Type"] = []string{"text/plain; charset=utf-8"}
		h["X-Content-Type-Options"] = []string{"nosniff"}
		body = append(detail(body, d), '\n')
	}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(f.status)
	_, _ = w.Write(body)
}

// takesProblem reports whether a client that accepts these takes a problem in
// JSON, and rather than plain text.
func takesProblem(accept []string) bool {
	if len(accept) == 0 {
		return true
	}
	// Of the ranges that match, the most specific one counts (RFC 9110, 12.5.1).
	problem, text := -1.0, -1.0
	var problemRank, textRank int
	for _, line := range accept {
		for part := range strings.SplitSeq(line, ",") {
			media, params, err := mime.ParseMediaType(part)
			if err != nil {
				continue
			}
			q, err := strconv.ParseFloat(params["q"], 64)
			if err != nil {
				q = 1
			}
			if rank := rankOf(media, "application/*", "application/json", "application/problem+json"); rank > problemRank {
				problem, problemRank = q, rank
			}
			if rank := rankOf(media, "text/*", "text/plain"); rank > textRank {
				text, textRank = q, rank
			}
		}
	}
	return problem > 0 && problem >= text
}

// rankOf returns how specific a media range is: 1 for any, 2 and up for the
// given ones, 0 if it is none of them.
func rankOf(media string, ranges ...string) int {
	if media == "*/*" {
		return 1
	}
	for i, r := range ranges {
		if media == r {
			return i + 2
		}
	}
	return 0
}

// check returns what is wrong with the options.
func (m *middleware) check() error {
	switch {
	case m.limiter == nil:
		return errors.New("httplimit: the limiter is nil: make one with ratelimit.New")
	case m.key == nil:
		return errors.New("httplimit: WithKey(nil): give a KeyFunc, such as ClientIP()")
	case m.keyError == nil:
		return errors.New("httplimit: WithKeyError(nil): give a function that answers the request")
	case m.storeError == nil:
		return errors.New("httplimit: WithStoreError(nil): give a function to call")
	case m.shadowed && m.shadow == nil:
		return errors.New("httplimit: WithShadow(nil): give a function that is told what would have been refused")
	case m.shadowed && m.shaping > 0:
		return errors.New("httplimit: WithShadow and WithShaping: give one of them")
	case m.status < 400 || m.status > 599:
		return fmt.Errorf("httplimit: WithStatus(%d): a refusal has a status from 400 to 599", m.status)
	case m.headers < Standard || m.headers > None:
		return fmt.Errorf("httplimit: WithHeaders(%d): must be Standard, Legacy or None", m.headers)
	case !printable(m.name):
		return fmt.Errorf("httplimit: WithPolicyName(%q): must be of printable ASCII characters, one at least", m.name)
	case m.shaping < 0:
		return fmt.Errorf("httplimit: WithShaping(%v): must not be negative", m.shaping)
	}
	return nil
}

// misused answers every request with what is wrong with the middleware.
func misused(err error) func(http.Handler) http.Handler {
	var once sync.Once
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			once.Do(func() { slog.ErrorContext(r.Context(), "httplimit: every request is refused", "error", err) })
			http.Error(w, err.Error(), http.StatusInternalServerError)
		})
	}
}
