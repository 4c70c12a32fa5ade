package platform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/lab/tied"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
)

// ProcessorOptions say which processors there are.
type ProcessorOptions struct {
	MemberOptions     // Network is one of ProcessorNetworks
	Hosts         int // 1 or 2: processors are on them in turns
	Mbps          int // of each host's link, and of the link of the outside; 0: as fast as it goes
}

// Networks of processors.
const (
	byHost     = "host"        // the host's own stack
	byNAT      = "nat"         // a Linux bridge behind the host's address: masquerade out, ports forwarded in
	ownNAT     = "own-nat"     // the same, as the runtime's own tool makes it
	ownMacvlan = "own-macvlan" // macvlan as the runtime's own tool makes it
)

// NetworkWeir is the network whose processors are functions of a Weir that runs; see chainRow.
const NetworkWeir = "weir"

// ProcessorNetworks are the networks that processors can have.
func ProcessorNetworks() []string {
	return []string{byHost, byNAT, byMacvlan, ownNAT, ownMacvlan, NetworkWeir}
}

// byTool tells whether the runtime's own tool makes a network.
func byTool(network string) bool { return network == ownNAT || network == ownMacvlan }

// Processor is a container whose program receives datagrams and sends them on.
type Processor struct {
	Member
	Listen netip.AddrPort // in its namespace
	Reach  netip.AddrPort // by which others send to it
}

// Processors are processors on one host or two, and an outside that sends to the first one and receives from the last one. A host is a network namespace with a
// link to a bridge that stands for the wire between machines.
//
// The last one of a chain is made first, and each is made to send to the one before: so a container's own process (Relays) has its arguments from the start, and a
// shorter chain is the end of a longer one.
type Processors struct {
	links
	o       ProcessorOptions
	houses  housing
	engine  *Engine  // whose networks they have; nil: they have others
	hosts   []string // namespaces
	parents []int    // indexes of the hosts' links
	rules   []string // of each host, for nft
	outside string   // namespace
	sink    netip.AddrPort
	all     []Processor
	weights weights
}

const (
	mostProcessors = 100
	linePort       = 6000
)

func lineAddress(b, c byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 11, b, c}), 16) // 10.9.0.0/24 is that of the engine's own bridge
}

func hostAddress(host int) netip.Prefix { return lineAddress(0, byte(11+host)) }

// natAddress of a processor on a host, or with 0 of the host on its bridge.
func natAddress(host, i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 20, byte(host), byte(1 + i)}), 24)
}

// CheckProcessors tells why processors cannot be had here; empty: they can.
func CheckProcessors(o ProcessorOptions) string {
	if o.Network == NetworkWeir {
		return checkChainRow(o)
	}
	runtime, network, hosts := o.Runtime, o.Network, o.Hosts
	h, err := findHousing(runtime)
	if err != nil {
		return err.Error()
	}
	switch {
	case os.Geteuid() != 0:
		return "needs root"
	case network == byNAT && tools.Installed("nft") != nil:
		return "nft: not installed (apt-get install nftables)"
	case runtime == byDocker && (network == byHost || byTool(network)) && hosts > 1:
		return "the lab has one Docker engine, and its networks are those of one host"
	case byTool(network) && runtime != byDocker:
		if why := checkPlugins(runtime); why != "" {
			return why
		}
	}
	if o.Relays {
		if why := checkImage(o.Options, relayImage, builtBy); why != "" {
			return why
		}
	}
	return h.check(o.Options)
}

// Row is processors one behind the other, and an outside.
type Row interface {
	// Grow makes processors until there are n, and gives a chain of n.
	Grow(ctx context.Context, n int) ([]Processor, error)
	// Outside is the namespace that sends to the first one, the one in which the last one's datagrams arrive, and where there.
	Outside() (from, to string, sink netip.AddrPort)
	// Ill says which of the processors have ended; nil: none has.
	Ill(ctx context.Context) error
	Conditions() (map[string]string, error)
	Close() error
}

// OpenRow makes everything but the processors.
func OpenRow(ctx context.Context, o ProcessorOptions) (Row, error) {
	if o.Network == NetworkWeir {
		return openChainRow(ctx, o)
	}
	return OpenProcessors(ctx, o)
}

