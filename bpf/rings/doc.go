// Package rings bounds what sockets take of a host's memory that the kernel counts against no cgroup: rings of packet and AF_XDP sockets, the queues of netlink, packet, raw and
// other sockets, what UDP sockets hold back, what sockets are told of what they have sent, and what options have the kernel keep. A program at a group of version 2 sees what is
// asked of sockets that were made in groups below it, and refuses (ENOMEM) what would be more than each of these groups may have. Two more at the group see raw, ping and UDP
// sockets when they are made and closed, and one the packets that its sockets of IP send. Three at functions of the kernel see all other sockets of the host, and count those
// that are made in the groups.
//
// A socket counts both its queues as long as they can become, until it is closed with empty queues. Anything else is known to be gone when its socket is. The programs do
// not see that, so somebody has to call Sweep from time to time. Until then what is gone counts.
// The group alone holds the programs at it and their maps: they outlive the process that has put them there, and go with the group. The programs at functions of the kernel
// are pinned: they outlive that process as well, and go by Detach. They use the same maps.
package rings

//go:generate go tool bpf2go -go-package rings -target bpfel -no-global-types -type group -type bound -type sum Rings rings.bpf.c -- -O2 -Wall -Werror -fno-strict-aliasing -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
