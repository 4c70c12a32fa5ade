package platform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath/ebpf"
	"weir.dev/weir/netns"
)

const suffixLeast = "-l"

// least is the least that chains of containers without queues can be: the namespaces, veths, tcx links and wires that Weir has, and at each
// port one hash look-up for the next port. It has no rules, no counters, no marks, no probes, no failure handling and no ordinary switching:
// what Weir takes longer is what those cost.
type least struct {
	dir  string
	made map[int]*leastChain
}

// leastChain is one of its chains.
type leastChain struct {
	spaces
	path  Path
	next  *cilium.Map // by interface index in the hub: that of the port to go out of
	host  *cilium.Program
	wire  bpf.WireObjects
	links []link.Link
}

func checkLeast(Options) string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	for _, f := range ebpf.Features() {
		if !f.OK && (f.Required || f.Name == "tcx") {
			return "this kernel lacks " + f.Name + ": " + f.Detail
		}
	}
	return ""
}

func openLeast(_ context.Context, o Options) (Platform, error) {
	return &least{dir: dir(o, suffixLeast), made: map[int]*leastChain{}}, nil
}

func (l *least) Path(ctx context.Context, n int) (Path, error) {
	if c, ok := l.made[n]; ok {
		return c.path, nil
	}
	c := &leastChain{spaces: spaces{dir: filepath.Join(l.dir, fmt.Sprint(n))}}
	err := c.build(n)
	if err == nil {
		err = c.path.Try(ctx)
	}
	if err != nil {
		return c.path, errors.Join(err, c.close())
	}
	l.made[n] = c
	return c.path, nil
}

func (l *least) Close() error {
	var errs []error
	for _, c := range l.made {
		errs = append(errs, c.close())
	}
	return errors.Join(append(errs, removeSpaces(l.dir))...)
}

func (c *leastChain) load() (err error) {
	if c.next, err = cilium.NewMap(&cilium.MapSpec{Type: cilium.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 2*maxWires + 2}); err != nil {
		return fmt.Errorf("make the least chain's map: %w", err)
	}
	const ifindex = 40 // of struct __sk_buff
	c.host, err = cilium.NewProgram(&cilium.ProgramSpec{Type: cilium.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, ifindex, asm.Word),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, c.next.FD()),
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
		return fmt.Errorf("load the least chain's program: %w", err)
	}
	if err := bpf.LoadWireObjects(&c.wire, nil); err != nil {
		return fmt.Errorf("load the wire: %w", err)
	}
	return nil
}

// build the chain between the stations alice and bob.
func (c *leastChain) build(n int) (err error) {
	if err := c.load(); err != nil {
		return err
	}
	c.path = Path{Source: sourceAddress.Addr(), Address: targetAddress.Addr(), Link: "alice"}
	if c.path.Space, err = c.add("hub", false); err != nil {
		return err
	}
	prev := 0
	if c.path.From, prev, err = c.station("alice", sourceAddress); err != nil {
		return err
	}
	for i := range n {
		in, out, err := c.hop(i)
		if err != nil {
			return fmt.Errorf("wire %d: %w", i, err)
		}
		if err := c.joined(prev, in); err != nil {
			return err
		}
		prev = out
	}
	to := 0
	if c.path.To, to, err = c.station("bob", targetAddress); err != nil {
		return err
	}
	return c.joined(prev, to)
}

// hop makes one wire's namespace and gives the indexes of its two ports in the hub.
func (c *leastChain) hop(i int) (in, out int, err error) {
	space, err := c.add(wireName(i), true)
	if err != nil {
		return 0, 0, err
	}
	port := func(name string, index int) (int, error) {
		p, err := c.pair(space, fmt.Sprintf("%s%d", name, i), netns.VethOptions{PeerName: name, PeerIndex: index, Quiet: true})
		if err != nil {
			return 0, err
		}
		return p.Host.Index, c.attach(space, p.Peer.Index, c.wire.Wire)
	}
	if in, err = port("in", indexIn); err != nil {
		return in, out, err
	}
	out, err = port("out", indexOut)
	return in, out, err
}

func (c *leastChain) pair(space, host string, o netns.VethOptions) (netns.Pair, error) {
	o.HostName, o.Alias, o.HostMAC, o.PeerMAC = host, mark+host, address(host), address(host+"/"+o.PeerName)
	return netns.Veth(c.path.Space, space, o)
}

// station makes a station and gives the index of its port.
func (c *leastChain) station(name string, at netip.Prefix) (space string, port int, err error) {
	if space, err = c.add(name, false); err != nil {
		return space, 0, err
	}
	p, err := c.pair(space, name, netns.VethOptions{PeerName: Station, Addresses: []netip.Prefix{at}})
	return space, p.Host.Index, err
}

// joined leads what comes in at each of two ports out of the other.
func (c *leastChain) joined(a, b int) error {
	for from, to := range map[int]int{a: b, b: a} {
		if err := c.next.Put(uint32(from), uint32(to)); err != nil {
			return fmt.Errorf("join ports %d and %d: %w", from, to, err)
		}
		if err := c.attach(c.path.Space, from, c.host); err != nil {
			return err
		}
	}
	return nil
}

func (c *leastChain) attach(space string, index int, p *cilium.Program) error {
	return netns.Do(space, func() error {
		hook, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: cilium.AttachTCXIngress})
		if err != nil {
			return fmt.Errorf("attach to interface %d in %s: %w", index, space, err)
		}
		c.links = append(c.links, hook)
		return nil
	})
}

func (c *leastChain) close() error {
	errs := []error{c.spaces.close()}
	for _, hook := range c.links {
		errs = append(errs, hook.Close())
	}
	return errors.Join(append(errs, c.wire.Close(), c.host.Close(), c.next.Close())...)
}
