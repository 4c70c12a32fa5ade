package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
	"weir.dev/weir/router"
)

// Counters reads ports and rules live from the switch, and what functions use from the kernel.
func (a *Agent) Counters(ctx context.Context) (api.Counters, error) {
	ports, rules, err := a.Switch.Status(ctx)
	if err != nil {
		return api.Counters{}, err
	}
	// Only ports of the instance in force, under the names that the rest of Weir has for them.
	c := api.Counters{Host: a.Host, Ports: []api.PortCounters{}, Rules: []api.RuleCounters{}}
	for _, p := range a.instances(ports) {
		x := api.PortCounters{
			Port: uint32(p.Port), Name: portName(p.Name), Link: p.Link,
			Rx: api.Counter(p.Rx), Tx: api.Counter(p.Tx), Dropped: api.Counter(p.Dropped), Settles: p.Settles, Settled: api.Counter(p.Settled),
		}
		for why, n := range p.Refused {
			if n == 0 {
				continue
			}
			if x.Refused == nil {
				x.Refused = map[string]uint64{}
			}
			x.Refused[flow.Refusal(why).String()] = n
		}
		if p.Function != "" {
			x.State = map[datapath.State]api.LinkState{datapath.Down: api.LinkDown, datapath.Up: api.LinkUp}[p.State]
		}
		c.Ports = append(c.Ports, x)
	}
	// The switch knows rules by cookies; who owns them is in the notes of the last commit.
	notes := a.notes.Load()
	for _, r := range rules {
		x := api.RuleCounters{Cookie: hex64(r.Cookie), Note: r.Note, Hits: api.Counter(r.Hits)}
		if notes != nil {
			x.Note = notes.text[r.Cookie]
			owner := notes.owners[r.Cookie]
			x.Policy, x.Chain = strings.Join(owner.Policies, ","), owner.Chain
			for i, w := range owner.Ways {
				x.Catches = append(x.Catches, api.Caught{Policy: owner.Policies[i], Direction: w.String()})
			}
		}
		c.Rules = append(c.Rules, x)
	}
	if notes != nil {
		c.Version = notes.version
	}
	c.Functions = a.used()
	slices.SortFunc(c.Ports, func(x, y api.PortCounters) int { return strings.Compare(x.Name, y.Name) })
	slices.SortFunc(c.Rules, func(x, y api.RuleCounters) int { return strings.Compare(x.Note, y.Note) })
	return c, nil
}

// portName is a switch's name of a port as the rest of Weir has it: "uplink/eth1".
func portName(s string) string {
	if kind, name, ok := fabricPort(s); ok {
		return kind + "/" + name
	}
	return s
}

// notes are the texts of the rules in force; the kernel keeps only their cookies.
type notes struct {
	version uint32
	text    map[uint64]string
	owners  map[uint64]router.Owner
}

// Logs streams a function's output.
func (a *Agent) Logs(ctx context.Context, function string, o container.LogOptions) (io.ReadCloser, error) {
	return a.Runtime.Logs(ctx, a.containerOf(function), o)
}

// Exec runs one more process in a function.
func (a *Agent) Exec(ctx context.Context, function string, e container.ExecSpec) (int, error) {
	return a.Runtime.Exec(ctx, a.containerOf(function), e)
}

// Metrics are what the host's functions have told last of themselves.
func (a *Agent) Metrics(context.Context) ([]api.FunctionMetrics, error) {
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.functions))
	a.mu.Unlock()
	out := []api.FunctionMetrics{}
	for _, f := range all {
		if numbers, at := f.numbers().Last(time.Now()); len(numbers) > 0 && !f.away() {
			out = append(out, api.FunctionMetrics{Function: f.name, Host: a.Host, Time: at, Metrics: numbers})
		}
	}
	slices.SortFunc(out, func(x, y api.FunctionMetrics) int { return strings.Compare(x.Function, y.Function) })
	return out, nil
}

