package client

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestPaceOf reads RateLimit fields of several drafts, and what is none.
func TestPaceOf(t *testing.T) {
	nothing := quotaPace{}
	for field, want := range map[string]quotaPace{
		`"default";r=50;t=30`:                          {true, 50, 0, 30 * time.Second, 0},
		`default;r=50;t=30`:                            {true, 50, 0, 30 * time.Second, 0}, // a token, as in an earlier draft
		`"default";r=50;t=30;pk=:QXBwLTk5OQ==:`:        {true, 50, 0, 30 * time.Second, 0},
		`"a\"b\\c,;";x;y="z;r=9";r=1; t=2;u=?1;v=-1.5`: {true, 1, 0, 2 * time.Second, 0},
		`"a";r=9;r=1;t=2`:                              {true, 1, 0, 2 * time.Second, 0}, // the last one counts
		`"a";t=2;r=0`:                                  {true, 0, 0, 2 * time.Second, 0},
		`"a";r=1;t=2, "b";r=1;t=3`:                     {true, 1, 0, 3 * time.Second, 0},
		`"a";r=0;t=3,"b";r=99;t=60 , "c";r=5`:          {true, 0, 0, 3 * time.Second, 0},
		`"a";r=99;t=60 	,	 "b";r=0;t=3`:                {true, 0, 0, 3 * time.Second, 0},
		`"a";r=999999999999999;t=999999999999999`:      {true, 999999999999999, 0, 24 * time.Hour, 0},
		`limit=100, remaining=50, reset=5`:             {true, 50, 100, 5 * time.Second, 0},
		`limit=100, remaining=25, reset=5`:             {true, 25, 100, 5 * time.Second, 0},
		`limit=3, remaining=1, reset=5`:                {true, 1, 3, 5 * time.Second, 0},
		`limit=1, remaining=0, reset=5`:                {true, 0, 1, 5 * time.Second, 0},
		`remaining=50, reset=5`:                        {true, 50, 0, 5 * time.Second, 0},
		`limit=0, remaining=0, reset=0`:                {true, 0, 0, 0, 0}, // of a blocked key: no wait helps
		`limit=100;x=1,reset=5,remaining=0`:            {true, 0, 100, 5 * time.Second, 0},
		`12, 12;window=1;r=3;t=4`:                      {true, 3, 0, 4 * time.Second, 0},
		`limit=100, reset=5`:                           nothing,
		`remaining=50`:                                 nothing,
		`"a";r=1`:                                      nothing, // as from a limit with several parts
		`"a";t=1`:                                      nothing,
		`"a";r=1;t=0`:                                  {true, 1, 0, 0, 0},
		`"a";r=-1;t=5`:                                 nothing,
		`"a";r=1;t=-5`:                                 nothing,
		`"a";r=1.0;t=5`:                                nothing,
		`"a";r="1";t=5`:                                nothing,
		`"a";R=1;T=5`:                                  nothing,
		`"a";r=1;t=1234567890123456`:                   nothing,
		`"a";r=1;t=5;`:                                 nothing,
		`"a";r=1;t=5,`:                                 nothing,
		`,"a";r=1;t=5`:                                 nothing,
		`"a;r=1;t=5`:                                   nothing,
		`"a\x";r=1;t=5`:                                nothing,
		`"a";r=1;t=5 "b"`:                              nothing,
		`"a";r=1;t=`:                                   nothing,
		`"a";r=1;t=5;pk=:ab`:                           nothing,
		`"a";r=1;t=5;pk=:ä:`:                           nothing,
		`"a";r=1;t=5;x=?2`:                             nothing,
		`("a" "b");r=1;t=5`:                            nothing, // a list in a list
		`"ä";r=1;t=5`:                                  nothing,
		"\"a\x00\";r=1;t=5":                            nothing,
		`"a";r=1;t=5, b=1`:                             nothing, // neither a list nor a dictionary
		`remaining=1, reset=5, "a";r=1;t=5`:            nothing,
		`59`:                                           nothing,
		`-`:                                            nothing,
		``:                                             nothing,
		` `:                                            nothing,
		`"a";r=1;t=5` + strings.Repeat(`, "b"`, 31):   {true, 1, 0, 5 * time.Second, 0},
		`"a";r=1;t=5` + strings.Repeat(`, "b"`, 32):   nothing,
		`"` + strings.Repeat("a", 5000) + `";r=1;t=5`: nothing,
	} {
		assert.Equal(t, want, paceOf([]string{field}, nil), field)
	}
	assert.Equal(t, quotaPace{true, 1, 0, 9 * time.Second, 0}, paceOf([]string{`"a";r=1;t=5`, `"b";r=1;t=9`}, nil))
	assert.Equal(t, quotaPace{true, 1, 9, 5 * time.Second, 0}, paceOf([]string{`limit=9`, `remaining=1, reset=5`}, nil))
	assert.Equal(t, nothing, paceOf([]string{`"a";r=1;t=5`, ``}, nil))
	assert.Equal(t, nothing, paceOf(nil, nil))

	for policy, want := range map[string]quotaPace{
		`"a";q=100`:                   {true, 40, 100, 5 * time.Second, 0},
		`"b";q=1, "a";q=100;w=60`:     {true, 40, 100, 5 * time.Second, time.Minute},
		`"a";q=160`:                   {true, 40, 160, 5 * time.Second, 0},
		`"a";q=163`:                   {true, 40, 163, 5 * time.Second, 0},
		`"a";q=159`:                   {true, 40, 159, 5 * time.Second, 0},
		`"A";q=100`:                   {true, 40, 0, 5 * time.Second, 0}, // another one
		`a;q=100`:                     {true, 40, 0, 5 * time.Second, 0}, // a token, and not a string
		`"a";q=100,`:                  {true, 40, 0, 5 * time.Second, 0},
		`"a";q="100"`:                 {true, 40, 0, 5 * time.Second, 0},
		`"a";w=60`:                    {true, 40, 0, 5 * time.Second, time.Minute},
		`"a";q=100;w=-1`:              {true, 40, 100, 5 * time.Second, 0},
		`"a";q=100;w=1.5`:             {true, 40, 100, 5 * time.Second, 0},
		`"a";q=100;w=999999999999999`: {true, 40, 100, 5 * time.Second, 9223372036 * time.Second},
	} {
		assert.Equal(t, want, paceOf([]string{`"a";r=40;t=5`}, []string{policy}), policy)
	}
	assert.Equal(t, quotaPace{true, 1, 100, 5 * time.Second, 0}, paceOf([]string{`"a";r=40;t=5, "b";r=1;t=5`}, []string{`"a";q=100, "b";q=100`}))
	assert.Equal(t, quotaPace{true, 1, 100, 5 * time.Second, 0}, paceOf([]string{`"b";r=1;t=5, "a";r=40;t=5`}, []string{`"a";q=100, "b";q=100`}))
}

