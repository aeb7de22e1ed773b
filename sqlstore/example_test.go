package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/sqlstore"
)

// A plan of 10,000 a month, which a deploy does not forget.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("pgx", "postgres://localhost/app")
	if err != nil {
		log.Fatal(err)
	}
	store, err := sqlstore.New(ctx, db, sqlstore.PostgreSQL)
	if err != nil {
		log.Fatal(err)
	}
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Zone: "UTC"},
		ratelimit.WithStore(store), ratelimit.WithName("plan"),
		ratelimit.WithFailurePolicy(ratelimit.FailClosed())))
	d, err := limiter.Take(ctx, "customer 42", 1)
	fmt.Println(d.Allowed, d.Remaining, err)
}
