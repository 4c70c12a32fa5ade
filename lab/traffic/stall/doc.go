// Package stall measures when a CPU did not run, apart from what the CPU had to do: a virtual machine's CPU may be taken away for tens of
// milliseconds, and frames are lost in that time which the path would have taken.
//
// A Watch ticks in hard interrupts. An overloaded path works in softirq and in tasks, which such interrupts interrupt: it makes no tick late.
// A stall is the time between two ticks that are too far apart. What is lost plays no part in it.
package stall

//go:generate go tool bpf2go -go-package stall -target bpfel -no-global-types -type watch -type hold stall stall.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
