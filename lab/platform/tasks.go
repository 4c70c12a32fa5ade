package platform

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"weir.dev/weir/lab/traffic/tools"
)

// PlatformHost is a bare host: what a working function does is set up there by hand, with the tool that it stands beside.
const PlatformHost = "host"

// daemonRuntime is the runtime of platforms that a Weir of the lab's own makes, as its users would.
const daemonRuntime = "daemon"

// task is work that functions of the catalogue do in a chain, and that the same tool does on a bare host.
type task struct {
	name, about string
	functions   []job
	settings    map[string]string // that both sides have by their nature, see Kind.Inherent
	process     bool              // something on its way forwards in a process, or reads copies in one, in the function as by hand
	tool        string            // of the bare host
	kernel      bool              // the tool has no process
	needs       []string          // programs of the tool; images of functions are checked apart
	image       string            // that has the tool's program; empty: none
	lacks       func() string     // what the tool needs of the kernel, and this one lacks; nil: nothing
	policy      string            // what goes through the functions; empty: everything between the stations
	service     netip.Addr        // see Path, of both sides; the zero Addr: by hand the tool may have one
	byHand      func(ctx context.Context, h *byHand) error
}

// job is one function of a task: image and configuration.
type job struct {
	name, image string
	config      string // JSON
	tap         bool   // it gets copies
}

// Addresses that tools of the bare host have.
var (
	toolAddress = netip.MustParsePrefix("10.9.0.3/24")
	poolAddress = netip.MustParseAddr("10.9.0.100")
)

// What http-filter and nginx forbid, and what both name servers answer. Asked is a name that both know, AskedIs its address; Forbidden is a path that
// both forbid. Task names are those of functions that experiments ask.
const (
	Forbidden = "/forbidden-7/page"
	Asked     = "name7.example"
	AskedIs   = "10.9.1.7"

	TaskHTTP  = "http-filter"
	TaskDNS   = "dns-lb"
	TaskCache = "cache"
	// TaskCacheUnseen is the same function beside a tool that does all that it does: clients and servers do not know of it.
	TaskCacheUnseen = "cache-unseen"

	TaskBalancer = "load-balancer"

	ruleCount   = 20
	cachedMB    = 32
	shapedMbit  = 2000
	shapedBurst = 2_500_000 // bytes: 10 ms of the rate

	balancedPort = 80 // of the experiment http

	// Of both monitors, in flows, seconds and bytes.
	monitoredFlows = 8192
	monitoredIdle  = 15
	monitoredLife  = 60
	monitoredBytes = 1 << 20 // of the ring of packets: the function's own

	impairedMs   = 5         // each way
	impairedMB   = 64        // that may wait in the function
	impairedMost = 1_000_000 // frames that may wait in netem, which counts no bytes
)

