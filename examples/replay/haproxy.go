package main

import "bytes"

// A haproxyReader reads HAProxy's HTTP log:
//
//	203.0.113.9:33317 [02/Mar/2026:09:00:01.655] http-in static/srv1 10/0/30/69/109 200 2750 … "GET /a HTTP/1.1"
//
// Its time is local time without a zone, and is read as UTC.
type haproxyReader struct {
	wantPath bool
	stamps   stamps
}

const haproxyTime = "02/Jan/2006:15:04:05"

func (h *haproxyReader) read(line []byte) (record, error) {
	client, rest := cutField(line)
	stamp, rest, ok := bytes.Cut(rest, []byte("] "))
	if !ok || len(stamp) <= len("[02/") || stamp[0] != '[' || stamp[3] != '/' || bytes.IndexByte(stamp, ' ') >= 0 {
		return record{}, skipForeign
	}
	at, err := h.stamps.read(stamp[1:])
	if err != nil {
		return record{}, err
	}
	return withRequest(record{at: at, client: withoutLastPort(client), n: 1}, rest, h.wantPath)
}
