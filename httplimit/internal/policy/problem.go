package policy

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit"
)

// problemType is the problem type (RFC 9457) of a refusal.
const problemType = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// A problem has the bodies of refusals, in which their details are missing.
type problem struct {
	before []byte   // the detail
	after  [][]byte // it, by the part that refuses
}

func newProblem(status int, names []string) (p problem) {
	const form = `{"type":%q,"title":"Quota exceeded","status":%d,"detail":"`
	p.before = fmt.Appendf(nil, form, problemType, status)
	for _, name := range names {
		quoted, err := json.Marshal(name)
		if err != nil {
			panic(err) // cannot happen: name is a string
		}
		p.after = append(p.after, fmt.Appendf(nil, `","violated-policies":[%s]}`, quoted))
	}
	return p
}

// Problem returns the body of the refusal d, as JSON. The detail, which says why, must have no
// characters that need an escape.
func (l *List) Problem(d ratelimit.Decision, detail string) []byte {
	return slices.Concat(l.problem.before, []byte(detail), l.problem.after[l.Part(d)])
}