// ImageList tells what images this host has, with their contracts. One that cannot be read is left out; so is a config schema that is too long.
func (a *Agent) ImageList(context.Context) ([]api.Image, error) {
	images, err := a.Images.List()
	if len(images) == 0 && err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	out := make([]api.Image, 0, len(images))
	for _, i := range images[:min(len(images), api.MaxImages)] {
		out = append(out, ImageOf(i))
	}
	return out, nil
}

// ImageOf is an image as the API shows it; a config schema that is too long is left out.
func ImageOf(i image.Image) api.Image {
	c := i.Contract
	if len(c.ConfigSchema) > api.MaxImageSchema {
		c.ConfigSchema = nil
	}
	return api.Image{
		Name: i.Ref, Digest: i.Digest, Description: c.Description, Size: i.Size, Tap: c.Tap, Probe: c.Probe, Forwarder: c.Forwarder, Rewrites: c.Rewrites,
		Speaks: c.Speaks, Recreate: c.Recreate, Reload: c.Reload != nil, HandsOver: c.Export != nil, Capabilities: c.Capabilities, Command: i.Args, User: i.User,
		ConfigSchema: c.ConfigSchema, Example: c.Example,
	}
}

// containerOf a function; of one that is not here its name, which no container has.
func (a *Agent) containerOf(function string) string {
	a.mu.Lock()
	f := a.functions[function]
	a.mu.Unlock()
	if f == nil {
		return function
	}
	return f.container()
}

// countFunctions are those that this host looks after, those included that have another host now and have not left yet.
func (a *Agent) countFunctions() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.functions)
}

func (a *Agent) hostStatus(now time.Time) api.HostStatus {
	s := api.HostStatus{
		State: api.HostReady, Heartbeat: now, Version: a.Version, Cores: runtime.NumCPU(),
		Switch: a.SwitchName, Runtime: a.RuntimeName, Bridge: a.Instance.Bridge(),
	}
	can := a.Switch.Abilities()
	s.Runtimes, s.RuntimePorts, s.SwitchPorts, s.Forwarders = a.hostRuntimes(), a.Runtime.PortKinds(), can.Ports, can.Forwarders
	s.Functions = a.countFunctions()
	if !a.surveyed {
		s.State = api.HostStarting
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		s.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		s.BootID = strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kb int64
		if n, _ := fmt.Sscanf(string(b), "MemTotal: %d kB", &kb); n == 1 {
			s.Memory = kb << 10
		}
		if _, rest, ok := strings.Cut(string(b), "MemAvailable:"); ok {
			if n, _ := fmt.Sscanf(rest, "%d kB", &kb); n == 1 {
				s.Free = kb << 10
			}
		}
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscanf(string(b), "%g", &s.Load)
	}
	if a.UnderlayAddress.IsValid() {
		s.Address, s.TunnelKey = a.UnderlayAddress.String(), a.tunnels.Key()
	}
	s.Uplinks = a.uplinkState()
	_, skew := a.common.get()
	s.Skew = skew.Nanoseconds()
	for _, f := range a.Features {
		s.Features = append(s.Features, api.Feature(f))
	}
	s.Features = append(append(s.Features, sandbox.Feature(a.unshared())), a.tunnels.Features()...)
	if images, err := a.Images.List(); err == nil {
		for _, i := range images {
			s.Images = append(s.Images, i.Ref)
			name := image.Name(i.Ref)
			if name == i.Ref {
				continue
			}
			if _, err := a.Images.Resolve(name); (err == nil || errors.Is(err, image.ErrUnsigned)) && !slices.Contains(s.Images, name) {
				s.Images = append(s.Images, name) // users may leave the tag out
			}
		}
	}
	for _, ref := range a.Images.Offers() {
		for _, n := range []string{ref, image.Name(ref)} {
			if !slices.Contains(s.Images, n) {
				s.Images = append(s.Images, n)
			}
		}
	}
	return s
}
