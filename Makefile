# You need Go, git, make and a shell; all other tools are fetched as Go modules. The main
# command is `make test`.

MODULES := $(dir $(wildcard go.mod */go.mod */*/go.mod))
LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: test servers race vet lint fuzz cross bench mutants

# The tests of every module, each without go.work, as its users get it.
test: servers
	@set -e; for m in $(MODULES); do echo "== test $$m"; (cd $$m && GOWORK=off go test ./...); done

# Installs the servers and the browser that tests start. What cannot be installed is reported and
# skipped.
servers:
	@scripts/servers

# The same with the race detector, except the benchmarks, whose tests cover only their
# harness, and what only calls the packages that are tested here: examples, and adapters without
# goroutines or locks.
UNRACED := benchmarks/ examples/ httplimit/routers/
race:
	@set -e; for m in $(filter-out $(UNRACED),$(MODULES)); do echo "== race $$m"; (cd $$m && GOWORK=off go test -race -short ./...); done

vet:
	@set -e; for m in $(MODULES); do echo "== vet $$m"; (cd $$m && GOWORK=off go vet ./... && test -z "$$(gofmt -l .)"); done

# Compiles golangci-lint from its module, which takes a minute or two the first time.
lint:
	@set -e; for m in $(MODULES); do echo "== lint $$m"; (cd $$m && GOWORK=off go run $(LINT) run ./...); done

# Runs each fuzz target FUZZ times, or a tenth of that if it asks a server each time. Of these, the
# inputs found before come first. A count, because go test may fail when a time is over:
# go.dev/issue/75804.
FUZZ ?= 20000
fuzz:
	@set -e; for d in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
		n=$(FUZZ); case $$d in */redis) n=$$((n / 10));; esac; \
		for f in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$d/*_test.go | cut -c6-); do \
			(cd $$d && GOWORK=off go test -run '^$$' -fuzz "^$$f\$$" -fuzztime "$${n}x" -fuzzminimizetime 10x .); \
		done; done

# Vets everything for another word size, and the root module for other byte orders, and runs the
# engine's tests there if possible.
ENGINE := FuzzMemory|Identit|Split|Growth|Freeze|Concurrency|Width
cross:
	@echo "== vet 386"; GOARCH=386 go vet work
	@set -e; for arch in arm64 s390x; do echo "== vet $$arch"; GOARCH=$$arch GOWORK=off go vet ./...; done
	@set -e; if [ "$$(go env GOHOSTARCH)" = amd64 ]; then echo "== test 386"; GOARCH=386 GOWORK=off go test . ./internal/...; \
		else echo "== test 386: SKIPPED, this machine cannot run it"; fi
	@set -e; for of in arm64:aarch64 s390x:s390x; do arch=$${of%:*}; qemu=qemu-$${of#*:}; \
		if command -v $$qemu >/dev/null; then echo "== test $$arch"; GOARCH=$$arch GOWORK=off go test -exec $$qemu -run '$(ENGINE)' . ./internal/memory; \
		else echo "== test $$arch: SKIPPED, $$qemu is not installed"; fi; done

bench:
	go test -run '^$$' -bench . -benchmem .

# Changes the code in MUTANTS random places, one at a time, and lists the changes that no test
# notices. It takes about a minute for each. Not for CI: run it after a change of the arithmetic.
MUTANTS ?= 200
mutants: servers
	go run scripts/mutants.go -n $(MUTANTS)
