package main

import (
	"bytes"
	"slices"
)

// A w3cReader reads W3C's extended log file format, in which #Fields lines name the fields
// of the lines after them. IIS separates fields with spaces, CloudFront with tabs:
//
//	#Fields: date time cs-method cs-uri-stem c-ip cs(User-Agent)
//	2026-03-02 09:00:01 GET /a 203.0.113.9 curl/8.5.0
//
// Times are UTC.
type w3cReader struct {
	wantPath bool
	stamps   stamps

	named bool // whether there was a #Fields line

	// The indexes of these fields in a line. That of the client is -1 if #Fields does not
	// name all required fields.
	date, time, client, path int

	fields [][]byte // of the line
	stamp  []byte   // a buffer for date and time
}

const w3cTime = "2006-01-02 15:04:05"

func newW3C(wantPath bool) *w3cReader {
	return &w3cReader{wantPath: wantPath, stamps: stamps{layout: w3cTime}}
}

// directive processes a line that begins with #.
func (w *w3cReader) directive(line []byte) {
	names, ok := bytes.CutPrefix(line, []byte("#Fields:"))
	if !ok {
		return
	}
	w.named = true
	fields := bytes.Fields(names)
	at := func(name string) int {
		return slices.IndexFunc(fields, func(f []byte) bool { return string(f) == name })
	}
	w.date, w.time, w.client, w.path = at("date"), at("time"), at("c-ip"), at("cs-uri-stem")
	if w.date < 0 || w.time < 0 || w.wantPath && w.path < 0 {
		w.client = -1
	}
}

func (w *w3cReader) read(line []byte) (record, error) {
	if !w.named {
		return record{}, skipForeign
	}
	if w.client < 0 {
		return record{}, skipNoFields
	}
	w.split(line)
	if len(w.fields) <= max(w.date, w.time, w.client) {
		return record{}, skipForeign
	}
	w.stamp = append(append(append(w.stamp[:0], w.fields[w.date]...), ' '), w.fields[w.time]...)
	at, err := w.stamps.read(w.stamp)
	if err != nil {
		return record{}, err
	}
	r := record{at: at, client: w.fields[w.client], n: 1}
	if w.wantPath {
		if len(w.fields) <= w.path || string(w.fields[w.path]) == "-" {
			return record{}, skipNoPath
		}
		r.path = uriPath(w.fields[w.path])
	}
	return r, nil
}

// split splits a line into w.fields. A field in quotes may contain spaces.
func (w *w3cReader) split(line []byte) {
	w.fields = w.fields[:0]
	tabs := bytes.IndexByte(line, '\t') >= 0
	for len(line) > 0 {
		end := -1
		switch {
		case tabs:
			end = bytes.IndexByte(line, '\t')
		case line[0] == '"':
			if quote := bytes.Index(line[1:], []byte(`" `)); quote >= 0 {
				end = quote + 2
			}
		default:
			end = bytes.IndexByte(line, ' ')
		}
		if end < 0 {
			w.fields = append(w.fields, line)
			return
		}
		w.fields = append(w.fields, line[:end])
		line = line[end+1:]
	}
}
