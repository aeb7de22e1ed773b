package rules

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

func writeFile(t *testing.T, text string) Source {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return File(path)
}

// TestFileNumbers checks that numbers are exact, or errors.
func TestFileNumbers(t *testing.T) {
	for text, want := range map[string]Rule{
		`{id: a, call: /x, limit: 5, seconds: 1.9}`:                              {Limit: 5, Window: 1900 * time.Millisecond},
		`{id: a, call: /x, limit: 5.0, seconds: 0.001}`:                          {Limit: 5, Window: time.Millisecond},
		`{"id": "a", "call": "/x", "limit": 1e3, "seconds": 2.5e0}`:              {Limit: 1000, Window: 2500 * time.Millisecond},
		`{id: a, call: /x, limit: "5", seconds: "60"}`:                           {Limit: 5, Window: time.Minute},
		`{id: a, call: /x, limit: 010, seconds: "007"}`:                          {Limit: 10, Window: 7 * time.Second},
		`{id: a, call: /x, limit: 5, seconds: 1, enabled: no}`:                   {Limit: 5, Window: time.Second, Disabled: true},
		`{id: a, call: /x, limit: 5, seconds: 1, burst: null}`:                   {Limit: 5, Window: time.Second},
		`{id: a, call: /x, limit: 5, seconds: 1, expires: 1893456000}`:           {Limit: 5, Window: time.Second, Expires: time.Unix(1893456000, 0)},
		`{id: a, call: /x, limit: 5, seconds: 1, expires: 2030-01-01T00:00:00Z}`: {Limit: 5, Window: time.Second, Expires: time.Unix(1893456000, 0)},
		`{id: a, call: /x, limit: 5, seconds: 1, expires: 2030-01-01}`:           {Limit: 5, Window: time.Second, Expires: time.Unix(1893456000, 0)},
		`{id: a, call: /x, limit: 5, seconds: 1, expires: 9223372036854775807}`:  {Limit: 5, Window: time.Second},
		`{id: a, call: /x, limit: 5, seconds: 1, expires: 18446744073709551615}`: {Limit: 5, Window: time.Second},
		`{id: a, call: /x, limit: 5, every: month, zone: Europe/London}`:         {Limit: 5, Every: ratelimit.Month, Zone: "Europe/London"},
		`{id: a, call: /x, limit: 5, every: week, start: 7, hour: 04}`:           {Limit: 5, Every: ratelimit.Week, Start: 7, Hour: 4},
		`{"id": "a", "call": "/x", "limit": 5, "every": "year", "start": 406}`:   {Limit: 5, Every: ratelimit.Year, Start: 406},
		`{id: a, call: /x, limit: 5, seconds: 1, expires: .inf}`:                 {Limit: 5, Window: time.Second},

		`{id: a, call: /x, limit: 5, seconds: 1, algorithm: lockout, first_lockout_seconds: 60}`: {
			Limit: 5, Window: time.Second, Algorithm: "lockout", FirstLockout: time.Minute,
		},
		`{id: a, call: /x, limit: 5, seconds: 1, algorithm: lockout, first_lockout_seconds: 0.5, longest_lockout_seconds: 60}`: {
			Limit: 5, Window: time.Second, Algorithm: "lockout", FirstLockout: time.Second / 2,
			LongestLockout: time.Minute,
		},
		`{"id": "a", "call": "/x", "limit": 5, "seconds": 1, "algorithm": "lockout", "first_lockout_seconds": 60, "longest_lockout_seconds": null}`: {
			Limit: 5, Window: time.Second, Algorithm: "lockout", FirstLockout: time.Minute,
		},
	} {
		got, err := writeFile(t, "- "+text).Load(t.Context())
		require.NoError(t, err, text)
		want.ID, want.Call = "a", "/x"
		require.Len(t, got, 1)
		assert.True(t, want.Expires.Equal(got[0].Expires), text)
		got[0].Expires = want.Expires
		assert.Equal(t, want, got[0], text)
	}
	for text, want := range map[string]string{
		`{id: a, call: /x, limit: 1.9, seconds: 1}`:                                    `rule "a": limit is "1.9": it must be a whole number`,
		`{id: a, call: /x, limit: 1, seconds: 1, algorithm: token-bucket, burst: 2.5}`: `burst is "2.5"`,
		`{id: a, call: /x, limit: 1, seconds: 1e-10}`:                                  `seconds is "1e-10": it must be more than 0`,
		`{id: a, call: /x, limit: 1, seconds: .nan}`:                                   `seconds is ".nan"`,
		`{id: a, call: /x, limit: .inf, seconds: 1}`:                                   `limit is ".inf"`,
		`{id: a, call: /x, limit: 99999999999999999999, seconds: 1}`:                   `limit is`,
		`{id: a, call: /x, limit: 0, seconds: 1}`:                                      `limit is 0: it must be at least 1`,
		`{id: a, call: /x, limit: null, seconds: 1}`:                                   `limit is <nil>: it must be present`,
		`{id: a, call: /x, seconds: 1}`:                                                `limit is <nil>: it must be present`,
		`{id: a, call: /x, limit: true, seconds: 1}`:                                   `limit is "true"`,
		`{id: a, call: /x, limit: [1], seconds: 1}`:                                    `limit is a list: it must be a whole number`,
		`{id: a, call: /x, limit: 1, every: month, seconds: 60}`:                       `seconds is 60: it must be left out, for a calendar-window`,
		`{id: a, call: /x, limit: 1, every: month, zone: Mars}`:                        `Zone is "Mars": it must be the name of a time zone`,
		`{id: a, call: /x, limit: 1, every: [month]}`:                                  `every is a list: it must be day, week, month, quarter or year`,
		`{id: a, call: /x, limit: 1, every: 1}`:                                        `every is 1: it must be day, week, month, quarter or year`,
		`{id: [a], call: /x, limit: 1, seconds: 1}`:                                    `id is a list: it must be text`,
		`{id: {a: b}, call: /x, limit: 1, seconds: 1}`:                                 `id is a mapping: it must be text`,
		`{id: a, call: [/x], limit: 1, seconds: 1}`:                                    `call is a list: it must be text`,
		`{id: a, call: /x, limit: 1, seconds: 1, shadow: [true]}`:                      `shadow is a list`,
		`{id: a, call: /x, limit: 1, seconds: 1, more: [true]}`:                        `more is a list: it must be one of the fields`,
		`[a]`: `the entry is a list: it must have fields`,
		`{id: a, call: /x, limit: 1, seconds: 1, expires: -1}`:            `expires is -1: it must be in Unix seconds`,
		`{id: a, call: /x, limit: 1, seconds: 1, expires: 0}`:             `expires is 0`,
		`{id: a, call: /x, limit: 1, seconds: 1, expires: 1893456000000}`: `expires is 1893456000000: it must be in Unix seconds`,
		`{id: a, call: /x, limit: 1, seconds: 1, expires: soon}`:          `expires is "soon"`,
		`{id: a, call: /x, limit: 1, seconds: 1, shadow: 2}`:              `shadow is 2`,
		`{id: a, call: /x, limit: 1, seconds: 1, enabled: maybe}`:         `enabled is "maybe"`,
		`{id: a, call: /x, limit: 1, seconds: 1, ID: b}`:                  `ID is "b": it must be one of the fields`,
		`{call: /x, limit: 1, seconds: 1}`:                                `id is <nil>: it must be present`,
		`{id: a, call: /x, limit: 1, seconds: 1, method: GET}`:            `method is "GET": it must be one of the fields`,

		`{id: a, call: /x, limit: 1, seconds: 1, algorithm: lockout}`:          `first_lockout_seconds is "0s": it must be longer than 0, for a lockout`,
		`{id: a, call: /x, limit: 1, seconds: 1, first_lockout_seconds: 60}`:   `first_lockout_seconds is "1m0s": it must be left out, unless the algorithm is lockout`,
		`{id: a, call: /x, limit: 1, seconds: 1, longest_lockout_seconds: 60}`: `longest_lockout_seconds is "1m0s": it must be left out, unless the algorithm is lockout`,

		`{id: a, call: /x, limit: 1, seconds: 1, algorithm: lockout, first_lockout_seconds: [60]}`: `first_lockout_seconds is a list: it must be more than 0`,
	} {
		got, err := writeFile(t, "- "+text).Load(t.Context())
		assert.ErrorContains(t, err, want, text)
		assert.Empty(t, got, text)
		var bad BadRules
		assert.ErrorAs(t, err, &bad)
	}
}

