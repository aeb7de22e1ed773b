package frontend

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit/httplimit"
)

// HandlerOf returns the handler of a server over HTTP, whose calls handle handles.
func HandlerOf(c *Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.Handle(r.Context()) != nil {
			http.Error(w, "the handler has failed", http.StatusInternalServerError)
		}
	})
}

// ServerOf returns a Server that speaks HTTP with h.
func ServerOf(h http.Handler) Server {
	return func(call Call) Answer {
		r := httptest.NewRequestWithContext(call.Context, http.MethodGet, "/", http.NoBody)
		r.Header = call.Header()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return answerOf(w.Result())
	}
}

// Middleware returns the front end that wraps the handler of a config by what middleware returns.
func Middleware(
	middleware func(c *Config) (func(http.Handler) http.Handler, error),
) FrontEnd {
	return func(c *Config) (Server, error) {
		wrap, err := middleware(c)
		if err != nil {
			return nil, err
		}
		return ServerOf(wrap(HandlerOf(c))), nil
	}
}

// NetHTTP is the front end for net/http.
func NetHTTP(c *Config) (Server, error) {
	return Middleware(func(c *Config) (func(http.Handler) http.Handler, error) {
		l, err := c.NewLimiter()
		if err != nil {
			return nil, err
		}
		return httplimit.Middleware(l, c.HTTPOptions()...), nil
	})(c)
}

// Gated is the front end of handlers that ask a Gate themselves. pass serves a call that has passed
// by next, the handler.
func Gated(pass func(a *httplimit.Admission, w http.ResponseWriter, next http.Handler)) FrontEnd {
	return Middleware(func(c *Config) (func(http.Handler) http.Handler, error) {
		l, err := c.NewLimiter()
		if err != nil {
			return nil, err
		}
		gate, err := httplimit.NewGate(l, c.HTTPOptions()...)
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				a := gate.Admit(r)
				if !a.Passed {
					a.Refuse(w, r)
					return
				}
				a.SetHeader(w.Header())
				pass(&a, w, next)
			})
		}, err
	})
}

// Pass serves a call that a Gate has let pass, as the documentation of [httplimit.Admission] asks.
func Pass(a *httplimit.Admission, w http.ResponseWriter, next http.Handler) {
	noted := &statusWriter{ResponseWriter: w}
	status := http.StatusInternalServerError // if next panics
	defer func() { a.Done(status, 0) }()
	next.ServeHTTP(noted, RequestOf(a))
	status = cmp.Or(noted.status, http.StatusOK)
}

// RequestOf returns the request for the handler of a call that a Gate has let pass.
func RequestOf(a *httplimit.Admission) *http.Request {
	return new(http.Request).WithContext(a.Context())
}

// A statusWriter notes the status of a response.
type statusWriter struct {
	http.ResponseWriter
	status int // 0 for that of no WriteHeader
}

// WriteHeader implements [http.ResponseWriter].
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// answerOf reads a response.
func answerOf(resp *http.Response) Answer {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err) // it comes from memory
	}
	a := Answer{Text: string(body), Fields: resp.Header}
	switch resp.StatusCode {
	case http.StatusOK:
		a.Outcome = Handled
	case http.StatusInternalServerError:
		a.Outcome = Failed
	case http.StatusBadRequest:
		a.Outcome = NoKey
	case http.StatusTooManyRequests:
		a.Outcome = Refused
	case http.StatusServiceUnavailable:
		a.Outcome = Unchecked
		if len(body) == 0 {
			a.Outcome = Ended
		}
	default:
		a.Outcome = Outcome("answered with " + resp.Status)
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		a.RetryAfter = time.Duration(seconds) * time.Second
	}
	var problem struct {
		Detail   string   `json:"detail"`
		Violated []string `json:"violated-policies"`
	}
	if json.Unmarshal(body, &problem) == nil {
		a.Text = problem.Detail
		if len(problem.Violated) > 0 {
			a.Policy = problem.Violated[0]
		}
	}
	return a
}
