package redis_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	valkeyclient "github.com/valkey-io/valkey-go"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
	"github.com/ratelimit-go/ratelimit/redisstore/rueidis"
	"github.com/ratelimit-go/ratelimit/redisstore/valkey"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The user that the package documentation creates, and its password.
const (
	userName     = "limits"
	userPassword = "password"
)

// documentedUser returns the command in the package documentation that creates a user, with
// more permissions, which must be documented as well.
func documentedUser(t testing.TB, more ...string) []any {
	t.Helper()
	doc, err := os.ReadFile("../../docs/redis.md")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ +(ACL SETUSER .*)$`).FindSubmatch(doc)
	require.NotNil(t, line, "docs/redis.md has no ACL")
	words := strings.Fields(string(line[1]))
	require.Equal(t, []string{userName, "on", ">" + userPassword}, words[2:5])
	var command []any
	for _, w := range append(words, more...) {
		if strings.HasPrefix(w, "+") {
			require.Contains(t, string(doc), w)
		}
		command = append(command, w)
	}
	return command
}

// useAll uses everything of a store: each algorithm, leases, holds, reservations and their
// cancellation, limits that change, several keys, Reset and Check.
func useAll(t testing.TB, create func(opts ...redisstore.Option) *redisstore.Store) {
	t.Helper()
	patience := redisstore.WithTimeout(patient)
	store := create(patience)
	for name, alg := range storetest.Algorithms() {
		l := limiter(t, store, alg, ratelimit.WithName(name))
		_, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err, name)
		_, err = l.Peek(t.Context(), "k")
		require.NoError(t, err, name)
		if r, _, err := l.Reserve(t.Context(), "k", 1); err == nil && r != nil {
			r.Cancel()
		}
		require.NoError(t, l.Reset(t.Context(), "k"), name)
	}

	limit := hourly(10)
	l := limiter(t, store, hourly(10), ratelimit.WithName("varying"),
		ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return limit, nil }))
	for range 2 {
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		limit = hourly(20)
		if d.Limit == 20 {
			assert.Equal(t, 18, d.Remaining, "the new limit keeps what was spent")
		}
	}

	window := limiter(t, store, ratelimit.FixedWindow{Limit: 1, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}, ratelimit.WithName("cancelled"))
	require.True(t, window.Allow("k"))
	var line []*ratelimit.Reservation
	for range 2 { // the second behind the first
		r, _, err := window.Reserve(t.Context(), "k", 1)
		require.NoError(t, err)
		line = append(line, r)
	}
	for _, r := range line {
		r.Cancel()
	}
	d, err := window.Peek(t.Context(), "k")
	require.NoError(t, err)
	assert.LessOrEqual(t, d.RetryAfter, time.Hour, "the cancelled event was given back")

	_, err = ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "k"), ratelimit.For(window, "k"))
	require.NoError(t, err)
	_, err = l.TakeEach(t.Context(), []string{"a", "b"}, 1, nil)
	require.NoError(t, err)
	require.NoError(t, store.Check(t.Context()))

	var held []*ratelimit.Reservation
	for range 20 { // as many as a script does not always read
		h, _, err := l.Hold(t.Context(), "held", 1, ratelimit.GiveBack())
		require.NoError(t, err)
		held = append(held, h)
	}
	for _, h := range held {
		require.NoError(t, h.Extend(t.Context(), time.Hour))
		_, err := h.Settle(t.Context(), 0)
		require.NoError(t, err)
	}

	leasing := create(patience, redisstore.WithLease(100, time.Hour))
	leased := limiter(t, leasing, hourly(100_000), ratelimit.WithName("leased"))
	took := 0
	for ; leasing.Stats().Leased == 0; took++ {
		_, err := leased.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Less(t, took, 1000)
	}
	require.NoError(t, leasing.Close(t.Context()))
	d, err = limiter(t, store, hourly(100_000), ratelimit.WithName("leased")).Peek(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, 100_000-took, d.Remaining, "the lease was given back")
	for _, s := range []*redisstore.Store{store, leasing} {
		assert.Zero(t, s.Stats().Failures, "%+v", s.Stats())
	}
}

// A userCase is a client of the documented user.
type userCase struct {
	more   []string // what the client needs besides
	create func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store
}

var userCases = map[string]userCase{
	"goredis": {nil, func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
		c := redis.NewClient(&redis.Options{Addr: addr, Username: userName, Password: userPassword})
		t.Cleanup(func() { c.Close() })
		s, err := goredis.New(c, opts...)
		require.NoError(t, err)
		return s
	}},
	"goredis, cluster": {[]string{"+cluster|slots", "+command"}, func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, Username: userName, Password: userPassword})
		t.Cleanup(func() { c.Close() })
		s, err := goredis.New(c, opts...)
		require.NoError(t, err)
		return s
	}},
	"rueidis":                {[]string{"+client|tracking"}, rueidisUser(false, false)},
	"rueidis, without cache": {nil, rueidisUser(true, false)},
	"rueidis, cluster":       {[]string{"+client|tracking", "+cluster|slots", "+cluster|shards"}, rueidisUser(false, true)},
	"valkey":                 {[]string{"+client|tracking"}, valkeyUser(false, false)},
	"valkey, without cache":  {nil, valkeyUser(true, false)},
	"valkey, cluster":        {[]string{"+client|tracking", "+cluster|slots", "+cluster|shards"}, valkeyUser(false, true)},
}

func rueidisUser(uncached, cluster bool) func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
	return func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
		s, err := rueidis.New(newRueidis(t, rueidisclient.ClientOption{
			InitAddress: []string{addr}, Username: userName, Password: userPassword, DisableCache: uncached, ForceSingleClient: !cluster,
		}), opts...)
		require.NoError(t, err)
		return s
	}
}

func valkeyUser(uncached, cluster bool) func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
	return func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
		s, err := valkey.New(newValkey(t, valkeyclient.ClientOption{
			InitAddress: []string{addr}, Username: userName, Password: userPassword, DisableCache: uncached, ForceSingleClient: !cluster,
		}), opts...)
		require.NoError(t, err)
		return s
	}
}

// TestUser: the documented user can do everything, and each command that it may use is needed.
func TestUser(t *testing.T) {
	t.Parallel()
	one := []*server{startServer(t)}
	several := startCluster(t).nodes
	for name, tt := range userCases {
		t.Run(name, func(t *testing.T) {
			nodes := one
			if strings.HasSuffix(name, "cluster") {
				nodes = several
			}
			for _, s := range nodes {
				s.do("ACL", "DELUSER", userName)
				s.do("ACL", "LOG", "RESET")
				s.do("SCRIPT", "FLUSH")
				s.do("FLUSHALL")
				s.do("CONFIG", "RESETSTAT")
				s.do(documentedUser(t, tt.more...)...)
			}
			useAll(t, func(opts ...redisstore.Option) *redisstore.Store { return tt.create(t, nodes[0].addr(), opts...) })
			for _, s := range nodes {
				for _, e := range s.do("ACL", "LOG").([]any) {
					denied := e.(map[any]any)["object"]
					harmless := []string{"client|setinfo", "ping"}
					if major(t, s.path) < 7 {
						harmless = []string{"client", "ping"} // its log has no subcommands, and it does not know SETINFO
					}
					assert.Contains(t, harmless, denied, "the documentation says that a refusal of these does no harm")
				}
			}
			for _, w := range documentedUser(t) {
				if command, ok := strings.CutPrefix(w.(string), "+"); ok {
					used := slices.ContainsFunc(nodes, func(s *server) bool { return s.info("commandstats", "cmdstat_"+command) != "" })
					assert.True(t, used, "%s is not needed", command)
				}
			}
		})
	}
}

// TestTLS uses a server through TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	port := freePort(t)
	startServer(t, "--tls-port", strconv.Itoa(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	config := &tls.Config{RootCAs: pool, ServerName: "redis.test"}
	for name, create := range map[string]func(t testing.TB, opts ...redisstore.Option) *redisstore.Store{
		"goredis": func(t testing.TB, opts ...redisstore.Option) *redisstore.Store {
			c := redis.NewClient(&redis.Options{Addr: local(port), TLSConfig: config})
			t.Cleanup(func() { c.Close() })
			s, err := goredis.New(c, opts...)
			require.NoError(t, err)
			return s
		},
		"rueidis": func(t testing.TB, opts ...redisstore.Option) *redisstore.Store {
			s, err := rueidis.New(newRueidis(t, rueidisclient.ClientOption{InitAddress: []string{local(port)}, TLSConfig: config}), opts...)
			require.NoError(t, err)
			return s
		},
		"valkey": func(t testing.TB, opts ...redisstore.Option) *redisstore.Store {
			s, err := valkey.New(newValkey(t, valkeyclient.ClientOption{InitAddress: []string{local(port)}, TLSConfig: config}), opts...)
			require.NoError(t, err)
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			useAll(t, func(opts ...redisstore.Option) *redisstore.Store {
				return create(t, append(opts, redisstore.WithPrefix(name))...)
			})
		})
	}
}

// certificate returns the files of a self-signed certificate for redis.test and of its key,
// and a pool that has the certificate.
func certificate(t testing.TB) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"redis.test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool = x509.NewCertPool()
	pool.AddCert(cert)
	write := func(name, kind string, bytes []byte) string {
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return file
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER), pool
}
