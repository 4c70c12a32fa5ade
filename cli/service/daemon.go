package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/daemon/config"
)

// daemonFlags makes a command one that runs a daemon, in the foreground or not. run checks its own flags and runs it; there tells
// whether the program has such a daemon.
func (a *commands) daemonFlags(cmd *cobra.Command, o *DaemonOptions, run func(*cobra.Command) error, there func() bool) {
	var detach bool
	var timeout time.Duration
	f := cmd.Flags()
	f.BoolVarP(&detach, "detach", "d", false, "run in the background; return when it is ready")
	f.DurationVar(&timeout, "timeout", command.WaitDefault, "with --detach: how long to wait until it is ready; 0 is for ever")
	f.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if o.Instance, err = a.Instance(); err != nil {
			return err
		}
		if !slices.Contains([]string{"debug", "info", "warn", "error"}, o.LogLevel) {
			return command.Usage("--log-level %q: want debug, info, warn or error", o.LogLevel)
		}
		if !slices.Contains([]string{"text", "json"}, o.LogFormat) {
			return command.Usage("--log-format %q: want text or json", o.LogFormat)
		}
		if err := errors.Join(a.checkHostFlags(&o.Host, cmd.Flags()), a.checkRuntime(o, cmd.Flags())); err != nil {
			return err
		}
		if o.AcceptBridged && o.Host.Switch != "ebpf" {
			return command.Usage("--accept-bridged is for --switch ebpf: iptables sees nothing of what %s forwards", o.Host.Switch)
		}
		if _, terminal := command.Terminal(os.Stdin); detach && terminal && tokenFromStdin(cmd) {
			return command.Usage("--token-file -: a daemon in the background cannot read a terminal: give a file or a pipe, for example weir token create | weir agent --detach --token-file -")
		}
		if detach {
			return a.detach(cmd, o.Instance, timeout)
		}
		if !there() {
			return command.MissingHook("a daemon")
		}
		var detached bool
		o.Stderr = a.Stderr
		if o.Ready, detached = readiness(); detached {
			o.Stderr = &ownLog{path: logPath(o.Instance), limit: maxLogBytes, out: os.Stderr, also: []int{int(os.Stdout.Fd())}}
		}
		err = run(cmd)
		var ended command.SignalError
		if errors.As(err, &ended) || errors.Is(err, context.Canceled) { // it was asked to end
			return nil
		}
		return err
	}
}

// managerFlags makes a command `weir up` or `weir manager`.
func (a *commands) managerFlags(cmd *cobra.Command, o *UpOptions) {
	a.daemonFlags(cmd, &o.DaemonOptions, func(cmd *cobra.Command) error {
		if err := o.check(a.Placements); err != nil {
			return err
		}
		if err := o.chooseLab(); err != nil {
			return err
		}
		o.chooseUI(cmd.Flags().Changed("ui"))
		if _, terminal := command.Terminal(a.Stderr); terminal && o.UI != "" { // in the foreground; --detach says it itself
			o.Ready = afterwards(o.Ready, func() { sayUI(cmd.Context(), a.Stderr, o.Instance) })
		}
		return a.Up(cmd.Context(), *o)
	}, func() bool { return a.Up != nil })
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", listenDefault, "loopback address of the API, or none")
	f.StringVar(&o.UI, "ui", uiDefault, "loopback address of the web UI, or none; the default is none with --listen none, and if that port is taken the first free one of 7420, 7430 ... 7500, or any")
	f.StringArrayVar(&o.Etcd, "etcd", nil, "address of an external etcd instead of the embedded one; may be repeated")
	f.StringVar(&o.EtcdCA, "etcd-ca", "", "PEM file of the authority of an external etcd's https certificate; default the machine's")
	f.StringVar(&o.EtcdCert, "etcd-cert", "", "PEM file of this manager's certificate for an external etcd")
	f.StringVar(&o.EtcdKey, "etcd-key", "", "PEM file of that certificate's key")
	f.StringVar(&o.SecretKey, "secret-key", "", "file, mode 0600, with at least 32 random characters by which secrets in the state are encrypted; the same for all managers of a state")
	f.StringVar(&o.Restore, "restore", "", "file of weir backup that becomes the state, if there is none or it is damaged; the former state is put aside")
	f.BoolVar(&o.Replace, "replace", false, "with --restore: put aside also a state that is not damaged")
	for _, name := range []string{"restore", "replace"} {
		f.Lookup(name).Annotations = map[string][]string{command.Once: {"true"}}
	}
	f.StringVar(&o.Agents, "agents", "", "address (ADDRESS:PORT) where agents of other hosts join and connect, with TLS; default: none can")
	f.DurationVar(&o.CertificateLife, "certificate-life", certificateLife, "how long agents' certificates are valid; they are renewed at two thirds of it")
	f.StringVar(&o.Underlay, "underlay", "none", "how packets get from host to host where there is no OpenFlow fabric: none or vxlan")
	f.StringVar(&o.Tunnels, "tunnels", "auto", "encryption of the tunnels of --underlay vxlan: auto (where both hosts' kernels have WireGuard), encrypted (no tunnel without) or plain")
	f.StringVar(&o.OpenFlow, "openflow", "", "address (ADDRESS:PORT) where switches of an OpenFlow fabric connect, with TLS and a certificate (weir switch cert); tcp:ADDRESS:PORT is without TLS; default: none can")
	f.BoolVar(&o.DefaultForwarding, "default-forwarding", true, "forward in the OpenFlow fabric also what no policy selects; off where something else does")
	f.StringVar(&o.Placement, "placement", "most-available", "how a host is chosen for a function: most-available, pack, spread or nearest")
}

