package clientip_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// from returns a request from the given peer, with header fields given as names and
// values in turn.
func from(peer string, fields ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = peer
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

var proxies = clientip.TrustedProxies(
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("::ffff:172.16.0.0/108"), // 172.16.0.0/12
	netip.MustParsePrefix("fd00::/8"),
)

// A keyCase is a request, and the key that it has.
type keyCase struct {
	of   key.Func
	r    *http.Request
	want string
}

func checkKeys(t *testing.T, cases map[string]keyCase) {
	t.Helper()
	for name, tt := range cases {
		got, err := tt.of(tt.r)
		require.NoError(t, err, name)
		assert.Equal(t, tt.want, got, name)
	}
}

const xff, cf = "X-Forwarded-For", "CF-Connecting-IP"

// TestOf_Peer: without a trusted proxy, the key is the address of the peer, whatever fields say.
func TestOf_Peer(t *testing.T) {
	quiet(t) // direct finds fields of proxies
	direct := clientip.Of()
	checkKeys(t, map[string]keyCase{
		"peer":                     {direct, from("192.0.2.1:1234"), "192.0.2.1"},
		"peer without a port":      {direct, from("192.0.2.1"), "192.0.2.1"},
		"made up":                  {direct, from("192.0.2.1:1", xff, "198.51.100.7"), "192.0.2.1"},
		"made up, Forwarded":       {direct, from("192.0.2.1:1", "Forwarded", "for=198.51.100.7"), "192.0.2.1"},
		"made up, other names":     {direct, from("192.0.2.1:1", "X-Real-IP", "198.51.100.7", "True-Client-IP", "198.51.100.8"), "192.0.2.1"},
		"mapped":                   {direct, from("[::ffff:192.0.2.1]:1"), "192.0.2.1"},
		"mapped, in hexadecimal":   {direct, from("[::ffff:c000:201]:1"), "192.0.2.1"},
		"mapped, with a zone":      {direct, from("[::ffff:192.0.2.1%eth0]:1"), "192.0.2.1"},
		"IPv6":                     {direct, from("[2001:db8:1:2:3:4:5:6]:1"), "2001:db8:1:2::/64"},
		"IPv6, neighbour":          {direct, from("[2001:db8:1:2:ffff::1]:1"), "2001:db8:1:2::/64"},
		"IPv6, another network":    {direct, from("[2001:db8:1:3::1]:1"), "2001:db8:1:3::/64"},
		"IPv6, zone":               {direct, from("[fe80::1%eth0]:1"), "fe80::/64"},
		"IPv6, other zone":         {direct, from("[fe80::1%eth1]:1"), "fe80::/64"},
		"IPv6, zone of Windows":    {direct, from("[fe80::1%Ethernet 2]:1"), "fe80::/64"},
		"IPv6, longer prefix":      {clientip.Of(clientip.IPv6Prefix(128)), from("[2001:db8::1]:1"), "2001:db8::1/128"},
		"IPv6, shorter prefix":     {clientip.Of(clientip.IPv6Prefix(48)), from("[2001:db8:1:2::1]:1"), "2001:db8:1::/48"},
		"IPv4 is not cut":          {clientip.Of(clientip.IPv6Prefix(8)), from("192.0.2.1:1"), "192.0.2.1"},
		"IPv4-compatible, written": {direct, from("[::192.0.2.1]:1"), "::/64"},
	})
}

// TestOf_IPv4InIPv6: an IPv6 address that contains the IPv4 address of a client is that client.
func TestOf_IPv4InIPv6(t *testing.T) {
	direct := clientip.Of()
	checkKeys(t, map[string]keyCase{
		"NAT64":                     {direct, from("[64:ff9b::192.0.2.1]:1"), "192.0.2.1"},
		"NAT64, not its prefix":     {direct, from("[64:ff9b:0:0:1::c000:201]:1"), "64:ff9b::/64"},
		"NAT64, of the network":     {direct, from("[64:ff9b:1::192.0.2.1]:1"), "64:ff9b:1::c000:201/128"},
		"NAT64, of the network too": {direct, from("[64:ff9b:1:c000:2:100::]:1"), "64:ff9b:1:c000:2:100::/128"},
		"6to4":                      {direct, from("[2002:c000:201:1::1]:1"), "192.0.2.1"},
		"6to4, another subnet":      {direct, from("[2002:c000:201:ffff:1:2:3:4]:1"), "192.0.2.1"},
		"6to4, another client":      {direct, from("[2002:c000:202:1::1]:1"), "192.0.2.2"},
		"Teredo":                    {direct, from("[2001:0:4136:e378:8000:63bf:3fff:fdd2]:1"), "192.0.2.45"}, // RFC 4380
		"Teredo, not its prefix":    {direct, from("[2001:1:4136:e378:8000:63bf:3fff:fdd2]:1"), "2001:1:4136:e378::/64"},
		"6to4, one prefix for all":  {clientip.Of(clientip.IPv6Prefix(8)), from("[2002:c000:201:1::1]:1"), "192.0.2.1"},
	})
}

// TestOf_XForwardedFor has the entries that clients forge and the ones that proxies write.
func TestOf_XForwardedFor(t *testing.T) {
	behind := clientip.Of(proxies)
	oneHop, twoHops := clientip.Of(clientip.TrustedHops(1)), clientip.Of(clientip.TrustedHops(2))
	both := clientip.Of(proxies, clientip.TrustedHops(1))
	checkKeys(t, map[string]keyCase{
		"through one":                    {behind, from("10.1.1.1:1", xff, "198.51.100.7"), "198.51.100.7"},
		"past them":                      {behind, from("203.0.113.9:1", xff, "198.51.100.7"), "203.0.113.9"},
		"through two":                    {behind, from("10.1.1.1:1", xff, "198.51.100.7, 10.2.2.2"), "198.51.100.7"},
		"first entry made up":            {behind, from("10.1.1.1:1", xff, "1.1.1.1, 198.51.100.7"), "198.51.100.7"},
		"rotated":                        {behind, from("10.1.1.1:1", xff, "2.2.2.2, 3.3.3.3, 198.51.100.7"), "198.51.100.7"},
		"a line of its own":              {behind, from("10.1.1.1:1", xff, "1.1.1.1", xff, "198.51.100.7"), "198.51.100.7"},
		"a line after":                   {behind, from("10.1.1.1:1", xff, "1.1.1.1, 198.51.100.7", xff, "10.2.2.2"), "198.51.100.7"},
		"a proxy's address made up":      {behind, from("10.1.1.1:1", xff, "10.9.9.9, 198.51.100.7"), "198.51.100.7"},
		"nothing but proxies":            {behind, from("10.1.1.1:1", xff, "10.9.9.9, 10.8.8.8"), "10.9.9.9"},
		"not there":                      {behind, from("10.1.1.1:1"), "10.1.1.1"},
		"empty":                          {behind, from("10.1.1.1:1", xff, ""), "10.1.1.1"},
		"nonsense":                       {behind, from("10.1.1.1:1", xff, "unknown"), "10.1.1.1"},
		"nonsense on the way":            {behind, from("10.1.1.1:1", xff, "198.51.100.7, x, 10.2.2.2"), "10.2.2.2"},
		"nonsense before":                {behind, from("10.1.1.1:1", xff, "'; DROP TABLE, 198.51.100.7"), "198.51.100.7"},
		"an empty entry":                 {behind, from("10.1.1.1:1", xff, "198.51.100.7,"), "10.1.1.1"},
		"blanks":                         {behind, from("10.1.1.1:1", xff, "  1.1.1.1 ,\t198.51.100.7 "), "198.51.100.7"},
		"a port":                         {behind, from("10.1.1.1:1", xff, "198.51.100.7:4711"), "198.51.100.7"},
		"another port":                   {behind, from("10.1.1.1:1", xff, "198.51.100.7:4712"), "198.51.100.7"},
		"mapped entry":                   {behind, from("10.1.1.1:1", xff, "::ffff:198.51.100.7"), "198.51.100.7"},
		"mapped proxy":                   {behind, from("[::ffff:10.1.1.1]:1", xff, "198.51.100.7"), "198.51.100.7"},
		"mapped prefix":                  {behind, from("172.31.0.1:1", xff, "198.51.100.7"), "198.51.100.7"},
		"outside of the mapped prefix":   {behind, from("172.32.0.1:1", xff, "198.51.100.7"), "172.32.0.1"},
		"IPv6 entry":                     {behind, from("[fd00::1]:1", xff, "2001:db8::1"), "2001:db8::/64"},
		"IPv6 entry, brackets":           {behind, from("10.1.1.1:1", xff, "[2001:db8::1]"), "2001:db8::/64"},
		"IPv6 entry, brackets and port":  {behind, from("10.1.1.1:1", xff, "[2001:db8::1]:4711"), "2001:db8::/64"},
		"IPv6 entry, zone":               {behind, from("10.1.1.1:1", xff, "fe80::1%eth0"), "fe80::/64"},
		"IPv6 entry, two in its zone":    {behind, from("10.1.1.1:1", xff, "198.51.100.7, fe80::1%eth0 1.1.1.1"), "10.1.1.1"},
		"leading zeros":                  {behind, from("10.1.1.1:1", xff, "198.051.100.007"), "10.1.1.1"},
		"a number":                       {behind, from("10.1.1.1:1", xff, "3325256711"), "10.1.1.1"},
		"Forwarded is not asked":         {behind, from("10.1.1.1:1", "Forwarded", "for=1.1.1.1"), "10.1.1.1"},
		"Forwarded is not mixed in":      {behind, from("10.1.1.1:1", "Forwarded", "for=1.1.1.1", xff, "198.51.100.7"), "198.51.100.7"},
		"hops: one":                      {oneHop, from("203.0.113.9:1", xff, "198.51.100.7"), "198.51.100.7"},
		"hops: one, first entry made up": {oneHop, from("203.0.113.9:1", xff, "1.1.1.1, 198.51.100.7"), "198.51.100.7"},
		"hops: one, not there":           {oneHop, from("203.0.113.9:1"), "203.0.113.9"},
		"hops: one, through a socket":    {oneHop, from("@", xff, "1.1.1.1, 198.51.100.7"), "198.51.100.7"},
		"hops: two":                      {twoHops, from("203.0.113.9:1", xff, "198.51.100.7, 203.0.113.8"), "198.51.100.7"},
		"hops: two, first entry made up": {twoHops, from("203.0.113.9:1", xff, "1.1.1.1, 198.51.100.7, 203.0.113.8"), "198.51.100.7"},
		"hops: two, one there":           {twoHops, from("203.0.113.9:1", xff, "198.51.100.7"), "198.51.100.7"},
		"hops and proxies":               {both, from("10.1.1.1:1", xff, "1.1.1.1, 10.2.2.2"), "10.2.2.2"},
		"hops, and an empty list":        {clientip.Of(clientip.TrustedProxies(), clientip.TrustedHops(1)), from("10.1.1.1:1", xff, "6.6.6.6"), "10.1.1.1"},
		"an empty list":                  {clientip.Of(clientip.TrustedProxies()), from("10.1.1.1:1", xff, "6.6.6.6"), "10.1.1.1"},
		"an empty list and another":      {clientip.Of(clientip.TrustedProxies(), proxies), from("10.1.1.1:1", xff, "6.6.6.6"), "6.6.6.6"},
		"proxies, and no hops":           {clientip.Of(proxies, clientip.TrustedHops(0)), from("10.1.1.1:1", xff, "6.6.6.6"), "10.1.1.1"},
		"more proxies than there are": {
			behind,
			from("10.1.1.1:1", xff, "6.6.6.6"+strings.Repeat(", 10.0.0.9", 30)+strings.Repeat(", 10.0.0.8", 100)),
			"10.0.0.8",
		},
		"as many hops as are wanted": {
			clientip.Of(clientip.TrustedHops(200)),
			from("10.1.1.1:1", xff, "6.6.6.6, 198.51.100.7"+strings.Repeat(", 10.0.0.8", 199)),
			"198.51.100.7",
		},
		"a long entry": {
			behind,
			from("10.1.1.1:1", xff, "6.6.6.6,"+strings.Repeat(" ", 1000)+"5.5.5.5"+strings.Repeat("5", 1000)),
			"10.1.1.1",
		},
		"a long zone":                 {behind, from("10.1.1.1:1", xff, "fe80::1%"+strings.Repeat("z", 1000)), "10.1.1.1"},
		"spaces around":               {behind, from("10.1.1.1:1", xff, "1.1.1.1,\t 198.51.100.7 \t"), "198.51.100.7"},
		"NAT64 of a client":           {behind, from("10.1.1.1:1", xff, "64:ff9b::198.51.100.7"), "198.51.100.7"},
		"hops and proxies: past them": {both, from("203.0.113.9:1", xff, "6.6.6.6"), "203.0.113.9"},
	})
}

// TestOf_Forwarded has the elements that clients forge and the ones that proxies write.
func TestOf_Forwarded(t *testing.T) {
	of := clientip.Of(proxies, clientip.FromForwarded())
	forwarded := func(field string, more ...string) *http.Request {
		return from("10.1.1.1:1", append([]string{"Forwarded", field}, more...)...)
	}
	checkKeys(t, map[string]keyCase{
		"one":                  {of, forwarded("for=198.51.100.7"), "198.51.100.7"},
		"more to it":           {of, forwarded("proto=https;For=198.51.100.7;by=10.1.1.1"), "198.51.100.7"},
		"quoted":               {of, forwarded(`for="198.51.100.7:80"`), "198.51.100.7"},
		"IPv6":                 {of, forwarded(`for="[2001:db8::1]:4711"`), "2001:db8::/64"},
		"first made up":        {of, forwarded("for=1.1.1.1, for=198.51.100.7"), "198.51.100.7"},
		"through two":          {of, forwarded("for=198.51.100.7, for=10.2.2.2;proto=http"), "198.51.100.7"},
		"two lines":            {of, forwarded("for=198.51.100.7", "Forwarded", "for=10.2.2.2"), "198.51.100.7"},
		"obfuscated":           {of, forwarded("for=_hidden"), "10.1.1.1"},
		"unknown":              {of, forwarded("for=unknown, for=10.2.2.2"), "10.2.2.2"},
		"none":                 {of, forwarded("proto=https"), "10.1.1.1"},
		"two in an element":    {of, forwarded("for=1.1.1.1;for=198.51.100.7"), "10.1.1.1"},
		"a comma in quotes":    {of, forwarded(`for=198.51.100.7;host="a,for=1.1.1.1"`), "198.51.100.7"},
		"an escaped quote":     {of, forwarded(`host="\",for=1.1.1.1";for=198.51.100.7`), "10.1.1.1"},
		"XFF is not asked":     {of, from("10.1.1.1:1", xff, "1.1.1.1"), "10.1.1.1"},
		"not from a proxy":     {of, from("203.0.113.9:1", "Forwarded", "for=1.1.1.1"), "203.0.113.9"},
		"for quoted elsewhere": {of, forwarded(`host="a;for=1.1.1.1";for=198.51.100.7`), "198.51.100.7"},
		"a quote left open":    {of, forwarded(`for=1.1.1.1;x=", for=198.51.100.7`), "198.51.100.7"},
		"closed by the proxy":  {of, forwarded(`for=1.1.1.1;x=", for="[2001:db8::7]:99"`), "2001:db8::/64"},
		"commas in quotes":     {of, forwarded(`for=1.1.1.1, for=198.51.100.7;host="a, for=2.2.2.2 "`), "198.51.100.7"},
		"an escape in quotes":  {of, forwarded(`for=198.51.100.7;host="a, for=2.2.2.2;y=\""`), "10.1.1.1"},
		"many commas":          {of, forwarded(`for=1.1.1.1, for=198.51.100.7;host="` + strings.Repeat(",", 10000) + `"`), "198.51.100.7"},
		"many quotes":          {of, forwarded(`for=1.1.1.1, for=198.51.100.7;host="` + strings.Repeat(`\", for=2.2.2.2;x=\"`, 5000) + `"`), "10.1.1.1"},
		"many left open":       {of, forwarded(strings.Repeat(`for=1.1.1.1;x=",`, 9999) + ` for=198.51.100.7;host="a,\\\",b"`), "10.1.1.1"},
		"backslashes at ends":  {of, forwarded(`for=1.1.1.1;x="\, for=198.51.100.7;host=",\\"`), "10.1.1.1"},
		"a pair like a start":  {of, forwarded(`for=198.51.100.7;host=", for=2.2.2.2;x=";by="y"`), "198.51.100.7"},
		"through two, quoted":  {of, forwarded(`for=1.1.1.1;x=", for=198.51.100.7;host="a,b", for=10.2.2.2;host="c,d"`), "198.51.100.7"},
		"nothing but commas":   {of, forwarded(strings.Repeat(",", 100)), "10.1.1.1"},
		"half a quote":         {of, forwarded(`for=1.1.1.1"`), "10.1.1.1"},
		"a port, no quotes":    {of, forwarded(`for=198.51.100.7:80`), "198.51.100.7"},
		"an obfuscated port":   {of, forwarded(`for="198.51.100.7:_p.-_9"`), "198.51.100.7"},
		"IPv6, obfuscated":     {of, forwarded(`for="[2001:db8::1]:_p"`), "2001:db8::/64"},
		"the largest port":     {of, forwarded(`for="198.51.100.7:99999"`), "198.51.100.7"}, // RFC 7239 allows any five digits
		"too large a port":     {of, forwarded(`for="198.51.100.7:100000"`), "10.1.1.1"},
		"no port":              {of, forwarded(`for="198.51.100.7:"`), "10.1.1.1"},
		"no obfuscated port":   {of, forwarded(`for="198.51.100.7:_"`), "10.1.1.1"},
		"not a port":           {of, forwarded(`for="198.51.100.7:p"`), "10.1.1.1"},
		"not a port, either":   {of, forwarded(`for="198.51.100.7:_p!"`), "10.1.1.1"},
		"beyond the letters":   {of, forwarded(`for="198.51.100.7:_p{"`), "10.1.1.1"},
		"before the letters":   {of, forwarded(`for="198.51.100.7:_@p"`), "10.1.1.1"},
		"no ASCII in a port":   {of, forwarded(`for="198.51.100.7:_é"`), "10.1.1.1"},
		"quoted pairs":         {of, forwarded(`for="\[2001\:db8::\1]\:80"`), "10.1.1.1"},
		"a backslash in pairs": {of, forwarded(`for="198.51.100.7\\"`), "10.1.1.1"},
		"a backslash before":   {of, forwarded(`for=1.1.1.1;x="\", for=198.51.100.7`), "198.51.100.7"},
		"many left open, too":  {of, forwarded(strings.Repeat(`for=1.1.1.1;x=",`, 9999) + ` for=198.51.100.7;host="a,b"`), "198.51.100.7"},
		"an escape on the way": {of, forwarded(`for=198.51.100.7;host="\"", for=10.2.2.2`), "10.2.2.2"},
		"quotes inside":        {of, forwarded(`for="198.51.100.7"""`), "10.1.1.1"},
		"quotes before":        {of, forwarded(`for=""198.51.100.7`), "10.1.1.1"},
		"a string in a string": {of, forwarded(`host="""";for=198.51.100.7`), "10.1.1.1"},
		"a string never ends":  {of, forwarded(`host="a;for=198.51.100.7`), "10.1.1.1"},
		"a string ends only":   {of, forwarded(`for=198.51.100.7;host=a"`), "10.1.1.1"},
		"three quotes":         {of, forwarded(`x";for=198.51.100.7;host="a"`), "10.1.1.1"},
		"no name":              {of, forwarded(`for=198.51.100.7;=x`), "10.1.1.1"},
		"no value":             {of, forwarded(`for=198.51.100.7;host`), "10.1.1.1"},
		"a blank in a host":    {of, forwarded(`for=198.51.100.7;host=a b`), "10.1.1.1"},
		"nothing between":      {of, forwarded(" ;; for=198.51.100.7 ;\t; proto=http; "), "198.51.100.7"},
		"for in another value": {of, forwarded(`host="for=1.1.1.1";for=198.51.100.7`), "198.51.100.7"},
	})
}

// TestOf_Header has the values of a field with one address.
func TestOf_Header(t *testing.T) {
	const viewerAddress = "CloudFront-Viewer-Address"
	behind, cloudflare := clientip.Of(proxies), clientip.Of(proxies, clientip.FromHeader(cf))
	viewer := clientip.Of(proxies, clientip.FromHeader(viewerAddress), clientip.IPv6Prefix(128))
	checkKeys(t, map[string]keyCase{
		"one":                  {cloudflare, from("10.1.1.1:1", cf, "198.51.100.7"), "198.51.100.7"},
		"not from a proxy":     {cloudflare, from("203.0.113.9:1", cf, "198.51.100.7"), "203.0.113.9"},
		"missing":              {cloudflare, from("10.1.1.1:1"), "10.1.1.1"},
		"empty":                {cloudflare, from("10.1.1.1:1", cf, ""), "10.1.1.1"},
		"two lines":            {cloudflare, from("10.1.1.1:1", cf, "1.1.1.1", cf, "198.51.100.7"), "10.1.1.1"},
		"twice the same":       {cloudflare, from("10.1.1.1:1", cf, "1.1.1.1", cf, "1.1.1.1"), "10.1.1.1"},
		"a list":               {cloudflare, from("10.1.1.1:1", cf, "1.1.1.1, 198.51.100.7"), "10.1.1.1"},
		"a list with blanks":   {cloudflare, from("10.1.1.1:1", cf, "fe80::1%eth0 198.51.100.7"), "10.1.1.1"},
		"a list with tabs":     {cloudflare, from("10.1.1.1:1", cf, "[fe80::1%eth0\t198.51.100.7]"), "10.1.1.1"},
		"a list with bars":     {cloudflare, from("10.1.1.1:1", cf, "fe80::1%eth0|198.51.100.7"), "10.1.1.1"},
		"no zone":              {cloudflare, from("10.1.1.1:1", cf, "fe80::1%"), "10.1.1.1"},
		"an empty line":        {cloudflare, from("10.1.1.1:1", cf, "", cf, "1.1.1.1"), "10.1.1.1"},
		"spaces":               {cloudflare, from("10.1.1.1:1", cf, "\t 198.51.100.7 "), "198.51.100.7"},
		"a port":               {cloudflare, from("10.1.1.1:1", cf, "198.51.100.7:4711"), "198.51.100.7"},
		"IPv6":                 {cloudflare, from("10.1.1.1:1", cf, "2001:db8::1"), "2001:db8::/64"},
		"IPv6, in brackets":    {cloudflare, from("10.1.1.1:1", cf, "[2001:db8::1]"), "2001:db8::/64"},
		"IPv6, with a port":    {cloudflare, from("10.1.1.1:1", cf, "[2001:db8::1]:4711"), "2001:db8::/64"},
		"IPv6, with a zone":    {cloudflare, from("10.1.1.1:1", cf, "fe80::1%eth0"), "fe80::/64"},
		"IPv6, another zone":   {cloudflare, from("10.1.1.1:1", cf, "fe80::1%made-up-by-a-client"), "fe80::/64"},
		"IPv6, a long zone":    {cloudflare, from("10.1.1.1:1", cf, "fe80::1%"+strings.Repeat("z", 1000)), "10.1.1.1"},
		"mapped":               {cloudflare, from("10.1.1.1:1", cf, "::ffff:198.51.100.7"), "198.51.100.7"},
		"NAT64":                {cloudflare, from("10.1.1.1:1", cf, "64:ff9b::198.51.100.7"), "198.51.100.7"},
		"zeros":                {cloudflare, from("10.1.1.1:1", cf, "198.051.100.007"), "10.1.1.1"}, // some read these as octal
		"a name":               {cloudflare, from("10.1.1.1:1", cf, "unknown"), "10.1.1.1"},
		"long":                 {cloudflare, from("10.1.1.1:1", cf, strings.Repeat("1", 1_000_000)), "10.1.1.1"},
		"a proxy":              {cloudflare, from("10.1.1.1:1", cf, "10.2.2.2"), "10.2.2.2"}, // nothing is left to read
		"others are not asked": {cloudflare, from("10.1.1.1:1", xff, "1.1.1.1", "X-Real-IP", "2.2.2.2", "Forwarded", "for=3.3.3.3"), "10.1.1.1"},
		"it is not asked":      {behind, from("10.1.1.1:1", cf, "1.1.1.1"), "10.1.1.1"},
		"no proxy":             {clientip.Of(clientip.FromHeader(cf), clientip.TrustedProxies()), from("10.1.1.1:1", cf, "1.1.1.1"), "10.1.1.1"},
		"no hop":               {clientip.Of(clientip.FromHeader(cf), clientip.TrustedHops(0)), from("10.1.1.1:1", cf, "1.1.1.1"), "10.1.1.1"},
		"a hop": {
			clientip.Of(clientip.FromHeader("x-real-ip"), clientip.TrustedHops(1)),
			from("203.0.113.9:1", "X-Real-IP", "198.51.100.7"), "198.51.100.7",
		},
		"hops": {
			clientip.Of(clientip.FromHeader("X-Real-IP"), clientip.TrustedHops(9)),
			from("203.0.113.9:1", "X-Real-IP", "198.51.100.7"), "198.51.100.7",
		},
		"through a socket": {
			clientip.Of(clientip.FromHeader("X-Real-IP"), clientip.TrustedHops(1)),
			from("@", "X-Real-IP", "198.51.100.7"), "198.51.100.7",
		},
		"viewer":                   {viewer, from("10.1.1.1:1", viewerAddress, "198.51.100.7:46532"), "198.51.100.7"},
		"viewer: IPv6":             {viewer, from("10.1.1.1:1", viewerAddress, "2001:db8::5:46532"), "2001:db8::5/128"},
		"viewer: IPv6, in full":    {viewer, from("10.1.1.1:1", viewerAddress, "2001:db8:0:0:0:0:0:5:46532"), "2001:db8::5/128"},
		"viewer: IPv6, short port": {viewer, from("10.1.1.1:1", viewerAddress, "2001:db8::5:80"), "2001:db8::5/128"},
		"viewer: brackets":         {viewer, from("10.1.1.1:1", viewerAddress, "[2001:db8::5]:46532"), "2001:db8::5/128"},
		"viewer: no port":          {viewer, from("10.1.1.1:1", viewerAddress, "198.51.100.7"), "198.51.100.7"},
		"viewer: not a port":       {viewer, from("10.1.1.1:1", viewerAddress, "2001:db8::5:465321"), "10.1.1.1"},
		"viewer: twice":            {viewer, from("10.1.1.1:1", viewerAddress, "1.1.1.1:1", viewerAddress, "198.51.100.7:1"), "10.1.1.1"},
		"X-Forwarded-For": {
			clientip.Of(proxies, clientip.FromHeader("x-forwarded-for")),
			from("10.1.1.1:1", xff, "1.1.1.1, 198.51.100.7, 10.2.2.2"), "198.51.100.7",
		},
		"Forwarded": {
			clientip.Of(proxies, clientip.FromHeader("forwarded")),
			from("10.1.1.1:1", "Forwarded", "for=198.51.100.7"), "198.51.100.7",
		},
		"Forwarded, twice": {
			clientip.Of(proxies, clientip.FromHeader("forwarded"), clientip.FromForwarded()),
			from("10.1.1.1:1", "Forwarded", "for=198.51.100.7"), "198.51.100.7",
		},
	})
}

// TestFromHeaderFails has names that cannot be read, and options that nobody can mean.
func TestFromHeaderFails(t *testing.T) {
	for want, opts := range map[string][]clientip.Option{
		`name is "": it must be the name`:        {proxies, clientip.FromHeader("")},
		`name is "X Real IP": it must be the`:    {proxies, clientip.FromHeader("X Real IP")},
		`name is "X-Real-IP:": it must be the`:   {proxies, clientip.FromHeader("X-Real-IP:")},
		`name is "Ünique": it must be the name`:  {proxies, clientip.FromHeader("Ünique")},
		`remove it, or "CF-Connecting-IP"`:       {proxies, clientip.FromHeader("CF-Connecting-IP"), clientip.FromHeader("X-Real-IP")},
		`name is "Forwarded": it must be the on`: {proxies, clientip.FromHeader("X-Real-IP"), clientip.FromForwarded()},
		`must be given with TrustedProxies or`:   {clientip.FromHeader("CF-Connecting-IP")},
	} {
		err := panicOf(opts...)
		require.ErrorIs(t, err, param.ErrInvalid, want)
		assert.ErrorContains(t, err, want)
	}
}

// panicOf returns the error that Of panics with.
func panicOf(opts ...clientip.Option) (err error) {
	defer func() { err, _ = recover().(error) }()
	clientip.Of(opts...)
	return nil
}

// TestNoAddress has peers without an address, such as that of a Unix socket.
func TestNoAddress(t *testing.T) {
	for _, peer := range []string{"", "@", "/run/socket", "example.com:80", "192.0.2:80"} {
		for _, client := range []key.Func{clientip.Of(), clientip.Of(proxies), clientip.Of(clientip.TrustedHops(1))} {
			_, err := client(from(peer))
			assert.ErrorIs(t, err, key.ErrNone, peer)
		}
	}
}

// TestMistakesPanic checks that Of panics if an option is invalid, with an error that says what is
// wrong.
func TestMistakesPanic(t *testing.T) {
	beyondIPv4 := netip.MustParsePrefix("::ffff:0:0/90")
	for want, opts := range map[string][]clientip.Option{
		"clientip: option 0 of Of is nil: it":     {nil},
		"option 1 of Of is nil":                   {clientip.TrustedHops(1), nil},
		"TrustedProxies's prefix is invalid Pre":  {clientip.TrustedProxies(netip.Prefix{})},
		"TrustedProxies's prefix is invalid Pref": {clientip.TrustedProxies(beyondIPv4)},
		"IPv6Prefix's number of bits is 0":        {clientip.IPv6Prefix(0)},
		"IPv6Prefix's number of bits is 129":      {clientip.IPv6Prefix(129)},
		"TrustedHops's number is -1":              {clientip.TrustedHops(-1)},
	} {
		err := panicOf(opts...)
		require.ErrorIs(t, err, param.ErrInvalid, want)
		assert.ErrorContains(t, err, want)
	}
}

// FuzzOf checks that the key is the address that the proxy saw, whatever the
// client sends before it.
func FuzzOf(f *testing.F) {
	for _, made := range []string{"", "1.1.1.1", "10.0.0.1", "x,y", `"`, `\"`, "for=1.1.1.1", `for="`, ",", ";", "\x00", "[", "]", "%", "::%"} {
		f.Add(made)
	}
	xff := clientip.Of(proxies)
	forwarded := clientip.Of(proxies, clientip.FromForwarded())
	realIP := clientip.Of(proxies, clientip.FromHeader("X-Real-IP"))
	f.Fuzz(func(t *testing.T, made string) {
		for _, r := range []*http.Request{
			from("10.1.1.1:1", "X-Real-IP", made, "X-Real-IP", "198.51.100.7"), // of two lines, neither is believed
			from("10.1.1.1:1", "X-Real-IP", made+", 198.51.100.7"),
			from("10.1.1.1:1", "X-Real-IP", "fe80::1%"+made+" 198.51.100.7"),
			from("10.1.1.1:1", "X-Real-IP", "fe80::1%"+made+";198.51.100.7"),
			from("10.1.1.1:1", "X-Forwarded-For", made),
		} {
			if got, err := realIP(r); err != nil || got != "10.1.1.1" {
				t.Errorf("X-Real-IP: %q: %q, %v", made, got, err)
			}
		}
		if got, err := realIP(from("203.0.113.9:1", "X-Real-IP", made)); err != nil || got != "203.0.113.9" {
			t.Errorf("X-Real-IP, past the proxies: %q: %q, %v", made, got, err)
		}
		for _, sep := range []string{"X-Forwarded-For", "Forwarded"} {
			client, saw := xff, "198.51.100.7"
			if sep == "Forwarded" {
				client, saw = forwarded, "for=198.51.100.7"
			}
			for _, r := range []*http.Request{
				from("10.1.1.1:1", sep, made, sep, saw), // a line of its own
				from("10.1.1.1:1", sep, saw),
			} {
				if got, err := client(r); err != nil || got != "198.51.100.7" {
					t.Errorf("%s: %q after %q: %q, %v", sep, saw, made, got, err)
				}
			}
		}
		if got, err := forwarded(from("10.1.1.1:1", "Forwarded", made+", for=198.51.100.7")); err != nil || got != "198.51.100.7" {
			t.Errorf("Forwarded: %q: %q, %v", made, got, err)
		}
		// A proxy may obfuscate the port.
		node := `for="198.51.100.7:_` + base64.RawURLEncoding.EncodeToString([]byte(made))[:min(len(made), 99)] + `_"`
		if got, err := forwarded(from("10.1.1.1:1", "Forwarded", node)); err != nil || got != "198.51.100.7" {
			t.Errorf("Forwarded: %q: %q, %v", node, got, err)
		}
		// A proxy may copy what the client says its host is. If that needs a backslash, the proxy is
		// the client.
		host := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(made)
		want := "198.51.100.7"
		if host != made {
			want = "10.1.1.1"
		}
		element := `for=198.51.100.7;host="` + host + `";proto=https`
		for _, before := range []string{"", made + ",", element + "," + made + ","} {
			if got, err := forwarded(from("10.1.1.1:1", "Forwarded", before+element)); err != nil || got != want {
				t.Errorf("Forwarded: %q: %q, %v", before+element, got, err)
			}
		}
		if got, err := xff(from("10.1.1.1:1", "X-Forwarded-For", made+", 198.51.100.7")); err != nil || got != "198.51.100.7" {
			t.Errorf("%q: %q, %v", made, got, err)
		}
	})
}
