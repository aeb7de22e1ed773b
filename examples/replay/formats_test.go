package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Each file in testdata/formats has the same four requests in another format, and other
// lines that the programs with that format write.
var sampleFormats = map[string]string{
	"alb.log":                     "AWS application load balancer",
	"caddy-compose.log":           "JSON lines (time=ts,key=request.client_ip), wrapped by docker compose logs",
	"caddy.log":                   "JSON lines (time=ts,key=request.client_ip)",
	"cloudfront.log":              "W3C extended log file format",
	"combined-compose-colour.log": "Common or Combined Log Format, wrapped by docker compose logs",
	"combined-compose-times.log":  "Common or Combined Log Format, wrapped by docker compose logs with times",
	"combined-compose.log":        "Common or Combined Log Format, wrapped by docker compose logs",
	"combined-docker.log":         "Common or Combined Log Format, wrapped by a container's log",
	"combined-forwarded.log":      "Common or Combined Log Format",
	"combined-jsonfile.log":       "Common or Combined Log Format, wrapped by docker's json-file driver",
	"combined-jsonfile-space.log": "Common or Combined Log Format, wrapped by docker's json-file driver",
	"combined-kubernetes.log":     "Common or Combined Log Format, wrapped by a container's log",
	"combined-ports.log":          "Common or Combined Log Format",
	"combined-rfc5424.log":        "Common or Combined Log Format, wrapped by syslog",
	"combined-rsyslog.log":        "Common or Combined Log Format, wrapped by syslog",
	"combined-syslog.log":         "Common or Combined Log Format, wrapped by syslog",
	"combined.log":                "Common or Combined Log Format",
	"common.log":                  "Common or Combined Log Format",
	"elb.log":                     "AWS classic load balancer",
	"envoy-text.log":              "Envoy's or Istio's text format",
	"envoy.log":                   "JSON lines (time=start_time,key=downstream_remote_address)",
	"haproxy.log":                 "HAProxy HTTP log, wrapped by syslog",
	"iis.log":                     "W3C extended log file format",
	"istio.log":                   "Envoy's or Istio's text format",
	"json-milliseconds.log":       "JSON lines (time=timestamp,key=httpRequest.clientIp)",
	"nginx-json-msec.log":         "JSON lines (time=msec,key=client)",
	"nginx-json.log":              "JSON lines (time=time_local,key=remote_addr)",
	"s3.log":                      "Amazon S3 server access log",
	"traefik.log":                 "JSON lines (time=StartUTC,key=ClientHost)",
	"vhost-address.log":           "vhost_combined",
	"vhost_combined.log":          "vhost_combined",
	"w3c-quotes.log":              "W3C extended log file format",
}

func TestFormats(t *testing.T) {
	files, err := filepath.Glob("testdata/formats/*.log")
	if err != nil || len(files) != len(sampleFormats) {
		t.Fatalf("%d samples, error %v; want %d", len(files), err, len(sampleFormats))
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tr := mustRead(t, string(text), byIP)
			if want := sampleFormats[name]; tr.format != want {
				t.Errorf("format %q, want %q", tr.format, want)
			}
			sample := []sampled{
				{"09:00:01", "203.0.113.9"}, {"09:00:02", "2001:db8:1:2::/64"},
				{"09:00:02", "203.0.113.9"}, {"09:00:03", "2001:db8:1:2::/64"},
			}
			if got := sampleOf(tr); !reflect.DeepEqual(got, sample) {
				t.Errorf("by address: %v, want %v", got, sample)
			}
			paths := []sampled{{"09:00:01", "/a"}, {"09:00:02", "/b"}, {"09:00:02", "/a"}, {"09:00:03", "/"}}
			if got := sampleOf(mustRead(t, string(text), byPath)); !reflect.DeepEqual(got, paths) {
				t.Errorf("by path: %v, want %v", got, paths)
			}
			for i := range sample {
				sample[i].key += " " + paths[i].key
			}
			if got := sampleOf(mustRead(t, string(text), byIPPath)); !reflect.DeepEqual(got, sample) {
				t.Errorf("by address and path: %v, want %v", got, sample)
			}
			// The result is the same if -format names the format.
			o := readOptions{by: byIP}
			for _, f := range formats {
				if strings.HasPrefix(tr.format, f.title) {
					o.format = f
				}
			}
			if named, err := readTrace(strings.NewReader(string(text)), name, o); err != nil || named.format != tr.format || !reflect.DeepEqual(named.requests, tr.requests) {
				t.Errorf("with -format %s: %v, error %v", o.format.id, named, err)
			}
		})
	}
}

// sampled is a request of a trace: its second and its key.
type sampled struct{ at, key string }

func sampleOf(t *trace) (all []sampled) {
	for _, r := range t.requests {
		at := time.Unix(0, r.at).UTC()
		all = append(all, sampled{at.Format(time.TimeOnly), t.keys[r.key]})
		if day := at.Format(time.DateOnly); day != "2026-03-02" {
			all[len(all)-1].at = day
		}
	}
	return all
}