// tasks that functions beside tools have. A chain of five has no tool: its peers are other networks.
func tasks() []task {
	return []task{
		{name: "firewall", about: "a packet filter of 16 rules", functions: []job{firewallJob()}, tool: "nftables on a Linux bridge", needs: []string{"nft"}, byHand: handFirewall},
		{name: "shaper", about: fmt.Sprintf("a limit of %d Mbit/s each way", shapedMbit), functions: []job{shaperJob()}, settings: shaperInherent(), tool: "tc (htb, tbf) at a Linux bridge", needs: []string{"tc"}, byHand: handShaper},
		{name: "nat", about: "source addresses translated", functions: []job{natJob()}, process: true, tool: "routing with nftables' snat", kernel: true, needs: []string{"nft"}, byHand: handNAT},
		{name: "ids", about: "Suricata between two interfaces, 7 rules", functions: []job{idsJob()}, settings: idsInherent(), process: true, tool: "the same Suricata between two interfaces", image: "ids", byHand: handIDS},
		{name: TaskHTTP, about: fmt.Sprintf("%d hosts and %d paths forbidden", ruleCount, ruleCount), functions: []job{filterJob()}, process: true, tool: "nginx as a proxy", needs: []string{"nginx"}, byHand: handFilter},
		{name: TaskCache, about: "answers kept in memory", functions: []job{cacheJob()}, process: true, tool: "nginx as a caching proxy", needs: []string{"nginx"}, byHand: handCache},
		{name: TaskCacheUnseen, about: "answers kept in memory, unseen by clients and servers", functions: []job{cacheJob()}, process: true, tool: "nginx as a transparent caching proxy", needs: []string{"nginx", "nft"}, byHand: handCacheUnseen},
		{name: TaskDNS, about: fmt.Sprintf("%d names answered", ruleCount), functions: []job{dnsJob()}, process: true, tool: "dnsmasq", needs: []string{"dnsmasq"}, byHand: handDNS},
		{name: TaskBalancer, about: "connections to a virtual address led to a target by a hash", functions: []job{balancerJob()}, process: true, tool: "routing with nftables' dnat by jhash", kernel: true, needs: []string{"nft"},
			policy: "from: alice, mode: exhaustive", service: poolAddress, byHand: handBalancer},
		{name: "monitor", about: "copies of all frames for a monitor of flows", functions: []job{monitorJob()}, process: true, tool: "softflowd at a Linux bridge", needs: []string{"softflowd", "unshare"},
			policy: "from: alice, to: bob, mode: replica", byHand: handMonitor},
		{name: "impair", about: fmt.Sprintf("a delay of %d ms each way", impairedMs), functions: []job{impairJob()}, process: true, tool: "tc (netem) at a Linux bridge", kernel: true, needs: []string{"tc", "unshare"}, lacks: lacksNetem,
			settings: impairInherent(), byHand: handImpair},
		{name: none, about: "nothing", settings: insideInherent("there is no function"), tool: "a Linux bridge", byHand: func(_ context.Context, h *byHand) error { return h.bridge(netip.Prefix{}) }},
		{name: five, about: "firewall, http-filter, ids, dns-lb and nat, one behind the other", functions: fiveJobs(), settings: insideInherent("the chain is a daemon's"), process: true},
	}
}

func shaperInherent() map[string]string {
	return map[string]string{SettingQdisc: "the limit is a queue: of a port by hand, inside the function in a chain"}
}

func impairInherent() map[string]string {
	return map[string]string{SettingQdisc: "the delay is a queue: of a port by hand, inside the function in a chain"}
}

// lacksNetem asks the kernel, in a namespace of its own.
func lacksNetem() string {
	out, err := exec.Command("unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem").CombinedOutput()
	if err != nil && strings.Contains(string(out), "qdisc kind is unknown") {
		return "kernel lacks the netem queue (CONFIG_NET_SCH_NETEM)"
	}
	return ""
}

func idsInherent() map[string]string {
	const why = "Suricata turns them off at the interfaces of the host, and may not in a function; the stations send nothing that they would cut"
	return map[string]string{SettingGSO: why, SettingTSO: why}
}

// insideInherent settings of links inside functions, which are read where the lab makes the functions itself.
func insideInherent(why string) map[string]string {
	why += ": the links inside the function ids, between its ports and Suricata, are not there or not read"
	return map[string]string{SettingMTU: why, SettingGSO: why, SettingTSO: why, SettingChecksums: why, settingTxQueue: why}
}

// five working functions in one chain.
const five = "five"

func fiveJobs() []job {
	return []job{firewallJob(), filterJob(), idsJob(), dnsJob(), natJob()}
}

// allowed and denied are the rules of both filters: iperf3's port, that of the lab's frames, and what a host would have.
func allowed() []string {
	return []string{"tcp/22", "tcp/80", "tcp/443", "tcp/5201", "udp/53", "tcp/53", "udp/9", "udp/123", "icmp"}
}

