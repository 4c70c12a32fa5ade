package platform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
	"weir.dev/weir/ovsdb/ovsproc"
)

const suffixSwitch = "-n"

// switched is a chain as anybody can build it with Open vSwitch: one switch of the netdev datapath, a Linux bridge as function in each of N
// namespaces, and an entry from port to port for each joint, by ovs-ofctl. Weir has no part in it.
type switched struct {
	spaces
	dir     string
	process *ovsproc.Process
	path    Path
	wires   int // that are there
	inForce int // -1: no entries
}

func newSwitched(o Options) *switched {
	top := dir(o, suffixSwitch)
	s := &switched{dir: top, spaces: spaces{dir: filepath.Join(top, "netns")}, inForce: -1}
	hub := filepath.Join(s.spaces.dir, "hub")
	s.process = ovsproc.At(ovsproc.Options{Dir: filepath.Join(top, "ovs"), Netns: hub})
	s.path = Path{Source: sourceAddress.Addr(), Address: targetAddress.Addr(), Space: hub, Link: "alice"}
	return s
}

func checkSwitched(Options) string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	if err := errors.Join(ovsproc.Installed(), tools.Installed("ovs-ofctl")); err != nil {
		return "Open vSwitch is not installed (apt-get install openvswitch-switch)"
	}
	return ""
}

func openSwitched(ctx context.Context, o Options) (Platform, error) {
	s := newSwitched(o)
	if err := s.build(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *switched) build(ctx context.Context) (err error) {
	if _, err = s.add("hub", true); err != nil {
		return err
	}
	if s.path.From, err = s.add("alice", false); err == nil {
		s.path.To, err = s.add("bob", false)
	}
	if err != nil {
		return err
	}
	if _, err := ovsproc.Start(ctx, ovsproc.Options{Dir: s.process.Dir(), Netns: s.path.Space}); err != nil {
		return err
	}
	err = s.vsctl(ctx, "add-br", switchName, "--", "set", "bridge", switchName, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13", "other-config:disable-in-band=true")
	if err != nil {
		return err
	}
	if err := s.pair(s.path.From, "alice", Station, sourceAddress); err != nil {
		return err
	}
	if err := s.pair(s.path.To, "bob", Station, targetAddress); err != nil {
		return err
	}
	for _, space := range []string{s.path.From, s.path.To} { // this datapath sends on what it gets: checksums have to be right, segments no longer than the MTU
		at, err := netns.At(space)
		if err != nil {
			return err
		}
		if err := errors.Join(at.Offloads(Station, false), at.Close()); err != nil {
			return err
		}
	}
	return s.plug(ctx, port{"alice", portAlice}, port{"bob", portBob})
}

const switchName = "br0"

// Numbers of ports: the stations', then two of each wire.
const (
	portAlice = 1
	portBob   = 2
	firstWire = 10
)

type port struct {
	link   string
	number int
}

func wirePorts(i int) (in, out port) {
	return port{fmt.Sprintf("i%d", i), firstWire + 2*i}, port{fmt.Sprintf("o%d", i), firstWire + 2*i + 1}
}

func (s *switched) pair(space, host, peer string, addresses ...netip.Prefix) error {
	_, err := netns.Veth(s.path.Space, space, netns.VethOptions{
		HostName: host, PeerName: peer, Alias: mark + host, HostMAC: address(host), PeerMAC: address(host + "/" + peer), Addresses: addresses, Quiet: len(addresses) == 0,
	})
	return err
}

// Path grows the host to n wires and leads what one station sends through the first n to the other.
func (s *switched) Path(ctx context.Context, n int) (Path, error) {
	if n == s.inForce {
		return s.path, nil
	}
	if err := s.grow(ctx, n); err != nil {
		return s.path, err
	}
	var flows strings.Builder
	joint := func(a, b int) {
		fmt.Fprintf(&flows, "in_port=%d,actions=output:%d\nin_port=%d,actions=output:%d\n", a, b, b, a)
	}
	last := portAlice
	for i := range n {
		in, out := wirePorts(i)
		joint(last, in.number)
		last = out.number
	}
	joint(last, portBob)
	s.inForce = -1
	if err := s.run(ctx, flows.String(), "ovs-ofctl", "-O", "OpenFlow13", "replace-flows", "unix:"+s.process.Mgmt(switchName), "-"); err != nil {
		return s.path, err
	}
	s.inForce = n
	return s.path, s.path.Try(ctx)
}

func (s *switched) grow(ctx context.Context, n int) error {
	var ports []port
	for i := s.wires; i < n; i++ {
		space, err := s.add(wireName(i), true)
		if err != nil {
			return err
		}
		in, out := wirePorts(i)
		err = errors.Join(s.pair(space, in.link, "in"), s.pair(space, out.link, "out"))
		if err == nil {
			err = netns.Do(space, func() error { return bridge("br0", "in", "out") })
		}
		if err != nil {
			return fmt.Errorf("wire %d: %w", i, err)
		}
		s.wires++
		ports = append(ports, in, out)
	}
	return s.plug(ctx, ports...)
}

// plug links into the switch, all at once.
func (s *switched) plug(ctx context.Context, ports ...port) error {
	var argv []string
	for _, p := range ports {
		argv = append(argv, "--", "add-port", switchName, p.link, "--", "set", "interface", p.link, fmt.Sprintf("ofport_request=%d", p.number))
	}
	if len(argv) == 0 {
		return nil
	}
	return s.vsctl(ctx, argv[1:]...)
}

func (s *switched) vsctl(ctx context.Context, argv ...string) error {
	return s.run(ctx, "", "ovs-vsctl", append([]string{"--db=" + s.process.DB(), "--timeout=30"}, argv...)...)
}

// run a program of Open vSwitch to its end.
func (s *switched) run(ctx context.Context, stdin, name string, argv ...string) error {
	cmd := exec.CommandContext(ctx, name, argv...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(cmd.Environ(), "OVS_RUNDIR="+s.process.Dir())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Close removes everything; it also removes what a crash left.
func (s *switched) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if !exists(s.dir) {
		return nil
	}
	if err := s.process.Destroy(ctx); err != nil {
		return err
	}
	return errors.Join(removeSpaces(s.spaces.dir), os.RemoveAll(s.dir))
}
