package rules_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"

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

// Customers have plans. How many calls a minute a plan has is in a database.
func ExampleSQLLimits() {
	db := sql.OpenDB(customers{"ann": int64(600), "bob": nil})
	defer db.Close()

	lookup, err := rules.Cached(rules.SQLLimits(db,
		"SELECT 60, per_minute FROM customers JOIN plans ON plan = plans.name WHERE customers.id = $1", nil))
	if err != nil {
		log.Fatal(err)
	}
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)},
		ratelimit.WithLimits(lookup.Limit)))

	for _, customer := range []string{"ann", "bob", "cho"} {
		fmt.Println(customer, limiter.AllowN(customer, 60), limiter.AllowN(customer, 540))
	}
	// Output:
	// ann true true
	// bob false false
	// cho true false
}

// Customers have plans. A database knows the plan of each customer, and the program what a plan grants.
func ExampleCached() {
	db := sql.OpenDB(customers{"ann": "pro", "bob": "enterprise", "cho": "suspended"})
	defer db.Close()

	plans := map[string]ratelimit.Algorithm{
		"free":       ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)},
		"pro":        ratelimit.TokenBucket{Rate: ratelimit.PerMinute(600)},
		"enterprise": ratelimit.Unlimited{},
		"suspended":  ratelimit.Blocked{},
	}
	lookup, err := rules.Cached(rules.LookupFunc(func(ctx context.Context, customer string) (ratelimit.Algorithm, error) {
		plan := "free"
		err := db.QueryRowContext(ctx, "SELECT plan FROM customers WHERE id = $1", customer).Scan(&plan)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
		return plans[plan], nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	limiter := ratelimit.Must(ratelimit.New(plans["free"], ratelimit.WithLimits(lookup.Limit)))

	for _, customer := range []string{"ann", "bob", "cho", "dan"} {
		fmt.Println(customer, limiter.AllowN(customer, 60), limiter.AllowN(customer, 540), limiter.AllowN(customer, 10_000))
	}
	// Output:
	// ann true true false
	// bob true true true
	// cho false false false
	// dan true false false
}

// customers is a database that answers each query with what it has for a customer: a plan or, to a
// query that begins with a window, a number of calls.
type customers map[string]driver.Value

func (c customers) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (c customers) Driver() driver.Driver                        { return nil }
func (c customers) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (c customers) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (c customers) Close() error                                 { return nil }

func (c customers) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	value, ok := c[args[0].Value.(string)]
	a := &answer{row: []driver.Value{value}, over: !ok}
	if strings.HasPrefix(query, "SELECT 60,") {
		a.row = []driver.Value{int64(60), value}
	}
	return a, nil
}

// An answer has a row until it is over.
type answer struct {
	row  []driver.Value
	over bool
}

func (a *answer) Columns() []string { return make([]string, len(a.row)) }
func (a *answer) Close() error      { return nil }

func (a *answer) Next(row []driver.Value) error {
	if a.over {
		return io.EOF
	}
	copy(row, a.row)
	a.over = true
	return nil
}
