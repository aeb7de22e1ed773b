package httplimit

import (
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A misuseError is a mistake in the program, and not in a request. It matches
// [ratelimit.ErrInvalid]. A KeyFunc can only return it, because it has no other way to
// report its own arguments.
type misuseError struct{ error }

func (e misuseError) Unwrap() error { return e.error }

// invalid returns the misuseError of an invalid argument.
func invalid(what string, value any, want string) error {
	return misuseError{param.InvalidIn("httplimit", what, value, want)}
}

func isMisuse(err error) bool {
	_, ok := errors.AsType[misuseError](err)
	return ok
}

// A misuse answers requests that a mistake in the program makes unanswerable.
type misuse struct{ logged atomic.Bool }

func (m *misuse) answer(w http.ResponseWriter, r *http.Request, err error) {
	if !m.logged.Swap(true) {
		slog.ErrorContext(r.Context(), "httplimit: requests are refused", "error", err)
	}
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// misused returns a handler that answers every request with err.
func misused(err error) http.Handler {
	var m misuse
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.answer(w, r, err) })
}
