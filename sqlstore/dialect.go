package sqlstore

import (
	"strconv"
	"strings"
)

// A Dialect is a kind of database.
type Dialect int

const (
	PostgreSQL Dialect = iota + 1
	MySQL              // and MariaDB
	SQLite
)

// String returns the name of the constant.
func (d Dialect) String() string {
	if its := dialects[d]; its != nil {
		return its.name
	}
	return "Dialect(" + strconv.Itoa(int(d)) + ")"
}

// A dialect is what is particular to a kind of database.
type dialect struct {
	name   string
	create string
	want   []string // what columns returns for a table that create has made, in any order

	// A query for the columns of the table with their types, one a row. A table that forgets states
	// at a crash has a row more. Without a table there is no row. $1 is the schema of the table, or
	// "" for the usual one, and $2 its name.
	columns string
	// A query for the time of the server, in seconds since 1970; "" if there is no server.
	now string
	// A statement that changes no row if there is one with this id.
	insert string

	// Whether the database has one writer at a time, and whoever waits asks again and again. Then
	// the writers of a process stand in line.
	oneWriter bool

	numbers bool                 // whether parameters are numbered, as $1
	id      func(key string) any // the parameter for an id
}

// Columns and parameters for ids are such that each database compares ids byte by byte. (VARCHAR of
// MySQL ignores case and spaces at the end, and no BLOB of SQLite equals a text.)
func asText(key string) any  { return key }
func asBytes(key string) any { return []byte(key) }

// The text {table} in statements stands for the name of the table.
var dialects = map[Dialect]*dialect{
	PostgreSQL: {
		name: "PostgreSQL",
		// A page of the table keeps room for new versions of its rows. A new version on the same
		// page needs no new entry in an index, because no column with an index changes.
		create: `CREATE TABLE IF NOT EXISTS {table} (
    id VARCHAR(200) COLLATE "C" PRIMARY KEY,
    state BYTEA NOT NULL,
    expires BIGINT
) WITH (fillfactor = 70)`,
		want: []string{
			"id character varying(200) COLLATE C NOT NULL PRIMARY KEY",
			"state bytea NOT NULL",
			"expires bigint",
		},
		columns: `SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod),
	'COLLATE ' || collname, CASE WHEN attnotnull THEN 'NOT NULL' END,
	CASE WHEN EXISTS (SELECT FROM pg_index WHERE indrelid = attrelid AND indisprimary
		AND indkey::text = attnum::text) THEN 'PRIMARY KEY' END)
FROM pg_attribute LEFT JOIN pg_collation c ON c.oid = attcollation
WHERE attrelid = to_regclass(concat_ws('.', nullif($1::text, ''), $2::text))
	AND attnum > 0 AND NOT attisdropped
UNION ALL SELECT CASE relpersistence WHEN 'u' THEN 'UNLOGGED' ELSE 'TEMPORARY' END
FROM pg_class
WHERE oid = to_regclass(concat_ws('.', nullif($1::text, ''), $2::text)) AND relpersistence <> 'p'`,
		now:     `SELECT extract(epoch FROM clock_timestamp())::float8`,
		insert:  `INSERT INTO {table} (id, state, expires) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`,
		numbers: true,
		id:      asText,
	},
	MySQL: {
		name: "MySQL",
		create: `CREATE TABLE IF NOT EXISTS {table} (
    id VARBINARY(200) PRIMARY KEY,
    state LONGBLOB NOT NULL,
    expires BIGINT
) ENGINE = InnoDB`,
		want: []string{
			"id varbinary(200) NOT NULL PRIMARY KEY",
			"state longblob NOT NULL",
			"expires bigint",
		},
		columns: `SELECT CONCAT_WS(' ', column_name,
	IF(data_type = 'bigint', data_type, column_type), IF(is_nullable = 'NO', 'NOT NULL', NULL),
	IF(column_key = 'PRI', 'PRIMARY KEY', NULL))
FROM information_schema.columns
WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?
UNION ALL SELECT CONCAT('ENGINE = ', COALESCE(engine, 'none'))
FROM information_schema.tables
WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?
	AND COALESCE(engine, '') <> 'InnoDB'`,
		now: `SELECT UNIX_TIMESTAMP()`,
		// IGNORE would also cut a value that is longer than its column, and none is. The number of
		// rows that ON DUPLICATE KEY UPDATE changes would depend on the driver's clientFoundRows.
		insert: `INSERT IGNORE INTO {table} (id, state, expires) VALUES (?, ?, ?)`,
		id:     asBytes,
	},
	SQLite: {
		name: "SQLite",
		create: `CREATE TABLE IF NOT EXISTS {table} (
    id BLOB NOT NULL PRIMARY KEY,
    state BLOB NOT NULL,
    expires INTEGER
) WITHOUT ROWID`,
		want: []string{
			"id BLOB NOT NULL PRIMARY KEY",
			"state BLOB NOT NULL",
			"expires INTEGER",
		},
		columns: `SELECT name || ' ' || upper(type) || iif("notnull", ' NOT NULL', '')
	|| iif(pk, ' PRIMARY KEY', '')
FROM pragma_table_info($2, nullif($1, ''))`,
		insert: `INSERT INTO {table} (id, state, expires) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`,
		id:     asBytes,

		oneWriter: true,
	},
}

// statements are those for one table.
type statements struct {
	create string
	get    string // id
	insert string // id, state, expires
	update string // state, expires, id, former state
	delete string // id
	page   string // id and n: the last of the next n ids after id, and how many there are
	clean  string // id, last id, time: deletes what has expired by then
}

// statementsFor returns the statements for a table.
func (d *dialect) statementsFor(table string) statements {
	in := func(statement string) string {
		statement = strings.ReplaceAll(statement, "{table}", table)
		for n := 1; d.numbers && strings.Contains(statement, "?"); n++ {
			statement = strings.Replace(statement, "?", "$"+strconv.Itoa(n), 1)
		}
		return statement
	}
	return statements{
		create: in(d.create),
		get:    in(`SELECT state FROM {table} WHERE id = ?`),
		insert: in(d.insert),
		update: in(`UPDATE {table} SET state = ?, expires = ? WHERE id = ? AND state = ?`),
		delete: in(`DELETE FROM {table} WHERE id = ?`),
		page: in(`SELECT max(id), count(*)
FROM (SELECT id FROM {table} WHERE id > ? ORDER BY id LIMIT ?) AS page`),
		clean: in(`DELETE FROM {table} WHERE id > ? AND id <= ? AND expires <= ?`),
	}
}
