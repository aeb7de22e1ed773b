package main

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// A prefix is what something on the way puts in front of each line of a log, or
// around it.
type prefix struct {
	title string                                   // for people; empty if there is none
	cut   func(line []byte) (rest []byte, ok bool) // ok unless line does not have it
}

// prefixes are those that are looked for, the most likely first.
var prefixes = []prefix{
	{"", func(line []byte) ([]byte, bool) { return line, true }},
	{"syslog", cutSyslog},
	{"docker compose logs", cutCompose},
	{"docker compose logs with times", func(line []byte) ([]byte, bool) {
		rest, ok := cutCompose(line)
		if !ok {
			return nil, false
		}
		return cutContainer(rest)
	}},
	{"a container's log", cutContainer},
	{"docker's json-file driver", cutJSONFile},
}

// cutSyslog cuts what syslog daemons and journalctl write: a priority maybe, the
// time as in RFC 3164 or RFC 3339, the host maybe, and the program; or the header
// of RFC 5424.
//
//	Mar  2 09:00:01 web1 nginx[123]: …
//	2026-03-02T09:00:01.123456+00:00 web1 nginx: …
//	<190>1 2026-03-02T09:00:01Z web1 nginx 123 - - …
func cutSyslog(line []byte) ([]byte, bool) {
	rest := line
	if line[0] == '<' {
		end := bytes.IndexByte(line[:min(len(line), len("<191>"))], '>')
		if end < 0 {
			return nil, false
		}
		rest = line[end+1:]
		if after, ok := bytes.CutPrefix(rest, []byte("1 ")); ok {
			return cutSyslog5424(after)
		}
	}
	switch stamp := len("Mar  2 09:00:01 "); {
	case len(rest) > stamp && rest[3] == ' ' && rest[6] == ' ' && rest[9] == ':' && rest[12] == ':' && rest[15] == ' ':
		rest = rest[stamp:]
	case isRFC3339(rest):
		_, rest = cutField(rest)
	default:
		return nil, false
	}
	for range 3 { // the program has a colon behind it, and may be two words
		var field []byte
		field, rest = cutField(rest)
		if bytes.HasSuffix(field, []byte{':'}) {
			return bytes.TrimLeft(rest, " "), true
		}
	}
	return nil, false
}

// cutSyslog5424 cuts an RFC 5424 header behind its version.
func cutSyslog5424(rest []byte) ([]byte, bool) {
	for range 5 { // time, host, application, process, kind of message
		_, rest = cutField(rest)
	}
	if data, after := cutField(rest); string(data) == "-" {
		return bytes.TrimPrefix(after, []byte("\ufeff")), true
	}
	_, rest, ok := bytes.Cut(rest, []byte("] "))
	return bytes.TrimPrefix(rest, []byte("\ufeff")), ok
}

// cutCompose cuts the name of a service, as docker compose logs writes it, with
// colours or without:
//
//	web-1  | …
func cutCompose(line []byte) ([]byte, bool) {
	name, rest, ok := bytes.Cut(withoutColour(line), []byte{'|'})
	name = bytes.TrimRight(name, " ")
	if !ok || len(name) == 0 || bytes.ContainsAny(name, " \t\"{[") {
		return nil, false
	}
	return bytes.TrimLeft(withoutColour(rest), " "), true
}

// withoutColour returns s without a terminal's code for a colour in front.
func withoutColour(s []byte) []byte {
	if rest, ok := bytes.CutPrefix(s, []byte("\x1b[")); ok {
		if end := bytes.IndexByte(rest, 'm'); end >= 0 {
			return rest[end+1:]
		}
	}
	return s
}

// cutContainer cuts what docker logs and kubectl logs write with --timestamps, and
// what Kubernetes keeps in files:
//
//	2026-03-02T09:00:01.123456789Z …
//	2026-03-02T09:00:01.123456789Z stdout F …
func cutContainer(line []byte) ([]byte, bool) {
	if !isRFC3339(line) {
		return nil, false
	}
	_, rest := cutField(line)
	stream, after := cutField(rest)
	if s := string(stream); s == "stdout" || s == "stderr" {
		_, rest = cutField(after)
	}
	return bytes.TrimLeft(rest, " "), true
}

// cutJSONFile cuts what docker's json-file driver keeps in files:
//
//	{"log":"…\n","stream":"stdout","time":"2026-03-02T09:00:01.123456789Z"}
func cutJSONFile(line []byte) ([]byte, bool) {
	if !bytes.HasPrefix(line, []byte(`{"log":"`)) || !gjson.ValidBytes(line) {
		return nil, false
	}
	return bytes.TrimSpace([]byte(gjson.GetBytes(line, "log").Str)), true
}
