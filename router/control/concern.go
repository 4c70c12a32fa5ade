package control

import (
	"maps"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
)

// concern lists for each host the crossing policies that it might take for its own. A changed policy costs what it changes, as long as
// hosts, chains, functions and endpoints are as before.
type concern struct {
	in      fabric.Input // of the last time, with paths and hosts
	paths   *fabric.Paths
	hosts   []string // sorted
	inChain map[string][]fabric.SwitchID
	of      map[string][]string        // by policy
	at      map[string]map[string]bool // by host
	sorted  map[string][]string        // of these; those that have changed are missing
}

// update looks at another output.
func (c *concern) update(in *fabric.Input, paths *fabric.Paths, hosts []string) {
	if c.at == nil || !fabric.SamePlaces(&c.in, in) || !slices.Equal(c.hosts, hosts) {
		*c = concern{inChain: inChain(in), of: map[string][]string{}, at: map[string]map[string]bool{}, sorted: map[string][]string{}}
	}
	c.in, c.hosts = *in, hosts
	for _, policy := range paths.Changed(c.paths) {
		for _, host := range c.of[policy] {
			delete(c.at[host], policy)
			delete(c.sorted, host)
		}
		delete(c.of, policy)
		if path := paths.Of(policy); path != nil {
			c.add(policy, path)
		}
	}
	c.paths = paths
}

// inChain are the hosts of chains' functions.
func inChain(in *fabric.Input) map[string][]fabric.SwitchID {
	all := make(map[string][]fabric.SwitchID, len(in.Chains))
	for name, c := range in.Chains {
		hops, err := api.ParsePath(c.Path)
		if err != nil {
			continue
		}
		for _, h := range hops {
			if id := in.Functions[h.Function].Host; id != "" && !slices.Contains(all[name], id) {
				all[name] = append(all[name], id)
			}
		}
	}
	return all
}

func (c *concern) add(policy string, path *fabric.Path) {
	note := func(id fabric.SwitchID) {
		host, ok := hostName(id)
		if !ok || c.at[host][policy] {
			return
		}
		if c.at[host] == nil {
			c.at[host] = map[string]bool{}
		}
		c.at[host][policy] = true
		c.of[policy] = append(c.of[policy], host)
		delete(c.sorted, host)
	}
	for _, id := range path.Switches {
		note(id)
	}
	spec := c.in.Policies[policy]
	for _, id := range c.inChain[spec.Chain] {
		note(id)
	}
	named := false
	for _, end := range [...]string{spec.From, spec.To} {
		if e, ok := c.in.Endpoints[end]; ok {
			named = true
			note(e.At.Switch)
		}
	}
	if !named { // every host's endpoints may send its frames
		for _, host := range c.hosts {
			note(hostID(host))
		}
	}
}

// policies of a host, sorted.
func (c *concern) policies(host string) []string {
	list, there := c.sorted[host]
	if !there && len(c.at[host]) > 0 {
		list = slices.Sorted(maps.Keys(c.at[host]))
		c.sorted[host] = list
	}
	return list
}
