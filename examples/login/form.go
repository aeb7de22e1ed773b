package main

import (
	"fmt"
	"html/template"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// This file has what people see: the form, and what it answers.

var form = template.Must(template.New("form").Parse(`<!DOCTYPE html>
<html lang="en">
<meta name="viewport" content="width=device-width">
<title>Login</title>
<style>
body { font: 1rem/1.5 system-ui; max-width: 20rem; margin: 15vh auto; padding: 0 1rem }
label { display: block; margin-bottom: 1rem }
input { display: block; box-sizing: border-box; width: 100%; font: inherit; padding: .4rem }
button { font: inherit; padding: .4rem 1rem }
</style>
<h1>Login</h1>
{{with .}}<p role="status">{{.}}</p>{{end}}
<form method="post">
<label>Name <input name="name" autocomplete="username" required></label>
<label>Password <input name="password" type="password" autocomplete="current-password" required></label>
<button>Log in</button>
</form>
</html>
`))

// show writes the form, below a message.
func show(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	if err := form.Execute(w, message); err != nil {
		log.Print(err) // the client has left
	}
}

// showRefusal answers an attempt that a limit has refused, whatever its password is. It does not
// say which limit that is: whether an account has failed attempts of others is none of a client's
// business.
func showRefusal(w http.ResponseWriter, r *http.Request) {
	verdict, _ := httplimit.VerdictOf(r.Context())
	if verdict.Err != nil { // the form has no name, or the client has left
		show(w, verdict.Status(), verdict.Explain())
		return
	}
	wait := (verdict.RetryAfter + time.Second - 1).Truncate(time.Second) // rounded up
	show(w, http.StatusTooManyRequests, fmt.Sprintf("Too many wrong passwords. Try again in %v.", wait))
}

// nameOf returns the name of the account in the form.
func nameOf(r *http.Request) (string, error) {
	name := strings.ToLower(strings.TrimSpace(r.PostFormValue("name")))
	if name == "" {
		return "", fmt.Errorf("%w: the form has no name", key.ErrNone)
	}
	return name, nil
}
