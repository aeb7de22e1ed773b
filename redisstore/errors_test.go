package redisstore

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A reply begins with a code, from which the store tells what to do.
func TestErrorReplies(t *testing.T) {
	predicates := map[string]func(error) bool{
		"reply": isReply, "unknown script": isUnknownScript, "script": isScriptError,
		"redirection": isRedirection, "apart": isApart, "about key": aboutKey, "refused": refused,
		"unwilling": isUnwilling,
	}
	for text, want := range map[string][]string{
		"NOSCRIPT No matching script. Please use EVAL.":                  {"unknown script", "about key"},
		"ERR user_script:7: attempt to index a nil value script: 0123":   {"script", "about key"},
		"ERR Error running script (call to f_0123): @user_script:7: bad": {"script", "about key"},
		"ERR unknown command 'EVALSHA'":                                  {"about key"},
		"ERR max number of clients reached":                              {},
		"WRONGTYPE user_script: holds the wrong kind of value":           {"about key"},
		"OOM command not allowed when used memory > 'maxmemory'":         {"about key"},
		"NOPERM this user has no permissions":                            {"about key"},
		"MOVED 7 127.0.0.1:7001":                                         {"redirection", "about key"},
		"ASK 7 127.0.0.1:7001":                                           {"redirection", "about key"},
		"TRYAGAIN Multiple keys request during rehashing of slot":        {"apart", "about key"},
		"CROSSSLOT Keys in request don't hash to the same slot":          {"apart", "about key"},
		"LOADING Redis is loading the dataset in memory":                 {"unwilling"},
		"READONLY You can't write against a read only replica.":          {"unwilling"},
		"MASTERDOWN Link with MASTER is down":                            {"unwilling"},
		"NOAUTH Authentication required.":                                {"unwilling"},
		"NOREPLICAS Not enough good replicas to write.":                  {"unwilling"},
		"MISCONF Redis is configured to save RDB snapshots":              {"unwilling"},
		"CLUSTERDOWN The cluster is down":                                {},
		"ERR READONLY You can't write against a read only replica.":      {"unwilling"}, // from a proxy
		"ERR LOADING Redis is loading the dataset in memory":             {"unwilling"},
		"ERR DB index is out of range":                                   {"about key"},
		// Redis 6.2 replies to a script with the error of a command in it.
		"ERR Error running script (call to f_0123): @user_script:7: @user_script: 7: -READONLY You can't write": {"unwilling"},
		"ERR Error running script (call to f_0123): @user_script:7: @user_script: 7: -OOM command not allowed":  {"about key"},
	} {
		want = append(want, "reply", "refused")
		for name, is := range predicates {
			assert.Equal(t, slices.Contains(want, name), is(errors.New(text)), "%q: %s", text, name)
		}
	}
	for _, err := range []error{
		nil, context.DeadlineExceeded, errShort, errors.New(""), errors.New("EOF"), errors.New("i/o timeout"),
		errors.New("read tcp 127.0.0.1: use of closed network connection"), errors.New("redis: nil"),
		errors.New("dial: MOVED 7 127.0.0.1:7001"), errors.New(" NOSCRIPT No matching script"),
	} {
		for name, is := range predicates {
			assert.False(t, is(err), "%v: %s", err, name)
		}
	}
	assert.True(t, refused(&scriptError{errShort}))
	assert.True(t, refused(&openError{&Outage{Cause: errShort}}), "it was not sent")
}
