package main

import "bytes"

// An envoyReader reads the default text formats of Envoy and Istio:
//
//	[2026-03-02T09:00:01.100Z] "GET /a HTTP/1.1" 200 - 0 512 8 7 "203.0.113.9" "curl/8" "ab-12" "shop.example" "10.0.0.1:80"
//	[2026-03-02T09:00:01.100Z] "GET /a HTTP/1.1" 200 - via_upstream - "-" 0 512 8 7 "-" "curl/8" "ab-12" "shop.example" "10.0.0.1:80" inbound|80|| 127.0.0.6:41854 10.0.0.1:80 203.0.113.9:37652 - default
//
// The client is the first address of X-Forwarded-For. If there is none, it is the address of the
// connection, which only Istio writes.
type envoyReader struct{ wantPath bool }

func (e envoyReader) read(line []byte) (record, error) {
	stamp, rest, ok := bytes.Cut(line, []byte(`] "`))
	if !ok || !bytes.HasPrefix(stamp, []byte{'['}) || !isRFC3339(stamp[1:]) {
		return record{}, skipForeign
	}
	at, err := rfc3339(stamp[1:])
	if err != nil {
		return record{}, err
	}
	request, rest, ok := bytes.Cut(rest, []byte(`" `))
	if !ok {
		return record{}, skipForeign
	}
	r := record{at: at, n: 1}
	if r.client, ok = envoyClient(rest); !ok {
		return record{}, skipForeign
	}
	if e.wantPath {
		_, uri := cutField(request)
		uri, _ = cutField(uri)
		if r.path = uriPath(uri); len(r.path) == 0 || string(r.path) == "-" { // "- - -" is a connection
			return record{}, skipNoPath
		}
	}
	return r, nil
}

// envoyClient returns the client of a line without its time and request. X-Forwarded-For is the
// first quoted field after six others that are not quoted.
func envoyClient(fields []byte) (client []byte, ok bool) {
	for plain := 0; len(fields) > 0; {
		field, rest := cutField(fields)
		if len(field) == 0 || field[0] != '"' {
			plain, fields = plain+1, rest
			continue
		}
		client, rest, ok = bytes.Cut(fields[bytes.IndexByte(fields, '"')+1:], []byte(`" `))
		if !ok {
			return nil, false
		}
		if plain < 6 {
			fields = rest
			continue
		}
		if string(client) == "-" {
			// The cluster, two addresses of this side, and the address of the connection.
			connection := rest[bytes.LastIndexByte(rest, '"')+1:]
			for range 4 {
				client, connection = cutField(connection)
			}
		}
		return client, true
	}
	return nil, false
}
