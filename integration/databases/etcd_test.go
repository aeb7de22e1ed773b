package databases_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// An etcd is a database in the keys of etcd that begin with a prefix.
type etcd struct {
	*clientv3.Client
	prefix string
	now    func() time.Time
	leases sync.Map // by the hour in which they end
}

func (db *etcd) Get(ctx context.Context, key string) ([]byte, error) {
	found, err := db.Client.Get(ctx, db.prefix+key)
	if err != nil || len(found.Kvs) == 0 {
		return nil, err
	}
	return found.Kvs[0].Value, nil
}

func (db *etcd) CompareAndSwap(ctx context.Context, key string, old, state []byte, expires time.Time) (bool, error) {
	key = db.prefix + key
	is := clientv3.Compare(clientv3.CreateRevision(key), "=", 0) // there is none
	if old != nil {
		is = clientv3.Compare(clientv3.Value(key), "=", string(old))
	}
	lease, err := db.lease(ctx, expires)
	if err != nil {
		return false, err
	}
	done, err := db.Txn(ctx).If(is).Then(clientv3.OpPut(key, string(state), clientv3.WithLease(lease))).Commit()
	return err == nil && done.Succeeded, err
}

func (db *etcd) Delete(ctx context.Context, key string) error {
	_, err := db.Client.Delete(ctx, db.prefix+key)
	return err
}

// lease returns the lease of all keys that expire in the same hour. It ends a minute or more after they expire.
func (db *etcd) lease(ctx context.Context, expires time.Time) (clientv3.LeaseID, error) {
	if expires.IsZero() {
		return clientv3.NoLease, nil
	}
	end := expires.Truncate(time.Hour).Add(time.Hour + time.Minute)
	if lease, ok := db.leases.Load(end); ok {
		return lease.(clientv3.LeaseID), nil
	}
	granted, err := db.Grant(ctx, int64(end.Sub(db.now())/time.Second)+1)
	if err != nil {
		return 0, err
	}
	db.leases.Store(end, granted.ID)
	return granted.ID, nil
}

// TestEtcd runs storetest on what docs/databases.md shows.
func TestEtcd(t *testing.T) {
	t.Parallel()
	dir, port, peer := t.TempDir(), freePort(t), freePort(t)
	url := fmt.Sprint("http://127.0.0.1:", port)
	p := &process{
		path: find(t, "etcd"), with: syscall.SIGKILL, port: port,
		args: []string{"--data-dir", filepath.Join(dir, "data"), "--listen-client-urls", url, "--advertise-client-urls", url, "--unsafe-no-fsync",
			"--listen-peer-urls", fmt.Sprint("http://127.0.0.1:", peer), "--initial-advertise-peer-urls", fmt.Sprint("http://127.0.0.1:", peer),
			"--initial-cluster", fmt.Sprint("default=http://127.0.0.1:", peer)},
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	p.ping = func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := client.Get(ctx, "k")
		return err
	}
	p.start(t)
	t.Cleanup(func() { p.kill(t) })
	var prefixes atomic.Int64
	storetest.Run(t, storetest.Config{
		Database: func(_ testing.TB, clk clock.Clock) ratelimit.Database {
			return &etcd{Client: client, prefix: fmt.Sprintf("%d/", prefixes.Add(1)), now: clk.Now}
		},
		Steps: 50,
		Keys:  1000,
	})
}
