package agent

import (
	"slices"

	"weir.dev/weir/api"
)

// share is the part of the intent that is this host's to carry out.
type share struct {
	state                          // endpoints and functions of this host only; chains and policies all
	all      state                 // what the whole Weir wants
	policies map[string]api.Policy // shadows state's: those that this host steers by itself
	crossing map[string]bool       // those that the router has taken over here
}

// mine takes this host's part out of the intent.
func (a *Agent) mine(all state) share {
	s := share{state: all, all: all, policies: map[string]api.Policy{}, crossing: map[string]bool{}}
	s.endpoints, s.functions = map[string]api.Endpoint{}, map[string]api.Function{}
	for name, e := range all.endpoints {
		if a.placedHere(e.Placement) {
			s.endpoints[name] = e
		}
	}
	for name, f := range all.functions {
		if a.placedHere(f.Placement) {
			s.functions[name] = f
		}
	}
	if all.assignment != nil {
		for _, name := range all.assignment.Spec.Policies {
			s.crossing[name] = true
		}
	}
	for name, p := range all.policies {
		if a.placedHere(p.Placement) && !s.crossing[name] { // else the router hands it over: both at once would be two rules for its frames
			s.policies[name] = p
		}
	}
	return s
}

// placedHere: where something is, is the manager's decision. What is placed nowhere is nobody's.
func (a *Agent) placedHere(p *api.Placement) bool { return p != nil && p.Host == a.Host }

// tells reports whether a chain's status is this host's to tell: the first function's host does.
func (s *share) tells(c api.ChainSpec) bool {
	for _, f := range c.Functions() {
		if _, somewhere := s.all.functions[f]; somewhere {
			_, here := s.functions[f]
			return here
		}
	}
	return true
}

// keeps reports whether a policy in force may stay as it is: it is wanted, no other host's, and the router has not taken it over.
func (s *share) keeps(policy string) bool {
	p, ok := s.all.policies[policy]
	if !ok || p.Deleting != nil || s.crossing[policy] {
		return false
	}
	_, ours := s.policies[policy]
	return ours || p.Placement.Routed()
}

// toClose reports whether the router, whose a policy is, has no rules yet that catch its frames.
func (s *share) toClose(policy string) bool {
	return s.assignment != nil && slices.Contains(s.assignment.Spec.Closed, policy)
}

// tunnels are those to other hosts that the assignment wants.
func (s *share) tunnels() []api.Tunnel {
	if s.assignment == nil {
		return nil
	}
	return s.assignment.Spec.Tunnels
}

func (s *share) tunnel(host string) bool {
	return slices.ContainsFunc(s.tunnels(), func(t api.Tunnel) bool { return t.Host == host })
}

// assignedFunctions are those that rules of the assignment name.
func (s *share) assignedFunctions() []string {
	var names []string
	if s.assignment == nil {
		return nil
	}
	for _, r := range s.assignment.Spec.Rules {
		ports := []string{r.Match.InPort, r.Action.Port}
		for _, c := range r.Action.Clones {
			ports = append(ports, c.Port)
		}
		for _, port := range ports {
			if kind, name := objectOf(port); kind == "function" {
				names = append(names, name)
			}
		}
	}
	return names
}

// disown forgets what was said of things that are others' to tell about now.
func (a *Agent) disown(want share) {
	for name := range want.all.endpoints {
		if _, here := want.endpoints[name]; !here {
			a.report.disown(api.KindEndpoint, name)
		}
	}
	for name := range want.all.functions {
		if _, here := want.functions[name]; !here {
			a.report.disown(api.KindFunction, name)
		}
	}
	for name, c := range want.chains {
		if !want.tells(c.Spec) {
			a.report.disown(api.KindChain, name)
		}
	}
	for name := range want.all.policies {
		if _, here := want.policies[name]; !here {
			a.report.disown(api.KindPolicy, name)
		}
	}
}

// hosts reports whether all functions of a chain are on this host.
func (s *share) hosts(c api.ChainSpec) bool {
	for _, f := range c.Functions() {
		_, here := s.functions[f]
		if _, somewhere := s.all.functions[f]; somewhere && !here {
			return false
		}
	}
	return true
}
