package main

import (
	"fmt"
	"slices"
	"strings"
)

// A format is a way to write down a request in a line.
type format struct {
	id    string   // what -format calls it
	also  []string // what else -format takes for it
	title string   // for people
	free  bool     // whether a key is taken as it stands, and need not be an address
	new   func(readOptions) lineReader
}

// readOptions say how to read a log.
type readOptions struct {
	by     keyKind
	format *format // nil means that it is found by looking
	json   jsonFields
}

func (o readOptions) wantPath() bool { return o.by != byIP }

// A lineReader reads lines of one format.
type lineReader interface {
	// read reads a line that is not empty, has no space around it and does not
	// begin with #. The error is a skipReason.
	read(line []byte) (record, error)
}

// A learner is a lineReader that looks at some lines of the log first, and then
// can say what it has found.
type learner interface {
	lineReader
	fmt.Stringer
	learn(lines [][]byte)
}

// A director is a lineReader for a format in which lines that begin with # say
// how to read the others.
type director interface {
	lineReader
	directive(line []byte)
}

// formats are those that can be read. Where several read as many lines of a log,
// the first of them is meant.
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
		id: "plain", title: "'time key [n]'", free: true,
		new: func(o readOptions) lineReader { return plainReader{wantPath: o.wantPath()} },
	},
}

// jsonFormat is what -json speaks of.
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
	return nil, fmt.Errorf("-format %q: want one of %s", name, formatNames())
}
