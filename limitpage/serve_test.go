package limitpage

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// TestDocument: the page loads nothing, and has nothing that its policy refuses.
func TestDocument(t *testing.T) {
	w := httptest.NewRecorder()
	New().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/debug/ratelimit/", http.NoBody))
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
		httptest.NewRequest(http.MethodGet, "http://localhost/", http.NoBody),
		httptest.NewRequest(http.MethodGet, "http://localhost/?format=json", http.NoBody),
		httptest.NewRequest(http.MethodGet, "http://localhost/?format=json&key=k", http.NoBody),
		httptest.NewRequest(http.MethodPost, "http://localhost/", http.NoBody),
		httptest.NewRequest(http.MethodPut, "http://localhost/", http.NoBody),
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
		{http.MethodGet, "/?format=json&keys=all", "", http.StatusBadRequest, "all"},
		{http.MethodGet, "/?format=json&keys=-1", "", http.StatusBadRequest, "-1"},
		{http.MethodGet, "/?format=json&limiter=api&key=%zz", "", http.StatusBadRequest, "%zz"},
		{http.MethodGet, "/?format=json;key=k", "", http.StatusBadRequest, "semicolon"},
		{http.MethodPost, "/", "key=k&action=drop", http.StatusBadRequest, "drop"},
		{http.MethodPost, "/", "key=%zz", http.StatusBadRequest, "%zz"},
		{http.MethodPost, "/", "action=reset&limiter=", http.StatusBadRequest, "key"},
		{http.MethodPost, "/?key=k&limiter=&action=reset", "", http.StatusBadRequest, "application/x-www-form-urlencoded"},
		{http.MethodPost, "/", "key=" + long, http.StatusRequestEntityTooLarge, "too large"},
	} {
		r := httptest.NewRequest(tt.method, "http://localhost"+tt.target, strings.NewReader(tt.body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		assert.Equal(t, tt.status, w.Code)
		var answer map[string]string
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), w.Body) // it is one answer, and not two
		assert.Len(t, answer, 1)
		assert.Contains(t, answer["error"], tt.says)
		assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
	}
}

// TestHosts: a page of another name cannot make that name resolve to the handler and read it.
func TestHosts(t *testing.T) {
	open, listed, all := New(), New(WithHosts("Limits.example.com", ".example.org")), New(WithHosts("*"))
	for host, want := range map[string][3]bool{
		"":                        {true, true, true},
		"127.0.0.1:6060":          {true, true, true},
		"[::1]:6060":              {true, true, true},
		"[::1]":                   {true, true, true},
		"2001:db8::1":             {true, true, true},
		"localhost:6060":          {true, true, true},
		"web-3:6060":              {true, true, true},
		"app.LOCALHOST":           {true, true, true},
		"web-3.prod.internal":     {true, true, true},
		"api.svc.cluster.local.":  {true, true, true},
		"limits.example.com:8080": {false, true, true},
		"LIMITS.example.com.":     {false, true, true},
		"a.limits.example.com":    {false, false, true},
		"a.b.example.org":         {false, true, true},
		"example.org":             {false, false, true},
		"127.0.0.1.attacker.test": {false, false, true},
		"attacker.test:6060":      {false, false, true},
		"internal.attacker.test":  {false, false, true},
		"attackerinternal.test":   {false, false, true},
		"localhost.test":          {false, false, true},
	} {
		for i, page := range []*Page{open, listed, all} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				r := httptest.NewRequest(method, "http://localhost/?format=json", http.NoBody)
				r.Host = host
				w := httptest.NewRecorder()
				page.ServeHTTP(w, r)
				assert.Equal(t, want[i], w.Code != http.StatusForbidden, "%s %s", method, host)
				if !want[i] {
					assert.Contains(t, w.Body.String(), "Host header, "+host+": ")
				}
			}
		}
	}
	// In HTTPS, as the handler sees it itself or as browsers tell it through a proxy.
	r := httptest.NewRequest(http.MethodGet, "https://attacker.test/", http.NoBody)
	w := httptest.NewRecorder()
	open.ServeHTTP(w, r)
	assert.Equal(t, http.StatusOK, w.Code)
	r = httptest.NewRequest(http.MethodGet, "http://limits.example.com/", http.NoBody)
	r.Header.Set("Sec-Fetch-Site", "none")
	w = httptest.NewRecorder()
	open.ServeHTTP(w, r)
	assert.Equal(t, http.StatusOK, w.Code)
}

func TestCompression(t *testing.T) {
	page := New()
	for accept, want := range map[string]bool{
		"": false, "gzip": true, "br, GZIP;q=0.5": true, "deflate, gzip ; q=1.0": true, "gzip;q=0": false,
		"gzip;q=0.000": false, "br": false, "xgzip": false, "*": false,
	} {
		for _, target := range []string{"/", "/?format=json", "/?format=xml"} {
			r := httptest.NewRequest(http.MethodGet, "http://localhost"+target, http.NoBody)
			plain, w := httptest.NewRecorder(), httptest.NewRecorder()
			page.ServeHTTP(plain, r)
			r.Header.Set("Accept-Encoding", accept)
			page.ServeHTTP(w, r)
			assert.Equal(t, plain.Code, w.Code)
			assert.Equal(t, "Accept-Encoding", w.Header().Get("Vary"))
			assert.Equal(t, want, w.Header().Get("Content-Encoding") == "gzip", accept)
			var body io.Reader = w.Body
			if want {
				z, err := gzip.NewReader(w.Body)
				require.NoError(t, err)
				body = z
			}
			got, err := io.ReadAll(body)
			require.NoError(t, err)
			if target != "/?format=json" { // which has the time
				assert.Equal(t, plain.Body.String(), string(got))
			}
		}
	}
}

func TestJSONHasNoMarkup(t *testing.T) {
	page := New()
	l := added(t, page, "<b>", ratelimit.Blocked{})
	l.Allow("<script>alert(1)</script>")
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/?format=json", http.NoBody))
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
		"\u202eb":                         `"\u202eb"`,
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
		if !utf8.ValidString(shown) ||
			strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) || utf8.RuneCountInString(shown) > 10*mostRunes+2 {
			t.Errorf("%q is displayed as %q", key, shown)
		}
	})
}