func denied() []string {
	return []string{"tcp/23", "tcp/135-139", "tcp/445", "tcp/3389", "udp/111", "udp/137-138", "udp/1900"}
}

func firewallJob() job {
	return job{name: "firewall", image: "firewall", config: fmt.Sprintf(`{"allow": [%s], "deny": [%s]}`, quoted(allowed()), quoted(denied()))}
}

func shaperJob() job {
	limit := fmt.Sprintf(`{"rate": "%dMbit", "burst": "%dB"}`, shapedMbit, shapedBurst)
	return job{name: "shaper", image: "shaper", config: fmt.Sprintf(`{"up": %s, "down": %s, "fair": false}`, limit, limit)}
}

func natJob() job {
	return job{name: "nat", image: "nat", config: fmt.Sprintf(`{"pool": ["%s"], "clients": ["%s/32"]}`, poolAddress, sourceAddress.Addr())}
}

func idsJob() job {
	var rules []string
	for _, line := range suricataRules() {
		rules = append(rules, strings.ReplaceAll(line, `"`, `\"`))
	}
	return job{name: "ids", image: "ids", config: fmt.Sprintf(`{"rules": "%s"}`, strings.Join(rules, `\n`))}
}

// suricataRules are those of both Suricatas. Of what the lab sends, only its frames (UDP to port 9) meet one: they are not inspected.
func suricataRules() (out []string) {
	for i, match := range []string{
		`drop http any any -> any any (msg:"uri"; http.uri; content:"/etc/passwd";`,
		`drop http any any -> any any (msg:"agent"; http.user_agent; content:"sqlmap";`,
		`drop tls any any -> any any (msg:"name"; tls.sni; content:"malware.example";`,
		`drop dns any any -> any any (msg:"query"; dns.query; content:"malware.example";`,
		`drop tcp any any -> any any (msg:"shell"; content:"|2f 62 69 6e 2f 73 68 00 90 90|";`,
		`alert udp any any -> any any (msg:"datagram"; content:"|de ad be ef 00 ff|";`,
		`alert udp any any -> any 9 (msg:"discard"; noalert; bypass;`,
	} {
		out = append(out, fmt.Sprintf("%s sid:%d;)", match, 1000001+i))
	}
	return out
}

func filterJob() job {
	return job{name: TaskHTTP, image: TaskHTTP, config: fmt.Sprintf(`{"rules": [{"name": "hosts", "hosts": [%s]}, {"name": "paths", "paths": [%s]}], "ports": [80]}`,
		quoted(numbered("forbidden%d.example")), quoted(numbered("/forbidden-%d/*")))}
}

func cacheJob() job {
	return job{name: TaskCache, image: TaskCache, config: fmt.Sprintf(`{"ports": [80], "size_mb": %d}`, cachedMB)}
}

func dnsJob() job {
	var names []string
	for i := range ruleCount {
		names = append(names, fmt.Sprintf(`"name%d.example": {"targets": [{"address": "10.9.1.%d"}]}`, i, i))
	}
	return job{name: TaskDNS, image: TaskDNS, config: fmt.Sprintf(`{"names": {%s}}`, strings.Join(names, ", "))}
}

func balancerJob() job {
	return job{name: TaskBalancer, image: TaskBalancer, config: fmt.Sprintf(`{"services": {"web": {"address": "%s", "protocol": "tcp", "port": %d, "targets": [{"address": "%s"}]}}, "health": {"addresses": ["%s"]}}`,
		poolAddress, balancedPort, targetAddress.Addr(), toolAddress)}
}

func monitorJob() job {
	return job{name: "monitor", image: "monitor", tap: true, config: fmt.Sprintf(`{"max_flows": %d, "idle_s": %d, "active_s": %d}`, monitoredFlows, monitoredIdle, monitoredLife)}
}

func impairJob() job {
	way := fmt.Sprintf(`{"delay": "%dms"}`, impairedMs)
	return job{name: "impair", image: "impair", config: fmt.Sprintf(`{"up": %s, "down": %s, "buffer": "%dMB"}`, way, way, impairedMB)}
}

