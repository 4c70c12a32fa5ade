package testbed

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"weir.dev/weir/ovsdb/ovsproc"
)

// ovsWait bounds a start of Open vSwitch, and its taking over of a configuration.
const ovsWait = 20 * time.Second

// Names of Open vSwitch's processes, as nodes of processes.
const (
	ovsdbServer = "ovsdb-server"
	ovsVswitchd = "ovs-vswitchd"
)

func (p plan) ovsDir() string { return filepath.Join(p.Run, "ovs") }

// ovsproc is the private Open vSwitch of all switches.
func (p plan) ovsproc() *ovsproc.Process {
	return ovsproc.At(ovsproc.Options{Dir: p.ovsDir(), Netns: p.netns(NodeSwitches)})
}

func checkOVS() error {
	if err := ovsproc.Installed(); err != nil {
		return fmt.Errorf("switches need Open vSwitch: %w: %w", err, ErrMissing)
	}
	return nil
}

// startOVS starts what does not run of the database server and the switch daemon.
func (p plan) startOVS(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ovsWait)
	defer cancel()
	_, err := ovsproc.Start(ctx, ovsproc.Options{Dir: p.ovsDir(), Netns: p.netns(NodeSwitches)})
	return err
}

// portQueue is the receive buffer of a switch's port, in bytes: some 80,000 small frames. All switches of a testbed are one process; whatever
// else the machine does, what comes while that waits for a processor waits, too, and a loss that a test sees is the rules' doing.
const portQueue = 32 << 20

// widen the ports' queues. Ports are there when ovs-vswitchd has taken over its configuration, as it has when it or ovs-vsctl returns.
func (p plan) widen() error {
	return p.ovsproc().Widen(portQueue)
}

// ovs is a command of Open vSwitch in the switches' namespace.
func (p plan) ovs(ctx context.Context, argv ...string) *exec.Cmd {
	c := p.command(ctx, "", NodeSwitches, argv...)
	c.Env = append(c.Env, "OVS_RUNDIR="+p.ovsDir())
	return c
}

func (p plan) vsctl(ctx context.Context, argv ...string) error {
	argv = append([]string{"ovs-vsctl", "--db=" + p.ovsproc().DB(), "--timeout=15", "-vconsole:off", "-vsyslog:off"}, argv...)
	if _, err := run(p.ovs(ctx, argv...)); err != nil {
		return fmt.Errorf("configure Open vSwitch: %w", err)
	}
	return nil
}

// configureSwitches makes all bridges and ports in one transaction and waits until the daemon has done it.
func (p plan) configureSwitches(ctx context.Context) error {
	var argv []string
	ids, transport := p.dpids(), "tcp"
	if p.openflowTLS() {
		file := func(name string) string { return filepath.Join(p.switchCert(), name) }
		transport, argv = "ssl", append(argv, "--", "set-ssl", file("key.pem"), file("cert.pem"), file("ca.pem"))
	}
	for _, name := range sorted(p.Switches) {
		argv = append(argv, "--", "add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13",
			fmt.Sprintf("other-config:datapath-id=%016x", ids[name]), "other-config:dp-desc="+name, "other-config:disable-in-band=true",
			"other-config:hwaddr="+bridgeMAC(ids[name]), "external-ids:weir-testbed="+p.Name)
		if size := p.Switches[name].TableSize; size > 0 {
			t := fmt.Sprintf("flow_limit=%d", size)
			argv = append(argv, "--", "--id=@t0"+name, "create", "flow_table", t, "overflow_policy=refuse",
				"--", "--id=@t1"+name, "create", "flow_table", t, "overflow_policy=refuse",
				"--", "set", "bridge", name, "flow_tables:0=@t0"+name, "flow_tables:1=@t1"+name)
		}
		argv = append(argv, "--", "set-controller", name, fmt.Sprintf("%s:%s:%d", transport, managerAddress, openflowPort),
			"--", "set", "controller", name, "connection_mode=out-of-band", "max_backoff=1000", "inactivity_probe=5000")
	}
	for _, c := range p.cables() {
		for i, e := range []end{c.a, c.b} {
			if e.port != 0 {
				argv = append(argv, "--", "add-port", e.node, c.sides[i].Interface,
					"--", "set", "interface", c.sides[i].Interface, fmt.Sprintf("ofport_request=%d", e.port))
			}
		}
	}
	if err := p.vsctl(ctx, argv[1:]...); err != nil {
		return err
	}
	return p.checkPorts(ctx)
}

// bridgeMAC keeps a bridge's own address steady; it never sends.
func bridgeMAC(dpid uint64) string {
	return fmt.Sprintf("02:58:%02x:%02x:%02x:%02x", byte(dpid>>24), byte(dpid>>16), byte(dpid>>8), byte(dpid))
}

// checkPorts makes sure that every port has the number that the file says.
func (p plan) checkPorts(ctx context.Context) error {
	out, err := run(p.ovs(ctx, "ovs-vsctl", "--db="+p.ovsproc().DB(), "--timeout=15", "--format=csv", "--no-headings", "--columns=name,ofport,error", "list", "interface"))
	if err != nil {
		return fmt.Errorf("configure Open vSwitch: %w", err)
	}
	got := map[string]string{}
	for _, line := range strings.Split(out, "\n") {
		if f := strings.SplitN(line, ",", 3); len(f) == 3 {
			got[f[0]] = f[1]
			if f[1] == "-1" {
				return fmt.Errorf("port %s: refused by Open vSwitch: %s", f[0], f[2])
			}
		}
	}
	for _, c := range p.cables() {
		for i, e := range []end{c.a, c.b} {
			if want := fmt.Sprint(e.port); e.port != 0 && got[c.sides[i].Interface] != want {
				return fmt.Errorf("port %s: Open vSwitch gave it the number %q, not %s", c.sides[i].Interface, got[c.sides[i].Interface], want)
			}
		}
	}
	return nil
}