// TestEnough checks when requests need not be spread: while more than an eighth of a known limit
// is left, or if no wait helps.
func TestEnough(t *testing.T) {
	for _, tt := range []struct {
		left, limit int64
		reset       time.Duration
		want        bool
	}{
		{20, 159, 5, true},
		{20, 160, 5, false},
		{1, 7, 5, true},
		{1, 8, 5, false},
		{0, 3, 5, false},
		{1000, 0, 5, false}, // the limit is not known
		{0, 3, 0, true},
		{0, 0, 0, true},
	} {
		assert.Equal(t, tt.want, quotaPace{true, tt.left, tt.limit, tt.reset, 0}.enough(), "%+v", tt)
	}
	// The item that needs a slower pace counts, even if less is left of another one in time.
	daily, minutely := `"daily";r=50;t=86400`, `"minutely";r=1;t=2`
	for _, field := range []string{daily + "," + minutely, minutely + "," + daily} {
		assert.Equal(t, quotaPace{true, 1, 10, 2 * time.Second, 0}, paceOf([]string{field}, []string{`"daily";q=100, "minutely";q=10`}))
	}
}

// FuzzPaceOf checks that no field makes a pace that Transport cannot keep.
func FuzzPaceOf(f *testing.F) {
	for _, field := range []string{`"a";r=1;t=5`, `limit=1, remaining=2, reset=3`, `a;b=:YQ==:;c=?0;d=-1.25`, `"\"`} {
		f.Add(field)
	}
	f.Fuzz(func(t *testing.T, field string) {
		p := paceOf([]string{field}, nil)
		if !p.known && p != (quotaPace{}) || p.left < 0 || p.left > 999_999_999_999_999 || p.reset < 0 || p.reset > maxRetryAfter || p.every() < 0 || p.every() > p.reset {
			t.Errorf("%q: %+v", field, p)
		}
	})
}

// TestPaceRenewed is of a limit of 60: what may be sent after the reset.
func TestPaceRenewed(t *testing.T) {
	for name, tt := range map[string]struct {
		left          int64
		reset, window int // in seconds
		underWay      int64
		want          int64
	}{
		"whole window":            {0, 60, 60, 0, 60},
		"whole window, under way": {0, 60, 60, 50, 10},
		"all are under way":       {0, 60, 60, 70, 0},
		"window not known":        {7, 60, 0, 0, 60},
		"half of the window":      {0, 30, 60, 0, 30},
		"what was left":           {20, 30, 60, 0, 50},
		"one comes back":          {59, 1, 60, 0, 60},
		"less than one":           {5, 1, 3600, 0, 6},
		"no more than the limit":  {45, 30, 60, 0, 60},
		"less those under way":    {45, 30, 60, 20, 40},
		"what comes back":         {45, 30, 60, 50, 30}, // those under way may have been counted long ago
	} {
		p := quotaPace{true, tt.left, 60, time.Duration(tt.reset) * time.Second, time.Duration(tt.window) * time.Second}
		assert.Equal(t, tt.want, p.renewed(tt.underWay), name)
	}
}
