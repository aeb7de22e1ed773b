package main

import (
	"fmt"
	"slices"
	"strings"
)

// A format is a format of log lines.
type format struct {
	id    string   // its name for -format
	also  []string // other names for -format
	title string   // for people
	free  bool     // whether a key may be any text, and is used as it is
	new   func(readOptions) lineReader
}

// readOptions are the options for reading a log.
type readOptions struct {
	by     keyKind
	format *format // nil means to detect it
	json   jsonFields
}

func (o readOptions) wantPath() bool { return o.by != byIP }

// A lineReader reads lines of one format.
type lineReader interface {
	// read reads a line that is not empty, has no surrounding space and does not begin
	// with #. The error is a skipReason.
	read(line []byte) (record, error)
}

// A learner is a lineReader that first learns details of the format from some lines, and
// can describe them.
type learner interface {
	lineReader
	fmt.Stringer
	learn(lines [][]byte)
}

// A director is a lineReader for a format in which lines that begin with # describe the
// others.
type director interface {
	lineReader
	directive(line []byte)
}

// formats are the known formats. If several read equally many lines of a log, the first
// one is used.
var formats = []*format{
	{
		id: "combined", also: []string{"common", "clf", "apache", "nginx"}, title: "Common or Combined Log Format",
		new: func(o readOptions) lineReader {
			return &clfReader{wantPath: o.wantPath(), stamps: stamps{layout: clfTime}}
		},
	},
	{
		id: "vhost_combined", also: []string{"vhost"}, title: "vhost_combined",
		new: func(o readOptions) lineReader {
			return &clfReader{vhost: true, wantPath: o.wantPath(), stamps: stamps{layout: clfTime}}
		},
	},
	jsonFormat,
	{
		id: "w3c", also: []string{"iis", "cloudfront"}, title: "W3C extended log file format",
		new: func(o readOptions) lineReader { return newW3C(o.wantPath()) },
	},
	{
		id: "alb", title: "AWS application load balancer",
		new: func(o readOptions) lineReader { return elbReader{kind: true, wantPath: o.wantPath()} },
	},
	{
		id: "elb", title: "AWS classic load balancer",
		new: func(o readOptions) lineReader { return elbReader{wantPath: o.wantPath()} },
	},
	{
		id: "s3", title: "Amazon S3 server access log",
		new: func(o readOptions) lineReader {
			return &s3Reader{wantPath: o.wantPath(), stamps: stamps{layout: clfTime}}
		},
	},
	{
		id: "haproxy", title: "HAProxy HTTP log",
		new: func(o readOptions) lineReader {
			return &haproxyReader{wantPath: o.wantPath(), stamps: stamps{layout: haproxyTime}}
		},
	},
	{
		id: "envoy", also: []string{"istio"}, title: "Envoy's or Istio's text format",
		new: func(o readOptions) lineReader { return envoyReader{wantPath: o.wantPath()} },
	},
	{
		id: "plain", title: "'time key [n]'", free: true,
		new: func(o readOptions) lineReader { return plainReader{wantPath: o.wantPath()} },
	},
}

// jsonFormat is the format that -json selects.
var jsonFormat = &format{
	id: "json", also: []string{"caddy", "traefik"}, title: "JSON lines",
	new: func(o readOptions) lineReader { return &jsonReader{wantPath: o.wantPath(), fields: o.json} },
}

// formatNames are the values of -format.
func formatNames() string {
	names := []string{"auto"}
	for _, f := range formats {
		names = append(names, f.id)
	}
	return strings.Join(names, ", ")
}

// parseFormat returns the format that -format names, or nil for auto.
func parseFormat(name string) (*format, error) {
	if name == "auto" {
		return nil, nil
	}
	for _, f := range formats {
		if f.id == name || slices.Contains(f.also, name) {
			return f, nil
		}
	}
	return nil, fmt.Errorf("-format %q: must be one of %s", name, formatNames())
}
