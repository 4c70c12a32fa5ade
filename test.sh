#!/usr/bin/env bash
# Run every test. Tests that need root enter fresh network namespaces and never touch the host's own.
# In CI (CI=true) a test that skips fails the run, unless it names a feature that this kernel truly lacks. With FULL=1 tables whose pairs are tried are tried whole.
set -uo pipefail
cd -P "$(dirname "$0")"
[ "$(id -u)" = 0 ] || { echo "test: the tests need root (network namespaces, BPF, containers): sudo make test" >&2; exit 1; }
export PATH="$PATH:/usr/sbin:/sbin:$PWD/build/peers/usr/sbin:$PWD/build/peers/usr/bin" # see peers.sh
go build -o bin/summary ./e2e/summary || exit 1
# Property tests, and the policies of the leaf-spine test, draw the same examples each time here; `go test` of a package draws others.
export SEED="${SEED:-1}"
drawn=$(go list -test -f '{{range .Deps}}{{if eq . "pgregory.net/rapid"}}{{$.ImportPath}} {{$.Dir}}{{end}}{{end}}' ./... | sed -n 's/\.test / /p')
[ -n "$drawn" ] || { echo "test: go list found no packages with property tests" >&2; exit 1; }
DRAWN=$(cut -d ' ' -f 2- <<<"$drawn") drawn=$(cut -d ' ' -f 1 <<<"$drawn")
export DRAWN # see e2e/summary/seeded.sh
# Packages run side by side in two groups, the longest first. The first group neither counts packets nor measures time, and may use all processors. The second
# drives whole Weirs, which wait more than they work. It counts packets and sends few. So nothing of the first group runs beside it, and nothing that floods links
# or measures what the machine can do: that fills the queues that all namespaces share. Packages of the second group that count alternate with some that do not.
# The rest runs one by one.
together=$(go list ./e2e/vm ./image ./lab/kept/... ./manager/... ./store/... ./cli/... ./lab ./lab/claim ./lab/desk ./lab/report ./lab/search ./lab/stats ./lab/study ./lab/tied ./lab/traffic . ./agent/events ./agent/health ./agent/ipfix ./agent/kernel/... ./agent/metrics \
	./agent/report ./agent/sandbox ./agent/secrets ./agent/settle ./agent/socket ./agent/xdp ./agent/tunnel ./agent/uplink ./api/... ./bpf/... ./container ./container/choice ./container/drivers ./container/fake ./container/kernel/entry ./container/kernel/filter ./container/kernel/launcher ./container/kernel/steps \
	./container/kvm/channel ./container/kvm/erofs ./container/kvm/guest ./container/suite ./cpuset ./daemon/... ./datapath ./datapath/drivers ./datapath/internal/... ./datapath/suite ./datapath/ebpf/internal/... \
	./e2e/escape/hostile ./e2e/rig ./e2e/summary ./examples/... ./flow ./image/... ./instance ./netns/ethtool ./notify ./openflow/... ./ovsdb/... ./pki ./placement ./portkind ./router ./router/cases ./router/discovery \
	./router/fabric/... ./router/identity ./router/policy ./router/rollout ./sbom ./web | grep -v /cli/author$) # which drives whole Weirs
beside=$(go list ./e2e/docs ./e2e/ui ./e2e/unit ./e2e/fabric ./e2e/runtimes ./e2e/survive ./e2e/change ./container/docker/... ./e2e/failure ./container/native ./e2e/join ./container/oci ./e2e/hostile ./container/lxc ./e2e/settle ./container/nspawn \
	./e2e/badinput ./container/kernel ./cli/author ./e2e/soak ./e2e/down ./container/rkt ./solo ./agent ./datapath/ebpf ./datapath/fake ./datapath/ovs \
	./router/control ./catalogue/... ./lab/controllers ./lab/functions/... ./lab/machine ./netns ./testbed | grep -v /catalogue/shaper$) # which floods its limits
alone=$(go list ./... | grep -vxF "$together"$'\n'"$beside")
[ -n "$together" ] && [ -n "$beside" ] && [ -n "$alone" ] || { echo "test: go list found no packages" >&2; exit 1; }
# run N PACKAGES [ARGUMENTS]: those packages, N at a time. `make lint` has the whole of vet. Without symbols for debuggers programs of tests are linked in less time.
run() {
	local n=$1 packages=$2
	shift 2
	go test -p "$n" -vet off -ldflags "-s -w" -count 1 -timeout 30m -exec "'$PWD/e2e/summary/seeded.sh'" -json "$@" $packages
}
{
	run 3 "$together" "$@"
	run 2 "$beside" "$@"
	run 1 "$alone" "$@"
} 2>&1 | bin/summary -seed "$SEED" -drawn "$drawn"
exit "${PIPESTATUS[1]}" # its word, not that of the last go test: what failed may have been run again
