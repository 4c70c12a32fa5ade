// Package bpf owns the eBPF programs of the switch: their C, the committed objects and the loaders that bpf2go
// generates from them. What the maps mean stands in weir.h and datapath/ebpf/DESIGN.md; datapath/ebpf fills and attaches them.
package bpf

import (
	"crypto/sha256"
	"encoding/hex"
)

//go:generate go tool bpf2go -go-package bpf -target bpfel -no-global-types -type key -type clone -type action -type tuple_copy -type tuple -type list_copy -type list -type stage -type stages -type port -type function -type control -type near -type flow -type exit_key -type station_key -type port_stats -type rule_stats -type probe -type guard4 -type guard6 -type guard -type guard_stats -type given Steer steer.bpf.c -- -O2 -Wall -Werror -fno-strict-aliasing -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -go-package bpf -target bpfel Wire wire.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -go-package bpf -target bpfel -no-global-types Exit exit.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -go-package bpf -target bpfel -no-global-types -type settle_key -type settle_request -type rewrite Settle settle.bpf.c -- -O2 -Wall -Werror -fno-strict-aliasing -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu

// Layout is to be increased when the meaning of a map changes although the sizes of its keys and values do not: the maps
// of an older layout are then replaced, not reused.
const Layout = 4

// Build identifies the committed programs.
func Build() string {
	h := sha256.New()
	for _, b := range [][]byte{_SteerBytes, _WireBytes, _ExitBytes, _SettleBytes} {
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}
