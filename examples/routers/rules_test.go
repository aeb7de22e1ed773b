package main

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"
	"github.com/labstack/echo/v5"

	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/rules"
)

// routes are the routes, with and without a rule of their own, and their limits. The last
// two have much higher limits than the others.
var routes = []struct {
	id, pattern, call string
	limit             int
}{
	{"photos", "/user/:a/photos/:b", "/user/{a}/photos/{b}", 1},
	{"name", "/user/:a", "/user/{name}", 1},
	{"sub", "/x/:a/:b", "/x/{a}/{b}", 1},
	{"me", "/user/me", "/user/me", 1000},
	{"free", "/free", "/**", 1000},
}

// newRouters returns handlers with the same routes for each router, in each of its modes
// of interpreting paths. The response names the route that served the request.
var newRouters = map[string]func() http.Handler{
	"gin":      func() http.Handler { return ginRoutes(func(*gin.Engine) {}) },
	"gin, raw": func() http.Handler { return ginRoutes(func(e *gin.Engine) { e.UseRawPath = true }) },
	"gin, raw, escaped": func() http.Handler {
		return ginRoutes(func(e *gin.Engine) { e.UseRawPath, e.UnescapePathValues = true, false })
	},
	"gin, extra slashes": func() http.Handler { return ginRoutes(func(e *gin.Engine) { e.RemoveExtraSlash = true }) },
	"chi":                func() http.Handler { return chiRoutes() },
	"chi, clean":         func() http.Handler { return chiRoutes(chimiddleware.CleanPath) },
	"chi, slashes":       func() http.Handler { return chiRoutes(chimiddleware.StripSlashes) },
	"echo":               func() http.Handler { return echoRoutes(echo.RouterConfig{}) },
	"echo, decoded":      func() http.Handler { return echoRoutes(echo.RouterConfig{UseEscapedPathForMatching: true}) },
	"echo, values":       func() http.Handler { return echoRoutes(echo.RouterConfig{UnescapePathParamValues: true}) },
	"net/http":           muxRoutes,
}

func ginRoutes(change func(*gin.Engine)) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	change(e)
	for _, r := range routes {
		e.GET(r.pattern, func(c *gin.Context) { c.Header("Route", r.id) })
	}
	return e
}

func chiRoutes(middlewares ...func(http.Handler) http.Handler) http.Handler {
	m := chi.NewRouter()
	m.Use(middlewares...)
	for _, r := range routes {
		m.Get(braces(r.pattern), func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Route", r.id) })
	}
	return m
}

func echoRoutes(config echo.RouterConfig) http.Handler {
	e := echo.NewWithConfig(echo.Config{Router: echo.NewRouter(config)})
	for _, r := range routes {
		e.GET(r.pattern, func(c *echo.Context) error {
			c.Response().Header().Set("Route", r.id)
			return c.NoContent(http.StatusOK)
		})
	}
	return e
}

func muxRoutes() http.Handler {
	m := http.NewServeMux()
	for _, r := range routes {
		m.HandleFunc("GET "+braces(r.pattern), func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Route", r.id) })
	}
	return m
}

// braces returns a pattern with {a} for :a.
func braces(pattern string) string {
	b := []byte{}
	for i := 0; i < len(pattern); i++ {
		if pattern[i] == ':' {
			b = append(b, '{', pattern[i+1], '}')
			i++
			continue
		}
		b = append(b, pattern[i])
	}
	return string(b)
}

// TestRulesBeforeRouters checks that no spelling of a path makes a router serve it by a
// route whose limit is exhausted.
func TestRulesBeforeRouters(t *testing.T) {
	var table []rules.Rule
	for _, r := range routes {
		table = append(table, rules.Rule{ID: r.id, Call: r.call, Limit: r.limit, Window: time.Hour})
	}
	paths := []string{
		"/user/1/photos/2", "/user/1%2Fphotos%2F2", "/user%2F1%2Fphotos%2F2", "/user/1/photos%2f2", "/user/%31/photos/2", "/%75ser/1/photos/2",
		"/user//1/photos/2", "/user/1/./photos/2", "/free/../user/1/photos/2", "/free/%2e%2e/user/1/photos/2",
		"/free%2F..%2Fuser/1/photos/2", "/user/1/photos/2/", "/user/", "/user//", "/x/1/", "/x/1//", "/x//",
		"/user/1/photos/", "/user/1/photos//",
		"/user/ann", "/user/%61nn", "/user%2Fann", "/user/ME", "/user/Me", "/user/me/", "/user/%6de", "/user/..",
		"/user/.", "/user/%2e%2e", "/user/a%2Fb", "/user/me%2F", "/user/me%2F..%2Fann",
		"/x/1/2", "/x//2", "/x/a%2Fb", "/x/a%2Fb/c", "/x/../y", "/x/%2e%2e/y", "/x/./y", "//x/1/2", "/X/1/2",
		"/free/../x/1/2", "/x/1/2/", "/x/%2F/2", "/x/1/%2F",
		"/free", "/free/", "/%66ree", "/user/me",
	}
	for name, router := range newRouters {
		t.Run(name, func(t *testing.T) {
			set, err := rules.New(t.Context(), rules.Static(table...), rules.WithInterval(0))
			if err != nil {
				t.Fatal(err)
			}
			defer set.Close()
			h := set.Middleware(httplimit.WithKey(key.Header("Client")))(router())
			ask := func(client, path string) (route string) {
				w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
				r.Header.Set("Client", client)
				h.ServeHTTP(w, r)
				return w.Header().Get("Route")
			}
			for i, path := range paths {
				client := strconv.Itoa(i)
				for _, used := range []string{"/user/1/photos/2", "/user/ann", "/x/1/2"} {
					if ask(client, used) == "" {
						t.Errorf("%s was not served", used)
					}
				}
				switch route := ask(client, path); route {
				case "", "me", "free":
				default:
					t.Errorf("%s was served as %s, which was used up", path, route)
				}
			}
		})
	}
}

// TestNumbersBeforeRouters has a router whose routes only take numbers, and the rules, too.
func TestNumbersBeforeRouters(t *testing.T) {
	set, err := rules.New(t.Context(), rules.Static(rules.Rule{ID: "photos", Call: "/user/#/photos/#", Limit: 1, Window: time.Hour}), rules.WithInterval(0))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	m := chi.NewRouter()
	m.Get("/user/{user:[0-9]+}/photos/{photo:[0-9]+}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	for i, path := range []string{"/user/1/photos/2", "/user/1/photos/2", "/user//photos/2", "/user/1/photos/",
		"/user//photos/", "//user/1/photos/2", "/user/1//photos/2"} {
		w := httptest.NewRecorder()
		set.Middleware()(m).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if (w.Code == http.StatusAccepted) != (i == 0) {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}
