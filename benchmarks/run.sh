#!/bin/sh
# Compares this library with others. For limiters in Redis: go run ./benchmarks/redis
#
#     benchmarks/run.sh [rounds [pattern]]
#
# In each of ten rounds, all limiters take turns in each benchmark, so that a disturbance meets them all.
# Then it prints benchstat's table, and the tables of BENCHMARKS.md. What the rounds printed stays in
# benchmarks/results.txt.
set -eu
cd "$(dirname "$0")"
export GOWORK=off
stat="go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da -row .fullname,/peer"
go test -c -o results.test .
: >results.txt
for round in $(seq "${1:-10}"); do
	echo "round $round" >&2
	./results.test -test.run '^$' -test.bench "${2:-.}" -test.benchtime 100ms -test.count 1 >>results.txt
done
rm results.test
$stat median=results.txt
$stat -format csv median=results.txt 2>/dev/null | awk -f table.awk
