#!/usr/bin/env bash
# Fetch what Weir is tested and measured beside, on Debian or Ubuntu. Safe to run again: does nothing when all is there.
# Docker's engine is unpacked into build/peers and not installed: installed it would start now and at every boot, and change the packet filter.
# DPDK's testpmd is installed: it starts nothing.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf 'peers: %s\n' "$*" >&2; }
dir=build/peers
testpmd=$(apt-cache pkgnames librte-net-af-packet | sort -V | tail -n 1) # its name carries DPDK's ABI
unpacked() { [ -x "$dir/usr/sbin/dockerd" ] && [ -x "$dir/usr/bin/containerd" ]; }
installed() { command -v dpdk-testpmd >/dev/null && dpkg-query -W "$testpmd" >/dev/null 2>&1; }
unpacked && installed && exit 0
[ "$(id -u)" = 0 ] || { say "missing docker.io, containerd (unpacked into $dir) or dpdk-dev, librte-net-af-packet: run as root"; exit 1; }

log=$(mktemp)
work=$(mktemp -d)
trap 'rm -rf "$log" "$work"' EXIT
export DEBIAN_FRONTEND=noninteractive
failed() {
	tail -n 20 "$log" >&2
	say "$1 (its last lines are above)"
	exit 1
}
apt-get update -qq >"$log" 2>&1 || failed "apt-get could not update its lists"
if ! unpacked; then
	say "unpacking docker.io and containerd into $dir"
	(cd "$work" && apt-get download docker.io containerd) >"$log" 2>&1 || failed "apt-get could not download docker.io and containerd"
	for p in "$work"/*.deb; do
		dpkg-deb -x "$p" "$work/root" >"$log" 2>&1 || failed "dpkg-deb could not unpack $(basename "$p")"
	done
	rm -rf "$dir"
	mkdir -p "$(dirname "$dir")"
	mv "$work/root" "$dir"
fi
if ! installed; then
	testpmd=$(apt-cache pkgnames librte-net-af-packet | sort -V | tail -n 1)
	[ -n "$testpmd" ] || { say "no package librte-net-af-packet here: add the distribution's DPDK packages to apt's sources"; exit 1; }
	say "installing dpdk-dev and $testpmd"
	apt-get install -y -qq --no-install-recommends dpdk-dev "$testpmd" >"$log" 2>&1 || failed "apt-get could not install dpdk-dev and $testpmd"
fi
say "done"
