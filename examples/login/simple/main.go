// Simple is the login of docs/http.md, which locks accounts. The program in the folder above has a
// form, and more limits.
package main

import (
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

func main() {
	server := http.Server{
		Addr: "localhost:8080", Handler: handler(), ReadTimeout: 10 * time.Second,
	}
	log.Fatal(server.ListenAndServe())
}

func handler() http.Handler {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.Lockout{
		Limit: 5, Window: 15 * time.Minute, First: time.Minute, Longest: 24 * time.Hour,
	}, ratelimit.WithMaxWaiters(10)))
	limited := httplimit.Middleware(limiter,
		httplimit.WithKey(key.Join(account, clientip.Of())),
		httplimit.WithSettle(failures, ratelimit.HoldFor(30*time.Second)),
		httplimit.WithShaping(5*time.Second))
	return http.MaxBytesHandler(limited(http.HandlerFunc(login)), 4096)
}

func account(r *http.Request) (string, error) { return strings.ToLower(r.PostFormValue("name")), nil }

func failures(_ *http.Request, status int) int {
	if status == http.StatusUnauthorized {
		return 1
	}
	return 0
}

func login(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("name") != "ann" || r.PostFormValue("password") != "correct horse" { // your check
		http.Error(w, "The name or the password is wrong.", http.StatusUnauthorized)
		return
	}
	fmt.Fprintln(w, "Welcome, ann.")
}
