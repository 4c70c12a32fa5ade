package platform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
)

// Ends of the names of what a run makes at a manager. That of processors is longer: see chainRow.
const (
	suffixHosts = "-h"
	suffixRows  = "-q-"
)

// pollAPI is how often a manager is asked for what is awaited.
const pollAPI = 30 * time.Millisecond

// hosts is a Weir that runs: everything is made there through its API, under names that begin with the run's, and steered by its agents and its
// router. One path is in force at a time.
type hosts struct {
	o         Options
	prefix    string // of all names
	c         *api.Client
	record    *record
	spaces    spaces
	pairs     []*pair
	functions map[string][]string // that are there, by host
	made      int                 // functions
	chain     string              // its path
	inForce   *pair               // that has a policy; nil: none
	// conditions of the last path
	conditions map[string]string
}

// pair of stations, and the policy between them.
type pair struct {
	hosts  [2]string
	path   Path
	names  [2]string // endpoints
	policy string
	spec   api.PolicySpec // of the policy
	tried  bool           // the path carries as it is in force
}

func openHosts(ctx context.Context, o Options) (Platform, error) {
	h, err := dialHosts(ctx, o, suffixHosts)
	if err != nil {
		return nil, err
	}
	return h, nil
}

func dialHosts(ctx context.Context, o Options, suffix string) (*hosts, error) {
	c, err := o.API.dial()
	if err != nil {
		return nil, err
	}
	h := &hosts{o: o, prefix: o.Name + suffix, c: c, functions: map[string][]string{}, spaces: spaces{dir: dir(o, suffix)},
		record: &record{API: o.API, path: recordPath(o, suffix)}}
	if err := h.unnamed(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return h, nil
}

// unnamed refuses to begin where objects bear this run's name: they are not its own.
func (h *hosts) unnamed(ctx context.Context) error {
	var found []string
	note := func(kind api.Kind, name string) {
		if strings.HasPrefix(name, h.prefix+"-") {
			found = append(found, string(kind)+" "+name)
		}
	}
	endpoints, err1 := h.c.Endpoints().List(ctx, api.ListOptions{})
	functions, err2 := h.c.Functions().List(ctx, api.ListOptions{})
	chains, err3 := h.c.Chains().List(ctx, api.ListOptions{})
	policies, err4 := h.c.Policies().List(ctx, api.ListOptions{})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	for _, x := range endpoints.Items {
		note(api.KindEndpoint, x.Name)
	}
	for _, x := range functions.Items {
		note(api.KindFunction, x.Name)
	}
	for _, x := range chains.Items {
		note(api.KindChain, x.Name)
	}
	for _, x := range policies.Items {
		note(api.KindPolicy, x.Name)
	}
	if len(found) > 0 {
		return fmt.Errorf("%s: %s is there already: %s", h.o.API, strings.Join(found, ", "), anotherName)
	}
	return nil
}

func (h *hosts) name(format string, args ...any) string {
	return h.prefix + "-" + fmt.Sprintf(format, args...)
}

// Path gives a path and puts it in force.
func (h *hosts) Path(ctx context.Context, l Layout) (Path, error) {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(l.Chain)*time.Second)
	defer cancel()
	l = l.orDefault()
	s, err := look(ctx, h.c, h.o.API.String())
	if err != nil {
		return Path{}, err
	}
	from, to, err := s.stations(l.Stations)
	if err != nil {
		return Path{}, err
	}
	on, err := s.place(l, from)
	if err != nil {
		return Path{}, err
	}
	ends, err := h.stations(ctx, from, to)
	if err != nil {
		return Path{}, err
	}
	names, err := h.wires(ctx, on)
	if err != nil {
		return ends.path, err
	}
	if err := h.lead(ctx, ends, names); err != nil {
		return ends.path, err
	}
	if h.conditions, err = h.describe(ctx, s, ends, on); err != nil || ends.tried {
		return ends.path, err
	}
	err = ends.path.Try(ctx)
	ends.tried = err == nil
	return ends.path, err
}

// Conditions of the last path.
func (h *hosts) Conditions() map[string]string { return h.conditions }

// stations as endpoints of two hosts, or of one.
func (h *hosts) stations(ctx context.Context, from, to string) (*pair, error) {
	if i := slices.IndexFunc(h.pairs, func(p *pair) bool { return p.hosts == [2]string{from, to} }); i >= 0 {
		return h.pairs[i], nil
	}
	list, err := h.c.Endpoints().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	source, target, err := freePair(list.Items, h.draw())
	if err != nil {
		return nil, err
	}
	return h.pair(ctx, from, to, source, target)
}

