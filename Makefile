# Weir: `make demo` runs the main job, `make test` passes the tests; both install what they need.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Root builds in the clone of another user, too: git would tell nothing there, and go would stop at that.
LDFLAGS := -s -w -X main.version=$(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo dev)
# The same for all, also for tests and linters: what the compiler has made for one serves the others.
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out -trimpath -buildvcs=%,$(GOFLAGS)) -trimpath -buildvcs=false

.PHONY: help root setup peers ui build demo test soak kills attack race bench keep lint generate ui-crowd clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

root:
	@[ "$$(id -u)" = 0 ] || { echo "make: this needs root (network namespaces, BPF, containers): sudo make $(MAKECMDGOALS)" >&2; exit 1; }

setup: ## install the Debian packages that Weir needs, check Go
	@./setup.sh

peers: setup ## what Weir is tested and measured beside: Docker's engine, LXC, Open vSwitch with DPDK (unpacked, not installed), testpmd, a bridge by libpcap; the catalogue's images of Debian packages
	@./peers.sh
	go run ./lab/functions -o bin/images
	go run ./catalogue/build -packages -o bin/images

build: setup ui ## build bin/weir with its web UI, and the images of the catalogue (bin/images); UI= leaves the web UI out
	go build -ldflags "$(LDFLAGS)" -o bin/weir .
	go run ./catalogue/build -o bin/images

# The web UI is built by Node where that is there, and only when something of it has changed. The demo needs none.
UI ?= $(if $(filter demo,$(MAKECMDGOALS)),,$(if $(shell command -v npm),$(if $(wildcard web/package-lock.json),web)))
UI_FILES := $(shell [ ! -f web/package.json ] || find web -type f -not -path '*/node_modules/*' -not -path 'web/dist/*' -not -name '*.go' -not -name '*.md')
ui: $(if $(UI),web/dist/app/index.html)
	@[ -f web/dist/app/index.html ] || command -v npm >/dev/null || echo "make: the web UI is left out: it needs Node with npm" >&2

web/node_modules/.installed: web/package.json web/package-lock.json
	cd web && npm ci --no-audit --no-fund
	@touch $@

web/dist/app/index.html: web/node_modules/.installed $(UI_FILES)
	cd web && npm run build
	@touch $@

# Alone it needs few packages: see setup.sh.
ifeq ($(MAKECMDGOALS),demo)
export FOR := demo
export IDS
endif
demo: root build ## two namespaces, a chain of containers, real traffic (IDS=1 builds Suricata's image first, which takes minutes; KEEP=1 leaves it running)
	@$(if $(IDS),go run ./catalogue/build -o bin/images catalogue/ids)
	@go run ./e2e/demo $(DEMO)

test: root build peers ## all tests; those that need root run in fresh network namespaces
	@./test.sh

SOAK ?= 30m
SEED ?= 1
soak: root build peers ## a random walk over the whole product for SOAK (30m), from SEED (1) on
	PATH="$$PATH:/usr/sbin:/sbin:$(CURDIR)/build/peers/usr/sbin:$(CURDIR)/build/peers/usr/bin" SOAK=$(SOAK) SEED=$(SEED) \
		go test -vet off -count 1 -timeout 0 -v -run TestWalk ./e2e/soak

KILLS ?= 20
kills: root build peers ## end the quick studies at random moments, KILLS (20) times in all, by kill -9 or Ctrl-C: nothing stays
	PATH="$$PATH:/usr/sbin:/sbin:$(CURDIR)/build/peers/usr/sbin:$(CURDIR)/build/peers/usr/bin" KILLS=$(KILLS) \
		go test -vet off -count 1 -timeout 0 -v -run TestStudiesSurviveKills ./e2e/lab

ATTACK ?= 30m
attack: root build peers ## requests of all kinds to the API for ATTACK (30m), from SEED (1) on
	@./peers.sh attack
	ATTACK=$(ATTACK) SEED=$(SEED) go test -tags attack -vet off -count 1 -timeout 0 -v -run TestAPIUnderAttack ./e2e/attack

bench: root build peers ## performance beside the peers: the study bench, quick (BENCH="--full", BENCH="--only part=stream")
	WEIR_KVM_KERNEL="$(CURDIR)/build/vm/kern/boot/vmlinuz-*-cloud-amd64" PATH="$$PATH:/usr/sbin:/sbin:$(CURDIR)/build/peers/usr/sbin:$(CURDIR)/build/peers/usr/bin" bin/weir lab run bench --dir bin/bench-$$(date +%Y%m%d-%H%M%S) $(BENCH)

keep: ## keep a finished run of the lab in docs/results: RUN=DIR WHY="..." [ADDS=older run]
	@go run ./lab/kept/tool keep -why "$$WHY" -adds "$$ADDS" "$$RUN"

lint: setup ## gofmt, vet, staticcheck, layering
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -d $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go tool staticcheck ./...
	go test -count=1 -run TestLayering .

generate: setup $(if $(UI),web/node_modules/.installed) ## regenerate what is generated and committed (BPF objects, OpenAPI and its TypeScript client, docs, digests of images)
	go generate ./...
	go run ./catalogue/build -o build/digests -digests catalogue/digests.txt -update

ui-crowd: root build ## a browser watches 1,000 functions on 100 hollow hosts for ten minutes: memory, frames, the manager's CPU
	WEIR_UI_CROWD=10m WEIR_UI_CROWD_HOSTS=100 go test -vet off -count 1 -timeout 40m -v -run TestHollowHosts ./e2e/ui

clean: ## remove build results
	rm -rf bin build
