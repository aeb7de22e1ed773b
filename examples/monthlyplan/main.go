// Monthlyplan is a web server whose customers have a plan of 10,000 requests a month, which a deploy
// does not forget: what they have used is in a file of SQLite, and there is no other server.
//
//	go run ./examples/monthlyplan -addr localhost:8080 -db plan.db
//
// Send requests, stop the server, start it again, and send another one. RateLimit goes on where it
// was:
//
//	for i in 1 2 3; do curl -si -H 'X-Customer: acme' localhost:8080/report | grep -iE '^(HTTP|RateLimit:)'; done
//
// An old and a new process may run at once, during a deploy: together they grant what the plan has.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/sqlstore"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	file := flag.String("db", "plan.db", "the database's `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, *file); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends, and requests that are running then have been answered.
func run(ctx context.Context, addr, file string) error {
	db, store, err := open(ctx, file)
	if err != nil {
		return err
	}
	defer db.Close()
	server := &http.Server{Addr: addr, Handler: handler(store), ReadTimeout: 5 * time.Second}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.Background()) })
	log.Printf("plans are in %s; try: curl -si -H 'X-Customer: acme' %s/report", file, addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return errors.Join(<-stopped, store.Close(context.Background()))
}

// open opens the file, or creates it.
func open(ctx context.Context, file string) (*sql.DB, *sqlstore.Store, error) {
	// Each connection waits for a lock for up to 5 s, and readers do not wait for the writer.
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8) // to open one takes longer than a decision
	store, err := sqlstore.New(ctx, db, sqlstore.SQLite)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return db, store, nil
}

// handler returns a handler that serves customers within their plans.
func handler(store ratelimit.Store) http.Handler {
	plan := ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Zone: "Europe/London"}
	limiter := ratelimit.Must(ratelimit.New(plan,
		ratelimit.WithStore(store), ratelimit.WithName("plan"),
		// If the file cannot be written, such as on a full disk, nothing is given away.
		ratelimit.WithFailurePolicy(ratelimit.FailClosed())))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /report", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "a report") })
	// A real service would check here that the customer is who it says.
	return httplimit.Middleware(limiter, httplimit.WithKey(key.Header("X-Customer")))(mux)
}
