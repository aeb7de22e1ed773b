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

// File returns a source that reads a file in YAML or JSON, a list of rules:
//
//   - id: photos
//     call: GET /user/#/photos/#
//     limit: 100
//     seconds: 60               # 0.5 is half a second
//     algorithm: token-bucket   # and what follows may be left out
//     burst: 20
//     expires: 1893456000       # in Unix seconds, or 2030-01-01T00:00:00Z
//     shadow: true
//     enabled: true
//
// A rule with a field that is not one of these, or with a value that cannot be used, is
// one of [BadRules]. To change the file, replace it: a half that is written may be read.
//
// The file is in UTF-8, with or without a byte order mark, and has at most 64 MiB. A
// named pipe is waited for, as long as a load may take.
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

// maxFile bounds the memory that a file takes which was not meant, such as a device.
const maxFile = 64 << 20

// readFile reads a file until ctx ends.
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
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) }) // ends a read of a pipe
	defer stop()
	for {
		data, err = io.ReadAll(io.LimitReader(reading{ctx, f}, maxFile+1))
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%s: it was not read to its end: %w", path, ctx.Err())
		case err == nil && len(data) > maxFile:
			return nil, fmt.Errorf("%s: it has more than %d bytes: it must be a list of rules", path, maxFile)
		case err != nil, len(data) > 0, info.Mode()&os.ModeNamedPipe == 0:
			return data, err
		}
		// Nobody has the pipe open for writing. It stays open here, so that one who
		// comes meanwhile finds a reader.
		timer := time.NewTimer(10 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// A reading ends with its context.
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
		return nil, errors.New("it is in UTF-16: save it in UTF-8")
	}
	var written []any
	if err := yaml.Unmarshal(data, &written); err != nil {
		return nil, err
	}
	if written == nil {
		return nil, errors.New("there is no list of rules: for none, write []")
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, err
	}
	if len(file.Docs) > 1 {
		return nil, errors.New("there is more than one document: write one list of rules")
	}
	return written, nil
}

// readEntry makes a rule of one entry of a file.
func readEntry(written any) (Rule, error) {
	values, ok := written.(map[string]any)
	if !ok {
		return Rule{}, fmt.Errorf("it is %v: it must have fields, such as id: photos", shown(written))
	}
	rule, err := readRow(&inFile, values)
	if name := inFile.unknown(values); err == nil && name != "" {
		err = &FieldError{rule.ID, name, shown(values[name]), fmt.Sprintf("one of the fields %q", inFile.all())}
	}
	return rule, err
}
