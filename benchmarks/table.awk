# Turns benchstat's CSV, with rows of a benchmark and a peer, into Markdown: for each unit a table of
# benchmarks and peers, in ns if the unit has seconds. Limiters in Redis have tables of their own.
BEGIN { FS = "," }
$1 == "" && $2 ~ /^(.*\/(op|key)|.*-ms)$/ { flush(); unit = $2; next }
unit != "" && unit != "B/op" && split($1, word, " ") == 2 {
	name = word[1]; peer = word[2]
	sub(/-[0-9]+$/, "", name)
	table = name ~ /^Redis/ ? "redis" : "memory"
	if (!(table SUBSEP name in known)) { known[table, name]; names[table] = names[table] " " name }
	if (!(table SUBSEP peer in known)) { known[table, peer]; peers[table] = peers[table] " " peer }
	value[name, peer] = $2 * (unit ~ /^sec/ ? 1e9 : 1)
}
END { flush() }

function flush(   table) {
	for (table in names) print_table(table)
	split("", known); split("", names); split("", peers); split("", value)
}

function print_table(table,   rows, columns, n, m, i, j, head, rule, line) {
	n = split(names[table], rows, " "); m = split(peers[table], columns, " ")
	head = unit; sub(/^sec/, "ns", head)
	head = "| " head " |"; rule = "|---|"
	for (j = 1; j <= m; j++) { head = head " " columns[j] " |"; rule = rule "--:|" }
	print "\n" head "\n" rule
	for (i = 1; i <= n; i++) {
		line = "| `" rows[i] "` |"
		for (j = 1; j <= m; j++) line = line " " digits(value[rows[i], columns[j]]) " |"
		print line
	}
}

# digits rounds to three digits, as far as they are behind the point.
function digits(v) {
	if (v == "") return "–"
	if (v >= 100) return sprintf("%d", v + 0.5)
	return sprintf(v >= 10 ? "%.1f" : "%.2f", v)
}