// TestFileTexts checks that text is what is written.
func TestFileTexts(t *testing.T) {
	for text, want := range map[string]string{
		"007": "007", "1e3": "1e3", "0x10": "0x10", "yes": "yes", "2030-01-01": "2030-01-01", "'~'": "~", `"a\u00e9"`: "aé", "'a '": "a", "1_000": "1_000",
	} {
		got, err := writeFile(t, "- {id: "+text+", call: /x, limit: 1, seconds: 1}").Load(t.Context())
		require.NoError(t, err, text)
		assert.Equal(t, want, got[0].ID)
	}
}

// TestJSON checks that all of JSON is read, and exactly.
func TestJSON(t *testing.T) {
	got, err := writeFile(t, "[\n\t"+`{"id": "\ud83d\ude00", "call": "\/x", "limit": 1e1, "seconds": 0.1, "shadow": true, "burst": null}]`).Load(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []Rule{{ID: "😀", Call: "/x", Limit: 10, Window: 100 * time.Millisecond, Shadow: true}}, got)
	for text, want := range map[string]string{
		`[{"id": "a", "call": ["\/x"], "limit": 1, "seconds": 1}]`: "call is a list: it must be text",
		`[["\/x"]]`:     "the entry is a list",
		`{"id": "\/x"}`: "not a list of rules",
		`[{"id": "a", "call": "\/x", "limit": 10, "seconds": 1, "limit": 1000}]`:             `limit is twice in the entry`,
		`[{"id": "a", "call": "\/x", "limit": 10, "seconds": 1, "l\u0069mit": 1000}]`:        `limit is twice in the entry`,
		`[{"id": "a", "call": {"x": [1, {"x": 2}], "x": 3}, "call": "\/x", "limit": 1e400}]`: `call is twice in the entry`,
		"null": "no list of rules",
	} {
		_, err := writeFile(t, text).Load(t.Context())
		assert.ErrorContains(t, err, want)
	}
}

