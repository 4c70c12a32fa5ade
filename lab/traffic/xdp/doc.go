// Package xdp generates and counts frames without a socket: XDP live frames (BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18) enter at
// an interface as if it had received them, or leave through one, and a BPF sink counts them where they arrive.
//
// It owns the frames' fields, the pacing and the accounting; it does not build topologies. Every frame has a sequence number, so that loss,
// duplicates and reordering are exact, and the time of its departure on CLOCK_MONOTONIC, so that latency is one-way and of each frame.
package xdp

//go:generate go tool bpf2go -go-package xdp -target bpfel -no-global-types -type plan -type slot -type departed -type arrived traffic traffic.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -go-package xdp -target bpfel -no-global-types -type order delay delay.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
