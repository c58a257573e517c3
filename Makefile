# The mesh's own make. `make run` and `make test` do everything on a fresh Debian machine.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

export CGO_ENABLED ?= 0
BIN      := bin
PROGRAMS := mesh mesh-controller mesh-catalogue mesh-builder mesh-host mesh-registry mesh-genesis
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOBUILD  := go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'
GOLANGCI := v2.15.0

.PHONY: help
help: ## What there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

.PHONY: deps
deps: ## Install what is missing (apt, as root)
	@scripts/deps

.PHONY: build
build: ## Build the programs into bin/
	@$(GOBUILD) -o $(BIN)/ $(addprefix ./cmd/,$(PROGRAMS))

.PHONY: run
run: deps build ## Raise a mesh here and take a repository from commit to running module
	@scripts/run

.PHONY: test
test: deps ## All tests, on real servers they start themselves
	@scripts/test

.PHONY: test-short
test-short: ## The fast subset: no server, no engine
	@go test -short ./...

.PHONY: race
race: deps ## All tests under the race detector
	@CGO_ENABLED=1 scripts/test -race

.PHONY: fuzz
fuzz: ## Every fuzz target for a minute each
	@scripts/fuzz 60s

.PHONY: lint
lint: ## gofmt, go vet, golangci-lint, generated files up to date
	@scripts/lint $(GOLANGCI)

.PHONY: bench
bench: ## Benchmarks
	@go test -run '^$$' -bench . -benchmem ./...

.PHONY: generate
generate: ## Write what is generated: JSON Schemas, the table of statements held
	@go test ./schema -run JSONSchemas -update >/dev/null
	@go run ./internal/conformance/cmd

.PHONY: verify
verify: lint test ## Lint and test

.PHONY: clean
clean: ## End the mesh that `make run` raised, and remove everything of it
	@scripts/clean
