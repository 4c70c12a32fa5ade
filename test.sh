#!/usr/bin/env bash
# Run every test. Tests that need root enter fresh network namespaces and never touch the host's own.
# In CI (CI=true) a test that skips fails the run, unless it names a feature that this kernel truly lacks.
set -uo pipefail
cd "$(dirname "$0")"
[ "$(id -u)" = 0 ] || { echo "test: the tests need root (network namespaces, BPF, containers): sudo make test" >&2; exit 1; }
export PATH="$PATH:/usr/sbin:/sbin:$PWD/build/peers/usr/sbin:$PWD/build/peers/usr/bin" # see peers.sh
go build -o bin/summary ./e2e/summary || exit 1
# Property tests, and the policies of the leaf-spine test, draw the same examples each time here; `go test` of a package draws others.
export SEED="${SEED:-1}"
drawn=$(go list -test -f '{{range .Deps}}{{if eq . "pgregory.net/rapid"}}{{$.ImportPath}}{{end}}{{end}}' ./... | sed -n 's/\.test$//p')
[ -n "$drawn" ] || { echo "test: go list found no packages with property tests" >&2; exit 1; }
# Packages whose tests neither count packets nor measure time nor change the machine run two at a time, the others one by one.
together=$(go list . ./api/... ./bpf ./cli ./container ./container/fake ./container/suite ./daemon ./e2e/summary ./examples/... ./flow ./image ./instance \
	./lab/report ./lab/search ./lab/stats ./lab/study ./lab/traffic ./manager/... ./openflow/... ./ovsdb/... ./pki ./placement ./router ./router/cases \
	./router/fabric/... ./store/...)
alone=$(go list ./... | grep -vxF "$together")
[ -n "$together" ] && [ -n "$alone" ] || { echo "test: go list found no packages" >&2; exit 1; }
# run N PACKAGES [ARGUMENTS]: those packages, N at a time. `make lint` has the whole of vet.
run() {
	local n=$1 packages=$2 some
	shift 2
	some=$(grep -vxF "$drawn" <<<"$packages") && go test -p "$n" -vet off -count 1 -timeout 30m -json "$@" $some
	some=$(grep -xF "$drawn" <<<"$packages") && go test -p "$n" -vet off -count 1 -timeout 30m -json "$@" $some -rapid.seed="$SEED"
}
{
	run 2 "$together" "$@"
	run 1 "$alone" "$@"
} 2>&1 | bin/summary -seed "$SEED" -drawn "$drawn"
exit "${PIPESTATUS[1]}" # its word, not that of the last go test: what failed may have been run again
