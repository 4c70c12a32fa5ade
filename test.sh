#!/usr/bin/env bash
# Run every test. Tests that need root enter fresh network namespaces and never touch the host's own.
# In CI (CI=true) a test that skips fails the run, unless it names a feature that this kernel truly lacks.
set -uo pipefail
cd "$(dirname "$0")"
[ "$(id -u)" = 0 ] || { echo "test: the tests need root (network namespaces, BPF, containers): sudo make test" >&2; exit 1; }
export PATH="$PATH:/usr/sbin:/sbin"
go build -o bin/summary ./e2e/summary || exit 1
go test -p 1 -count 1 -timeout 30m -json "$@" ./... 2>&1 | bin/summary
