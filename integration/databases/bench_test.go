package databases_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
	"github.com/ratelimit-go/ratelimit/sqlstore"
)

// BenchmarkDecisions takes events that are granted, from stores that lose none at a crash of the machine (except memory
// and Redis). fsyncs/op is how often the server waited for its disk. docs/databases.md has the results.
func BenchmarkDecisions(b *testing.B) {
	for _, store := range []struct {
		name string
		open func(b *testing.B) (ratelimit.Store, func() float64)
	}{
		{"memory", func(*testing.B) (ratelimit.Store, func() float64) { return new(ratelimit.MemoryStore), nil }},
		{"redis", openRedis},
		{"sqlite", func(b *testing.B) (ratelimit.Store, func() float64) {
			return openSQL(b, &sqlite{file: filepath.Join(b.TempDir(), "limits.db")}, sqlstore.SQLite, "&_pragma=synchronous(FULL)", "")
		}},
		{"sqlite,NORMAL", func(b *testing.B) (ratelimit.Store, func() float64) {
			return openSQL(b, &sqlite{file: filepath.Join(b.TempDir(), "limits.db")}, sqlstore.SQLite, "&_pragma=synchronous(NORMAL)", "")
		}},
		{"postgresql", func(b *testing.B) (ratelimit.Store, func() float64) {
			return openSQL(b, startPostgres(b), sqlstore.PostgreSQL, "", "SELECT 'fsyncs', wal_sync FROM pg_stat_wal")
		}},
		{"mariadb", func(b *testing.B) (ratelimit.Store, func() float64) {
			return openSQL(b, startMariaDB(b), sqlstore.MySQL, "&interpolateParams=true", "SHOW GLOBAL STATUS LIKE 'Innodb_data_fsyncs'")
		}},
	} {
		b.Run("store="+store.name, func(b *testing.B) {
			s, fsyncs := store.open(b)
			for _, callers := range []int{1, 32} {
				b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { benchmarkDecisions(b, s, callers, fsyncs) })
			}
		})
	}
	b.Run("fsync", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "f"))
		require.NoError(b, err)
		defer f.Close()
		page := make([]byte, 4096)
		for b.Loop() {
			_, err := f.WriteAt(page, 0)
			require.NoError(b, err)
			require.NoError(b, syscall.Fdatasync(int(f.Fd())))
		}
	})
}

// benchmarkDecisions takes events of a thousand keys in random order.
func benchmarkDecisions(b *testing.B, s ratelimit.Store, callers int, fsyncs func() float64) {
	opts := []ratelimit.Option{ratelimit.WithStore(s), ratelimit.WithName("plan"), ratelimit.WithFailurePolicy(ratelimit.FailClosed())}
	if _, ok := s.(*sqlstore.Store); ok {
		opts = append(opts, ratelimit.WithStoreTimeout(time.Minute))
	}
	l := ratelimit.Must(ratelimit.New(ratelimit.CalendarWindow{Limit: 1 << 30, Every: ratelimit.Month}, opts...))
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("customer ", i)
		_, err := l.Take(b.Context(), keys[i], 1)
		require.NoError(b, err)
	}
	before := 0.0
	if fsyncs != nil {
		before = fsyncs()
	}
	b.ResetTimer()
	left := make(chan struct{}, b.N)
	for range b.N {
		left <- struct{}{}
	}
	close(left)
	done := make(chan error, callers)
	for range callers {
		go func() {
			for range left {
				if d, err := l.Take(context.Background(), keys[rand.IntN(len(keys))], 1); err != nil || !d.Allowed {
					done <- fmt.Errorf("%+v: %w", d, err)
					return
				}
			}
			done <- nil
		}()
	}
	for range callers {
		require.NoError(b, <-done)
	}
	b.StopTimer()
	if fsyncs != nil {
		b.ReportMetric((fsyncs()-before)/float64(b.N), "fsyncs/op")
	}
}

// openSQL returns a store, and a function that returns how many fsyncs the server has made.
func openSQL(b *testing.B, s server, d sqlstore.Dialect, more, fsyncs string) (ratelimit.Store, func() float64) {
	driver, dsn := s.source()
	db := pooled(connect(b, driver, dsn+more))
	store := newStore(b, db, d)
	if fsyncs == "" {
		return store, nil
	}
	return store, func() (n float64) {
		db.SetMaxIdleConns(0) // PostgreSQL counts what a session has done when that ends
		defer pooled(db)
		var name string
		conn, err := sql.Open(driver, dsn)
		require.NoError(b, err)
		defer conn.Close()
		conn.SetMaxOpenConns(1)
		if d == sqlstore.PostgreSQL {
			require.Eventually(b, func() bool {
				var others int
				require.NoError(b, conn.QueryRow(`SELECT count(*) FROM pg_stat_activity
					WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&others))
				return others <= 1 // that of ping
			}, time.Minute, time.Millisecond)
		}
		require.NoError(b, conn.QueryRow(fsyncs).Scan(&name, &n))
		return n
	}
}

// openRedis starts a Redis, which writes nothing to its disk.
func openRedis(b *testing.B) (ratelimit.Store, func() float64) {
	port := freePort(b)
	p := &process{path: find(b, "redis-server", "valkey-server"), args: []string{"--port", fmt.Sprint(port), "--save", ""}, port: port, with: syscall.SIGKILL}
	client := redis.NewClient(&redis.Options{Addr: fmt.Sprint("localhost:", port)})
	b.Cleanup(func() { client.Close() })
	p.ping = func() error { return client.Ping(b.Context()).Err() }
	p.start(b)
	b.Cleanup(func() { p.kill(b) })
	store, err := goredis.New(client)
	require.NoError(b, err)
	return store, nil
}
