package limitpage

// This file serves HTTP: it puts the document together, checks and routes requests, and writes the
// answers.

import (
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

var (
	//go:embed assets/page.html
	pageHTML string
	//go:embed assets/page.css
	pageCSS string
	//go:embed assets/*.js
	scripts embed.FS
	pageJS  = join("dom", "words", "data", "plot", "charts", "lookup", "keytable", "denied", "used",
		"stores", "outages", "page")

	document = strings.NewReplacer("{{CSS}}", pageCSS, "{{JS}}", pageJS).Replace(pageHTML)
)

// policy allows only the script and the style of the document, by their hashes, and requests to the
// handler. The document has no data: its script fetches the data.
var policy = strings.Join([]string{
	"default-src 'none'",
	"script-src '" + hashOf(pageJS) + "'",
	"style-src '" + hashOf(pageCSS) + "'",
	"connect-src 'self'",
	"img-src data:",
	"base-uri 'none'",
	"form-action 'none'",
	"frame-ancestors 'none'",
	"require-trusted-types-for 'script'",
}, "; ")

// join returns one script of several files, in their order. A file uses only the files before it.
func join(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		text, err := scripts.ReadFile("assets/" + name + ".js")
		if err != nil {
			panic(err) // a name in pageJS is wrong
		}
		b.Write(text)
	}
	return b.String()
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// sameOrigin refuses requests that browsers send on behalf of pages of other origins.
var sameOrigin = http.NewCrossOriginProtection()

// mostBytes is the largest body of a POST that the handler reads: enough for a long key.
const mostBytes = 1 << 20

// ServeHTTP implements [net/http.Handler]. It serves the page and its data at any path.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Vary", "Accept-Encoding")
	if r.TLS == nil && r.Header.Get("Sec-Fetch-Site") == "" && !p.serves(r.Host) {
		refuse(w, r, http.StatusForbidden, "this page is not served under the name of the "+
			"Host header, "+r.Host+": give limitpage.WithHosts that name, or use HTTPS")
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		p.get(w, r)
	case http.MethodPost:
		p.post(w, r)
	default:
		h.Set("Allow", "GET, HEAD, POST")
		refuse(w, r, http.StatusMethodNotAllowed, "the method is not GET, HEAD or POST: "+r.Method)
	}
}

func (p *Page) get(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	switch format := query.Get("format"); {
	case err != nil:
		refuse(w, r, http.StatusBadRequest, err.Error())
	case format == "":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		write(w, r, http.StatusOK, []byte(document))
	case format != "json":
		refuse(w, r, http.StatusBadRequest, "the format is not json: "+format)
	case query.Has("key") || query.Has("id"):
		p.answer(w, r, query, false)
	default:
		of := reportRequest{keys: allKeys}
		if query.Has("since") {
			if of.since, err = strconv.ParseInt(query.Get("since"), 10, 64); err != nil {
				refuse(w, r, http.StatusBadRequest, "since is not a Unix time: "+query.Get("since"))
				return
			}
		}
		if query.Has("keys") {
			of.keys, err = strconv.Atoi(query.Get("keys"))
			if err != nil || of.keys < 0 {
				refuse(w, r, http.StatusBadRequest, "keys is not a number of keys: "+query.Get("keys"))
				return
			}
		}
		send(w, r, http.StatusOK, p.report(of))
	}
}

func (p *Page) post(w http.ResponseWriter, r *http.Request) {
	if err := sameOrigin.Check(r); err != nil {
		refuse(w, r, http.StatusForbidden, err.Error())
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, mostBytes)
	if err := r.ParseForm(); err != nil {
		status := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			status = http.StatusRequestEntityTooLarge
		}
		refuse(w, r, status, err.Error())
		return
	}
	form := r.PostForm
	switch action := form.Get("action"); {
	case !form.Has("key") && !form.Has("id"): // a forgotten field must not reset the empty key
		refuse(w, r, http.StatusBadRequest, "there is no key: the body must be "+
			"application/x-www-form-urlencoded, with the fields limiter and key")
	case action == "reset" && !p.reset:
		refuse(w, r, http.StatusForbidden, "this page was not made with limitpage.WithReset")
	case action == "reset", action == "lookup", action == "":
		p.answer(w, r, form, action == "reset")
	default:
		refuse(w, r, http.StatusBadRequest, "the action is neither lookup nor reset: "+action)
	}
}

// answer sends what is known of the key that fields name. If reset is true, it resets the key
// first.
func (p *Page) answer(w http.ResponseWriter, r *http.Request, fields url.Values, reset bool) {
	of, key, err := p.find(fields.Get("limiter"), fields.Get("key"), fields.Get("id"))
	if err != nil {
		refuse(w, r, http.StatusNotFound, err.Error())
		return
	}
	if reset {
		if err := of.reset(r.Context(), key); err != nil {
			refuse(w, r, http.StatusBadGateway, p.errorText(err))
			return
		}
	}
	send(w, r, http.StatusOK, p.lookUp(r.Context(), of, key))
}

func refuse(w http.ResponseWriter, r *http.Request, status int, reason string) {
	send(w, r, status, map[string]string{"error": reason})
}

// send writes v as JSON. In JSON, strings are valid UTF-8, and have no < or >.
func send(w http.ResponseWriter, r *http.Request, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	body, _ := json.Marshal(v) // v can be encoded
	write(w, r, status, append(body, '\n'))
}

// write writes body, compressed if the client accepts it. Errors are ignored: the client has left.
func write(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	if !acceptsGzip(r.Header.Get("Accept-Encoding")) {
		w.WriteHeader(status)
		_, _ = w.Write(body)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(status)
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // no error: the level is valid
	_, _ = z.Write(body)
	_ = z.Close()
}

// acceptsGzip reports whether the list of an Accept-Encoding header has gzip with a weight other
// than 0.
func acceptsGzip(list string) bool {
	for coding := range strings.SplitSeq(list, ",") {
		name, weight, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			_, q, _ := strings.Cut(weight, "=")
			return q == "" || strings.Trim(q, " 0.") != ""
		}
	}
	return false
}
