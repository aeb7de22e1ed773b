// Rules is a web server whose limits are in a table of an SQLite database, and can be
// changed while it runs.
//
//	go run ./examples/rules -addr localhost:8080 -db throttle.db
//
// Send more requests than the table allows:
//
//	for i in 1 2 3 4 5; do curl -si localhost:8080/user/42/photos/7 | grep -iE '^(HTTP|RateLimit|Retry)'; done
//
// Then edit the table, through the server or directly, and send them again:
//
//	curl -X PUT localhost:8080/rules/photos -d call=/user/%23/photos/%23 -d limit=20 -d seconds=10
//	sqlite3 throttle.db "UPDATE THROTTLED_CALLS SET MAX_CALLS = 50 WHERE THROTTLE_ID = 'photos'"
package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/ratelimit-go/ratelimit/rules"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	file := flag.String("db", "throttle.db", "the database's `file`")
	flag.Parse()
	if err := run(context.Background(), *addr, *file); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr, file string) error {
	db, err := open(ctx, file)
	if err != nil {
		return err
	}
	defer db.Close()
	set, err := rules.New(ctx, rules.SQL(db), rules.WithInterval(2*time.Second))
	if err != nil {
		return err
	}
	defer set.Close()
	log.Printf("rules: %d from %s, at %s", set.Status().Rules, file, addr)
	server := &http.Server{Addr: addr, Handler: handler(db, set), ReadTimeout: 5 * time.Second}
	return server.ListenAndServe()
}

// open opens the database, and creates the table with one rule if it is new.
func open(ctx context.Context, file string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	var tables int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE name = 'THROTTLED_CALLS'").Scan(&tables); err != nil || tables > 0 {
		return db, err
	}
	_, err = db.ExecContext(ctx, rules.Schema+`INSERT INTO THROTTLED_CALLS
		(THROTTLE_ID, NORMALIZED_CALL, MAX_CALLS, WINDOW_SECONDS)
		VALUES ('photos', '/user/#/photos/#', 3, 10)`)
	return db, err
}

func handler(db *sql.DB, set *rules.Set) http.Handler {
	app := http.NewServeMux()
	app.HandleFunc("GET /user/{user}/photos/{photo}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "photo %s of user %s\n", r.PathValue("photo"), r.PathValue("user"))
	})
	// A real service would check here that the caller is authorized.
	app.HandleFunc("PUT /rules/{id}", func(w http.ResponseWriter, r *http.Request) {
		_, err := db.ExecContext(r.Context(), `INSERT INTO THROTTLED_CALLS
			(THROTTLE_ID, NORMALIZED_CALL, MAX_CALLS, WINDOW_SECONDS) VALUES (?, ?, ?, ?)
			ON CONFLICT (THROTTLE_ID) DO UPDATE SET NORMALIZED_CALL = excluded.NORMALIZED_CALL,
			MAX_CALLS = excluded.MAX_CALLS, WINDOW_SECONDS = excluded.WINDOW_SECONDS`,
			r.PathValue("id"), r.FormValue("call"), r.FormValue("limit"), r.FormValue("seconds"))
		if err == nil {
			err = set.Reload(r.Context())
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "rules in force: %d\n", set.Status().Rules)
	})
	return set.Middleware()(app)
}
