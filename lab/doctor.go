package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath/ebpf"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/study"
)

// Environment is where a run is made.
func Environment() map[string]string {
	e := map[string]string{"cpus": strconv.Itoa(goruntime.NumCPU()), "arch": goruntime.GOARCH, "go": goruntime.Version()}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		e["kernel"] = unix.ByteSliceToString(u.Release[:])
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		readCPU(string(text), e)
	}
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err == nil {
		e["memory_mib"] = strconv.FormatUint(uint64(i.Totalram)*uint64(i.Unit)>>20, 10)
	}
	for name, path := range map[string]string{
		"governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "clock": "/sys/devices/system/clocksource/clocksource0/current_clocksource",
		"congestion_control": "/proc/sys/net/ipv4/tcp_congestion_control", "default_qdisc": "/proc/sys/net/core/default_qdisc",
		"netdev_max_backlog": "/proc/sys/net/core/netdev_max_backlog",
		"bpf_jit":            "/proc/sys/net/core/bpf_jit_enable",
	} {
		if text, err := os.ReadFile(path); err == nil {
			e[name] = strings.TrimSpace(string(text))
		}
	}
	nodes, _ := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	e["numa_nodes"] = strconv.Itoa(max(len(nodes), 1))
	return e
}

// readCPU reads the CPU's model, and whether the machine is virtual, from the text of /proc/cpuinfo. ARM has no name of the model there, but numbers.
func readCPU(text string, e map[string]string) {
	arm := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch name {
		case "model name":
			e["cpu"] = value
		case "CPU implementer", "CPU part", "CPU revision":
			arm[name] = value
		case "flags":
			if strings.Contains(" "+value+" ", " hypervisor ") {
				e["virtual"] = "yes"
			}
		}
	}
	if e["cpu"] == "" && arm["CPU part"] != "" {
		e["cpu"] = fmt.Sprintf("ARM implementer %s part %s revision %s", arm["CPU implementer"], arm["CPU part"], arm["CPU revision"])
	}
}

// limits are what cannot be claimed of a run in such an environment.
func limits(e map[string]string, s study.Study) []string {
	first := "No network card is involved: everything runs on one machine, over veth pairs in memory."
	if usesHosts(s) {
		first = "Of platform hosts only this machine was watched (steal, canary, load): what disturbed its other hosts, and the network between them, is in the figures."
	}
	out := []string{
		first,
		"Figures of other papers were taken on other hardware: compare ratios and shapes, not absolute values.",
	}
	if e["virtual"] == "yes" {
		out = append(out, "The machine is virtual: its host may take time away (steal), and its clock is the host's.")
	}
	if n, err := strconv.Atoi(e["cpus"]); err == nil && n < 4 {
		out = append(out, fmt.Sprintf("%d CPUs: sender, chain and receiver share them, so a throughput is that of the whole, not of a chain alone.", n))
	}
	if e["numa_nodes"] == "1" {
		out = append(out, "One NUMA node: nothing is said about traffic between nodes.")
	}
	return out
}

// usesHosts tells whether a study has variants on the hosts of a Weir that runs.
func usesHosts(s study.Study) bool {
	return slices.ContainsFunc(s.Parts, func(p study.Part) bool {
		has := func(factor, level string) bool {
			f, _ := p.Factor(factor)
			return p.Settings[factor] == level || slices.Contains(f.Levels, level)
		}
		return has(experiment.FactorPlatform, platform.PlatformHosts) || p.Experiment == experiment.OfProcessors && has(experiment.FactorNetwork, platform.NetworkWeir)
	})
}