// hostFlags are those of `weir up` and `weir agent`.
func hostFlags(f *pflag.FlagSet, o *DaemonOptions, name string) {
	usage := "name of this machine among the hosts"
	if name == "" {
		usage += " (default the machine's own)"
	}
	f.StringVar(&o.Host.Name, "host", name, usage)
	f.StringVar(&o.Host.Switch, "switch", "ebpf", "what forwards on this host: ebpf or ovs (Open vSwitch)")
	f.BoolVar(&o.AcceptBridged, "accept-bridged", false, "have the host's iptables accept what Weir's bridge forwards: a rule in FORWARD, whose policy Docker sets to DROP, while bridged packets are shown to it; weir down removes it")
	f.StringVar(&o.Host.Uplink, "uplink", "", "interface into the OpenFlow fabric, for example eth1")
	f.String("underlay-address", "", "address of this host to which other hosts tunnel, with --underlay vxlan at the manager")
	f.String("collector", "", "collector of flow records (ADDRESS:PORT, IPFIX by UDP), to which this host hands on what functions such as monitor export; default: none is exported")
	f.String("runtime", "", "what runs functions that name no runtime: "+strings.Join(api.Runtimes(), ", ")+"; or the program of an OCI runtime, by name or path "+
		"(runc, crun, /opt/runsc): then it is oci, with that program. Default: as weir check says")
	f.BoolVar(&o.Host.AllowBare, "allow-bare", false, "let the runtime bare run every image on this host itself, not only those that come with Weir")
	f.BoolVar(&o.VulnerableRuntime, "allow-vulnerable-runtime", false, "accept an OCI runtime with known container escapes")
	f.StringVar(&o.KVMKernel, "kvm-kernel", "", "kernel of the virtual machines of the runtime kvm, a vmlinux or vmlinuz; default: of /usr/lib/weir/kvm, or the newest of /boot")
	o.FunctionMemory = functionMemory
	f.Var((*memoryFlag)(&o.FunctionMemory), "function-memory", "memory limit of functions whose spec has none, with an optional K, M or G; none: no limit")
	o.FunctionCPUs, o.FunctionDisk = Cores{Percent: functionCPUs}, functionDisk
	f.Var(&o.FunctionCPUs, "function-cpus", "processor limit of functions whose spec has none: cores, or a share of this host's; none: no limit")
	f.Var((*memoryFlag)(&o.FunctionDisk), "function-disk", "what each function may read of this host's disks in a second, and write, with an optional K, M or G; none: no limit")
	o.FunctionRings = functionRings
	f.Var((*memoryFlag)(&o.FunctionRings), "function-rings", "memory that each function may take, beside its memory limit, by what the kernel does not count of its sockets (rings of packet and AF_XDP sockets, queues of netlink, packet, raw and other sockets at 448 KiB each, UDP sockets at 120 KiB each), with an optional K, M or G; none: no limit")
	command.ImagesFlag(f, &o.ImagesDir)
	f.StringArrayVar(&o.Registries, "registry", nil, "registry, or repository of one, from which this host pulls images that functions name and that it lacks (ghcr.io, registry.example.org/nf); may be repeated; "+
		"default: from none, weir image pull fetches them")
	f.StringArrayVar(&o.Verify, "verify", nil, "PATTERN=KEYFILE: images whose names fit are used only if they are signed by the key (registry.example.org/nf/*=nf.pub; PATTERN=none needs no signature); "+
		"may be repeated, the longest pattern counts; default: none has to be")
}

// functionCPUs leaves the host something of what a function would never give back. Weights share the rest.
const functionCPUs = 95

// functionDisk is a few times what a program needs to start at once, and a part of what a disk can.
const functionDisk = 256 << 20

// functionRings is a hundred times what a function of the catalogue has.
const functionRings = 64 << 20

// Cores is a flag of processors, a number or a share of those that there are; zero: no limit.
type Cores struct{ Number, Percent float64 }

