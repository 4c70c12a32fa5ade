package daemon

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/image"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/intent"
)

// admitTimeout bounds what one admission may take at this host: it reads images' layers once.
const admitTimeout = 20 * time.Second

// Admit refuses what this host cannot give to what is new or changed: images, interfaces, network namespaces. All that changed is taken
// to be for this host.
func (h *host) Admit(ctx context.Context, d, changed api.Document) []api.Problem {
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	var out []api.Problem
	add := func(path, message, hint string) {
		out = append(out, api.Problem{Path: path, Message: message, Hint: hint})
	}
	for _, name := range slices.Sorted(maps.Keys(changed.Endpoints)) {
		if p := h.agent.CheckEndpoint(ctx, name, d); p != nil {
			add("endpoints."+name+"."+p.Path, p.Message, p.Hint)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changed.Functions)) {
		f := changed.Functions[name]
		img, err := h.images.Verify(ctx, f.Image)
		if err != nil {
			add("functions."+name+".image", err.Error(), "")
			continue
		}
		if p := h.agent.CheckFunction(ctx, name, f, img); p != nil {
			add("functions."+name+"."+p.Path, p.Message, p.Hint)
		}
		for _, p := range img.Contract.CheckConfig(f.Config) {
			path := "functions." + name + ".config"
			if p.Path != "" {
				path += "." + p.Path
			}
			add(path, p.Message, p.Hint)
		}
	}
	return append(out, admitChains(h.images, d, changed)...)
}

// admitPolicies refuses policies that this host's switch has no room for.
func (h *host) admitPolicies(d, changed api.Document) (out []api.Problem) {
	if len(changed.Policies)+len(changed.Chains)+len(changed.Endpoints) == 0 {
		return nil
	}
	for _, p := range h.agent.CheckPolicies(d, changed) {
		p.Path = "policies." + p.Path
		out = append(out, p)
	}
	return out
}

// Counters, Logs and Exec are the agent's.
func (h *host) Counters(ctx context.Context) (api.Counters, error) { return h.agent.Counters(ctx) }

func (h *host) ImageList(ctx context.Context) ([]api.Image, error) { return h.agent.ImageList(ctx) }

// Metrics are what the host's functions tell of themselves.
func (h *host) Metrics(ctx context.Context) ([]api.FunctionMetrics, error) {
	return h.agent.Metrics(ctx)
}

// Logs streams a function's output.
func (h *host) Logs(ctx context.Context, function string, o container.LogOptions) (io.ReadCloser, error) {
	return h.agent.Logs(ctx, function, o)
}

// State is that of a function that moves to another host.
func (h *host) State(ctx context.Context, function, uid string) (io.ReadCloser, int64, error) {
	return h.agent.State(ctx, function, uid)
}

// Flows are those that a function has settled.
func (h *host) Flows(ctx context.Context, function string, o api.FlowOptions) (api.SettledFlows, error) {
	return h.agent.Flows(ctx, function, o)
}

// Capture streams the frames of a port.
func (h *host) Capture(ctx context.Context, kind api.Kind, name string, o api.CaptureOptions) (io.ReadCloser, error) {
	return h.agent.Capture(ctx, kind, name, o)
}

// Exec runs one more process in a function.
func (h *host) Exec(ctx context.Context, function string, e container.ExecSpec) (int, error) {
	return h.agent.Exec(ctx, function, e)
}

// How long hosts elsewhere may take to answer what they have against a change. Who did not answer is not asked again for a while: others change
// something, too.
const (
	hostTimeout = 3 * time.Second
	silentFor   = 30 * time.Second
)

// admission asks each host about what is meant for it. Nobody holds a lock meanwhile.
type admission struct {
	own     *host // nil: this machine is none
	manager *manager.Manager

	mu     sync.Mutex
	silent map[string]time.Time // hosts that did not answer, and when
}

// asked is a host that can be asked.
type asked func(ctx context.Context, d, changed api.Document) ([]api.Problem, error)

