package ovs

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"weir.dev/weir/bpf"
)

// programs are the two pieces of BPF: the forwarder "wire", and one that drops.
type programs struct{ wire, hush *ebpf.Program }

const tcActShot = 2 // linux/pkt_cls.h: TC_ACT_SHOT

func (p *programs) load() error {
	spec, err := bpf.LoadWire()
	if err != nil {
		return fmt.Errorf("load wire program: %w", err)
	}
	if p.wire, err = ebpf.NewProgram(spec.Programs["wire"]); err != nil {
		return fmt.Errorf("load wire program (want kernel 5.10): %w", err)
	}
	p.hush, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weir_hush", Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, tcActShot), asm.Return()}})
	if err != nil {
		return fmt.Errorf("load program: %w", err)
	}
	return nil
}

func (p *programs) close() {
	for _, q := range []*ebpf.Program{p.wire, p.hush} {
		if q != nil {
			q.Close()
		}
	}
}
