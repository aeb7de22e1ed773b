package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
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
// The file must be UTF-8, with or without a byte order mark, and at most 64 MiB. If it
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

// maxFile bounds the memory used if the path is wrong and leads to, say, a device.
const maxFile = 64 << 20

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

// parseFile returns the entries of a file.
func parseFile(data []byte) ([]any, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, errors.New("the encoding is UTF-16: save the file as UTF-8")
	}
	var written []any
	if err := yaml.Unmarshal(data, &written); err != nil {
		return nil, err
	}
	if written == nil {
		return nil, errors.New("the file has no list of rules: write [] for an empty list")
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, err
	}
	if len(file.Docs) > 1 {
		return nil, errors.New("the file has more than one YAML document: write one list of rules")
	}
	return written, nil
}

// readEntry converts an entry of a file to a rule.
func readEntry(written any) (Rule, error) {
	values, ok := written.(map[string]any)
	if !ok {
		return Rule{}, fmt.Errorf("the entry is %v: it must have fields, such as id: photos", shown(written))
	}
	rule, err := readRow(&inFile, values)
	if name := inFile.unknown(values); err == nil && name != "" {
		err = &FieldError{rule.ID, name, shown(values[name]), fmt.Sprintf("one of the fields %q", inFile.all())}
	}
	return rule, err
}
