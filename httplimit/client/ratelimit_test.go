package client

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// read returns what fields say. If they say nothing, Left is negative.
func read(rateLimit, policy []string) Quota {
	q, ok := quotaOf(rateLimit, policy)
	if !ok {
		q.Left = -1
	}
	return q
}

// TestQuotaOf reads RateLimit fields of several drafts, and what is none.
func TestQuotaOf(t *testing.T) {
	nothing := Quota{Left: -1}
	for field, want := range map[string]Quota{
		`"default";r=50;t=30`:                          {Left: 50, Reset: 30 * time.Second},
		`default;r=50;t=30`:                            {Left: 50, Reset: 30 * time.Second}, // a token, as in an earlier draft
		`"default";r=50;t=30;pk=:QXBwLTk5OQ==:`:        {Left: 50, Reset: 30 * time.Second},
		`"default";r=50;t=30;pk=:QXBwLTk5OQ:`:          {Left: 50, Reset: 30 * time.Second},
		`"a";r=1;t=5;pk=:A:`:                           nothing,
		`"a\"b\\c,;";x;y="z;r=9";r=1; t=2;u=?1;v=-1.5`: {Left: 1, Reset: 2 * time.Second},
		`"a";r=9;r=1;t=2`:                              {Left: 1, Reset: 2 * time.Second}, // the last one counts
		`"a";t=2;r=0`:                                  {Left: 0, Reset: 2 * time.Second},
		`"a";r=1;t=2, "b";r=1;t=3`:                     {Left: 1, Reset: 3 * time.Second},
		`"a";r=0;t=3,"b";r=99;t=60 , "c";r=5`:          {Left: 0, Reset: 3 * time.Second},
		`"a";r=99;t=60 	,	 "b";r=0;t=3`:                {Left: 0, Reset: 3 * time.Second},
		`"a";r=999999999999999;t=999999999999999`:      {Left: 999_999_999_999_999, Reset: 24 * time.Hour},
		`"a";r=1;t=2;at=@1772366400`:                   {Left: 1, Reset: 2 * time.Second}, // a date
		`"a";at=@-1;r=1;t=2`:                           {Left: 1, Reset: 2 * time.Second},
		`"a";r=1;t=2;n=%"f%c3%bc r,;\\"`:               {Left: 1, Reset: 2 * time.Second}, // a display string
		`%"a";n=%"";r=1;t=2`:                           {Left: 1, Reset: 2 * time.Second},
		`"a";r=1;t=2;x=-123456789012.5`:                {Left: 1, Reset: 2 * time.Second},
		`"a";r=1;t=2;x=0123456789012.5`:                nothing, // too many digits
		`"a";r=@1;t=2`:                                 nothing,
		`"a";r=1;t=2;at=@`:                             nothing,
		`"a";r=1;t=2;at=@1.5`:                          nothing,
		`"a";r=1;t=2;n=%"`:                             nothing,
		`"a";r=1;t=2;n=%x`:                             nothing,
		`"a";r=1;t=2;n=%"%C3%BC"`:                      nothing, // digits are in lower case
		`"a";r=1;t=2;n=%"%c3"`:                         nothing, // no UTF-8
		`"a";r=1;t=2;n=%"%c`:                           nothing,
		`"a";r=1;t=2;n=%"%zz"`:                         nothing,
		`"a";r=1;t=2;n=%"ü"`:                           nothing,
		`limit=100, remaining=50, reset=5`:             {Left: 50, Reset: 5 * time.Second, Limit: 100},
		`limit=100, remaining=25, reset=5`:             {Left: 25, Reset: 5 * time.Second, Limit: 100},
		`limit=3, remaining=1, reset=5`:                {Left: 1, Reset: 5 * time.Second, Limit: 3},
		`limit=1, remaining=0, reset=5`:                {Left: 0, Reset: 5 * time.Second, Limit: 1},
		`remaining=50, reset=5`:                        {Left: 50, Reset: 5 * time.Second},
		`limit=0, remaining=0, reset=0`:                {Left: 0}, // of a blocked key: no wait helps
		`limit=100;x=1,reset=5,remaining=0`:            {Left: 0, Reset: 5 * time.Second, Limit: 100},
		`12, 12;window=1;r=3;t=4`:                      {Left: 3, Reset: 4 * time.Second},
		`limit=100, reset=5`:                           nothing,
		`remaining=50`:                                 nothing,
		`"a";r=1`:                                      nothing, // as from a limit with several parts
		`"a";t=1`:                                      nothing,
		`"a";r=1;t=0`:                                  {Left: 1},
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
		`"a";r=1;t=5` + strings.Repeat(`, "b"`, 31):    {Left: 1, Reset: 5 * time.Second},
		`"a";r=1;t=5` + strings.Repeat(`, "b"`, 32):    nothing,
		`"` + strings.Repeat("a", 5000) + `";r=1;t=5`:  nothing,
	} {
		assert.Equal(t, want, read([]string{field}, nil), field)
	}
	assert.Equal(t, Quota{Left: 1, Reset: 9 * time.Second}, read([]string{`"a";r=1;t=5`, `"b";r=1;t=9`}, nil))
	assert.Equal(t, Quota{Left: 1, Reset: 5 * time.Second, Limit: 9}, read([]string{`limit=9`, `remaining=1, reset=5`}, nil))
	assert.Equal(t, nothing, read([]string{`"a";r=1;t=5`, ``}, nil))
	assert.Equal(t, nothing, read(nil, nil))

	for policy, want := range map[string]Quota{
		`"a";q=100`:                   {Left: 40, Reset: 5 * time.Second, Limit: 100},
		`"b";q=1, "a";q=100;w=60`:     {Left: 40, Reset: 5 * time.Second, Limit: 100, Window: time.Minute},
		`"a";q=160`:                   {Left: 40, Reset: 5 * time.Second, Limit: 160},
		`"a";q=163`:                   {Left: 40, Reset: 5 * time.Second, Limit: 163},
		`"a";q=159`:                   {Left: 40, Reset: 5 * time.Second, Limit: 159},
		`"A";q=100`:                   {Left: 40, Reset: 5 * time.Second}, // another one
		`a;q=100`:                     {Left: 40, Reset: 5 * time.Second}, // a token, and not a string
		`"a";q=100,`:                  {Left: 40, Reset: 5 * time.Second},
		`"a";q="100"`:                 {Left: 40, Reset: 5 * time.Second},
		`"a";w=60`:                    {Left: 40, Reset: 5 * time.Second, Window: time.Minute},
		`"a";q=100;w=-1`:              {Left: 40, Reset: 5 * time.Second, Limit: 100},
		`"a";q=100;w=1.5`:             {Left: 40, Reset: 5 * time.Second, Limit: 100},
		`"a";q=100;w=999999999999999`: {Left: 40, Reset: 5 * time.Second, Limit: 100, Window: 9223372036 * time.Second},
	} {
		assert.Equal(t, want, read([]string{`"a";r=40;t=5`}, []string{policy}), policy)
	}
	assert.Equal(t, Quota{Left: 1, Reset: 5 * time.Second, Limit: 100}, read([]string{`"a";r=40;t=5, "b";r=1;t=5`}, []string{`"a";q=100, "b";q=100`}))
	assert.Equal(t, Quota{Left: 1, Reset: 5 * time.Second, Limit: 100}, read([]string{`"b";r=1;t=5, "a";r=40;t=5`}, []string{`"a";q=100, "b";q=100`}))
}

// FuzzQuotaOf checks that no field has a quota that Transport cannot keep.
func FuzzQuotaOf(f *testing.F) {
	for _, field := range []string{`"a";r=1;t=5`, `limit=1, remaining=2, reset=3`, `a;b=:YQ==:;c=?0;d=-1.25`, `"\"`} {
		f.Add(field)
	}
	f.Fuzz(func(t *testing.T, field string) {
		q, ok := quotaOf([]string{field}, nil)
		if !ok && q != (Quota{}) || q.Left < 0 || q.Left > mostLeft || q.Reset < 0 || q.Reset > longestRest ||
			q.every(q.Left) < 0 || q.every(q.Left) > q.Reset {
			t.Errorf("%q: %+v", field, q)
		}
	})
}
