package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.yaml.in/yaml/v3"
)

// File returns a source that reads a YAML or JSON file with a list of rules:
//
//	# throttle.yaml
//	- id: photos
//	  call: GET /user/#/photos/#
//	  limit: 100
//	  seconds: 60               # 0.5 is half a second
//	  algorithm: token-bucket   # this and the fields below are optional
//	  burst: 20
//	  expires: 1893456000       # in Unix seconds, or 2030-01-01T00:00:00Z
//	  shadow: true
//	  enabled: true
//
// A rule whose algorithm is unlimited or blocked needs neither limit nor seconds. A rule
// with an unknown field or an invalid value is reported in [BadRules]. To change the file,
// replace it atomically (rename a new file over it), because a load may read a file that is
// only partly written.
//
// A value is what the file has as text: an id of 007 is not 7, and a limit of 010 is ten. The
// file must be UTF-8, with or without a byte order mark, and at most 16 MiB. If it
// is a named pipe, a load waits for a writer until its timeout.
func File(path string) Source {
	return SourceFunc(func(ctx context.Context) ([]Rule, error) {
		data, err := readFile(ctx, path)
		if err != nil {
			return nil, err
		}
		entries, err := parseFile(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		rules, bad := make([]Rule, 0, len(entries)), BadRules(nil)
		for i, e := range entries {
			rule, err := readEntry(e)
			if err != nil {
				bad = append(bad, BadRule{rule.ID, fmt.Errorf("%s: entry %d: %w", path, i+1, err)})
				continue
			}
			rules = append(rules, rule)
		}
		return rules, bad.orNil()
	})
}

// maxFile bounds the memory used if the path is wrong and leads to, say, a device. A file of that
// length has 150,000 rules, and is parsed in a few seconds.
const maxFile = 16 << 20

// readFile reads a file. It stops when ctx ends.
func readFile(ctx context.Context, path string) (data []byte, err error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) }) // interrupts a read of a pipe
	defer stop()
	for {
		data, err = io.ReadAll(io.LimitReader(reading{ctx, f}, maxFile+1))
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%s: not read completely: %w", path, ctx.Err())
		case err == nil && len(data) > maxFile:
			return nil, fmt.Errorf("%s: longer than %d bytes: it must be a list of rules", path, maxFile)
		case err != nil, len(data) > 0, info.Mode()&os.ModeNamedPipe == 0:
			return data, err
		}
		// No process has the pipe open for writing. Keep it open, so that a writer that
		// opens it in the meantime finds a reader.
		timer := time.NewTimer(10 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// A reading is a reader that fails once its context has ended.
type reading struct {
	ctx context.Context
	io.Reader
}

func (r reading) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// parseFile returns the entries of a file, as nodes of YAML or values of JSON.
func parseFile(data []byte) (entries []any, err error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, errors.New("the encoding is UTF-16: save the file as UTF-8")
	}
	if json.Valid(data) { // the YAML parser lacks some of JSON's escapes
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.UseNumber()
		if err = decoder.Decode(&entries); err == nil && entries == nil {
			err = errNoRules
		}
		return entries, err
	}
	var doc, next yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case len(doc.Content) == 0 || doc.Content[0].Tag == "!!null":
		return nil, errNoRules
	case doc.Content[0].Kind != yaml.SequenceNode:
		return nil, errors.New("the file is not a list of rules: begin each with a -")
	}
	switch err := decoder.Decode(&next); {
	case err == nil:
		return nil, errors.New("the file has more than one YAML document: write one list of rules")
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	for _, entry := range doc.Content[0].Content {
		entries = append(entries, entry)
	}
	return entries, nil
}

var errNoRules = errors.New("the file has no list of rules: write [] for an empty list")

// readEntry converts an entry of a file to a rule.
func readEntry(entry any) (Rule, error) {
	if valueOf(entry) != aMapping {
		return Rule{}, fmt.Errorf("the entry is %v: it must have fields, such as id: photos", shown(valueOf(entry)))
	}
	values := make(map[string]any)
	switch e := entry.(type) {
	case map[string]any:
		for name, v := range e {
			values[name] = valueOf(v)
		}
	case *yaml.Node:
		var fields map[string]yaml.Node
		if err := e.Decode(&fields); err != nil {
			return Rule{}, err
		}
		for name, field := range fields {
			values[name] = valueOf(&field)
		}
	}
	rule, err := readRow(&inFile, values)
	if name := inFile.unknown(values); err == nil && name != "" {
		err = &FieldError{rule.ID, name, shown(values[name]), fmt.Sprintf("one of the fields %q", inFile.all())}
	}
	return rule, err
}

// A composite is the kind of a value in a file that contains others. It stands for the value,
// because a few lines of YAML can describe one that is larger than the memory.
type composite string

const (
	aList    composite = "a list"
	aMapping composite = "a mapping"
)

// GoString returns the kind as it is, for [FieldError].
func (c composite) GoString() string { return string(c) }

// valueOf returns a value in a file as text, nil if it is null, or a composite.
func valueOf(v any) any {
	switch v := v.(type) {
	case []any:
		return aList
	case map[string]any:
		return aMapping
	case json.Number:
		return v.String()
	case *yaml.Node:
		switch {
		case v.Kind == yaml.AliasNode:
			return valueOf(v.Alias)
		case v.Kind == yaml.SequenceNode:
			return aList
		case v.Kind == yaml.MappingNode:
			return aMapping
		case v.Tag == "!!null":
			return nil
		}
		return v.Value
	}
	return v
}
