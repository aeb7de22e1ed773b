package redisstore

import (
	"errors"
	"net"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A limiter's error matches one of these if this store failed for that reason. In each
// case the limiter's [ratelimit.FailurePolicy] decides.
var (
	// ErrTimeout means that Redis did not answer in time. The request may have been
	// executed, or may still be. If there was no connection and the client says why, the error
	// is the client's instead.
	ErrTimeout = errors.New("redisstore: no answer in time")

	// ErrOpen means that the circuit breaker was open, so that nothing was sent.
	ErrOpen = errors.New("redisstore: the circuit breaker is open")
)

// errOther means that the script cannot use the state, because another limit left it or
// because it is damaged.
var errOther = errors.New("redisstore: the state does not belong to this limit")

// A scriptError means that the script failed, perhaps because of the state it read. A
// script that fails has changed nothing.
type scriptError struct{ error }

func (e *scriptError) Unwrap() error { return e.error }

func (e *scriptError) Is(target error) bool { return target == errOther }

// A damagedError says that a script has used a state that is damaged, so that what it has left is
// not to be used either.
type damagedError struct{ error }

func (e *damagedError) Unwrap() error { return e.error }

func (e *damagedError) Is(target error) bool { return target == errOther }

// errNoContext is what a method of a Store returns if its context is nil.
var errNoContext = param.InvalidIn("redisstore", "ctx", nil,
	"must not be nil; context.Background() is one")

var errShort = errors.New("redisstore: the answer to a script is too short")

// An openError says why a breaker is open. It matches [ErrOpen], but not the cause of the outage,
// which it only tells.
type openError struct{ outage *Outage }

func (e *openError) Error() string {
	return ErrOpen.Error() + ", because of: " + e.outage.Cause.Error()
}

func (e *openError) Is(target error) bool { return target == ErrOpen }

// code returns the code of an error that is the server's reply, such as OOM or NOPERM, and ""
// for nil and for an error of the client.
func code(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	outer := leadingCode(text)
	if outer != "ERR" {
		return outer
	}
	if _, failed, ok := strings.Cut(text, failedInScript); ok && leadingCode(failed) != "" {
		return leadingCode(failed)
	}
	if inner := leadingCode(strings.TrimPrefix(text, "ERR ")); unwillingCodes[inner] {
		// As some proxies pass it on.
		return inner
	}
	return outer
}

// failedInScript precedes the reply to a command that failed in a script, in the reply of Redis 6.2
// to the script: "ERR Error running script (call to f_0123): @user_script:7: -READONLY You can't
// …". Later versions reply to the script with that reply itself.
const failedInScript = ": -"

// leadingCode returns the code of a reply, with which its text begins: a word in upper case and a
// space.
func leadingCode(text string) string {
	code, _, ok := strings.Cut(text, " ")
	if !ok || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return ""
	}
	return code
}

// unwillingCodes are the codes with which a server refuses to carry out commands because of its own
// role or condition. It may do so for ever. CLUSTERDOWN is none of them: it is said of the cluster,
// whose nodes the client knows by their addresses.
var unwillingCodes = map[string]bool{
	"READONLY":   true, // it is a replica
	"MASTERDOWN": true, // it is a replica that has lost its primary
	"LOADING":    true, // it has just started
	"NOAUTH":     true, // it does not know, or has forgotten, who has authenticated
	"NOREPLICAS": true, // it is a primary without replicas: perhaps another one has taken over
	"MISCONF":    true, // it cannot write to its disk
}

// isUnwilling reports whether the server replied that it carries out no command like this one for
// now, whatever the key is.
func isUnwilling(err error) bool { return unwillingCodes[code(err)] }

// isReply reports whether err is the server's reply, and not an error of the client.
func isReply(err error) bool { return code(err) != "" }

// isUnknownScript reports whether the server does not know the hash of a script.
func isUnknownScript(err error) bool { return code(err) == "NOSCRIPT" }

// isScriptError reports whether err is that of a script, of Lua and not of a command such as
// PSETEX, which has another code.
func isScriptError(err error) bool {
	return code(err) == "ERR" && strings.Contains(err.Error(), "user_script:")
}

// isRedirection reports whether the reply says that another server has the key, or is about to.
func isRedirection(err error) bool {
	c := code(err)
	return c == "MOVED" || c == "ASK"
}

// isApart reports whether the server refused a command because of the places of its keys: they
// are in several slots, or in one that moves and not all on one server.
func isApart(err error) bool {
	c := code(err)
	return c == "CROSSSLOT" || c == "TRYAGAIN"
}

// aboutKey reports whether err is a server's error that concerns only a key, its place, a script or
// a permission, or a lack of memory for a new key. Such an error does not mean that the server
// is down.
func aboutKey(err error) bool {
	switch code(err) {
	case "WRONGTYPE", "OOM", "NOPERM", "NOSCRIPT", "MOVED", "ASK", "TRYAGAIN", "CROSSSLOT":
		return true
	case "ERR":
		return !strings.HasPrefix(err.Error(), "ERR max number of clients")
	}
	return false
}

// refused reports whether a command failed with err without being executed, because the server's
// reply says so or because it was not sent. After any other error, it may have been executed.
func refused(err error) bool {
	return errors.Is(err, errOther) || isReply(err) || errors.Is(err, ErrOpen)
}

// isTimeout reports whether err is the timeout of a context or a client.
func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}