// draw is a number of the run's own.
func (h *hosts) draw() uint16 {
	sum := fnv.New32a()
	sum.Write([]byte(h.prefix))
	return uint16(sum.Sum32())
}

// pair of stations with these addresses.
func (h *hosts) pair(ctx context.Context, from, to string, source, target netip.Prefix) (*pair, error) {
	i := len(h.pairs)
	p := &pair{hosts: [2]string{from, to}, names: [2]string{h.name("alice%d", i), h.name("bob%d", i)}, policy: h.name("policy%d", i)}
	p.spec = api.PolicySpec{From: p.names[0], To: p.names[1], Match: []string{"tcp", "udp", "icmp"}, Chain: h.name("chain")}
	p.path = Path{Source: source.Addr(), Address: target.Addr()}
	for side, address := range []netip.Prefix{source, target} {
		space, err := h.spaces.add(filepath.Base(p.names[side]), false)
		if err != nil {
			return nil, err
		}
		spec := api.EndpointSpec{Host: p.hosts[side], Netns: space, Interface: Station, Address: address.String()}
		if err := create(ctx, h.record, api.KindEndpoint, h.c.Endpoints(), p.names[side], spec); err != nil {
			return nil, err
		}
		if side == 0 {
			p.path.From = space
		} else {
			p.path.To = space
		}
	}
	for side, name := range p.names {
		err := h.await(ctx, []string{p.hosts[side]}, func() (string, error) {
			e, err := h.c.Endpoints().Get(ctx, name)
			if err != nil {
				return "", err
			}
			if c := e.Status.Conditions.Get(api.ConditionFailed); c != nil && c.Reason == api.ReasonNamespace {
				return "", fmt.Errorf("endpoint %s: host %s does not see this process's files: %s", name, p.hosts[side], e.Status.Message)
			}
			return notYet("endpoint "+name, e.Ready()), nil
		})
		if err != nil {
			return nil, err
		}
	}
	h.pairs = append(h.pairs, p)
	return p, nil
}

// wires on these hosts, one after another. Those that are there already are taken.
func (h *hosts) wires(ctx context.Context, on []string) ([]string, error) {
	var names []string
	used := map[string]int{}
	for _, host := range on {
		i := used[host]
		used[host]++
		if i == len(h.functions[host]) {
			name := h.name("w%03d", h.made)
			h.made++
			if err := create(ctx, h.record, api.KindFunction, h.c.Functions(), name, api.FunctionSpec{Image: wireImage, Host: host}); err != nil {
				return nil, err
			}
			h.functions[host] = append(h.functions[host], name)
		}
		names = append(names, h.functions[host][i])
	}
	return names, h.await(ctx, on, func() (string, error) { return h.unready(ctx, names) })
}

