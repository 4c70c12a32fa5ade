#!/usr/bin/env bash
# Run every test. Tests that need root enter fresh network namespaces and never touch the host's own.
# In CI (CI=true) a test that skips fails the run, unless it names a feature that this kernel truly lacks.
set -uo pipefail
cd "$(dirname "$0")"
[ "$(id -u)" = 0 ] || { echo "test: the tests need root (network namespaces, BPF, containers): sudo make test" >&2; exit 1; }
export PATH="$PATH:/usr/sbin:/sbin:$PWD/build/peers/usr/sbin:$PWD/build/peers/usr/bin" # see peers.sh
go build -o bin/summary ./e2e/summary || exit 1
# Property tests draw the same examples each time here; `go test` of a package draws others.
seed=1
drawn=$(go list -test -f '{{range .Deps}}{{if eq . "pgregory.net/rapid"}}{{$.ImportPath}}{{end}}{{end}}' ./... | sed -n 's/\.test$//p')
others=$(go list ./... | grep -vxF "$drawn")
[ -n "$drawn" ] && [ -n "$others" ] || { echo "test: go list found no packages" >&2; exit 1; }
{
	go test -p 1 -count 1 -timeout 30m -json "$@" $others
	go test -p 1 -count 1 -timeout 30m -json "$@" $drawn -rapid.seed=$seed
} 2>&1 | bin/summary -seed "$seed" -drawn "$drawn"
