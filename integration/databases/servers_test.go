package databases_test

import (
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// A server is a database that a test may stop and start again.
type server interface {
	source() (driver, dsn string)
	open(t testing.TB) *sql.DB
	start(t testing.TB)
	kill(t testing.TB)
}

// servers start each kind of database. If its programs are not installed, a test is
// skipped, or fails if RATELIMIT_SERVERS is set, as in CI.
var servers = map[string]func(t testing.TB) server{
	"sqlite":     func(t testing.TB) server { return &sqlite{file: filepath.Join(t.TempDir(), "test.db")} },
	"postgresql": newPostgres,
	"mariadb":    newMariaDB,
}

func find(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
		if found, _ := filepath.Glob(name); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	if os.Getenv("RATELIMIT_SERVERS") != "" {
		t.Fatalf("none of %v is installed: scripts/servers installs it", names)
	}
	t.Skipf("SKIPPED: none of %v is installed; scripts/servers installs it", names)
	return ""
}

type sqlite struct{ file string }

func (s *sqlite) source() (driver, dsn string) {
	return "sqlite", "file:" + s.file + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)"
}
func (s *sqlite) open(t testing.TB) *sql.DB { return open(t, s) }
func (*sqlite) start(testing.TB)            {}
func (*sqlite) kill(testing.TB)             {}

func connect(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// open opens the database of a server.
func open(t testing.TB, s server) *sql.DB {
	t.Helper()
	driver, dsn := s.source()
	return connect(t, driver, dsn)
}

// A process is a database server on a free port, with its data in a directory of the
// test.
type process struct {
	path string
	args []string
	as   *syscall.SysProcAttr
	port int
	with os.Signal // the signal that ends it at once
	cmd  *exec.Cmd
	ping func() error
}

func (p *process) start(t testing.TB) {
	t.Helper()
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.SysProcAttr = p.as
	p.cmd.Stdout, p.cmd.Stderr = os.Stderr, os.Stderr
	if !testing.Verbose() {
		p.cmd.Stdout, p.cmd.Stderr = nil, nil
	}
	require.NoError(t, p.cmd.Start())
	require.Eventually(t, func() bool { return p.ping() == nil }, 30*time.Second, 50*time.Millisecond, "the server does not answer")
}

func (p *process) kill(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(p.with))
	_ = p.cmd.Wait() // returns an error, because it was killed
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// unprivileged returns the attributes to run a program as another user than root, which
// some servers refuse, and gives that user the directory.
func unprivileged(t testing.TB, dir string, names ...string) *syscall.SysProcAttr {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range append(names, "nobody") {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		require.NoError(t, err)
		gid, err := strconv.Atoi(u.Gid)
		require.NoError(t, err)
		for d := dir; d != filepath.Dir(os.TempDir()) && d != os.TempDir(); d = filepath.Dir(d) {
			require.NoError(t, os.Chmod(d, 0o755))
		}
		require.NoError(t, os.Chown(dir, uid, gid))
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	t.Fatal("there is no unprivileged user to run the server as")
	return nil
}

func run(t testing.TB, as *syscall.SysProcAttr, dir, path string, args ...string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr, cmd.Dir = as, dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

type postgres struct{ process }

func newPostgres(t testing.TB) server { return startPostgres(t, "-F") } // without fsync

func startPostgres(t testing.TB, args ...string) *postgres {
	initdb := find(t, "initdb", "/usr/lib/postgresql/*/bin/initdb")
	dir := t.TempDir()
	as := unprivileged(t, dir, "postgres")
	data := filepath.Join(dir, "data")
	run(t, as, dir, initdb, "-D", data, "-A", "trust", "-U", "test", "--no-sync")
	// SIGKILL would leave its children running for a while.
	p := &postgres{process{path: filepath.Join(filepath.Dir(initdb), "postgres"), as: as, port: freePort(t), with: syscall.SIGQUIT}}
	p.args = []string{"-D", data, "-p", strconv.Itoa(p.port), "-c", "listen_addresses=127.0.0.1", "-k", dir}
	p.args = append(p.args, args...)
	p.ping = p.open(t).Ping
	p.start(t)
	t.Cleanup(func() { p.kill(t) })
	return p
}

func (p *postgres) source() (driver, dsn string) {
	return "pgx", fmt.Sprintf("host=127.0.0.1 port=%d user=test dbname=postgres sslmode=disable", p.port)
}
func (p *postgres) open(t testing.TB) *sql.DB { return open(t, p) }

type mariaDB struct{ process }

func newMariaDB(t testing.TB) server {
	return startMariaDB(t, "--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync", "--skip-innodb-doublewrite")
}

func startMariaDB(t testing.TB, args ...string) *mariaDB {
	daemon := find(t, "mariadbd", "/usr/sbin/mariadbd")
	install := find(t, "mariadb-install-db")
	dir := t.TempDir()
	as := unprivileged(t, dir, "mysql")
	data := filepath.Join(dir, "data")
	run(t, as, dir, install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	p := &mariaDB{process{path: daemon, as: as, port: freePort(t), with: syscall.SIGKILL}}
	p.args = []string{
		"--no-defaults", "--datadir=" + data, "--bind-address=127.0.0.1", "--port=" + strconv.Itoa(p.port),
		"--socket=" + filepath.Join(dir, "s"), "--pid-file=" + filepath.Join(dir, "pid"), "--innodb-buffer-pool-size=8M",
	}
	p.args = append(p.args, args...)
	p.ping = p.open(t).Ping
	p.start(t)
	t.Cleanup(func() { p.kill(t) })
	return p
}

func (p *mariaDB) source() (driver, dsn string) {
	return "mysql", fmt.Sprintf("root@tcp(127.0.0.1:%d)/mysql?multiStatements=true", p.port)
}
func (p *mariaDB) open(t testing.TB) *sql.DB { return open(t, p) }
