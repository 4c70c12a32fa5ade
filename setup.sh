#!/usr/bin/env bash
# Install what Weir needs to build, run and test on Debian or Ubuntu. Safe to run again: does nothing when all is there.
# Go and Node are prerequisites and only checked. CHECK=1 only says what is missing; FOR=demo is about what `make demo` needs, which is much less;
# with IDS=1 also what makes the image of ids.
set -euo pipefail

need_go=1.26
need_node=20 # builds the web UI, drives the browser in which pages are tested
packages=(
	runc nftables iproute2 busybox-static gcc   # to run: OCI runtime, catalogue images
	iperf3 iputils-ping curl procps ca-certificates # to demonstrate
)
[ "${FOR:-}" = demo ] || packages+=(
	openvswitch-switch openvswitch-common       # to run: Open vSwitch (--switch ovs, testbeds)
	systemd-container                           # to run: systemd-nspawn (runtime nspawn)
	crun                                        # another OCI runtime, to test beside runc
	clang llvm lld libbpf-dev                   # to regenerate the BPF objects and the first program of containers (make generate)
	tcpdump tshark ethtool jq                   # to test and measure
	bind9-dnsutils knot-dnsutils dnsmasq-base   # clients and a server of DNS, to test catalogue/dns-lb; none starts a service
	iperf sockperf nuttcp netcat-openbsd socat  # the lab's tools
	containernetworking-plugins iptables        # networks of the lab's study forwarders
	xz-utils sysbench                           # what the lab runs inside guests (study hosts), beside nuttcp, busybox and dd
	qemu-system-x86                             # the runtime kvm; a kernel with WireGuard, to test encrypted tunnels
	python3-openvswitch python3-venv            # OpenFlow of others, to test against
	python3-numpy python3-scipy python3-yaml    # to recompute the figures by other means
	systemd                                     # to test the service
	chromium fonts-dejavu-core                  # to open reports in a real browser, to test
)

[ -z "${IDS:-}" ] || packages+=(mmdebstrap debian-archive-keyring)

cd "$(dirname "$0")"
say() { printf 'setup: %s\n' "$*" >&2; }
. ./apt.sh
version_ok() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

if ! command -v go >/dev/null; then
	say "Go is missing: install Go $need_go or newer and put it on PATH${SUDO_USER:+ (sudo may have another PATH than you: sudo env \"PATH=\$PATH\" make ...)}"
	exit 1
fi
have=$(go env GOVERSION | sed 's/^go//')
version_ok "$need_go" "$have" || { say "Go $have is too old: install Go $need_go or newer"; exit 1; }

if [ "${FOR:-}" != demo ]; then
	if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
		say "Node is missing: install Node $need_node or newer, with npm, and put it on PATH"
		exit 1
	fi
	have=$(node --version | sed 's/^v//')
	version_ok "$need_node" "$have" || { say "Node $have is too old: install Node $need_node or newer"; exit 1; }
fi

command -v dpkg-query >/dev/null || { say "not a Debian or Ubuntu machine: install the equivalents of: ${packages[*]}"; exit 1; }
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null | awk '$1 == "installed" {print $2}' || true)
missing=()
for p in "${packages[@]}"; do grep -qx "$p" <<<"$installed" || missing+=("$p"); done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "${CHECK:-}" = 1 ]; then
	say "missing Debian packages: ${missing[*]} (apt-get install ${missing[*]})"
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	say "missing Debian packages: ${missing[*]}; run as root: apt-get install ${missing[*]}"
	exit 1
fi
say "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { bounded apt-get update -qq && bounded apt-get install -y -qq --no-install-recommends "${missing[@]}"; }; then
	tail -n 20 "$log" >&2
	say "apt-get could not install: ${missing[*]} (its last lines are above)"
	exit 1
fi
say "done"
