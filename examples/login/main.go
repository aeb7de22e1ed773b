// Login is a login form whose accounts are locked after wrong passwords, for longer each time.
//
//	go run ./examples/login
//
// Log in at http://localhost:8080 as ann, whose password is "correct horse". Five wrong passwords
// lock the account for a minute, the next five for two minutes: for your address or, if you have
// logged in before, for your browser. docs/http.md says why the program has three limits, and what
// the cookie is for.
package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	flag.Parse()

	s, err := newSite(isRight)
	if err != nil {
		log.Fatal(err)
	}
	// Both go on while an attempt waits in line, which takes up to 15 seconds.
	const readTimeout, writeTimeout = 30 * time.Second, time.Minute
	server := &http.Server{
		Addr: *addr, Handler: s, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
	}
	log.Printf("log in at http://%s as ann, whose password is %q", *addr, passwordOfAnn)
	log.Fatal(server.ListenAndServe())
}

const passwordOfAnn = "correct horse"

// isRight stands for a check that takes time: that of a slow hash of the password.
func isRight(name, password string) bool {
	time.Sleep(100 * time.Millisecond)
	return name == "ann" && subtle.ConstantTimeCompare([]byte(password), []byte(passwordOfAnn)) == 1
}

// A site has a login form.
type site struct {
	isRight func(name, password string) bool
	secret  []byte            // signs the cookies of devices: servers of one site need the same
	gates   []*httplimit.Gate // that an attempt passes one after the other

	// What a success resets. A success says nothing of the address, which may be an attacker's who
	// has an account as well.
	resets []reset
}

// A reset is a limit whose key starts afresh.
type reset struct {
	limiter ratelimit.Limiter
	keyOf   key.Func
}

func newSite(isRight func(name, password string) bool) (*site, error) {
	s := &site{isRight: isRight, secret: make([]byte, 32)}
	rand.Read(s.secret)
	address := clientip.Of() // behind a proxy, it must be told so
	for _, limit := range []struct {
		limit  ratelimit.Lockout
		keyOf  key.Func
		resets bool
	}{
		{ratelimit.Lockout{
			Limit: 100, Window: time.Hour, First: time.Hour,
		}, s.deviceOr(address), false},
		{ratelimit.Lockout{
			Limit: 5, Window: 15 * time.Minute, First: time.Minute, Longest: 24 * time.Hour,
		}, s.deviceOr(key.Join(nameOf, address)), true},
		{ratelimit.Lockout{
			Limit: 20, Window: time.Hour, First: time.Minute, Longest: time.Hour,
		}, s.deviceOr(nameOf), true},
	} {
		// The wait that is told to a refused attempt supposes that all in line will fail and lock
		// the key again. So the line is short.
		limiter, err := ratelimit.New(limit.limit, ratelimit.WithMaxWaiters(10))
		if err != nil {
			return nil, err
		}
		gate, err := httplimit.NewGate(limiter,
			httplimit.WithKey(limit.keyOf),
			httplimit.WithSettle(failures, ratelimit.HoldFor(30*time.Second)),
			httplimit.WithShaping(5*time.Second),
			httplimit.WithRefusal(http.HandlerFunc(showRefusal)),
			httplimit.WithHeaders(httplimit.None))
		if err != nil {
			return nil, err
		}
		s.gates = append(s.gates, gate)
		if limit.resets {
			s.resets = append(s.resets, reset{limiter, limit.keyOf})
		}
	}
	return s, nil
}

// failures counts an attempt if its password was wrong.
func failures(_ *http.Request, status int) int {
	if status == http.StatusUnauthorized {
		return 1
	}
	return 0
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		show(w, http.StatusOK, "")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<12)
	if err := r.ParseForm(); err != nil { // before anything is held
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name, _ := nameOf(r) // that the keys find, too
	switch status, refused := s.attempt(r, name); {
	case refused != nil:
		refused.Refuse(w, r)
	case status == http.StatusUnauthorized:
		show(w, status, "The name or the password is wrong.")
	default:
		http.SetCookie(w, s.deviceCookie(name))
		show(w, status, "Welcome, "+name+".")
	}
}

// attempt checks the password for an account, unless a gate has refused the attempt. When it
// returns, all gates know how the attempt ended, and nothing is written yet: a client that does not
// read the answer cannot keep the attempt open.
func (s *site) attempt(r *http.Request, name string) (status int, refused *httplimit.Admission) {
	status = http.StatusTooManyRequests // of an attempt that a later gate refuses: it counts nowhere
	for _, gate := range s.gates {
		admission := gate.Admit(r)
		defer func() { admission.Done(status, 0) }()
		if !admission.Passed {
			return status, &admission
		}
	}
	if !s.isRight(name, r.PostFormValue("password")) {
		return http.StatusUnauthorized, nil
	}
	s.succeeded(r)
	return http.StatusOK, nil
}

// succeeded resets what counts failures of the account.
func (s *site) succeeded(r *http.Request) {
	for _, of := range s.resets {
		k, err := of.keyOf(r)
		if err == nil {
			err = of.limiter.Reset(context.WithoutCancel(r.Context()), k)
		}
		if err != nil {
			log.Print(err) // the failures are forgotten later
		}
	}
}
