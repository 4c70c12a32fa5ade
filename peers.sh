#!/usr/bin/env bash
# Fetch what Weir is tested and measured beside, on Debian or Ubuntu. Safe to run again: does nothing when all is there.
# A kernel with WireGuard is unpacked into build/vm: tests of encrypted tunnels, and of the runtime kvm, boot it in virtual machines.
# Docker's engine, LXC, an Open vSwitch with DPDK, an image registry, nginx and softflowd are unpacked into build/peers and not installed: installed they would start now and at every boot, and change the packet filter.
# DPDK's testpmd is installed: it starts nothing. os-ken, a controller in Python, is in a virtual environment in build/os-ken-VERSION.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf 'peers: %s\n' "$*" >&2; }
. ./apt.sh
dir=build/peers
need=(patchelf libapparmor1 libcap2 libseccomp2 libselinux1 dpdk-dev gcc libc6-dev libpcap-dev skopeo mmdebstrap debian-archive-keyring) # the libraries: LXC's; gcc, libc6-dev, libpcap-dev: lab/functions; skopeo pulls from our registry; mmdebstrap makes images of Debian packages, by Debian's keys also on Ubuntu
newest() { apt-cache pkgnames "$1" | sort -V | tail -n 1; } # of packages whose names carry an ABI
testpmd() { newest librte-net-af-packet; }
unpack=(docker.io containerd lxc openvswitch-switch-dpdk docker-registry nginx softflowd)
polls=usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk # installed it would take the place of the machine's ovs-vswitchd
unpacked() { [ -x "$dir/usr/sbin/dockerd" ] && [ -x "$dir/usr/bin/containerd" ] && [ -x "$dir/usr/bin/lxc-start" ] && [ -x "$dir/usr/sbin/ovs-vswitchd-dpdk" ] && [ -x "$dir/usr/bin/docker-registry" ] && [ -x "$dir/usr/sbin/nginx" ] && [ -x "$dir/usr/sbin/softflowd" ]; }
installed() { command -v dpdk-testpmd >/dev/null && dpkg-query -W "${need[@]}" "$(testpmd)" >/dev/null 2>&1; }
kernel() { compgen -G 'build/vm/kern/boot/vmlinuz-*-cloud-amd64' >/dev/null; }
# For `make attack` only: schemathesis, which makes requests from the OpenAPI document, in a virtual environment of its own, in versions that are pinned.
attack=build/attack
wanted=e2e/attack/requirements.txt
ready() { cmp -s "$wanted" "$attack/requirements.txt"; }
if [ "${1:-}" = attack ] && ! ready; then
	say "installing $(grep schemathesis "$wanted") into $attack"
	rm -rf "$attack"
	mkdir -p build
	{ python3 -m venv "$attack" && "$attack/bin/pip" install -q --disable-pip-version-check -r "$wanted"; } >build/attack.log 2>&1 && cp "$wanted" "$attack/requirements.txt" || {
		tail -n 20 build/attack.log >&2
		say "$wanted could not be installed (its last lines are above): python3-venv and a package index are needed"
		exit 1
	}
fi
[ "${1:-}" = attack ] && exit 0
# os-ken's Python, in the version that lab/controllers wants, as the program os-ken-python.
mkdir -p build
osken=$(readlink -f build)/os-ken-$(sed -n 's/.*oskenVersion = "\(.*\)"$/\1/p' lab/controllers/osken.go)
wrapper=$dir/usr/bin/os-ken-python
control() { "$osken/bin/python3" -c 'import os_ken.base.app_manager' 2>/dev/null; }
wrapped() { [ -x "$wrapper" ] && grep -qF "$osken/" "$wrapper"; }
controls() {
	if ! control; then
		say "installing ${osken##*/} into build"
		{ python3 -m venv --clear "$osken" && "$osken/bin/pip" install -q --disable-pip-version-check "os-ken==${osken##*-}"; } >build/os-ken.log 2>&1 || {
			tail -n 20 build/os-ken.log >&2
			say "${osken##*/} could not be installed (its last lines are above): without python3-venv and a package index the lab skips it"
			return
		}
	fi
	mkdir -p "$(dirname "$wrapper")"
	printf '#!/bin/sh\nexec "%s/bin/python3" "$@"\n' "$osken" >"$wrapper"
	chmod +x "$wrapper"
}
control && wrapped && unpacked && installed && kernel && exit 0
if unpacked && installed && kernel; then
	controls
	exit 0
fi
[ "$(id -u)" = 0 ] || { say "missing ${unpack[*]} (unpacked into $dir) or ${need[*]} librte-net-af-packet: run as root"; exit 1; }

log=$(mktemp)
work=$(mktemp -d)
trap 'rm -rf "$log" "$work"' EXIT
failed() {
	tail -n 20 "$log" >&2
	say "$1 (its last lines are above)"
	exit 1
}
bounded apt-get update -qq || failed "apt-get could not update its lists"
if ! installed; then
	need+=("$(testpmd)")
	[ -n "${need[-1]}" ] || { say "no package librte-net-af-packet here: add the distribution's DPDK packages to apt's sources"; exit 1; }
	say "installing ${need[*]}"
	bounded apt-get install -y -qq --no-install-recommends "${need[@]}" || failed "apt-get could not install ${need[*]}"
fi
if ! unpacked; then
	unpack+=("$(newest liblxc1)")
	say "unpacking ${unpack[*]} into $dir"
	(cd "$work" && bounded apt-get download "${unpack[@]}") || failed "apt-get could not download ${unpack[*]}"
	for p in "$work"/*.deb; do
		dpkg-deb -x "$p" "$work/root" >"$log" 2>&1 || failed "dpkg-deb could not unpack $(basename "$p")"
	done
	lib=$(basename "$(dirname "$(find "$work/root" -name liblxc.so.1)")")
	for p in lxc-start lxc-stop; do # they find their library beside them
		patchelf --set-rpath "\$ORIGIN/../lib/$lib" "$work/root/usr/bin/$p" >"$log" 2>&1 || failed "patchelf could not change $p"
	done
	[ -x "$work/root/$polls" ] || { say "openvswitch-switch-dpdk has no $polls"; exit 1; }
	ln -s "../../$polls" "$work/root/usr/sbin/ovs-vswitchd-dpdk"
	rm -rf "$dir"
	mkdir -p "$(dirname "$dir")"
	mv "$work/root" "$dir"
fi
if ! kernel; then
	image=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}')
	[ -n "$image" ] || { say "no package linux-image-cloud-amd64 here: add Debian's main archive to apt's sources"; exit 1; }
	say "unpacking $image into build/vm"
	mkdir -p "$work/kernel" build/vm
	(cd "$work/kernel" && bounded apt-get download "$image") || failed "apt-get could not download $image"
	dpkg-deb -x "$work/kernel"/*.deb "$work/kern" >"$log" 2>&1 || failed "dpkg-deb could not unpack $image"
	rm -rf build/vm/kern
	mv "$work/kern" build/vm/kern
fi
controls # behind the others, which unpack into its place
say "done"