// OpenProcessors makes the hosts, the outside and the wire between them. Grow makes the processors.
func OpenProcessors(ctx context.Context, o ProcessorOptions) (*Processors, error) {
	h, err := findHousing(o.Runtime)
	if err != nil {
		return nil, err
	}
	inst, err := newInstance(o.Options)
	if err != nil {
		return nil, err
	}
	l := &Processors{links: linksOf(inst), o: o, sink: netip.AddrPortFrom(lineAddress(0, 1).Addr(), 7000), weights: weights{}}
	if o.Runtime == byDocker && byTool(o.Network) {
		l.engine, err = openEngine(ctx, o.Options, map[string]string{ownNAT: suffixNAT, ownMacvlan: suffixMacvlan}[o.Network])
		l.o.Engine = func(context.Context) (*Engine, error) { return l.engine, nil }
	}
	if err == nil {
		l.houses, err = h.open(ctx, l.o.MemberOptions, inst)
	}
	if err == nil {
		err = l.build(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Processors) build(ctx context.Context) (err error) {
	s := spaces{dir: l.inst.NetnsDir()}
	if _, err := s.add(filepath.Base(l.home), true); err != nil {
		return err
	}
	if err := netns.Do(l.home, func() error { return makeBridge(switchName, l.inst.Alias(switchName)) }); err != nil {
		return err
	}
	if l.outside, err = s.add("outside", true); err != nil {
		return err
	}
	if err := l.connect("outside", l.outside, lineAddress(0, 1)); err != nil {
		return err
	}
	for i := range l.o.Hosts {
		name := fmt.Sprintf("host%d", i)
		space := ""
		if l.o.Runtime == byDocker && (l.o.Network == byHost || byTool(l.o.Network)) { // its containers have the engine's network, or are behind it
			e, err := l.o.Engine(ctx)
			if err != nil {
				return err
			}
			space = e.space
		} else if space, err = s.add(name, true); err != nil {
			return err
		}
		if err := l.connect(name, space, hostAddress(i)); err != nil {
			return err
		}
		if err := l.prepare(i, space); err != nil {
			return fmt.Errorf("host %d: %w", i, err)
		}
	}
	return nil
}

// connect a namespace to the wire, by a link of the wanted rate.
func (l *Processors) connect(name, space string, address netip.Prefix) error {
	link, err := l.joinStation(name, space, address)
	if err != nil {
		return err
	}
	if err := netns.Do(l.home, func() error { return moveTo(switchName, link.Name) }); err != nil || l.o.Mbps == 0 {
		return err
	}
	return netns.Do(space, func() error { return shape(Station, l.o.Mbps) })
}

// shape what leaves by a link: a token bucket, whose queue is 20 ms long.
func shape(name string, mbps int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	rate := uint64(mbps) * 1e6 / 8 // bytes a second
	const burst, wait = 64 << 10, 0.02
	q := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Limit: uint32(float64(rate)*wait) + burst, Buffer: netlink.Xmittime(rate, burst),
	}
	if err := netlink.QdiscAdd(q); err != nil {
		return fmt.Errorf("shape %s to %d Mb/s (tbf): %w", name, mbps, err)
	}
	return nil
}

// prepare a host for its network.
func (l *Processors) prepare(host int, space string) error {
	l.hosts, l.rules = append(l.hosts, space), append(l.rules, "")
	return netns.Do(space, func() error {
		link, err := netlink.LinkByName(Station)
		if err != nil {
			return err
		}
		l.parents = append(l.parents, link.Attrs().Index)
		if l.o.Network == ownNAT {
			return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
		}
		if l.o.Network != byNAT {
			return nil
		}
		if err := makeBridge(switchName, mark+switchName); err != nil {
			return err
		}
		if err := raise(switchName, natAddress(host, 0)); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	})
}

// Grow makes processors until there are n, and gives a chain of n. Until the next call or the end, all of them together have the weight of n processes.
func (l *Processors) Grow(ctx context.Context, n int) ([]Processor, error) {
	if n > mostProcessors {
		return nil, fmt.Errorf("%d processors: want at most %d", n, mostProcessors)
	}
	before := len(l.all)
	for i := before; i < n; i++ {
		p, err := l.add(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("processor %d: %w", i+1, err)
		}
		l.all = append(l.all, p)
	}
	if len(l.all) > before {
		if err := l.forward(ctx); err != nil {
			return nil, err
		}
	}
	for _, p := range l.all[before:] {
		if !l.o.Relays {
			break
		}
		if err := tools.Listening(ctx, p.Space, "udp", int(p.Listen.Port())); err != nil {
			return nil, errors.Join(fmt.Errorf("processor %s: %w", p.Name, err), l.houses.ill(ctx))
		}
	}
	chain := slices.Clone(l.all[:n])
	slices.Reverse(chain)
	for _, p := range chain {
		if err := l.weights.give(p.Groups, n); err != nil {
			return nil, err
		}
	}
	return chain, nil
}

// Outside is one namespace.
func (l *Processors) Outside() (from, to string, sink netip.AddrPort) {
	return l.outside, l.outside, l.sink
}

// Ill says which of the containers' own processes have ended; nil: none has.
func (l *Processors) Ill(ctx context.Context) error { return l.houses.ill(ctx) }

func (l *Processors) add(ctx context.Context, i int) (p Processor, err error) {
	host := i % len(l.hosts)
	p.Name = fmt.Sprintf("p%03d", i)
	space := filepath.Join(l.inst.NetnsDir(), p.Name)
	if l.o.Network == byHost {
		space = l.hosts[host]
	}
	port, at := uint16(linePort+i), hostAddress(host)
	var relay []string
	if l.o.Relays {
		to := l.sink
		if i > 0 {
			to = l.all[i-1].Reach
		}
		relay = []string{"-u", "-b", "65536", fmt.Sprintf("UDP4-RECV:%d", port), "UDP4-SENDTO:" + to.String()}
	}
	c := berth{name: p.Name, space: space, group: processGroup(l.inst), relay: relay}
	if byTool(l.o.Network) {
		c.port, c.outside, c.inside = int(port), at, lineAddress(1, byte(1+i))
	}
	if p.Space, p.Groups, err = l.houses.house(ctx, c); err != nil {
		return p, err
	}
	switch l.o.Network {
	case ownNAT, ownMacvlan:
		if l.o.Runtime != byDocker {
			err = l.plugged(ctx, host, i, p, port)
		}
		if l.o.Network == ownMacvlan {
			at = lineAddress(1, byte(1+i))
		}
		p.Listen = netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	case byMacvlan:
		at = lineAddress(1, byte(1+i))
		m := macvlans{links: links{l.inst, l.hosts[host]}, parent: l.parents[host]}
		err = m.station(ctx, p.Name, p.Space, at)
	case byNAT:
		inside := natAddress(host, 1+i)
		p.Listen = netip.AddrPortFrom(inside.Addr(), port)
		err = l.bridged(host, p, inside)
	}
	p.Address, p.Reach = at.Addr(), netip.AddrPortFrom(at.Addr(), port)
	if !p.Listen.IsValid() {
		p.Listen = p.Reach
	}
	return p, err
}

// bridged joins a processor to its host's bridge, and notes how its port is forwarded.
func (l *Processors) bridged(host int, p Processor, inside netip.Prefix) error {
	on := links{l.inst, l.hosts[host]}
	link, err := on.joinStation(p.Name, p.Space, inside)
	if err != nil {
		return err
	}
	if err := netns.Do(on.home, func() error { return moveTo(switchName, link.Name) }); err != nil {
		return err
	}
	l.rules[host] += fmt.Sprintf("add rule ip weir in ip daddr %s udp dport %d dnat to %s\n", hostAddress(host).Addr(), p.Listen.Port(), p.Listen)
	return netns.Do(p.Space, func() error {
		own, err := netlink.LinkByName(Station)
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{LinkIndex: own.Attrs().Index, Gw: natAddress(host, 0).Addr().AsSlice()})
		}
		if err != nil {
			return fmt.Errorf("default route: %w", err)
		}
		return nil
	})
}

