package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/tidwall/gjson"
)

// fields are the parts of a line that matter, as the line has them. A part that the line lacks is
// empty.
type fields struct{ time, key, path, n string }

// A format is a way to write a request in a line.
type format struct {
	title string // for people
	keys  bool   // whether its keys are arbitrary text, and not clients of HTTP
	read  func(line string) (f fields, ok bool)
}

// known are the formats that replay recognizes by the first line of a log.
var known = []format{
	{"Common or Combined Log Format", false, func(line string) (fields, bool) {
		f, ok := readPattern(commonLog, line)
		if ok { // otherwise, the line begins with something other than the client
			_, isAddr := parseAddr(f.key)
			ok = isAddr || f.key == "-"
		}
		return f, ok
	}},
	{"JSON lines", false, knownJSON.read},
	{"'time key [n]'", true, func(line string) (fields, bool) { return readPattern(plainLog, line) }},
}

var (
	// commonLog matches lines that Apache and nginx write by default:
	//
	//	203.0.113.9 - - [02/Mar/2026:09:00:01 +0000] "GET /a HTTP/1.1" 200 512 …
	//
	// The client may have a port, may be the first of a list, as in X-Forwarded-For, and is - if the
	// server did not know it, as of a request over a Unix socket. The
	// user's name may be any text. A line that is cut off after its path counts.
	commonLog = regexp.MustCompile(`^(?<key>-|[][0-9a-fA-F.:]+)(?:, ?[^ ]+)* [^ .:]+ .*?` +
		`\[(?<time>\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\](?: "[^" ]+ (?<path>[^" ]+))?`)

	// plainLog matches a Unix time or one of RFC 3339, a key, and a number of events.
	plainLog = regexp.MustCompile(`^(?<time>\d+\.?\d*|\d{4}-\d\d-\d\dT\S+)\s+(?<key>\S+)(?:\s+(?<n>\S+))?$`)
)

// A jsonReader reads lines with a JSON object each. It has the names of the fields to look for, in
// order of preference. They are gjson's paths, in which dots separate the names of nested objects.
type jsonReader struct{ times, keys, paths []string }

// knownJSON has the names of fields that Caddy, Traefik and Envoy use, and names that people
// configure in nginx.
var knownJSON = jsonReader{
	times: []string{"ts", "StartUTC", "time", "timestamp", `\@timestamp`, "time_iso8601", "time_local", "msec", "start_time"},
	keys:  []string{"request.client_ip", "request.remote_ip", "ClientHost", "remote_addr", "client_ip", "client", "ip", "downstream_remote_address"},
	paths: []string{"request.uri", "RequestPath", "request_uri", "uri", "path", "url", "request"},
}

func (j jsonReader) read(line string) (fields, bool) {
	if !strings.HasPrefix(line, "{") || !gjson.Valid(line) {
		return fields{}, false
	}
	first := func(names []string) string {
		for _, name := range names {
			if r := gjson.Get(line, name); r.Type == gjson.String || r.Type == gjson.Number {
				return r.String()
			}
		}
		return ""
	}
	f := fields{time: first(j.times), key: first(j.keys), path: first(j.paths)}
	if method, rest, ok := strings.Cut(f.path, " "); ok && !strings.HasPrefix(method, "/") {
		f.path, _, _ = strings.Cut(rest, " ") // GET /a HTTP/1.1
	}
	return f, true
}

// parseFormat returns the format that -pattern or -json sets, and nil if neither is given.
func parseFormat(pattern, names string) (*format, error) {
	switch {
	case pattern != "" && names != "":
		return nil, errors.New("-pattern and -json: give one of them")
	case pattern != "":
		re, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("-pattern: %w", err)
		}
		if re.SubexpIndex("time") < 0 || re.SubexpIndex("key") < 0 {
			return nil, fmt.Errorf("-pattern %s: needs the groups (?<time>…) and (?<key>…)", pattern)
		}
		return &format{"-pattern", true, func(line string) (fields, bool) { return readPattern(re, line) }}, nil
	case names != "":
		n := strings.Split(strings.ReplaceAll(names, "@", `\@`), ",")
		if len(n) < 2 || len(n) > 3 {
			return nil, fmt.Errorf("-json %q: must be the names of two or three fields, TIME,KEY or TIME,KEY,PATH", names)
		}
		return &format{"JSON lines", true, jsonReader{n[:1], n[1:2], n[2:]}.read}, nil
	}
	return nil, nil
}

func readPattern(re *regexp.Regexp, line string) (fields, bool) {
	groups := re.FindStringSubmatch(line)
	if groups == nil {
		return fields{}, false
	}
	group := func(name string) string {
		if i := re.SubexpIndex(name); i >= 0 {
			return groups[i]
		}
		return ""
	}
	return fields{group("time"), group("key"), group("path"), group("n")}, true
}
