# What a newcomer needs: `make demo` and `make test`. The rest is listed by `make help`.

GO ?= go
BIN := bin

# The slim build has ten storage backends instead of seventy and is ready in seconds.
SLIM := -tags slim

FUZZTIME ?= 10s

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: demo
demo: ## install what is missing, build, mount a repository and put files in
	@bash docs/demo.sh

.PHONY: build
build: ## the program with all storage backends, bin/dedupfs
	$(GO) build -o $(BIN)/dedupfs ./cmd/dedupfs

.PHONY: build-slim
build-slim: ## the same with a few backends, bin/dedupfs-slim
	$(GO) build $(SLIM) -o $(BIN)/dedupfs-slim ./cmd/dedupfs

.PHONY: install
install: build ## put the program and its manual pages under PREFIX, /usr/local by default
	install -D -m 755 $(BIN)/dedupfs $(DESTDIR)$(or $(PREFIX),/usr/local)/bin/dedupfs
	install -d $(DESTDIR)$(or $(PREFIX),/usr/local)/share/man/man1
	$(BIN)/dedupfs man $(DESTDIR)$(or $(PREFIX),/usr/local)/share/man/man1

.PHONY: test
test: ## all tests but the long ones
	$(GO) test $(SLIM) -timeout 20m ./...

.PHONY: soak
soak: ## the long tests, one to two hours
	DEDUPFS_LONG=1 $(GO) test $(SLIM) -timeout 4h -count 1 ./...

# A deadline may be reported as a failure by Go before 1.27 (golang/go#75804): what
# counts is a failing input, which go test names. FUZZTIME=1000x has no deadline.
.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME, 10s by default
	@git grep -o '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go' | sed 's|/[^/]*:func | |' | while read -r dir target; do \
		echo "$$target in $$dir"; \
		out=$$($(GO) test $(SLIM) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "./$$dir" 2>&1) && continue; \
		case $$out in *'Failing input'*) ;; *'    context deadline exceeded'*) continue ;; esac; \
		echo "$$out"; exit 1; \
	done

.PHONY: bench-chunking
bench-chunking: ## our chunkers beside the best libraries, in one process: bench-chunking.json
	cd bench/chunking && $(GO) run . -o ../../bench-chunking.json

.PHONY: bench
bench: ## a mount beside the native file system and FUSE's own loopback (root, a quiet machine)
	bench/fs/run

.PHONY: bench-go
bench-go: ## the benchmarks of all packages
	$(GO) test $(SLIM) -run '^$$' -bench . -benchtime 1s ./...

.PHONY: bench-store
bench-store: ## what all versions of the data sets in DATA take on the remote
	bench/store/run $(DATA)

.PHONY: bench-limit
bench-limit: ## what a mount uses of the processor under limits (Linux); LIMIT are flags and data
	$(GO) build $(SLIM) -o $(BIN)/dedupfs-slim ./cmd/dedupfs
	$(GO) run ./bench/limit -dedupfs $(BIN)/dedupfs-slim $(LIMIT)

.PHONY: fmt
fmt: ## format the source
	gofmt -w $$(git ls-files '*.go')

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
