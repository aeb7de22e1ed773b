package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimit-go/ratelimit/rules"
)

// TestServer follows the comment of main.go.
func TestServer(t *testing.T) {
	db, err := open(t.Context(), filepath.Join(t.TempDir(), "throttle.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	set, err := rules.New(context.Background(), rules.SQL(db), rules.WithInterval(0))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	h := handler(db, set)
	photo := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/user/42/photos/7", nil))
		return w.Code
	}
	expect := func(what string, allowed int) {
		t.Helper()
		for range allowed {
			if code := photo(); code != http.StatusOK {
				t.Fatalf("%s: status %d", what, code)
			}
		}
		if code := photo(); code != http.StatusTooManyRequests {
			t.Fatalf("%s: status %d after %d calls", what, code, allowed)
		}
	}
	put := func(limit string) int {
		form := url.Values{"call": {"/user/#/photos/#"}, "limit": {limit}, "seconds": {"10"}}
		r := httptest.NewRequest("PUT", "/rules/photos", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	expect("at first", 3)
	if code := put("5"); code != http.StatusOK {
		t.Fatalf("PUT: status %d", code)
	}
	expect("two more", 2)
	if _, err := db.Exec("UPDATE THROTTLED_CALLS SET MAX_CALLS = 9 WHERE THROTTLE_ID = 'photos'"); err != nil {
		t.Fatal(err)
	}
	if err := set.Reload(context.Background()); err != nil {
		t.Fatal(err)
	}
	expect("by SQL", 4)
	if code := put("none"); code != http.StatusBadRequest {
		t.Errorf("PUT nonsense: status %d", code)
	}
}
