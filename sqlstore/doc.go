// Package sqlstore keeps the states of limiters in a table of PostgreSQL, MySQL, MariaDB or SQLite,
// through database/sql. So a quota of a month survives a deploy, and several processes share it.
//
//	db, err := sql.Open("pgx", "postgres://localhost/app")
//	if err != nil {
//		log.Fatal(err)
//	}
//	store, err := sqlstore.New(ctx, db, sqlstore.PostgreSQL)
//	if err != nil {
//		log.Fatal(err)
//	}
//	limiter := ratelimit.Must(ratelimit.New(
//		ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Zone: "UTC"},
//		ratelimit.WithStore(store), ratelimit.WithName("plan"),
//		ratelimit.WithFailurePolicy(ratelimit.FailClosed())))
//
// When the database fails or does not answer in time, the limiter's [ratelimit.FailurePolicy]
// decides. The default is FailOpen: while the database is away, everything is allowed.
//
// The package imports no driver: open the database with the one that your service uses. The page
// [docs/databases.md] has the settings of each database, and what a decision costs.
//
// # The table
//
// There is one table, ratelimit_states or that of [WithTable]. [New] creates it if it is missing:
//
//	id       the limiter's name and the key, as [ratelimit.Database] describes them
//	state    the state of the key; its first bytes have the version of its format
//	expires  when the row means nothing any more, in seconds since 1970; null for never
//
// The table never changes, so there is nothing to migrate. Rows may be deleted at any time: then
// their keys start afresh. The first call checks that the table has exactly these columns, of the
// right types, and id as its primary key.
//
// # Expired rows
//
// Each thousandth write of a process deletes the rows that have expired among the next two
// thousand, in the order of their ids. So the table needs no job and no goroutine, and no index but
// that of its primary key. [Store.Clean] deletes all expired rows. Both wait for a minute after a
// row has expired, for processes whose clocks differ.
//
// # Time
//
// Time is that of the clocks of the processes. The first call compares the clock of its process
// with that of the server. If they differ by more than five seconds, it fails.
//
// [docs/databases.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/databases.md
package sqlstore
