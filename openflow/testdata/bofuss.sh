#!/usr/bin/env bash
# Builds BOFUSS (ofsoftswitch13), an OpenFlow 1.3 switch in user space that shares no code with Open vSwitch: no kernel module, AF_PACKET ports.
# Usage: bofuss.sh NETBEE OFSOFTSWITCH13 OUT
# NETBEE and OFSOFTSWITCH13 are git repositories (netgroup-polito/netbee, CPqD/ofsoftswitch13); OUT is a new directory. Debian 12:
#   apt-get install libpcap-dev libxerces-c-dev libpcre3-dev libsqlite3-dev flex bison autoconf automake libtool pkg-config g++ cmake
# Then, as root: BOFUSS=OUT/ofs go test -tags bofuss weir.dev/weir/openflow -run BOFUSS
# By hand, in a network namespace with links v1..v3:
#   OUT/ofs/udatapath/ofdatapath --no-slicing --no-local-port -d 00000000000a -i v1,v2,v3 punix:/tmp/dp.sock &
#   OUT/ofs/secchan/ofprotocol unix:/tmp/dp.sock tcp:CONTROLLER:6653 &
# It installs one file outside OUT, which the switch looks for there: /usr/local/share/openflow/customnetpdl.xml
set -euo pipefail
netbee=$(realpath "$1") ofs=$(realpath "$2")
mkdir -p "$3/netbee/include/boost" "$3/ofs"
out=$(realpath "$3")
# NetBee, with Debian's sqlite instead of its copy.
git -C "$netbee" archive HEAD ':!contrib/sqlite3/sqlite3.c' | tar -x -C "$out/netbee"
mkdir -p "$out/netbee/contrib/sqlite3"
echo 'typedef int unused;' >"$out/netbee/contrib/sqlite3/sqlite3.c"
(cd "$out/netbee/src" && cmake . -DCMAKE_CXX_FLAGS="-fpermissive -w -std=gnu++98" -DCMAKE_C_FLAGS="-w -fcommon" \
	-DCMAKE_SHARED_LINKER_FLAGS=-lsqlite3 && make)
# The switch; one macro is all that it takes from Boost.
echo '#define BOOST_STATIC_ASSERT(x) extern int boost_static_assert_ok' >"$out/netbee/include/boost/static_assert.hpp"
git -C "$ofs" archive HEAD | tar -x -C "$out/ofs"
cd "$out/ofs"
./boot.sh
CPPFLAGS="-I$out/netbee/include" LDFLAGS="-L$out/netbee/bin -Wl,-rpath,$out/netbee/bin" CFLAGS="-O2 -w -fcommon" \
	CXXFLAGS="-O2 -w -fpermissive -std=gnu++98" LIBS="-lpcap -lpcre -lxerces-c" ./configure
make
install -D -m 644 customnetpdl.xml /usr/local/share/openflow/customnetpdl.xml
