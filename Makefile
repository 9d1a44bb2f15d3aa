# Nothing here is needed to build or to test: each target is one command, which "make -n TARGET" shows.
TOOL     := go tool -modfile=internal/tools/go.mod
PACKAGES ?= ./...
BENCH    ?= .
COUNT    ?= 6

.DEFAULT_GOAL := help
.PHONY: help build fmt lint lint-full test test-race bench verify generate vuln services-up services-down

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/oncemill
	CGO_ENABLED=0 go build -trimpath -o bin/oncemill ./cmd/oncemill

fmt: ## format all Go files
	$(TOOL) gofumpt -w .

lint: ## gofmt, vet, staticcheck, tidy modules, import rules
	@bash .ci/lint

lint-full: ## lint, and golangci-lint and shellcheck
	@bash .ci/lint --full

test: ## every test against real servers (PACKAGES=./config/... for some)
	@docker/test $(PACKAGES)

test-race: ## the tests that need no servers, with the race detector; the others are skipped
	go test -race -shuffle=on -timeout 15m $(PACKAGES)

bench: ## benchmarks into bench.out; compared with bench.old.out where that exists (BENCH=name COUNT=n)
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) $(PACKAGES) | tee bench.out
	@if [ -e bench.old.out ]; then $(TOOL) benchstat bench.old.out bench.out; fi

verify: ## fail when a generated file is out of date
	go test ./config -run 'TestReferenceIsCurrent' -count 1
	go test ./app -run 'TestMetricsAreDocumented' -count 1

generate: ## write the generated files again
	go test ./config -run 'TestReferenceIsCurrent' -count 1 -update
	go test ./app -run 'TestMetricsAreDocumented' -count 1 -update

vuln: ## known vulnerabilities; fails only when there are some, not when the database is out of reach
	@$(TOOL) govulncheck ./...; code=$$?; \
	case $$code in 0) ;; 3) exit 3 ;; *) echo 'vuln: not checked (see above)' ;; esac

services-up: ## start the servers for tests
	docker/services up

services-down: ## stop them
	docker/services down
