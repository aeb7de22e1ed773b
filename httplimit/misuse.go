package httplimit

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/ascii"
)

// check returns what is wrong with the options.
func (m *middleware) check() error {
	switch {
	case isNil(m.limiter):
		return errors.New("httplimit: the limiter is nil: make one with ratelimit.New")
	case m.key == nil:
		return errors.New("httplimit: WithKey(nil): give a KeyFunc, such as ClientIP()")
	case m.costed && m.cost == nil:
		return errors.New("httplimit: WithCost(nil): give a function that returns how many events a request counts as")
	case m.skipped && m.skip == nil:
		return errors.New("httplimit: WithSkip(nil): give a function that reports which requests pass without a limit")
	case m.answered && isNil(m.denied):
		return errors.New("httplimit: WithDenied(nil): give a handler, or omit the option for the default response")
	case m.keyError == nil:
		return errors.New("httplimit: WithKeyError(nil): give a function that answers the request")
	case m.storeError == nil:
		return errors.New("httplimit: WithStoreError(nil): give a function to call")
	case m.shadowed && m.shadow == nil:
		return errors.New("httplimit: WithShadow(nil): give a function to call for requests that would have been refused")
	case m.shadowed && m.shaping > 0:
		return errors.New("httplimit: WithShadow and WithShaping cannot be combined: remove one of them")
	case m.status < 400 || m.status > 599:
		return fmt.Errorf("httplimit: WithStatus(%d): must be from 400 to 599", m.status)
	case m.headers < Standard || m.headers > None:
		return fmt.Errorf("httplimit: WithHeaders(%d): must be Standard, Legacy or None", m.headers)
	case !ascii.IsPrintable(m.name):
		return fmt.Errorf("httplimit: WithPolicyName(%q): must be one or more printable ASCII characters", m.name)
	case m.shaping < 0:
		return fmt.Errorf("httplimit: WithShaping(%v): must not be negative", m.shaping)
	}
	return nil
}

// misuse returns a middleware that answers every request with err.
func misuse(err error) func(http.Handler) http.Handler {
	return func(http.Handler) http.Handler { return misused(err) }
}

// misused returns a handler that answers every request with err.
func misused(err error) http.Handler {
	var logged atomic.Bool
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !logged.Swap(true) {
			slog.ErrorContext(r.Context(), "httplimit: every request is refused", "error", err)
		}
		http.Error(w, err.Error(), http.StatusInternalServerError)
	})
}

// isNil reports whether v is nil, or an interface that holds a nil.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
		return r.IsNil()
	}
	return false
}
