package httplimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ascii"
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
	f.failed = fmt.Appendf(nil, `{"type":"about:blank","title":%q,"status":%d,"detail":"%s"}`,
		http.StatusText(status), status, detail(ratelimit.Decision{Degraded: true}))
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

// The values of fields that are always the same.
var (
	noStore = []string{"no-store"}
	noSniff = []string{"nosniff"}
	problem = []string{"application/problem+json"}
	text    = []string{"text/plain; charset=utf-8"}
)

// answer refuses a request on which d was decided, by a part of the policy.
func (f *refusal) answer(w http.ResponseWriter, r *http.Request, d ratelimit.Decision, part int) {
	h := w.Header()
	h["Cache-Control"] = noStore
	var body []byte
	switch {
	case !takesProblem(r.Header["Accept"]):
		h["Content-Type"], h["X-Content-Type-Options"] = text, noSniff
		body = append([]byte(detail(d)), '\n')
	case d.Degraded:
		h["Content-Type"] = problem
		body = f.failed
	default:
		h["Content-Type"] = problem
		body = slices.Concat(f.before, []byte(detail(d)), f.after[part])
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(body)
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
	case !ascii.IsPrintable(m.name):
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
