package main

import "bytes"

// An s3Reader reads Amazon S3's server access logs:
//
//	79a5… bucket [02/Mar/2026:09:00:01 +0000] 203.0.113.9 arn:… 3E57… REST.GET.OBJECT key "GET /key HTTP/1.1" 200 …
type s3Reader struct {
	wantPath bool
	stamps   stamps
}

func (s *s3Reader) read(line []byte) (record, error) {
	_, rest := cutField(line) // the bucket's owner
	bucket, rest := cutField(rest)
	if len(bucket) == 0 || len(rest) == 0 || rest[0] != '[' {
		return record{}, skipForeign
	}
	stamp, rest, err := cutStamp(rest)
	if err != nil {
		return record{}, err
	}
	at, err := s.stamps.read(stamp)
	if err != nil {
		return record{}, err
	}
	client, rest := cutField(rest)
	if rest == nil {
		return record{}, skipForeign // perhaps cut off in the address
	}
	return withRequest(record{at: at, client: client, n: 1}, rest, s.wantPath)
}

// An elbReader reads the access logs of AWS's application load balancer or, if kind is
// false, of the classic one:
//
//	h2 2026-03-02T09:00:01.186641Z app/shop/50dc6c495c0c9188 203.0.113.9:2817 10.0.0.1:80 … "GET https://shop.example:443/a HTTP/2.0" …
//	2026-03-02T09:00:01.186641Z shop 203.0.113.9:2817 10.0.0.1:80 … "GET http://shop.example:80/a HTTP/1.1" …
//
// The time is that of the response.
type elbReader struct {
	kind     bool // whether the first field is the kind of connection
	wantPath bool
}

func (e elbReader) read(line []byte) (record, error) {
	stamp, rest := cutField(line)
	if e.kind {
		switch string(stamp) {
		case "http", "https", "h2", "grpcs", "ws", "wss":
		default:
			return record{}, skipForeign
		}
		stamp, rest = cutField(rest)
	}
	if !isRFC3339(stamp) {
		return record{}, skipForeign
	}
	_, rest = cutField(rest) // the load balancer
	client, rest := cutField(rest)
	// The target is address:port, or - if there was none.
	if target, _ := cutField(rest); rest == nil || !bytes.Contains(target, []byte{':'}) && string(target) != "-" {
		return record{}, skipForeign
	}
	at, err := rfc3339(stamp)
	if err != nil {
		return record{}, err
	}
	return withRequest(record{at: at, client: client, n: 1}, rest, e.wantPath)
}

// withRequest returns r with the path of the first quoted field of rest, if wantPath.
func withRequest(r record, rest []byte, wantPath bool) (record, error) {
	if wantPath {
		var ok bool
		if r.path, ok = quotedRequestPath(rest); !ok {
			return record{}, skipNoPath
		}
	}
	return r, nil
}