// admit gives each host its part of what changed. A host that does not answer will say in the objects' status what it lacks. A function that may run
// anywhere is refused only if no host has nothing against it.
func (a *admission) admit(ctx context.Context, d, changed api.Document) intent.Verdict {
	hosts := map[string]asked{}
	for _, name := range a.manager.Ask.Remotes() {
		if c := a.manager.Ask.Remote(name); c != nil {
			hosts[name] = a.elsewhere(name, c.Admit)
		}
	}
	if a.own != nil {
		hosts[a.own.name] = func(ctx context.Context, d, changed api.Document) ([]api.Problem, error) {
			return a.own.Admit(ctx, d, changed), nil
		}
	}
	h := &hearing{warnings: map[string]bool{}, seen: map[api.Problem]bool{}}
	parts, free := a.split(changed, hosts)
	var wg sync.WaitGroup
	said := make([][]api.Problem, len(parts))
	for i, name := range slices.Sorted(maps.Keys(parts)) {
		wg.Go(func() { said[i] = h.ask(ctx, name, hosts[name], d, parts[name]) })
	}
	wg.Wait()
	for _, problems := range said {
		h.add(problems)
	}
	h.add(a.anywhere(ctx, h, hosts, d, free))
	if a.own != nil && len(h.problems) == 0 {
		h.add(a.own.admitPolicies(d, changed))
	}
	return intent.Verdict{Problems: h.problems, Warnings: slices.Sorted(maps.Keys(h.warnings))}
}

// elsewhere bounds the time that a host elsewhere has.
func (a *admission) elsewhere(name string, admit asked) asked {
	return func(ctx context.Context, d, changed api.Document) ([]api.Problem, error) {
		a.mu.Lock()
		at, silent := a.silent[name]
		a.mu.Unlock()
		if silent && time.Since(at) < silentFor {
			return nil, fmt.Errorf("did not answer %v ago", time.Since(at).Round(time.Second))
		}
		within, cancel := context.WithTimeoutCause(ctx, hostTimeout, fmt.Errorf("did not answer within %v", hostTimeout))
		defer cancel()
		problems, err := admit(within, needed(d, changed), bare(changed))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx) // who asks has gone
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if err == nil {
			delete(a.silent, name)
			return about(changed, problems), nil
		}
		if a.silent == nil {
			a.silent = map[string]time.Time{}
		}
		maps.DeleteFunc(a.silent, func(_ string, at time.Time) bool { return time.Since(at) >= silentFor })
		a.silent[name] = time.Now()
		return nil, err
	}
}

// needed is what a host elsewhere has to see of a document: chains that what changed is in, and the images of their functions.
func needed(d, changed api.Document) api.Document {
	out := api.Document{Endpoints: d.Endpoints, Functions: map[string]api.FunctionSpec{}, Chains: map[string]api.ChainSpec{}}
	for name, c := range d.Chains {
		members := c.Functions()
		_, new := changed.Chains[name]
		if !new && !slices.ContainsFunc(members, func(f string) bool { _, ok := changed.Functions[f]; return ok }) {
			continue
		}
		out.Chains[name] = c
		for _, f := range members {
			out.Functions[f] = api.FunctionSpec{Image: d.Functions[f].Image}
		}
	}
	for name := range changed.Functions {
		out.Functions[name] = api.FunctionSpec{Image: d.Functions[name].Image}
	}
	return out
}

// bare is what changed without what only the host sees where a function will run.
func bare(changed api.Document) api.Document {
	functions := make(map[string]api.FunctionSpec, len(changed.Functions))
	for name, f := range changed.Functions {
		functions[name] = api.FunctionSpec{Image: f.Image, Config: f.Config, Allow: f.Allow, CPUSet: f.CPUSet, Runtime: f.Runtime, State: f.State}
	}
	changed.Functions = functions
	return changed
}

// about leaves out what a host says of objects that it was not asked about.
func about(changed api.Document, problems []api.Problem) []api.Problem {
	return slices.DeleteFunc(problems, func(p api.Problem) bool {
		kind, rest, _ := strings.Cut(p.Path, ".")
		name, _, _ := strings.Cut(rest, ".")
		there := false
		switch kind {
		case "endpoints":
			_, there = changed.Endpoints[name]
		case "functions":
			_, there = changed.Functions[name]
		case "chains": // also one whose functions changed
			there = true
		}
		return !there
	})
}

// hearing gathers what hosts say.
type hearing struct {
	problems []api.Problem
	seen     map[api.Problem]bool

	mu       sync.Mutex
	warnings map[string]bool
}

func (h *hearing) add(problems []api.Problem) {
	for _, p := range problems {
		if !h.seen[p] {
			h.seen[p] = true
			h.problems = append(h.problems, p)
		}
	}
}

// ask has nil also of a host that does not answer, and a warning.
func (h *hearing) ask(ctx context.Context, name string, host asked, d, changed api.Document) []api.Problem {
	problems, err := host(ctx, d, changed)
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.warnings[fmt.Sprintf("host %s was not asked whether it has what this needs: %v: the status of what is there will tell", name, err)] = true
	}
	return problems
}