// Of a machine with n cores.
func (c Cores) Of(n int) float64 {
	if c.Percent > 0 {
		return math.Floor(c.Percent*float64(n)) / 100
	}
	return c.Number
}

func (c *Cores) Type() string { return "string" }

func (c *Cores) String() string {
	switch {
	case c.Percent > 0:
		return strconv.FormatFloat(c.Percent, 'g', -1, 64) + "%"
	case c.Number > 0:
		return strconv.FormatFloat(c.Number, 'g', -1, 64)
	}
	return "none"
}

func (c *Cores) Set(text string) error {
	if text == "none" {
		*c = Cores{}
		return nil
	}
	if number, ok := strings.CutSuffix(text, "%"); ok {
		p, err := strconv.ParseFloat(number, 64)
		if err != nil || !(p >= 1 && p <= 100) {
			return fmt.Errorf("%q: want a share from 1%% to 100%%, a number of cores such as 1.5, or none", text)
		}
		*c = Cores{Percent: p}
		return nil
	}
	n, err := api.ParseCPUs(text)
	if err == nil && n == 0 {
		err = errors.New("want a number of cores such as 1.5, a share such as 95%, or none")
	}
	if err == nil {
		*c = Cores{Number: n}
	}
	return err
}

// functionMemory holds all of the catalogue ten times.
const functionMemory = 512 << 20

// memoryFlag is a flag of bytes.
type memoryFlag int64

func (m *memoryFlag) Type() string { return "string" }

func (m *memoryFlag) String() string {
	if *m == 0 {
		return "none"
	}
	return strconv.FormatInt(int64(*m)>>20, 10) + "M"
}

func (m *memoryFlag) Set(text string) error {
	if text == "none" {
		*m = 0
		return nil
	}
	n, err := api.ParseMemory(text)
	if err == nil && n == 0 {
		err = errors.New("want a size such as 512M, or none")
	}
	*m = memoryFlag(n)
	return err
}

// Bounds of flags.
const (
	certificateLife    = 30 * 24 * time.Hour
	minCertificateLife = 3 * time.Second
	maxCertificateLife = 365 * 24 * time.Hour
	maxInterfaceName   = 15
)

