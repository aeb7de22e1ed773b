package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestLogin: five wrong passwords lock an account for a minute, for one address and whatever the
// password then is. Right passwords cost nothing.
func TestLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handler()
		attempt := func(address, name, password string) int {
			form := url.Values{"name": {name}, "password": {password}}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(form.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.RemoteAddr = address + ":1234"
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		for range 9 {
			assert.Equal(t, http.StatusOK, attempt("192.0.2.1", "ann", "correct horse"))
		}
		for range 5 {
			assert.Equal(t, http.StatusUnauthorized, attempt("192.0.2.1", "ann", "123456"))
		}
		assert.Equal(t, http.StatusTooManyRequests, attempt("192.0.2.1", "ann", "123456"))
		assert.Equal(t, http.StatusTooManyRequests, attempt("192.0.2.1", "ANN", "correct horse"))
		assert.Equal(t, http.StatusOK, attempt("192.0.2.2", "ann", "correct horse"))
		time.Sleep(time.Minute)
		assert.Equal(t, http.StatusOK, attempt("192.0.2.1", "ann", "correct horse"))
		for range 5 {
			assert.Equal(t, http.StatusUnauthorized, attempt("192.0.2.1", "ann", "123456"))
		}
		time.Sleep(time.Minute)
		assert.Equal(t, http.StatusTooManyRequests, attempt("192.0.2.1", "ann", "correct horse"), "for longer")
		time.Sleep(time.Minute)
		assert.Equal(t, http.StatusOK, attempt("192.0.2.1", "ann", "correct horse"))
	})
}