// split gives what changed to the hosts that it names, and the functions that name none.
func (a *admission) split(changed api.Document, hosts map[string]asked) (parts map[string]api.Document, free map[string]api.FunctionSpec) {
	parts, free = map[string]api.Document{}, map[string]api.FunctionSpec{}
	part := func(host string) (api.Document, bool) {
		if host == "" && a.own != nil {
			host = a.own.name
		}
		if host == "" && len(hosts) == 1 {
			for only := range hosts {
				host = only
			}
		}
		if hosts[host] == nil {
			return api.Document{}, false
		}
		p, ok := parts[host]
		if !ok {
			p = api.Document{Endpoints: map[string]api.EndpointSpec{}, Functions: map[string]api.FunctionSpec{}}
			parts[host] = p
		}
		return p, true
	}
	for name, e := range changed.Endpoints {
		if e.Interface == "" && e.Netns == "" {
			continue // a station of the fabric: at no host
		}
		if p, ok := part(e.Host); ok {
			p.Endpoints[name] = e
		}
	}
	for name, f := range changed.Functions {
		if f.Host == "" && len(hosts) > 1 {
			free[name] = f
		} else if p, ok := part(f.Host); ok {
			p.Functions[name] = f
		}
	}
	if len(changed.Chains) == 0 {
		return parts, free
	}
	for name := range hosts { // images say how functions stand in chains; whoever has them
		_, _ = part(name)
		p := parts[name]
		p.Chains = changed.Chains
		parts[name] = p
	}
	return parts, free
}

// anywhere tells what every host has against functions that may run on any: what this machine says, or the first. The others are asked at the same
// time, and only about what the first would not take.
func (a *admission) anywhere(ctx context.Context, h *hearing, hosts map[string]asked, d api.Document, left map[string]api.FunctionSpec) []api.Problem {
	order := slices.Sorted(maps.Keys(hosts))
	if a.own != nil {
		order = append([]string{a.own.name}, slices.DeleteFunc(order, func(n string) bool { return n == a.own.name })...)
	}
	if len(left) == 0 || len(order) == 0 {
		return nil
	}
	first := byFunction(h.ask(ctx, order[0], hosts[order[0]], d, api.Document{Functions: left}))
	left = among(left, first)
	if len(left) == 0 {
		return nil
	}
	others := make([]map[string][]api.Problem, len(order)-1)
	var wg sync.WaitGroup
	for i, host := range order[1:] {
		wg.Go(func() { others[i] = byFunction(h.ask(ctx, host, hosts[host], d, api.Document{Functions: left})) })
	}
	wg.Wait()
	for _, against := range others {
		left = among(left, against)
	}
	var out []api.Problem
	for _, name := range slices.Sorted(maps.Keys(left)) {
		out = append(out, first[name]...)
	}
	return out
}

func byFunction(problems []api.Problem) map[string][]api.Problem {
	out := map[string][]api.Problem{}
	for _, p := range problems {
		if name, _, ok := strings.Cut(strings.TrimPrefix(p.Path, "functions."), "."); ok {
			out[name] = append(out[name], p)
		}
	}
	return out
}

// among are the functions against which there is something.
func among(left map[string]api.FunctionSpec, against map[string][]api.Problem) map[string]api.FunctionSpec {
	out := map[string]api.FunctionSpec{}
	for name := range against {
		if f, ok := left[name]; ok {
			out[name] = f
		}
	}
	return out
}

// admitChains refuses functions that stand in a chain otherwise than their images have ports.
func admitChains(images Images, d, changed api.Document) []api.Problem {
	var out []api.Problem
	for _, name := range slices.Sorted(maps.Keys(d.Chains)) {
		_, new := changed.Chains[name]
		for _, h := range d.Chains[name].Hops() { // a path that cannot be read is said elsewhere
			f, there := d.Functions[h.Function]
			if _, newer := changed.Functions[h.Function]; !there || !new && !newer {
				continue
			}
			img, err := images.Peek(f.Image)
			if err != nil || img.Contract.Tap == h.Tap {
				continue
			}
			out = append(out, api.Problem{Path: "chains." + name + ".path", Message: portsOf(h.Function, img), Hint: wantHop(h.Function, img)})
		}
	}
	return out
}

func portsOf(function string, img image.Image) string {
	if img.Contract.Tap {
		return fmt.Sprintf("function %q (image %s) has one port, a tap: it sees copies and hands nothing on", function, img.Ref)
	}
	return fmt.Sprintf("function %q (image %s) has the ports in and out: it is no tap", function, img.Ref)
}

func wantHop(function string, img image.Image) string {
	if img.Contract.Tap {
		return "write tap:" + function
	}
	return "write " + function
}