func numbered(pattern string) (out []string) {
	for i := range ruleCount {
		out = append(out, fmt.Sprintf(pattern, i))
	}
	return out
}

func quoted(words []string) string { return `"` + strings.Join(words, `", "`) + `"` }

// document that leads everything between the stations through the functions of a task.
func (t task) document() string {
	var d strings.Builder
	var names []string
	d.WriteString("functions:\n")
	for _, j := range t.functions {
		fmt.Fprintf(&d, "  %s: {image: %s, config: %s}\n", j.name, j.image, j.config)
		name := j.name
		if j.tap {
			name = "tap:" + name
		}
		names = append(names, name)
	}
	fmt.Fprintf(&d, "chains:\n  work: %s\npolicies:\n  all: {%s, chain: work}\n", strings.Join(names, " | "), cmp.Or(t.policy, "from: alice, to: bob, match: [all]"))
	return d.String()
}

// checkImages of a task's functions.
func (t task) checkImages(o Options) string {
	for _, j := range t.functions {
		if why := checkImage(o, j.image, map[bool]string{true: "make peers", false: "make build"}[j.image == "ids" || j.image == TaskCache]); why != "" {
			return why
		}
	}
	return ""
}

// inChain is a task as a Weir of the lab's own does it, as its users would have it.
func (t task) inChain() Kind {
	return Kind{
		Point: Point{daemonRuntime, "ebpf", t.name}, About: "Weir as users run it: this program's daemon, with " + t.about + " in a chain",
		Check: func(o Options) string { return cmp.Or(checkDaemon(o), t.checkImages(o)) },
		Open: func(ctx context.Context, o Options) (Platform, error) {
			d, err := StartDaemon(ctx, o, false)
			if err != nil {
				return nil, err
			}
			return &daemons{Daemon: d, document: func(int) string { return t.document() }, process: t.process, service: t.service}, nil
		},
		Least: len(t.functions), Most: len(t.functions), Skbs: true, Process: t.process, Inherent: t.settings,
	}
}

// onHost is a task as a tool does it on a bare host.
func (t task) onHost() Kind {
	return Kind{
		Point: Point{PlatformHost, PlatformHost, t.name}, About: "a bare host between the stations, by hand: " + t.tool,
		Check: func(o Options) string {
			if os.Geteuid() != 0 {
				return "needs root"
			}
			if err := tools.Installed(t.needs...); err != nil {
				return err.Error()
			}
			if t.lacks != nil {
				if why := t.lacks(); why != "" {
					return why
				}
			}
			if t.image != "" {
				return checkImage(o, t.image, builtBy)
			}
			return ""
		},
		Open:  func(ctx context.Context, o Options) (Platform, error) { return openByHand(ctx, o, t) },
		Least: len(t.functions), Most: len(t.functions), Skbs: true, Process: t.process, Kernel: t.kernel, Inherent: t.settings,
	}
}

// working are the points of tasks.
func working() (out []Kind) {
	short := map[Point]string{{PlatformHost, PlatformHost, none}: PlatformHost, {daemonRuntime, "ebpf", none}: "no-chain", {daemonRuntime, "ebpf", five}: "five-settled"}
	for _, t := range tasks() {
		kinds := []Kind{t.inChain()}
		if t.byHand != nil {
			kinds = append(kinds, t.onHost())
		}
		for _, k := range kinds {
			k.Name = cmp.Or(short[k.Point], k.Point.String())
			out = append(out, k)
		}
	}
	return out
}

// Tasks that stand on both sides: in a chain of Weir and on a bare host.
func Tasks() (names []string) {
	for _, t := range tasks() {
		if t.byHand != nil && len(t.functions) > 0 {
			names = append(names, t.name)
		}
	}
	return slices.Clip(names)
}