// checkHostFlags refuses what cannot be a host's.
func (a *commands) checkHostFlags(h *config.Host, f *pflag.FlagSet) error {
	if f.Lookup("host") == nil {
		return nil
	}
	if h.Name != "" && api.CheckName(h.Name) != nil {
		return command.Usage("--host: %w", api.CheckName(h.Name))
	}
	if len(a.Switches) > 0 && !slices.Contains(a.Switches, h.Switch) {
		return command.Usage("--switch %q: want %s", h.Switch, strings.Join(a.Switches, " or "))
	}
	if len(h.Uplink) > maxInterfaceName || strings.ContainsAny(h.Uplink, "/ :") {
		return command.Usage("--uplink %q: want the name of an interface, for example eth1", h.Uplink)
	}
	if text := f.Lookup("collector").Value.String(); text != "" {
		to, err := netip.ParseAddrPort(text)
		if err != nil || to.Port() == 0 || to.Addr().IsUnspecified() || to.Addr().IsMulticast() || to.Addr().Zone() != "" {
			return command.Usage("--collector %q: want the address and port of a collector, for example 10.0.0.9:4739 or [fd00::9]:4739", text)
		}
		h.Collector = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	}
	text := f.Lookup("underlay-address").Value.String()
	if text == "" {
		return nil
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.IsUnspecified() || ip.IsMulticast() || ip.Zone() != "" {
		return command.Usage("--underlay-address %q: want an address of this host, for example 10.0.0.1", text)
	}
	h.UnderlayAddress = ip.Unmap()
	return nil
}

// checkRuntime makes out whether --runtime names a runtime or a program.
func (a *commands) checkRuntime(o *DaemonOptions, f *pflag.FlagSet) error {
	flag := f.Lookup("runtime")
	if flag == nil {
		return nil
	}
	name := flag.Value.String()
	switch {
	case name == "":
	case !slices.Contains(append(api.Runtimes(), a.Runtimes...), name):
		if _, err := exec.LookPath(name); err != nil {
			if meant := api.NearestRuntime(name); meant != "" {
				return command.Usage("--runtime %s: there is no such runtime, and no such program: did you mean %q?", name, meant)
			}
		}
		o.Host.Runtime, o.Runtime = api.RuntimeOCI, name
	case len(a.Runtimes) > 0 && !slices.Contains(a.Runtimes, name):
		return command.Usage("--runtime %s: this version of Weir has no such runtime; want %s, or the path of an OCI runtime's program", name, strings.Join(a.Runtimes, ", "))
	default:
		o.Host.Runtime = name
	}
	return nil
}

// check refuses what cannot be a manager's.
func (o *UpOptions) check(placements []string) error {
	if o.Listen == "none" {
		o.Listen = ""
	}
	if err := o.checkEtcd(); err != nil {
		return err
	}
	o.OpenFlow = strings.TrimPrefix(o.OpenFlow, "ssl:") // as Open vSwitch writes it
	for flag, address := range map[string]string{"agents": o.Agents, "openflow": strings.TrimPrefix(o.OpenFlow, "tcp:")} {
		if err := checkAddress(flag, address); err != nil {
			return err
		}
	}
	if o.CertificateLife < minCertificateLife || o.CertificateLife > maxCertificateLife {
		return command.Usage("--certificate-life %v: want from %v to %v", o.CertificateLife, minCertificateLife, maxCertificateLife)
	}
	if !slices.Contains([]string{"none", "vxlan"}, o.Underlay) {
		return command.Usage("--underlay %q: want none or vxlan", o.Underlay)
	}
	if !slices.Contains([]string{"auto", "encrypted", "plain"}, o.Tunnels) {
		return command.Usage("--tunnels %q: want auto, encrypted or plain", o.Tunnels)
	}
	if o.Underlay == "vxlan" && !o.NoAgent && !o.Host.UnderlayAddress.IsValid() {
		return command.Usage("--underlay vxlan: give the address of this host to which others tunnel with --underlay-address")
	}
	if o.Underlay == "vxlan" && o.Host.Uplink != "" {
		return command.Usage("--underlay vxlan and --uplink: a host is joined to others by tunnels or by its uplink, not by both")
	}
	if len(placements) > 0 && !slices.Contains(placements, o.Placement) {
		return command.Usage("--placement %q: want %s", o.Placement, strings.Join(placements, ", "))
	}
	return nil
}

// afterwards makes a hook of two that is safe to call twice, of which then runs once.
func afterwards(first, then func()) func() {
	once := sync.OnceFunc(func() { go then() })
	return func() {
		first()
		once()
	}
}

// chooseLab decides where the lab keeps its runs.
func (o *UpOptions) chooseLab() (err error) {
	switch {
	case o.NoAgent, o.Lab == "none":
		o.Lab = ""
	case o.Lab == "":
		o.Lab = filepath.Join(o.Instance.Root, "lab")
	default:
		o.Lab, err = filepath.Abs(o.Lab)
	}
	return err
}

// chooseUI decides about the web UI where nobody has.
func (o *UpOptions) chooseUI(chosen bool) {
	switch {
	case o.UI == "none", !chosen && o.Listen == "":
		o.UI = ""
	case !chosen:
		o.UIMoves = true
	}
}

// checkEtcd refuses TLS files that no connection would use.
func (o *UpOptions) checkEtcd() error {
	files := o.EtcdCA != "" || o.EtcdCert != "" || o.EtcdKey != ""
	https := func(address string) bool {
		return strings.HasPrefix(address, "https://") || strings.HasPrefix(address, "unixs://")
	}
	switch {
	case files && len(o.Etcd) == 0:
		return command.Usage("--etcd-ca, --etcd-cert, --etcd-key: they are for an external etcd: give its address with --etcd https://HOST:2379")
	case files && !slices.ContainsFunc(o.Etcd, https):
		return command.Usage("--etcd %s: want https://, since there are files for TLS", o.Etcd[0])
	case (o.EtcdCert == "") != (o.EtcdKey == ""):
		return command.Usage("--etcd-cert and --etcd-key: want both or none")
	}
	return nil
}

func checkAddress(flag, address string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || host == "" {
		return command.Usage("--%s %q: want ADDRESS:PORT, for example %s", flag, address, fmt.Sprintf("0.0.0.0:%d", map[string]int{"agents": 7412, "openflow": 6653}[flag]))
	}
	_ = n // 0 lets the kernel choose
	return nil
}

func (a *commands) managerCommand() *cobra.Command {
	o := UpOptions{Manager: config.Manager{NoAgent: true}}
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run a manager only: API and state, for agents elsewhere",
		Long: `Run a manager on this machine until Ctrl-C or SIGTERM: what "weir up" runs, but without an agent, so that nothing of this
machine's network is touched. Hosts join it with "weir agent"; --agents says where. Root is not needed if /run/weir and the
directory given with --root can be written.`,
		Example: `  weir manager --agents 10.0.0.1:7412
  weir manager --agents 10.0.0.1:7412 --openflow 10.0.0.1:6653 --detach
  weir manager --agents 10.0.0.2:7412 --etcd https://10.0.0.9:2379 --etcd-ca ca.pem --etcd-cert m2.pem --etcd-key m2.key`,
		Args: command.NoArgs(),
	}
	a.managerFlags(cmd, &o)
	return cmd
}
