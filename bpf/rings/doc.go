// Package rings bounds what the rings of packet and AF_XDP sockets, and long queues (SO_RCVBUF) of packet and netlink sockets, take of a host's memory: the kernel counts it against no cgroup. A program at a group of
// version 2 sees what is asked of sockets that were made in groups below it, and refuses (ENOMEM) what would be more than each of these groups may have.
//
// Rings are known to be gone when their socket is; the program does not see that, so somebody has to call Sweep from time to time. Until then what is gone counts.
// The group alone holds the program and its maps: both outlive the process that has put them there, and go with the group. Nothing is pinned.
package rings

//go:generate go tool bpf2go -go-package rings -target bpfel -no-global-types -type group -type bound -type sum Rings rings.bpf.c -- -O2 -Wall -Werror -fno-strict-aliasing -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