// natTable has what leaves masqueraded, also what a container sends to a forwarded port of its own host, as Docker does.
const natTable = `add table ip weir
delete table ip weir
add table ip weir
add chain ip weir in { type nat hook prerouting priority -100; }
add chain ip weir out { type nat hook postrouting priority 100; }
add rule ip weir out ip saddr 172.20.0.0/16 masquerade
`

// forward ports of all hosts as their rules say.
func (l *Processors) forward(ctx context.Context) error {
	if l.o.Network != byNAT {
		return nil
	}
	for i, space := range l.hosts {
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(natTable + l.rules[i])
		var problems strings.Builder
		cmd.Stdout, cmd.Stderr = &problems, &problems
		if err := tied.Start(space, cmd); err != nil {
			return fmt.Errorf("nft: %w", err)
		}
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(problems.String()))
		}
	}
	return nil
}

// Conditions are those of the outside, of the first host's link, and of the wire. What is on the hosts is what networks differ in.
func (l *Processors) Conditions() (map[string]string, error) {
	return Path{From: l.outside, To: l.hosts[0], Middle: l.home}.Conditions()
}

// Close removes everything.
func (l *Processors) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if l.houses != nil {
		if err := l.houses.close(ctx); err != nil {
			return fmt.Errorf("remove %s: %w", l.inst.Name, err)
		}
	}
	if err := errors.Join(l.weights.restore(), RemoveCgroups(ctx, processGroup(l.inst))); err != nil {
		return fmt.Errorf("remove %s: %w", l.inst.Name, err)
	}
	if l.engine != nil {
		if err := l.engine.Close(); err != nil {
			return err
		}
	}
	return RemoveInstance(l.inst)
}
