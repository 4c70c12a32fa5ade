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
	host     string                // this one
	caught   map[string]bool       // policies whose frames rules of the assignment catch here
}

// mine takes this host's part out of the intent.
func (a *Agent) mine(all state) share {
	s := share{state: all, all: all, policies: map[string]api.Policy{}, host: a.Host, caught: map[string]bool{}}
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
		for i := range all.assignment.Spec.Rules {
			if r := &all.assignment.Spec.Rules[i]; r.Policy != "" && r.Catches() {
				s.caught[r.Policy] = true
			}
		}
	}
	for name, p := range all.policies {
		if a.placedHere(p.Placement) && !s.routed(name) {
			s.policies[name] = p
		}
	}
	return s
}

// routed reports whether the router's rules alone decide about a policy's frames here: never both they and this host's own. That changes with
// the assignment, in one commit, and not with the decision: the router takes over a policy that this host has steered when its way is ready,
// and gives one back when its rules have gone.
func (s *share) routed(policy string) bool {
	p := s.all.policies[policy].Placement
	switch {
	case s.assignment == nil:
		return false
	case s.caught[policy]:
		return true
	case p == nil:
		return false
	case p.Host == s.host:
		return p.FormerRouter && s.assignment.Spec.Known < p.Decision
	case p.Router && p.FormerHost == s.host:
		return s.assignment.Spec.Taken >= p.Decision
	}
	return p.Router && s.assignment.Spec.Known >= p.Decision
}

// leaves reports whether a policy's frames go on here where no rule of the router catches them. A policy of which all is here is caught here or
// nowhere: the router may have given it back before it had any rules.
func (s *share) leaves(policy string) bool {
	return s.routed(policy) && (s.caught[policy] || s.all.policies[policy].Placement.Host != s.host)
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
	if !ok || p.Deleting != nil || s.routed(policy) {
		return false
	}
	return p.Placement == nil || p.Placement.Host == s.host || p.Placement.Router && p.Placement.FormerHost == s.host
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
			a.report.Disown(api.KindEndpoint, name)
		}
	}
	for name := range want.all.functions {
		if _, here := want.functions[name]; !here {
			a.report.Disown(api.KindFunction, name)
		}
	}
	for name, c := range want.chains {
		if !want.tells(c.Spec) {
			a.report.Disown(api.KindChain, name)
		}
	}
	for name := range want.all.policies {
		if _, here := want.policies[name]; !here {
			a.report.Disown(api.KindPolicy, name)
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
