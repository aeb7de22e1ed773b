package main

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// A prefix is text that another program adds before or around each line of a log.
type prefix struct {
	title string                                   // for people; empty if there is none
	cut   func(line []byte) (rest []byte, ok bool) // ok if the line has the prefix
}

// prefixes are the known prefixes, the most likely first.
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

// cutSyslog cuts the prefix of syslog daemons and journalctl: an optional priority, the
// time as in RFC 3164 or RFC 3339, an optional host, and the program; or the header of RFC
// 5424.
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
	for range 3 { // the program ends with a colon, and may be two words
		var field []byte
		field, rest = cutField(rest)
		if bytes.HasSuffix(field, []byte{':'}) {
			return bytes.TrimLeft(rest, " "), true
		}
	}
	return nil, false
}

// cutSyslog5424 cuts the rest of an RFC 5424 header after its version.
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

// cutCompose cuts the name of a service that docker compose logs writes, with or without
// colours:
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

// withoutColour returns s without a leading terminal colour code.
func withoutColour(s []byte) []byte {
	if rest, ok := bytes.CutPrefix(s, []byte("\x1b[")); ok {
		if end := bytes.IndexByte(rest, 'm'); end >= 0 {
			return rest[end+1:]
		}
	}
	return s
}

// cutContainer cuts the prefix that docker logs and kubectl logs write with --timestamps,
// and the one in the log files of Kubernetes:
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

// cutJSONFile extracts the line from the files of docker's json-file driver:
//
//	{"log":"…\n","stream":"stdout","time":"2026-03-02T09:00:01.123456789Z"}
func cutJSONFile(line []byte) ([]byte, bool) {
	if line[0] != '{' || !gjson.ValidBytes(line) {
		return nil, false
	}
	text := gjson.GetBytes(line, "log")
	return bytes.TrimSpace([]byte(text.Str)), text.Type == gjson.String
}
