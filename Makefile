# You need Go, git, make and a shell; all other tools are fetched as Go modules. The main
# command is `make test`. CONTRIBUTING.md says what each takes.

# Modules that are not released: programs, and tests that need more than Go.
UNRELEASED := benchmarks/ examples/ integration/
RELEASED   := $(filter-out $(UNRELEASED),$(dir $(wildcard go.mod */go.mod */*/go.mod)))
ALL        := $(RELEASED) $(UNRELEASED)
WAZERO     := github.com/tetratelabs/wazero/cmd/wazero@v1.12.0
LINT       := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
LONGEST    := ./storetest ./internal/laws/decide # which begin first, so that no core waits for them at the end
QUICKLY    := -vet=off -ldflags=-w # vet is a part of lint, and nobody debugs the programs of tests
packages    = $(foreach m,$(1),./$(patsubst ./%,%,$(m))...)

.PHONY: test servers integration race lint tidy alone arch fuzz cross bench mutants nightly \
	night-tests night-race night-bench night-cross night-fuzz night-release night-mutants

# The tests of the released modules, which need nothing but Go. What they depend on is fetched first,
# so that what a network costs is told apart.
test:
	@begin=$$(date +%s); go list -deps -test $(call packages,$(RELEASED)) >/dev/null; \
		echo "fetched what the tests depend on: $$(($$(date +%s) - begin)) s"
	go test $(QUICKLY) $(LONGEST) $(call packages,$(RELEASED))

# Installs the servers and the browser that integration tests start. What cannot be installed is
# reported and skipped.
servers:
	@scripts/servers

# The tests that start servers and a browser, and those of the example programs.
integration: servers
	go test $(QUICKLY) ./integration/redis ./integration/... ./examples/... # the longest begins first

# The race detector where goroutines meet.
MEET := Wait|Concurren|FullStoreIs|Late|WhileOthers|CoarseClock|Pending|Queue
race:
	go test -race $(QUICKLY) -short -run '$(MEET)' . $(addprefix ./internal/laws/,decide memory)
	go test -race $(QUICKLY) -short $(addprefix ./internal/laws/,fault seen wait) ./internal/memory ./observe ./redisstore ./httplimit ./httplimit/client ./iolimit ./rules ./limitpage ./integration/linear

# All linters, go vet and the format, of all modules, and whether make mutants knows all packages.
# Compiles golangci-lint from its module, which takes a minute or two the first time.
lint:
	go run scripts/mutants.go -n 0
	go run $(LINT) run --allow-parallel-runners $$(go list -m -f '{{.Dir}}/...')

tidy:
	@set -e; for m in $(ALL); do echo "== tidy $$m"; (cd $$m && GOWORK=off go mod tidy -diff); done

# Each released module by itself, as its users get it.
alone:
	@set -e; for m in $(RELEASED); do echo "== alone $$m"; (cd $$m && GOWORK=off go build ./... && GOWORK=off go vet ./...); done

# The arithmetic with another word size, if this machine can run it, the root package for browsers,
# and calendars where programs have no zone data: wazero shows a program no files. Another byte order
# is for the night, because no file depends on it when it is compiled.
arch:
	GOOS=js GOARCH=wasm go vet .
	GOOS=wasip1 GOARCH=wasm go test $(QUICKLY) -exec 'env GOOS= GOARCH= go run $(WAZERO) run' ./internal/laws/zoneless
	@if ! scripts/runs 386; then echo "== test 386: SKIPPED, this machine cannot run it"; exit 0; fi; \
		set -ex; GOARCH=386 go test $(QUICKLY) ./internal/kernel ./internal/step ./internal/timeline ./internal/uint128 ./internal/model; \
		GOARCH=386 go test $(QUICKLY) -run 'Model|Extremes|Rate|States|SettleExactly' . $(addprefix ./internal/laws/,decide fault memory)

# Runs fuzz targets FUZZ times, or a tenth of that if they ask a server each time. Of these, the
# inputs found before come first. A count, because go test may fail when a time is over:
# go.dev/issue/75804.
FUZZ ?= 20000
TARGETS ?= Fuzz[A-Za-z0-9_]*
fuzz:
	@set -e; for d in $$(grep -rlE --include='*_test.go' '^func ($(TARGETS))\(' . | xargs -n1 dirname | sort -u); do \
		n=$(FUZZ); case $$d in */redis) n=$$((n / 10));; esac; \
		for f in $$(grep -hoE '^func ($(TARGETS))\(' $$d/*_test.go | tr -d '(' | cut -c6-); do \
			echo "== fuzz $$d $$f"; (cd $$d && go test -run '^$$' -fuzz "^$$f\$$" -fuzztime "$${n}x" -fuzzminimizetime 10x .); \
		done; done

# Vets everything for another word size, and the root module for other byte orders, and runs the
# engine's tests there if possible.
ENGINE := FuzzMemory|Identit|Split|Growth|Freeze|Concurrency|Width
cross:
	@echo "== vet 386"; GOARCH=386 go vet work
	@set -e; for arch in arm64 s390x; do echo "== vet $$arch"; GOARCH=$$arch go vet ./...; done
	@set -e; if scripts/runs 386; then echo "== test 386"; GOARCH=386 go test -timeout 60m . ./internal/...; \
		else echo "== test 386: SKIPPED, this machine cannot run it"; fi
	@set -e; for of in arm64:aarch64 s390x:s390x; do arch=$${of%:*}; qemu=qemu-$${of#*:}; \
		if scripts/runs $$arch $$qemu; then echo "== test $$arch"; GOARCH=$$arch go test -timeout 60m -exec $$qemu -run '$(ENGINE)' . $(addprefix ./internal/laws/,decide memory wait) ./internal/memory; \
		else echo "== test $$arch: SKIPPED, $$qemu is not installed or does not work"; fi; done

# Compares the algorithms, in less than a minute. benchmarks/run.sh compares other libraries.
bench:
	go test -run '^$$' -bench . -benchtime 100ms .

# Changes the code in MUTANTS random places, one at a time, and lists the changes that no test
# notices. It takes about a minute for each. With SEED and RESULTS, a file, it goes on where the
# last run with that file stopped.
MUTANTS ?= 200
mutants: servers
	go run scripts/mutants.go -n $(MUTANTS) $(if $(SEED),-seed $(SEED)) $(if $(RESULTS),-results $(RESULTS))

# The number of the night, with which random tests begin: the date, so that each night tries others. make nightly
# NIGHT=20260301 repeats that night.
NIGHT := $(or $(NIGHT),$(shell date -u +%Y%m%d))

# Hours of it: all histories, fuzz targets, clients and distances, everything under the race
# detector and on other machines, the release, and mutants. Each step can be run on its own.
nightly: night-tests night-race night-bench night-cross night-fuzz night-release night-mutants

night-tests night-race night-bench night-cross night-fuzz: export RATELIMIT_NIGHTLY = $(NIGHT)

night-tests: servers
	@echo "== night $(NIGHT): tests"
	go run ./examples/simulate -seed $(NIGHT)000 -seeds 1000
	go test -timeout 60m ./benchmarks/... ./integration/... ./examples/... $(call packages,$(RELEASED))

night-race: servers
	@echo "== night $(NIGHT): race"
	go test -timeout 60m -race ./integration/linear ./integration/redis $(call packages,$(RELEASED))

night-bench: servers
	go test -run '^$$' -bench . -benchtime 1x . ./internal/laws/... ./benchmarks/...

night-cross:
	@echo "== night $(NIGHT): cross"
	$(MAKE) cross

night-fuzz: servers
	@echo "== night $(NIGHT): fuzz"
	$(MAKE) fuzz

night-release:
	scripts/release.sh v1.999.0 --dry-run

night-mutants: servers
	go run scripts/mutants.go -n $(MUTANTS) -seed $(NIGHT)
