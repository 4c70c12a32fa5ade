package platform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	switches "weir.dev/weir/datapath/drivers"
	"weir.dev/weir/netns"
)

// lookup is the least that joins links without queues: at each port one hash look-up for the next port. It has no rules, no counters, no marks, no
// probes, no failure handling and no ordinary switching: what Weir takes longer is what those cost.
type lookup struct {
	links
	next    *cilium.Map // by interface index in the namespace home: that of the port to go out of
	program *cilium.Program
	mu      sync.Mutex
	hooks   []link.Link
	ports   map[string][2]int // indexes of in and out, by function
	ends    []netns.Link      // of the stations
}

func lookupNetwork() networkMaker {
	return networkMaker{
		name: byLookup, about: "a hash look-up for the next port at each port, and nothing else", destroy: nothingLeft, open: openLookup,
		check: func(Options) string {
			for _, f := range switches.All()["ebpf"].Features() {
				if !f.OK && (f.Required || f.Name == "tcx") {
					return "this kernel lacks " + f.Name + ": " + f.Detail
				}
			}
			return ""
		},
	}
}

func openLookup(ctx context.Context, l links, _ function) (network, error) {
	u := &lookup{links: l, ports: map[string][2]int{}}
	if err := u.load(); err != nil {
		return nil, errors.Join(err, u.close(ctx))
	}
	return u, nil
}

func (u *lookup) load() (err error) {
	if u.next, err = cilium.NewMap(&cilium.MapSpec{Type: cilium.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 4096}); err != nil {
		return fmt.Errorf("make the map of next ports: %w", err)
	}
	const ifindex = 40 // of struct __sk_buff
	u.program, err = cilium.NewProgram(&cilium.ProgramSpec{Type: cilium.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, ifindex, asm.Word),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, u.next.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "steered"),
		asm.Mov.Imm(asm.R0, -1), // TCX_NEXT
		asm.Return(),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word).WithSymbol("steered"),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirectPeer.Call(),
		asm.Return(),
	}})
	if err != nil {
		return fmt.Errorf("load the program of ports: %w", err)
	}
	return nil
}

func (u *lookup) station(_ context.Context, name, space string, address netip.Prefix) error {
	port, err := u.joinStation(name, space, address)
	if err != nil {
		return err
	}
	u.ends = append(u.ends, port)
	return u.attach(port)
}

func (u *lookup) add(_ context.Context, name, space string) error {
	in, out, err := u.joinFunction(name, space)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ports[name] = [2]int{in.Index, out.Index}
	return errors.Join(u.attach(in), u.attach(out))
}

func (u *lookup) attach(port netns.Link) error {
	return netns.Do(u.home, func() error {
		hook, err := link.AttachTCX(link.TCXOptions{Interface: port.Index, Program: u.program, Attach: cilium.AttachTCXIngress})
		if err != nil {
			return fmt.Errorf("attach to %s: %w", port.Name, err)
		}
		u.hooks = append(u.hooks, hook)
		return nil
	})
}

func (u *lookup) ready(context.Context, string, int) error { return nil }

// lead writes every joint in both directions. Ports of functions that are not on the way lead to where nothing comes from.
func (u *lookup) lead(_ context.Context, chains [][]string) error {
	functions := chains[0] // it does not split
	last := u.ends[0].Index
	join := func(a, b int) error {
		return errors.Join(u.next.Put(uint32(a), uint32(b)), u.next.Put(uint32(b), uint32(a)))
	}
	for _, name := range functions {
		if err := join(last, u.ports[name][0]); err != nil {
			return fmt.Errorf("lead to function %s: %w", name, err)
		}
		last = u.ports[name][1]
	}
	return join(last, u.ends[1].Index)
}

func (u *lookup) entry() string { return u.ends[0].Name }

func (u *lookup) close(context.Context) error {
	var errs []error
	for _, hook := range u.hooks {
		errs = append(errs, hook.Close())
	}
	if u.program != nil {
		errs = append(errs, u.program.Close())
	}
	if u.next != nil {
		errs = append(errs, u.next.Close())
	}
	return errors.Join(errs...)
}