// unready says what the first of the functions that is not ready is; empty: all are ready.
func (h *hosts) unready(ctx context.Context, names []string) (string, error) {
	list, err := h.c.Functions().List(ctx, api.ListOptions{})
	if err != nil {
		return "", err
	}
	have := map[string]api.Function{}
	for _, f := range list.Items {
		have[f.Name] = f
	}
	for _, name := range names {
		f, ok := have[name]
		if !ok {
			return "", fmt.Errorf("function %s is gone: someone else deleted it", name)
		}
		if why := notYet("function "+name, f.Ready()); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// lead everything between a pair's stations through functions, and nothing else through any. A function is in one chain only, so there is one
// chain; it changes while no policy leads to it.
func (h *hosts) lead(ctx context.Context, p *pair, names []string) error {
	chain := strings.Join(names, " | ")
	if h.inForce != nil && (h.inForce != p || h.chain != chain) {
		if err := h.straight(ctx, h.inForce); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	if h.chain != chain {
		h.chain = ""
		if err := create(ctx, h.record, api.KindChain, h.c.Chains(), h.name("chain"), api.ChainSpec{Path: chain}); err != nil {
			return err
		}
		h.chain = chain
	}
	if h.inForce == nil {
		if err := create(ctx, h.record, api.KindPolicy, h.c.Policies(), p.policy, p.spec); err != nil {
			return err
		}
		h.inForce, p.tried = p, false
	}
	return h.await(ctx, slices.Concat(p.hosts[:], h.hostsOf(names)), func() (string, error) {
		x, err := h.c.Policies().Get(ctx, p.policy)
		if errors.Is(err, api.ErrNotFound) {
			h.inForce = nil
			return "", fmt.Errorf("policy %s is gone: someone else deleted it", p.policy)
		}
		return notYet("policy "+p.policy, x.Ready()), err
	})
}

func (h *hosts) hostsOf(functions []string) (on []string) {
	for host, names := range h.functions {
		if slices.ContainsFunc(functions, func(f string) bool { return slices.Contains(names, f) }) {
			on = append(on, host)
		}
	}
	return on
}

// straight takes a pair's policy away, and waits until no host has a rule of it.
func (h *hosts) straight(ctx context.Context, p *pair) error {
	if _, err := h.c.Policies().Delete(ctx, p.policy); err != nil && !errors.Is(err, api.ErrNotFound) {
		return err
	}
	if err := h.record.gone(ctx, h.c, object{api.KindPolicy, p.policy}); err != nil {
		return err
	}
	h.inForce, p.tried = nil, false
	on := slices.Concat(p.hosts[:], slices.Collect(maps.Keys(h.functions)))
	slices.Sort(on)
	on = slices.Compact(on)
	return h.await(ctx, p.hosts[:], func() (string, error) {
		s, err := look(ctx, h.c, h.o.API.String())
		if err != nil {
			return "", err
		}
		for _, host := range on {
			if x, err := s.find(host); err != nil || x.Status.State != api.HostReady {
				continue // what a lost host forwards leads nowhere
			}
			c, err := h.c.Counters(ctx, host)
			if err != nil {
				return "", err
			}
			if slices.ContainsFunc(c.Rules, func(r api.RuleCounters) bool { return slices.Contains(strings.Split(r.Policy, ","), p.policy) }) {
				return fmt.Sprintf("host %s has rules of policy %s, which is deleted", host, p.policy), nil
			}
		}
		return "", nil
	})
}

// await asks until there is nothing to wait for any more. A host that is lost is not waited for.
func (h *hosts) await(ctx context.Context, on []string, why func() (string, error)) error {
	begin := time.Now()
	var looked time.Time
	for {
		if time.Since(looked) > time.Second {
			looked = time.Now()
			s, err := look(ctx, h.c, h.o.API.String())
			if err != nil {
				return err
			}
			for _, name := range on {
				if x, err := s.find(name); err != nil {
					return err
				} else if x.Status.State == api.HostLost {
					return fmt.Errorf("host %s is lost", name)
				}
			}
		}
		text, err := why()
		if err != nil || text == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not after %s: %s: %w", time.Since(begin).Round(time.Second), text, context.Cause(ctx))
		case <-time.After(pollAPI):
		}
	}
}

// notYet tells what an object still is; empty: what is wanted.
func notYet(what string, r api.Readiness) string {
	switch {
	case r.Ready():
		return ""
	case r.Message == "":
		return what + " is " + r.State
	}
	return what + " is " + r.State + ": " + r.Message
}

// describe a path by what joins its hosts.
func (h *hosts) describe(ctx context.Context, s survey, p *pair, on []string) (map[string]string, error) {
	all := slices.Concat(p.hosts[:], on)
	out := map[string]string{"stations": unique(p.hosts[:]), "underlay": "none"}
	if len(on) > 0 {
		out["hosts"] = unique(on)
	}
	var versions []string
	for _, name := range all {
		x, err := s.find(name)
		if err != nil {
			return nil, err
		}
		versions = append(versions, cmp.Or(x.Status.Version, "unknown"))
	}
	out["weir"] = unique(versions)
	if !strings.Contains(unique(all), joinHosts) {
		return out, nil
	}
	switches, err := h.c.Switches().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	assignments, err := h.c.Assignments().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	tunnels := slices.ContainsFunc(assignments.Items, func(a api.Assignment) bool { return slices.Contains(all, a.Name) && len(a.Spec.Tunnels) > 0 })
	switch {
	case tunnels:
		out["underlay"] = "vxlan"
	case len(switches.Items) > 0:
		out["underlay"] = fmt.Sprintf("OpenFlow, %d switches", len(switches.Items))
	}
	return out, nil
}

// unique names in the order in which they come first.
func unique(names []string) string {
	var out []string
	for _, n := range names {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return strings.Join(out, joinHosts)
}

// Close removes everything that the run has made. What a manager does not let go stays on record.
func (h *hosts) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	defer h.c.Close()
	var err error
	if len(h.record.Objects) > 0 {
		err = h.record.remove(ctx, h.c)
	}
	return errors.Join(err, removeSpaces(h.spaces.dir))
}