// TestFileLines checks that an error has the line on which the entry begins, and that of a mistake
// in the syntax its own.
func TestFileLines(t *testing.T) {
	for text, want := range map[string][]string{
		"# rules\n\n- id: a\n  call: /a\n  limit: 1\n  seconds: 1\n- id: b\n  call: /b\n  limit: many\n  seconds: 1\n": {
			`rules.yaml:7: entry 2: rules: rule "b": limit is "many"`,
		},
		"[\n  {\"id\": \"a\", \"call\": \"/a\", \"limit\": 1, \"seconds\": 1},\n\n  {\n    \"id\": \"b\",\n    \"call\": \"/b\",\n    \"limit\": \"many\",\n    \"seconds\": 1\n  },\n  42, 43\n]\n": {
			`rules.yaml:4: entry 2: rules: rule "b": limit is "many"`,
			`rules.yaml:10: entry 3: the entry is "42"`,
			`rules.yaml:10: entry 4: the entry is "43"`,
		},
		"- id: a\n  call: /a\n- id: b\n  call: b: c\n":                   {"yaml: line 4: mapping values are not allowed"},
		"- id: a\n  call: /a\n- id: b\n  call: [\n- id: c\n":             {"yaml: line 5: did not find expected node content"},
		"- id: a\n  call: /a\n- {id: b\n  call: /b}\n- {id: c}\n":        {"yaml: line 3: did not find expected ',' or '}'"},
		"[{id: a\n  call: /a}]\n":                                        {"yaml: line 2: did not find expected ',' or '}'"},
		"[\n\t{\"id\": \"a\"},\n\t{\"id\": \"b\"\n\t\"call\": 1}\n]\n":   {`json: line 4: invalid character '"' after object key:value pair`},
		"[\n\t{\"id\": \"a\"},\n\t{\"id\": \"b\"\n":                      {`json: line 3: unexpected end of JSON input`},
		"- id: a\n  call: /a\n  limit: 1\n  seconds: 1\n--- {\nid: [}\n": {"yaml: line "},
	} {
		for ends, in := range map[string]string{"\n": text, "\r\n": strings.ReplaceAll(text, "\n", "\r\n"), "a mark and \n": "\xef\xbb\xbf" + text} {
			_, err := writeFile(t, in).Load(t.Context())
			for _, part := range want {
				assert.ErrorContains(t, err, part, "lines that end with %q", ends)
			}
		}
	}
}

