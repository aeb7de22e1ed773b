package rules_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/rules"
)

// A server whose limits are in a table of a database.
func ExampleSQL() {
	var (
		ctx = context.Background()
		db  *sql.DB // from sql.Open
		mux = http.NewServeMux()
	)
	set, err := rules.New(ctx, rules.SQL(db))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(":8080", set.Middleware()(mux)))
}

// A limiter whose keys have limits of their own in a table of a database.
func ExampleSQLLimits() {
	var db *sql.DB // from sql.Open
	lookup, err := rules.Cached(rules.SQLLimits(db, "SELECT time_window_sec, capacity FROM limits WHERE config_key = $1", nil))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}, ratelimit.WithLimits(lookup.Limit))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(limiter.Allow("customer"))
}
