# What you need is Go, git, make and a shell; everything else is fetched as Go
# modules. `make test` is the one command that matters.

MODULES := $(dir $(wildcard go.mod */go.mod */*/go.mod))
LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: test servers race vet lint fuzz cross bench

# The tests of every module, each on its own as its users get it. That of a release
# reads all files of the repository, which go test's cache of results does not notice.
test: servers
	@set -e; for m in $(filter-out scripts/release/,$(MODULES)); do echo "== test $$m"; (cd $$m && GOWORK=off go test ./...); done
	@echo "== test scripts/release/"; cd scripts/release && GOWORK=off go test -count=1 ./...

# Databases that tests start; what cannot be installed is skipped, and said.
servers:
	@scripts/servers

# The same under the race detector, except the benchmarks, whose tests are of their
# harness alone, and the release, which runs other programs.
race:
	@set -e; for m in $(filter-out benchmarks/ scripts/release/,$(MODULES)); do echo "== race $$m"; (cd $$m && GOWORK=off go test -race ./...); done

vet:
	@set -e; for m in $(MODULES); do echo "== vet $$m"; (cd $$m && GOWORK=off go vet ./... && test -z "$$(gofmt -l .)"); done

# golangci-lint is compiled from its module, which takes a minute or two the
# first time.
lint:
	@set -e; for m in $(MODULES); do echo "== lint $$m"; (cd $$m && GOWORK=off go run $(LINT) run ./...); done

# Each fuzz target for a short while; FUZZTIME=10m for longer.
FUZZTIME ?= 10s
fuzz:
	@set -e; for d in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
		for f in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$d/*_test.go | cut -c6-); do \
			(cd $$d && GOWORK=off go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x .); \
		done; done

# The packages that users import compile for other word sizes and byte orders, and
# the engine's tests run there, where that is possible.
ENGINE := FuzzMemory|Identit|Split|Growth|Freeze|Concurrency|Width
cross:
	@set -e; for arch in 386 arm64 s390x; do echo "== vet $$arch"; GOARCH=$$arch GOWORK=off go vet ./...; done
	@set -e; if [ "$$(go env GOHOSTARCH)" = amd64 ]; then echo "== test 386"; GOARCH=386 GOWORK=off go test . ./internal/...; \
		else echo "== test 386: SKIPPED, this machine cannot run it"; fi
	@set -e; for of in arm64:aarch64 s390x:s390x; do arch=$${of%:*}; qemu=qemu-$${of#*:}; \
		if command -v $$qemu >/dev/null; then echo "== test $$arch"; GOARCH=$$arch GOWORK=off go test -exec $$qemu -run '$(ENGINE)' . ./internal/memory; \
		else echo "== test $$arch: SKIPPED, there is no $$qemu"; fi; done

bench:
	go test -run '^$$' -bench . -benchmem .