// TestFileEncodings checks that a byte order mark is not part of the text.
func TestFileEncodings(t *testing.T) {
	for _, text := range []string{
		"\xef\xbb\xbf- {id: a, call: /x, limit: 1, seconds: 1}",
		"\xef\xbb\xbf[{\"id\":\"a\",\"call\":\"/x\",\"limit\":1,\"seconds\":1}]",
		"\r\n- id: a\r\n  call: /x\r\n  limit: 1\r\n  seconds: 1\r\n",
		"- &base {id: a, call: /x, limit: 1, seconds: 1}",
	} {
		got, err := writeFile(t, text).Load(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []Rule{{ID: "a", Call: "/x", Limit: 1, Window: time.Second}}, got)
	}
	got, err := writeFile(t, "- &base {id: a, call: /x, limit: 1, seconds: 1}\n- {<<: *base, id: b, call: /y}").Load(t.Context())
	require.NoError(t, err)
	require.Len(t, got, 2)
	assert.Equal(t, "/y", got[1].Call)
	_, err = writeFile(t, "\xef\xbb\xbf").Load(t.Context())
	assert.ErrorContains(t, err, "no list of rules")
}

// TestNestedAliases checks that a few lines that stand for 10^100 values are errors like any other,
// in every field, in a field that a rule does not have, and as fields that are merged into a rule.
func TestNestedAliases(t *testing.T) {
	var text strings.Builder
	text.WriteString("- &v0 [x, x]\n- &m0 {id: a}\n")
	for i := range 100 {
		nested := func(name string) string { return strings.Repeat(fmt.Sprintf("*%s%d, ", name, i), 10) }
		fmt.Fprintf(&text, "- &v%d [%s]\n- &m%d {<<: [%s]}\n", i+1, nested("v"), i+1, nested("m"))
	}
	fields := append(slices.Sorted(maps.Keys(inFile.cellsOf(new(row)))), "unknown")
	for _, field := range fields {
		fmt.Fprintf(&text, "- {%s: *v100}\n", field)
	}
	text.WriteString("- {<<: *m100}\n- {id: good, call: /good, limit: 1, seconds: 1}\n")
	got, err := writeFile(t, text.String()).Load(t.Context())
	var bad BadRules
	require.ErrorAs(t, err, &bad)
	assert.Len(t, bad, 202+len(fields)+1)
	assert.ErrorContains(t, bad[len(bad)-1].Err, "excessive aliasing")
	assert.Less(t, len(err.Error()), 1000)
	assert.Equal(t, []Rule{{ID: "good", Call: "/good", Limit: 1, Window: time.Second}}, got, "the others are loaded")
}

