package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"

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
// A rule whose algorithm is unlimited or blocked needs neither limit nor seconds. A rule for each
// day, week, month, quarter or year has every instead of seconds:
//
//	# throttle.yaml
//	- id: reports
//	  call: POST /reports
//	  limit: 10000
//	  every: month
//	  zone: Europe/London       # this and the fields below are optional
//	  start: 31                 # the day on which a month begins, or its last one
//	  hour: 4                   # the hour of that day
//
// A rule whose algorithm is lockout says for how long a subject is locked out:
//
//	# throttle.yaml
//	- id: eager
//	  call: GET /search
//	  limit: 11                       # the eleventh within a second locks
//	  seconds: 1
//	  algorithm: lockout
//	  first_lockout_seconds: 60
//	  longest_lockout_seconds: 86400  # optional: each lasts twice as long as the one before
//
// A rule with an unknown field, a field twice or an invalid value is reported in [BadRules]. To
// change the file, replace it atomically (rename a new file over it), because a load may read a
// file that is only partly written. The beginning of a YAML file is often a valid list of fewer
// rules: then the others are not in force until the next load. A load that drops rules logs a
// warning that says how many, as does [Status].
//
// Errors have the line on which the rule begins, as in rules.yaml:12.
//
// A value is what the file has as text: an id of 007 is not 7, and a limit of 010 is ten. The path
// must lead to a regular file, in UTF-8 with or without a byte order mark, of at most 16 MiB.
func File(path string) Source {
	return SourceFunc(func(context.Context) ([]Rule, error) {
		data, err := readFile(path)
		if err != nil {
			return nil, err
		}
		entries, err := parseFile(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		rules, bad := make([]Rule, 0, len(entries)), BadRules(nil)
		for i, entry := range entries {
			rule, err := readEntry(entry.decode)
			if err != nil {
				err = fmt.Errorf("%s:%d: entry %d: %w", path, entry.line, i+1, err)
				bad = append(bad, BadRule{rule.ID, err})
				continue
			}
			rules = append(rules, rule)
		}
		return rules, bad.orNil()
	})
}

// maxFile bounds the memory and the time that a wrong path costs. A file of that length has 150,000
// rules, and is parsed in a few seconds.
const maxFile = 16 << 20

func readFile(path string) (data []byte, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // a pipe may block, and a device may have no end
		return nil, fmt.Errorf(
			"%s: a directory, a device or a pipe: it must be a regular file with a list of rules",
			path,
		)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: longer than %d bytes: it must be a list of rules", path, maxFile)
	}
	return data, err
}

// A fileEntry is one of the list in a file.
type fileEntry struct {
	line   int                // on which it begins; the first one of the file is 1
	decode func(to any) error // as [json.Unmarshal] does
}

// parseFile returns the entries of a file.
func parseFile(data []byte) (entries []fileEntry, err error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if json.Valid(data) { // the YAML parser lacks some of JSON's escapes
		return parseJSON(data)
	}
	var doc, next yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	if err := documents.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, syntaxError(data, err)
	}
	switch {
	case len(doc.Content) == 0 || doc.Content[0].Tag == "!!null":
		return nil, errNoRules
	case doc.Content[0].Kind != yaml.SequenceNode:
		return nil, errNoList
	}
	switch err := documents.Decode(&next); {
	case err == nil:
		return nil, errors.New("the file has more than one YAML document: write one list of rules")
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(data, err)
	}
	for _, node := range doc.Content[0].Content {
		entries = append(entries, fileEntry{node.Line, node.Decode})
	}
	return entries, nil
}

// meantAsJSON matches the beginning of a list of objects in JSON.
var meantAsJSON = regexp.MustCompile(`^\s*\[\s*\{\s*"`)

// countedFromZero matches the errors of the YAML parser whose lines it counts from 0. It leaves out
// a line of 0.
var countedFromZero = regexp.MustCompile(`^yaml: (?:line (\d+): )?(did not find expected .*)`)

// syntaxError returns the error of a file that is not YAML, for which the YAML parser has returned
// err, with the line.
func syntaxError(data []byte, err error) error {
	var inJSON *json.SyntaxError
	if meantAsJSON.Match(data) && errors.As(json.Unmarshal(data, new(any)), &inJSON) {
		return fmt.Errorf("json: line %d: %w", lineAt(data, int(inJSON.Offset)-1), inJSON)
	}
	if m := countedFromZero.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		return fmt.Errorf("yaml: line %d: %s", line+1, m[2])
	}
	return err
}

// lineAt returns the line of the byte at an offset. The first line is 1.
func lineAt(data []byte, offset int) int { return 1 + bytes.Count(data[:offset], []byte("\n")) }

// parseJSON returns the entries of a file of valid JSON.
func parseJSON(data []byte) (entries []fileEntry, err error) {
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return nil, errNoRules
	}
	list := json.NewDecoder(bytes.NewReader(data))
	if begin, err := list.Token(); err != nil || begin != json.Delim('[') {
		return nil, errNoList
	}
	line, counted := 1, 0 // the line of the byte at counted
	for list.More() {
		var value json.RawMessage
		if err := list.Decode(&value); err != nil {
			return nil, err
		}
		begin := int(list.InputOffset()) - len(value)
		line += lineAt(data[counted:], begin-counted) - 1
		counted = begin
		entries = append(entries, fileEntry{line, func(to any) error {
			if err := json.Unmarshal(value, to); err != nil {
				return err
			}
			return checkFields(value)
		}})
	}
	return entries, nil
}

// checkFields returns an error if a JSON value, which is valid, is an object that has a field
// twice. Package json would take the last one, and the YAML parser returns an error.
func checkFields(value []byte) error {
	fields := json.NewDecoder(bytes.NewReader(value))
	fields.UseNumber() // whatever its size
	if first, err := fields.Token(); err != nil || first != json.Delim('{') {
		return err
	}
	seen := make(map[string]bool)
	for fields.More() {
		name, err := fields.Token()
		if err != nil {
			return err
		}
		field := name.(string)
		if seen[field] {
			return fmt.Errorf("%s is twice in the entry: it must be there once", field)
		}
		seen[field] = true
		var skipped json.RawMessage
		if err := fields.Decode(&skipped); err != nil {
			return err
		}
	}
	return nil
}

var (
	errNoRules = errors.New("the file has no list of rules: write [] for an empty list")
	errNoList  = errors.New(
		"the file is not a list of rules: begin each with a -, or the list with a [",
	)
)

// readEntry returns the rule of an entry.
func readEntry(decode func(to any) error) (Rule, error) {
	var kind cell
	if err := decode(&kind); err != nil {
		return Rule{}, err
	}
	if kind.value != aMapping {
		return Rule{}, fmt.Errorf(
			"the entry is %#v: it must have fields, such as id: photos",
			kind.value,
		)
	}
	var fields map[string]cell
	if err := decode(&fields); err != nil {
		return Rule{}, err
	}
	var r row
	cells := inFile.cellsOf(&r)
	var unknown []string
	for name, c := range fields {
		if to := cells[name]; to != nil {
			*to = c
		} else {
			unknown = append(unknown, name)
		}
	}
	rule, err := inFile.rule(&r)
	if err == nil && len(unknown) > 0 {
		name := slices.Min(unknown)
		want := fmt.Sprintf("one of the fields %q", slices.Sorted(maps.Keys(cells)))
		err = &FieldError{rule.ID, name, fields[name].shown(), want}
	}
	return rule, err
}
