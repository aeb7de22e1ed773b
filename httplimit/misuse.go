package httplimit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A misuseError is a mistake in the program, and not in a request. It matches
// [ratelimit.ErrInvalid]. A KeyFunc with invalid arguments returns it for each request, and
// misuseOf finds it before.
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
	m.log(r.Context(), err)
	prepareRefusal(w.Header())
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// log logs the first error.
func (m *misuse) log(ctx context.Context, err error) {
	if !m.logged.Swap(true) {
		slog.ErrorContext(ctx, "httplimit: requests are refused", "error", err)
	}
}

// orMisused returns wrap or, if there is an error, logs it and returns a function whose handlers
// answer every request with it.
func orMisused(wrap func(http.Handler) http.Handler, err error) func(http.Handler) http.Handler {
	if err == nil {
		return wrap
	}
	h := misused(err)
	return func(http.Handler) http.Handler { return h }
}

// misused logs err, and returns a handler that answers every request with it.
func misused(err error) http.Handler {
	m := new(misuse)
	m.log(context.Background(), err)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.answer(w, r, err) })
}

// A misusedKey is the error of a KeyFunc that was made with invalid arguments.
type misusedKey struct{ err error }

// key is that KeyFunc.
func (k misusedKey) key(*http.Request) (string, error) { return "", k.err }

// misuseOf returns the error of a misusedKey, and nil for other functions. It does not call
// those: they are the program's, and there is no request yet.
func misuseOf(f KeyFunc) error {
	if reflect.ValueOf(f).Pointer() != reflect.ValueOf(misusedKey{}.key).Pointer() {
		return nil
	}
	_, err := f(nil)
	return err
}