// Finding is one line of what the doctor says.
type Finding struct {
	Topic  string `json:"topic"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Examination of a machine: findings, and for each study what can and cannot be measured here.
type Examination struct {
	Findings []Finding                    `json:"findings"`
	Studies  map[string][]VariantFindings `json:"studies"`
}

// VariantFindings says of the levels of a part's compared factor whether they can be measured.
type VariantFindings struct {
	Part    string            `json:"part"`
	OK      []string          `json:"ok"`
	Skipped map[string]string `json:"skipped,omitempty"` // level -> reason
}

// Examine looks at the machine for a second. It leaves nothing behind; the kernel may load modules that it is asked about.
func Examine(ctx context.Context, images []string, where platform.API) (Examination, error) {
	x := Examination{Studies: map[string][]VariantFindings{}}
	e := Environment()
	x.add("root", os.Geteuid() == 0, "measuring needs it")
	if err := x.processors(ctx, e); err != nil {
		return x, err
	}
	x.clock(e)
	x.network(e)
	x.features()
	x.programs()
	b := &experiment.Bench{Name: "lab-0000", Images: images, API: where}
	x.platforms(b)
	x.members(platform.Options{Name: b.Name, Images: images})
	if text, err := platform.Hosts(ctx, where); err != nil {
		x.add("hosts", false, "platform hosts: %s", err)
	} else {
		x.add("hosts", true, "platform hosts, at %s: %s", where, text)
	}
	switch left, err := experiment.Leftovers(); {
	case errors.Is(err, os.ErrPermission):
		x.add("leftovers", false, "only root can see whether there are any of crashed runs")
	case err != nil:
		return x, err
	default:
		x.add("leftovers", len(left) == 0, "%d of crashed runs; the next run removes them", len(left))
		for _, name := range left {
			if text := platform.Owed(name); text != "" {
				x.add("leftovers", false, "%s", text)
			}
		}
	}
	for _, name := range Studies() {
		st, err := Load(name, nil)
		if err != nil {
			return x, err
		}
		x.Studies[name] = able(ctx, b, st)
		x.time(st, x.Studies[name])
		x.blocks(st, x.Studies[name])
	}
	return x, nil
}

// mostQuick is how long a study takes with --quick at the most.
const mostQuick = 15 * time.Minute

// time that a study takes, where its parts say it, without those parts that cannot be measured here at all.
func (x *Examination) time(s study.Study, parts []VariantFindings) {
	here := map[string]bool{}
	for _, p := range parts {
		here[p.Part] = len(p.OK) > 0
	}
	var texts []string
	sums := map[study.Mode]time.Duration{}
	for _, m := range []study.Mode{study.Quick, study.Full} {
		known := true
		for _, p := range s.Parts {
			d, _ := p.Plan(m).Time() // checked
			known = known && (d > 0 || !here[p.Name])
			if here[p.Name] {
				sums[m] += d
			}
		}
		if known && sums[m] > 0 {
			texts = append(texts, fmt.Sprintf("--%s takes about %s", m, sums[m].Round(time.Minute)))
		}
	}
	if len(texts) > 0 {
		x.add("time: "+s.Name, sums[study.Quick] <= mostQuick, "%s, as measured on a machine of 2 CPUs", strings.Join(texts, ", "))
	}
}

// blocks tells which parts cannot give a verdict here, with the levels that this machine has.
func (x *Examination) blocks(s study.Study, parts []VariantFindings) {
	can := func(p study.Part, v study.Variant) bool {
		i := slices.IndexFunc(parts, func(f VariantFindings) bool { return f.Part == p.Name })
		return i < 0 || slices.Contains(parts[i].OK, p.Level(v, p.Compare))
	}
	for _, m := range []study.Mode{study.Quick, study.Full} {
		for _, text := range FewBlocks(s, m, can) {
			x.add("blocks: "+s.Name, false, "%s", text)
		}
	}
}

func (x *Examination) add(topic string, ok bool, format string, args ...any) {
	x.Findings = append(x.Findings, Finding{topic, ok, fmt.Sprintf(format, args...)})
}

// processors and memory: how many, how steady.
func (x *Examination) processors(ctx context.Context, e map[string]string) error {
	n := goruntime.NumCPU()
	x.add("cpus", n >= 4, "%d (%s): with fewer than 4, generator, chain and sink share them", n, e["cpu"])
	if text, err := os.ReadFile("/sys/devices/system/cpu/smt/active"); err == nil {
		on := strings.TrimSpace(string(text)) == "1"
		x.add("threads of a core", !on, "%s", map[bool]string{true: "shared: two CPUs that are one core slow each other down", false: "each CPU is a core, as far as this machine is told"}[on])
	}
	const least = 2048
	mib, _ := strconv.Atoi(e["memory_mib"]) // 0: unknown
	x.add("memory", mib >= least, "%s MiB: 100 containers and their links need about %d", e["memory_mib"], least)
	before, err := machine.Take()
	if err != nil {
		return err
	}
	s := machine.NewSampler()
	worst := 0.0
	for range 20 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		worst = max(worst, float64(machine.Canary())/float64(s.Reference))
	}
	after, err := machine.Take()
	if err != nil {
		return err
	}
	c := covariates(before, after, 0, experiment.Measurement{})
	r := Rules()
	x.add("steal", c[covSteal] <= r.Steal, "%.1f %% of CPU time in the last second; trials above %.0f %% are void", c[covSteal]*100, r.Steal*100)
	waited := map[string]float64{}
	for _, resource := range pressures {
		if percent, known, err := pressure(resource); err != nil {
			return err
		} else if known {
			waited[resource] = percent
		}
	}
	ok, text := quiet(c[covBusy], c[covLoad], n, waited)
	x.add("quiet", ok, "%s", text)
	x.add("canary", worst <= r.Canary, "a fixed piece of work of %s took up to %.1f times as long", s.Reference.Round(10*time.Microsecond), worst)
	if g, ok := e["governor"]; ok {
		x.add("governor", g == "performance", "%s: performance is steadier", g)
	} else {
		x.add("governor", true, "none: the clock rate is not this machine's to set")
	}
	_, err = os.Stat("/dev/cpu_dma_latency")
	x.add("sleep states", err == nil, "/dev/cpu_dma_latency keeps CPUs awake while idle delay is measured")
	return nil
}

// clock: which one, and the shortest time that it tells apart.
func (x *Examination) clock(e map[string]string) {
	least := time.Hour
	for range 1000 {
		begin := time.Now()
		for d := time.Duration(0); d == 0; d = time.Since(begin) {
			least = min(least, max(time.Since(begin), 1))
		}
	}
	x.add("clock", e["clock"] == "tsc" || e["clock"] == "kvm-clock", "%s: reading it takes up to %s", e["clock"], least)
}

// network: what TCP and links are here, and what the lab does about it.
func (x *Examination) network(e map[string]string) {
	why := experiment.CongestionHere(experiment.DefaultCongestion)
	text := fmt.Sprintf("%s is this machine's; trials set their own, %s unless a study says otherwise", e["congestion_control"], experiment.DefaultCongestion)
	if why != "" {
		text = why
	}
	x.add("congestion control", why == "", "%s", text)
	x.add("queues", true, "default qdisc %s; veth pairs have none (noqueue), and each trial writes down what it had", e["default_qdisc"])
	x.add("bpf jit", e["bpf_jit"] != "0", "net.core.bpf_jit_enable=%s: without it BPF programs are interpreted, several times slower", e["bpf_jit"])
}

// features of the kernel that the lab uses.
func (x *Examination) features() {
	for _, f := range ebpf.Features() {
		if f.Required || !f.OK {
			x.add("kernel: "+f.Name, f.OK, "%s", f.Detail)
		}
	}
	for _, p := range kernelProbes() {
		err := p.try()
		detail := "for " + p.purpose
		if err != nil {
			detail = fmt.Sprintf("needed for %s: %s (%v)", p.purpose, p.since, err)
		}
		x.add("kernel: "+p.name, err == nil, "%s", detail)
	}
}

// platforms that studies can name, and of what they are made.
func (x *Examination) platforms(b *experiment.Bench) {
	for _, k := range platform.Kinds() {
		made := ""
		if parts := k.Point.String(); parts != k.Name {
			made = parts + ": "
		}
		why := b.CheckPlatform(k)
		x.add("platform: "+k.Name, why == "", "%s%s", made, cmp.Or(why, k.About))
	}
}

// members of networks, and what joins them.
func (x *Examination) members(o platform.Options) {
	names, about, missing := platform.Segments(o)
	for _, name := range names {
		x.add("pairs on: "+name, missing[name] == "", "%s", cmp.Or(missing[name], about[name]))
	}
	var can, cannot []string
	for _, name := range platform.MemberRuntimes() {
		if why := platform.CheckMembers(o, name, names[0]); why != "" {
			cannot = append(cannot, name+" ("+why+")")
		} else {
			can = append(can, name)
		}
	}
	text := "containers of pairs can be " + strings.Join(can, ", ")
	if len(cannot) > 0 {
		text += "; not " + strings.Join(cannot, ", ")
	}
	x.add("pairs of", len(can) > 0, "%s", text)
}

// programs that experiments run.
func (x *Examination) programs() {
	for _, t := range []struct{ program, purpose string }{
		{"iperf3", "experiment tcp"}, {"iperf", "experiments tcp-pairs and udp-pairs; tcp, tool iperf"}, {"nuttcp", "experiment tcp, tool nuttcp"},
		{"sockperf", "experiments tcp, tcp-pairs and rr, tool sockperf"}, {"nc", "experiment fct, tool netcat"},
		{"ping", "experiment ping, and to know that a path carries"}, {"runc", "platforms ebpf and ovs, runtimes oci and runc"},
		{"socat", "experiment processors"}, {"nft", "experiment processors, network nat; platform host, functions firewall, nat and load-balancer"}, {"tc", "platform host, functions shaper and impair"}, {"softflowd", "platform host, function monitor"}, {"nginx", "platform host, function http-filter"}, {"dnsmasq", "platform host, function dns-lb"}, {"taskset", "experiments tcp-pairs and udp-pairs"},
		{"dockerd", "platform and runtime docker"}, {"docker", "platform and runtime docker"}, {"lxc-start", "runtimes lxc and lxc-start"},
		{"systemd-nspawn", "runtime nspawn"}, {"qemu-system-x86_64", "host kinds vm and vm-emulated, runtime kvm"},
		{"xz", "experiment compress"}, {"sysbench", "experiment disk"}, {"dd", "experiment disk"}, {"busybox", "experiments with a guest's network or disk"},
		{"ovs-vswitchd", "platform ovs"}, {"ovsdb-server", "platform ovs"}, {"dpdk-testpmd", "experiment ceiling, generator testpmd; function testpmd"},
		{"ovs-vswitchd-dpdk", "networks ovs-dpdk-1 to ovs-dpdk-3"},
	} {
		path, err := exec.LookPath(t.program)
		if err != nil {
			path = "not installed"
		}
		x.add("tool: "+t.program, err == nil, "%s (%s)", path, t.purpose)
	}
}

// able asks the experiments about every level of the compared factors; a level is able if any of its variants is.
func able(ctx context.Context, b *experiment.Bench, s study.Study) (out []VariantFindings) {
	experiments := experiment.All()
	for _, p := range s.Parts {
		f := VariantFindings{Part: p.Name, OK: []string{}, Skipped: map[string]string{}}
		ok := map[string]bool{}
		for _, v := range p.Variants() {
			level := p.Level(v, p.Compare)
			if ok[level] {
				continue
			}
			why := experiments[p.Experiment].Check(ctx, b, levelsOf(p, v))
			if why == "" {
				ok[level] = true
				f.OK = append(f.OK, level)
				delete(f.Skipped, level)
			} else {
				f.Skipped[level] = why
			}
		}
		out = append(out, f)
	}
	return out
}
