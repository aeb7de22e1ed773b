package rules

import (
	"context"
	"errors"
	"fmt"
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
//     seconds: 60
//     algorithm: token-bucket   # and what follows may be left out
//     burst: 20
//     expires: 1893456000       # in Unix seconds
//     shadow: true
//     enabled: true
//
// A field that is not one of these is an error. To change the file, replace it: a
// half that is written may be read.
func File(path string) Source {
	return SourceFunc(func(context.Context) ([]Rule, error) {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		rules, err := parseFile(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return rules, nil
	})
}

// A fileRule is a rule as it is written in a file.
type fileRule struct {
	ID        string `yaml:"id"`
	Call      string `yaml:"call"`
	Limit     int    `yaml:"limit"`
	Seconds   int64  `yaml:"seconds"`
	Algorithm string `yaml:"algorithm"`
	Burst     int    `yaml:"burst"`
	Expires   *int64 `yaml:"expires"`
	Shadow    bool   `yaml:"shadow"`
	Enabled   *bool  `yaml:"enabled"`
}

func parseFile(data []byte) (rules []Rule, err error) {
	var written []fileRule
	if err := yaml.UnmarshalWithOptions(data, &written, yaml.Strict()); err != nil {
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
	for _, f := range written {
		window, ok := seconds(f.Seconds)
		if !ok {
			return nil, &FieldError{f.ID, "seconds", f.Seconds, "from 1 to 9223372036"}
		}
		r := Rule{
			ID:        f.ID,
			Call:      f.Call,
			Limit:     f.Limit,
			Window:    window,
			Algorithm: f.Algorithm,
			Burst:     f.Burst,
			Shadow:    f.Shadow,
			Disabled:  f.Enabled != nil && !*f.Enabled,
		}
		if f.Expires != nil {
			r.Expires = time.Unix(*f.Expires, 0)
		}
		rules = append(rules, r)
	}
	return rules, nil
}
