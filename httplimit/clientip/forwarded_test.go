package clientip

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestWalk reads the entries of both header fields from right to left.
func TestWalk(t *testing.T) {
	for _, tt := range []struct {
		forwarded bool
		lines     []string
		want      []string
	}{
		{false, nil, nil},
		{false, []string{"a, b", "c"}, []string{"c", "b", "a"}},
		{false, []string{""}, []string{""}},
		{false, []string{" a ,, b"}, []string{"b", "", "a"}},
		{false, []string{"a, " + strings.Repeat("x", longestEntry+1)}, []string{""}},
		{true, []string{"for=a, for=b;proto=http", "For=c"}, []string{"c", "b", "a"}},
		{true, []string{`for="[2001:db8::1]:80"`}, []string{"[2001:db8::1]:80"}},
		{true, []string{`for=[2001:db8::1]:80, For=[2001:db8::2]`}, []string{"[2001:db8::2]", "[2001:db8::1]:80"}},
		{true, []string{`for=a;host="b"c"`, `for=a;host=b"`, `for=a;host="b\"c"`}, []string{"", "", ""}},
		{true, []string{`for=a;host="b", for=c;d=""`}, []string{"c", "a"}},
		{true, []string{`for="a,b", for=c`}, []string{"c", "a,b"}},
		{true, []string{`for="a\"b", for=c`}, []string{"c", ""}},
		{true, []string{`for="never ended, for=c`}, []string{"c", ""}},
		{true, []string{"for=a;for=b"}, []string{""}},
		{true, []string{"proto=http"}, []string{""}},
		{true, []string{"for a"}, []string{""}},
	} {
		name := "X-Forwarded-For"
		if tt.forwarded {
			name = "Forwarded"
		}
		w := (&config{field: name}).newWalk(http.Header{name: slices.Clone(tt.lines)})
		var got []string
		for {
			entry, ok := w.next()
			if !ok {
				break
			}
			got = append(got, entry)
		}
		assert.Equal(t, tt.want, got, "%s: %q", name, tt.lines)
	}
}
