package rules

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCallsThatNeverMatch checks that such calls are invalid, and that the error says
// what to write instead.
func TestCallsThatNeverMatch(t *testing.T) {
	for call, want := range map[string]string{
		"GTE /x":                `of GET, HEAD, POST, PUT, PATCH, DELETE`,
		"GETT /x":               `of GET, HEAD`,
		"get,pots /x":           `of GET, HEAD`,
		"GET POST /x":           `with commas between them`,
		"GET, /x":               `with commas between them`,
		"FLY /x":                `a path alone, for every method, or after methods`,
		"^/user":                `a path alone`,
		"http://host/x":         `a path alone`,
		"/search?q=#":           `"/search": queries are not matched`,
		"GET /search?q={q}":     `"GET /search": queries are not matched`,
		"/user/:id":             `{id}`,
		"/user/<id>":            `{name}`,
		"/user/[0-9]+":          `{name}`,
		`/user/\d+`:             `{name}`,
		"/user/*":               `{name}`,
		"/user/{}":              `{name}`,
		"/user/{a}{b}":          `{name}`,
		"/user/{id:[0-9]+}":     `a name, without a pattern`,
		"/photo-#":              `# as %23`,
		"/100%":                 `each % that does not start an escape`,
		"/%zz":                  `each % that does not start an escape`,
		"/a/%2e%2e/b":           `without . and ..`,
		"/**/x":                 `** only at its end`,
		"/{rest...}/x":          `** only at its end`,
		"/x/{$}/y":              `** only at its end`,
		"user/x\xff":            `valid UTF-8`,
		"GET":                   `a path such as "/user/#"`,
		"":                      `a path such as "/user/#"`,
		"GET user":              `a path such as "/user/#"`,
		"GET example.com/x":     `a path alone`,
		"GETAWAYFROMALLTHIS /x": `of GET, HEAD`,
	} {
		_, err := ruleFor("r", call).compile()
		var field *FieldError
		require.ErrorAs(t, err, &field, call)
		assert.Equal(t, "Call", field.Field)
		assert.Contains(t, field.Want, want, call)
	}
}

// TestCallsAsWritten checks the ways to write a call.
func TestCallsAsWritten(t *testing.T) {
	for _, tt := range []struct{ call, method, path string }{
		{"GET,POST /x", "GET", "/x"},
		{"GET,POST /x", "POST", "/x"},
		{"get, post  /x", "POST", "/x"},
		{"GET/x", "GET", "/x"},
		{"* /x", "DELETE", "/x"},
		{"*/x", "", "/x"},
		{"propfind /x", "PROPFIND", "/x"},
		{"/caf%C3%A9", "GET", "/caf%C3%A9"},
		{"/café", "GET", "/caf%C3%A9"},
		{"/CAFÉ", "GET", "/caf%C3%A9"},
		{"/a%20b", "GET", "/a%20b"},
		{"/a b", "GET", "/a%20b"},
		{"/a%2Fb", "GET", "/a%2Fb"},
		{"/a%23b", "GET", "/a%23b"},
		{"/%23", "GET", "/%23"},
		{"/%7Bid%7D", "GET", "/%7Bid%7D"},
		{"/100%25", "GET", "/100%25"},
		{"/%3Aid", "GET", "/:id"},
		{"/%37", "GET", "/7"},
		{"/v1/items:get", "GET", "/v1/items:get"},
		{"/what%3F", "GET", "/what%3F"},
		{"/a//b/../c/", "GET", "/a/c"},
		{"/**", "GET", "/"},
	} {
		all, bad := newIndex([]Rule{ruleFor("r", tt.call)}, nil, nil, time.Now())
		require.Empty(t, bad, tt.call)
		assert.NotEmpty(t, all.match(nil, tt.method, tt.path, clock.New()), "%s: %s %s", tt.call, tt.method, tt.path)
	}
	all, bad := newIndex([]Rule{ruleFor("r", "//")}, nil, nil, time.Now())
	require.Empty(t, bad)
	assert.Empty(t, matched(all, "GET", "/x"), "it is the root")
	all, bad = newIndex([]Rule{ruleFor("r", "GET,POST /x"), ruleFor("s", "PUT /x"), ruleFor("t", "DELETE,POST /x")}, nil, nil, time.Now())
	require.Len(t, bad, 1)
	assert.ErrorContains(t, bad, `rule "t"`)
	assert.Equal(t, []string{"r"}, matched(all, "POST", "/x"))
	assert.Equal(t, []string{"s"}, matched(all, "PUT", "/x"))
	assert.Empty(t, matched(all, "DELETE", "/x"), "a part of a rule that cannot be used is not in force")
}

// TestSeveralMethods checks that the methods of a rule share a limit.
func TestSeveralMethods(t *testing.T) {
	s, _ := newSet(t, Static(limited("r", "GET,POST /x", 2, "")))
	for i, method := range []string{"GET", "POST", "GET"} {
		a, err := s.Take(t.Context(), "ann", method, "/x", 1)
		require.NoError(t, err)
		assert.Equal(t, i < 2, a.Allowed)
	}
}
