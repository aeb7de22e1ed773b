package main

import (
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// jsonFields has the names of the fields of JSON lines that -json sets. The name of a field
// in a nested object has dots, as in request.remote_ip. A field whose name is empty is
// detected.
type jsonFields struct{ time, key, path string }

// parseJSONFields parses the value of -json, such as time=ts,key=request.remote_ip.
func parseJSONFields(s string) (jsonFields, error) {
	var f jsonFields
	if s == "" {
		return f, nil
	}
	for pair := range strings.SplitSeq(s, ",") {
		name, field, ok := strings.Cut(pair, "=")
		name, field = strings.TrimSpace(name), strings.TrimSpace(field)
		to, known := map[string]*string{"time": &f.time, "key": &f.key, "path": &f.path}[name]
		switch {
		case !ok || !known || field == "":
			return f, fmt.Errorf("-json %q: must be some of time=FIELD, key=FIELD and path=FIELD, separated by commas", pair)
		case *to != "":
			return f, fmt.Errorf("-json %q: %s is given twice", pair, name)
		}
		*to = field
	}
	return f, nil
}

// The names of fields to look for, in order of preference: those of Caddy and Traefik,
// those common with nginx, and those of Envoy, Google Cloud, AWS WAF and Cloudflare.
var (
	jsonTimes = []string{
		"ts", "StartUTC", "time", "timestamp", "@timestamp", "time_iso8601", "time_local", "msec", "date",
		"start_time", "EdgeStartTimestamp",
	}
	jsonKeys = []string{
		"request.client_ip", "request.remote_ip", "request.remote_addr", "ClientHost",
		"remote_addr", "remote_ip", "client_ip", "clientip", "client", "ip", "client.ip",
		"downstream_remote_address", "httpRequest.remoteIp", "httpRequest.clientIp", "ClientIP",
	}
	jsonPaths = []string{
		"request.uri", "RequestPath", "request_uri", "uri", "path", "request", "url", "url.path",
		"httpRequest.requestUrl", "httpRequest.uri", "ClientRequestURI",
	}
)

// A jsonReader reads JSON lines: a JSON object in each.
type jsonReader struct {
	fields   jsonFields // from -json
	wantPath bool
	times    textTime

	time, key, path jsonField

	client, uri []byte // of the line
}

// A jsonField is the name of a field and the gjson query for it.
type jsonField struct{ name, query string }

// learn determines the fields that have the time, the client and the path in most lines.
func (j *jsonReader) learn(lines [][]byte) {
	known := newClients()
	var objects []string
	for _, line := range lines {
		if s := string(line); s[0] == '{' && gjson.Valid(s) {
			objects = append(objects, s)
		}
	}
	best := func(given string, names []string, score func(gjson.Result) int) (most jsonField) {
		if given != "" {
			names = []string{given}
		}
		top := 0
		for _, name := range names {
			for _, f := range jsonQueries(name) {
				sum := 0
				for _, o := range objects {
					sum += score(gjson.Get(o, f.query))
				}
				if sum > top || most.name == "" && given != "" {
					top, most = sum, f
				}
			}
		}
		return most
	}
	// A field that is present but is not a time or an address counts only if no other
	// field is one.
	good := len(lines) + 1
	j.time = best(j.fields.time, jsonTimes, func(r gjson.Result) int {
		_, err := j.readTime(r)
		switch {
		case err == nil:
			return good
		case r.Exists():
			return 1
		}
		return 0
	})
	j.key = best(j.fields.key, jsonKeys, func(r gjson.Result) int {
		s := jsonText(r)
		switch {
		case known.of([]byte(s)).addr:
			return good
		case s != "":
			return 1
		}
		return 0
	})
	j.path = best(j.fields.path, jsonPaths, func(r gjson.Result) int {
		if r.Type == gjson.String && len(jsonPath([]byte(r.Str))) > 0 {
			return 1
		}
		return 0
	})
}

// jsonQueries returns the queries for a field whose name has dots: as a field of nested
// objects, and as a name with dots.
func jsonQueries(name string) []jsonField {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = gjson.Escape(p)
	}
	fs := []jsonField{{name, strings.Join(parts, ".")}}
	if len(parts) > 1 {
		fs = append(fs, jsonField{name, gjson.Escape(name)})
	}
	return fs
}

// String returns the fields in the syntax of -json.
func (j *jsonReader) String() string {
	s := "time=" + j.time.name + ",key=" + j.key.name
	if j.wantPath {
		s += ",path=" + j.path.name
	}
	return s
}

func (j *jsonReader) read(line []byte) (record, error) {
	s := string(line)
	if s[0] != '{' || !gjson.Valid(s) {
		return record{}, skipForeign
	}
	when := lookUp(s, j.time)
	if !when.Exists() {
		return record{}, skipNoTime
	}
	at, err := j.readTime(when)
	if err != nil {
		return record{}, err
	}
	j.client = append(j.client[:0], jsonText(lookUp(s, j.key))...)
	r := record{at: at, client: j.client, n: 1}
	if j.wantPath {
		uri := lookUp(s, j.path)
		j.uri = append(j.uri[:0], uri.Str...)
		r.path = jsonPath(j.uri)
		if len(r.path) == 0 {
			return record{}, skipNoPath
		}
	}
	return r, nil
}

func lookUp(s string, f jsonField) gjson.Result {
	if f.query == "" {
		return gjson.Result{}
	}
	return gjson.Get(s, f.query)
}

func (j *jsonReader) readTime(r gjson.Result) (int64, error) {
	switch r.Type {
	case gjson.String:
		return j.times.read(r.Str)
	case gjson.Number:
		if isUnixTime([]byte(r.Raw)) {
			return unixTime([]byte(r.Raw))
		}
		return unixTime(fmt.Appendf(nil, "%f", r.Num)) // it has an exponent
	}
	return 0, skipTime
}

// jsonText returns a value that can be a key, which is a string or a number, as text, and
// "" for other values.
func jsonText(r gjson.Result) string {
	switch r.Type {
	case gjson.String:
		return r.Str
	case gjson.Number:
		return r.Raw
	}
	return ""
}

// jsonPath returns the path of a URI or of a request line, such as GET /a HTTP/1.1.
func jsonPath(s []byte) []byte {
	first, rest := cutField(s)
	if len(rest) > 0 && len(first) > 0 && first[0] != '/' {
		first, _ = cutField(rest)
	}
	return uriPath(first)
}