// TestFilesThatAreNone checks that a path to something else is an error, within a bounded memory.
func TestFilesThatAreNone(t *testing.T) {
	long := filepath.Join(t.TempDir(), "long.yaml")
	require.NoError(t, os.WriteFile(long, nil, 0o600))
	require.NoError(t, os.Truncate(long, 1<<30)) // without a byte on the disk
	paths := map[string]string{
		t.TempDir():   "must be a regular file",
		long:          "longer than 16777216 bytes",
		long + ".not": "no such file",
	}
	if _, err := os.Stat("/dev/zero"); err == nil { // not on every system
		paths["/dev/zero"] = "must be a regular file"
	}
	for path, want := range paths {
		allocated := allocatedBy(func() {
			_, err := File(path).Load(t.Context())
			assert.ErrorContains(t, err, want, path)
			assert.ErrorContains(t, err, path)
		})
		assert.Less(t, allocated, uint64(200<<20), path)
	}
}

// TestDeepFiles checks that values in values take a bounded memory.
func TestDeepFiles(t *testing.T) {
	assert.Less(t, allocatedBy(func() {
		for _, part := range []string{"[", "- ", "? ", "{a: ", "&a ", `{"a":`, `["a",`} {
			_, err := writeFile(t, "- "+strings.Repeat(part, 100_000)).Load(t.Context())
			require.Error(t, err)
		}
	}), uint64(200<<20))
}

// allocatedBy returns how many bytes f allocates.
func allocatedBy(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestNeverEnds checks that an expiry later than the last time.Time means never.
func TestNeverEnds(t *testing.T) {
	s, _ := newSet(t, writeFile(t, "- {id: a, call: /x, limit: 2, seconds: 60, expires: 9223372036854775807}"))
	assert.Equal(t, 2, granted(t, s, "ann", "/x", 5))
	r := limited("r", "/x", 2, "")
	r.Expires = time.Unix(math.MaxInt64-62135596800, 0)
	s, _ = newSet(t, Static(r))
	assert.Equal(t, 2, granted(t, s, "ann", "/x", 5))
}

// TestTruncatedFile reads a file of which only the beginning is written, which is a list of fewer
// rules: the log and Status say how many are dropped.
func TestTruncatedFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logged := fakes.Log()
		before := slog.Default()
		defer slog.SetDefault(before)
		slog.SetDefault(logger)
		const whole = "- {id: a, call: /a, limit: 1, seconds: 1}\n- {id: b, call: /b, limit: 1, seconds: 1}\n" +
			"- {id: c, call: /c, limit: 1, seconds: 1, enabled: false}\n- {id: d, call: /d, limit: 0, seconds: 1}\n"
		name := filepath.Join(t.TempDir(), "rules.yaml")
		write := func(text string) { require.NoError(t, os.WriteFile(name, []byte(text), 0o600)) }
		write(whole)
		s, err := New(t.Context(), File(name), WithInterval(0))
		require.NoError(t, err)
		defer s.Close()
		assert.Zero(t, s.Status().Dropped)
		logged()
		upTo := func(rule string) string {
			beginning, _, _ := strings.Cut(whole, rule)
			return beginning
		}
		for _, load := range []struct {
			text    string
			dropped int
		}{
			{upTo("- {id: b"), 2},
			{whole, 0},
			{upTo("- {id: c"), 1},
			{upTo("- {id: c"), 0}, // dropped before that load
			{strings.Replace(whole, "limit: 1", "limit: 0", 2), 0}, // invalid, and not dropped
			{"[]", 3},
		} {
			write(load.text)
			_ = s.Reload(t.Context())
			synctest.Wait()
			assert.Equal(t, load.dropped, s.Status().Dropped, load.text)
			if line := logged(); load.dropped > 0 {
				assert.Contains(t, line, fmt.Sprintf("dropped=%d", load.dropped))
			} else {
				assert.NotContains(t, line, "dropped")
			}
		}
	})
}
