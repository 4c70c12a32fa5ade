package agent

import (
	"fmt"
	"maps"

	"weir.dev/weir/api"
	"weir.dev/weir/router"
)

// choice is which chains and policies are in force at this host, and why others are not.
type choice struct {
	chains   map[string]api.ChainSpec
	policies map[string]api.PolicySpec
	closed   map[string]api.PolicySpec // not in force: their frames are dropped

	waitingChain, waitingPolicy map[string]string // what keeps the wanted form out of force, where something does

	want   share
	views  map[string]view
	joined map[string]bool
}

// choose decides what comes into force next: a pure function of what is wanted, of how this host's functions are, of its endpoints that are ports of the
// switch, and of what was in force.
func choose(want share, views map[string]view, joined map[string]bool, before choice) choice {
	c := choice{
		chains: map[string]api.ChainSpec{}, policies: map[string]api.PolicySpec{}, closed: map[string]api.PolicySpec{},
		waitingChain: map[string]string{}, waitingPolicy: map[string]string{}, want: want, views: views, joined: joined,
	}
	maps.Copy(c.chains, before.chains)
	maps.Copy(c.policies, before.policies)
	c.chooseChains()
	c.choosePolicies()
	c.close()
	return c
}

// chooseChains puts every chain in force whose functions are ready (make before break): until then its former self stays.
// A function serves one chain: one that moves leaves the old chain in the same step in which it joins the new one, or waits.
func (c *choice) chooseChains() {
	ready := map[string]api.ChainSpec{}
	for name, w := range c.want.chains {
		if w.Deleting != nil || c.chains[name] == w.Spec || !c.want.hosts(w.Spec) {
			continue
		}
		hops, err := api.ParsePath(w.Spec.Path)
		if err != nil {
			c.waitingChain[name] = err.Error()
			continue
		}
		guarded, essential := false, false
		for _, h := range hops {
			guards := !h.Tap && c.want.all.functions[h.Function].Spec.OnFail != api.OnFailBypass
			guarded = guarded || guards
			v := c.views[h.Function]
			if v.placed && v.wasUp {
				continue
			}
			essential = essential || guards
			if c.waitingChain[name] != "" {
				continue
			}
			c.waitingChain[name] = fmt.Sprintf("waiting for function %s", h.Function)
			if v.status.Message != "" {
				c.waitingChain[name] += ": " + v.status.Message
			}
		}
		// A new chain need not wait for those of its functions that may be left out: it would only be closed meanwhile.
		if _, former := c.chains[name]; c.waitingChain[name] == "" || !former && guarded && !essential {
			ready[name] = w.Spec
		}
	}
	for c.holdBack(ready) { // each round takes at least one out
	}
	maps.Copy(c.chains, ready)
}

// holdBack takes chains out of ready that want a function which a chain that does not move now still has.
func (c *choice) holdBack(ready map[string]api.ChainSpec) (again bool) {
	owner := map[string]string{}
	for name, spec := range c.chains {
		if _, moves := ready[name]; moves || c.falls(name, ready) {
			continue
		}
		for _, f := range spec.Functions() {
			owner[f] = name
		}
	}
	for name, spec := range ready {
		for _, f := range spec.Functions() {
			if other, taken := owner[f]; taken && other != name {
				c.waitingChain[name] = fmt.Sprintf("waiting for function %s, which still serves chain %s", f, other)
				delete(ready, name)
				again = true
				break
			}
		}
	}
	return again
}

// falls reports whether a chain in force goes in this step: it is wanted no more, and all its policies go or find their new chain.
func (c *choice) falls(chain string, ready map[string]api.ChainSpec) bool {
	if w, ok := c.want.chains[chain]; ok && w.Deleting == nil {
		return false
	}
	for name, spec := range c.policies {
		w, ok := c.want.policies[name]
		if spec.Chain != chain || !ok || w.Deleting != nil {
			continue
		}
		_, comes := ready[w.Spec.Chain]
		_, there := c.chains[w.Spec.Chain]
		if w.Spec.Chain == chain || !comes && !there || c.missingEndpoint(w.Spec) != "" {
			return false
		}
	}
	return true
}

// choosePolicies puts every policy in force whose chain and endpoints are there.
func (c *choice) choosePolicies() {
	for name, w := range c.want.policies {
		if w.Deleting != nil {
			delete(c.policies, name)
			continue
		}
		if why := c.waitingChain[w.Spec.Chain]; why != "" {
			c.waitingPolicy[name] = fmt.Sprintf("chain %s: %s", w.Spec.Chain, why)
		}
		if _, ok := c.chains[w.Spec.Chain]; !ok && c.waitingPolicy[name] == "" {
			c.waitingPolicy[name] = fmt.Sprintf("chain %s is not there yet", w.Spec.Chain)
		}
		// A policy that comes to a chain takes the chain's wanted form, not a former one. Until then its own former self, if any, stays.
		if c.chains[w.Spec.Chain] != c.want.all.chains[w.Spec.Chain].Spec && c.policies[name].Chain != w.Spec.Chain {
			continue
		}
		if _, ok := c.chains[w.Spec.Chain]; !ok {
			continue
		}
		if end := c.missingEndpoint(w.Spec); end != "" {
			c.waitingPolicy[name] = fmt.Sprintf("waiting for endpoint %s", end)
			continue
		}
		c.policies[name] = w.Spec
	}
	for name, spec := range c.policies {
		if _, ok := c.chains[spec.Chain]; !c.want.keeps(name) || !ok || c.missingEndpoint(spec) != "" {
			delete(c.policies, name)
		}
	}
	c.dropChains()
}

// close drops the frames of policies that were accepted and are not in force yet, from here or from the router, until they are; but not of those
// that fail open.
func (c *choice) close() {
	onFail := func(function string) api.OnFail { return c.want.all.functions[function].Spec.OnFail }
	for name, w := range c.want.all.policies {
		if _, inForce := c.policies[name]; inForce || w.Deleting != nil || c.want.leaves(name) ||
			router.FailsOpen(w.Spec, c.want.all.chains[w.Spec.Chain].Spec, onFail) {
			continue
		}
		c.closed[name] = w.Spec
	}
}

// dropChains forgets chains that are wanted no more and that no policy in force needs.
func (c *choice) dropChains() {
	used := map[string]bool{}
	for _, spec := range c.policies {
		used[spec.Chain] = true
	}
	for name := range c.chains {
		if w, ok := c.want.chains[name]; (!ok || w.Deleting != nil || !c.want.hosts(w.Spec)) && !used[name] {
			delete(c.chains, name)
		}
	}
}

// missingEndpoint is an endpoint of this host that a policy names and that is no port yet.
func (c *choice) missingEndpoint(p api.PolicySpec) string {
	for _, end := range []string{p.From, p.To} {
		if _, ok := c.want.endpoints[end]; ok && !c.joined[end] {
			return end
		}
	}
	return ""
}
