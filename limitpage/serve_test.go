package limitpage

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
)

// TestDocument: the page loads nothing, and has nothing that its policy refuses.
func TestDocument(t *testing.T) {
	w := httptest.NewRecorder()
	New().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/ratelimit/", http.NoBody))
	body := w.Body.String()
	assert.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
	for _, odd := range []string{"http:", "https:", "//", "@import", "url("} {
		for _, part := range []string{pageHTML, pageCSS} {
			assert.NotContains(t, part, odd)
		}
	}
	assert.NotRegexp(t, `(?i)\s(style|on[a-z]+)\s*=`, pageHTML)
	assert.NotRegexp(t, `innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function`, pageJS)
	assert.NotContains(t, body, "{{")
	files, err := scripts.ReadDir("assets")
	assert.NoError(t, err)
	for _, file := range files {
		text, err := scripts.ReadFile("assets/" + file.Name())
		assert.NoError(t, err)
		assert.Contains(t, body, string(text), "every file of the script is in the page")
	}
	assert.Equal(t, 1, strings.Count(body, "</script>"))
	assert.Equal(t, 1, strings.Count(body, "</style>"))
	const script = `<script type="module">`
	csp := w.Header().Get("Content-Security-Policy")
	assert.Contains(t, csp, "default-src 'none'")
	assert.NotContains(t, csp, "unsafe")
	assert.Contains(t, csp, hashOf(body[strings.Index(body, script)+len(script):strings.Index(body, "</script>")]))
	assert.Contains(t, csp, hashOf(body[strings.Index(body, "<style>")+len("<style>"):strings.Index(body, "</style>")]))
}

func TestEveryAnswerHasItsHeaders(t *testing.T) {
	page := New()
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/", http.NoBody),
		httptest.NewRequest(http.MethodGet, "/?format=json", http.NoBody),
		httptest.NewRequest(http.MethodGet, "/?format=json&key=k", http.NoBody),
		httptest.NewRequest(http.MethodPost, "/", http.NoBody),
		httptest.NewRequest(http.MethodPut, "/", http.NoBody),
	} {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
		assert.Equal(t, policy, w.Header().Get("Content-Security-Policy"))
		assert.NotEmpty(t, w.Header().Get("Content-Type"))
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	page := New(WithReset())
	added(t, page, "", ratelimit.Blocked{})
	long := strings.Repeat("x", mostBytes+1)
	for _, tt := range []struct {
		method, target, body string
		status               int
		says                 string
	}{
		{http.MethodPut, "/", "", http.StatusMethodNotAllowed, "PUT"},
		{http.MethodGet, "/?format=xml", "", http.StatusBadRequest, "xml"},
		{http.MethodGet, "/?format=json&since=yesterday", "", http.StatusBadRequest, "yesterday"},
		{http.MethodGet, "/?format=json&limiter=api&key=%zz", "", http.StatusBadRequest, "%zz"},
		{http.MethodGet, "/?format=json;key=k", "", http.StatusBadRequest, "semicolon"},
		{http.MethodPost, "/", "key=k&action=drop", http.StatusBadRequest, "drop"},
		{http.MethodPost, "/", "key=%zz", http.StatusBadRequest, "%zz"},
		{http.MethodPost, "/", "action=reset&limiter=", http.StatusBadRequest, "key"},
		{http.MethodPost, "/?key=k&limiter=&action=reset", "", http.StatusBadRequest, "application/x-www-form-urlencoded"},
		{http.MethodPost, "/", "key=" + long, http.StatusRequestEntityTooLarge, "too large"},
	} {
		r := httptest.NewRequest(tt.method, tt.target, strings.NewReader(tt.body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		assert.Equal(t, tt.status, w.Code)
		assert.Contains(t, w.Body.String(), tt.says)
		assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
	}
}

func TestJSONHasNoMarkup(t *testing.T) {
	page := New()
	l := added(t, page, "<b>", ratelimit.Blocked{})
	l.Allow("<script>alert(1)</script>")
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?format=json", http.NoBody))
	assert.NotContains(t, w.Body.String(), "<")
	assert.Contains(t, w.Body.String(), `\u003cscript\u003e`)
}

func TestDisplay(t *testing.T) {
	for key, want := range map[string]string{
		"":                                "",
		"203.0.113.7":                     "203.0.113.7",
		`CORP\ann "a"`:                    `CORP\ann "a"`,
		"ключ שלום":                       "ключ שלום",
		"a\u202eb":                        `"a\u202eb"`,
		"a\xffb":                          `"a\xffb"`,
		"a\nb\x00":                        `"a\nb\x00"`,
		" a":                              `" a"`,
		strings.Repeat("x", 5000) + "end": strings.Repeat("x", 90) + "…" + strings.Repeat("x", 27) + "end",
		strings.Repeat("\xff", 5000):      `"` + strings.Repeat(`\xff`, 90) + "…" + strings.Repeat(`\xff`, 30) + `"`,
		strings.Repeat("ü", mostRunes):    strings.Repeat("ü", mostRunes),
		strings.Repeat("ü", mostRunes) + "\u00a0": `"` + strings.Repeat("ü", 90) + "…" + strings.Repeat("ü", 29) + `\u00a0"`,
	} {
		assert.Equal(t, want, display(key))
	}
}

func FuzzDisplay(f *testing.F) {
	f.Add("a\u202eb\xff")
	f.Fuzz(func(t *testing.T, key string) {
		shown := display(key)
		if !utf8.ValidString(shown) || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) || utf8.RuneCountInString(shown) > 10*mostRunes+2 {
			t.Errorf("%q is displayed as %q", key, shown)
		}
	})
}
