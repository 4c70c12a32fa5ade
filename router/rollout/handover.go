package rollout

import (
	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
)

// Version is which form of a policy a target has, and which decision about its owner.
type Version struct {
	Generation int64
	decision   int64
	host       string // the router gave the policy back to this host; "": the router steers it
	former     string // the host that steered the policy before
}

func VersionOf(p api.Policy) Version {
	v := Version{Generation: p.Generation}
	if p.Placement != nil {
		v.decision, v.host, v.former = p.Placement.Decision, p.Placement.Host, p.Placement.FormerHost
	}
	return v
}

// Follow tells each host the last decision that its rules follow. Only hosts learn of a decision that would else steer or close the policy by
// themselves: the former owner, the new one, and a host that has all endpoints which the policy names. A decision that was looked at costs
// nothing more as long as the policy, endpoints and hosts are as before.
func (f *Fleet) Follow(in *fabric.Input, versions map[string]Version) {
	since, last := f.followed, f.followed
	if !fabric.SamePlaces(&f.places, in) {
		since = 0
	}
	f.places = *in
	for _, h := range f.Peers {
		if !h.follows {
			h.follows, since = true, 0
		}
	}
	alike := fabric.AtOnePlace(f.versions, versions)
	for name, v := range versions {
		if v.decision <= since && (alike || f.versions[name].Generation == v.Generation) {
			continue
		}
		last = max(last, v.decision)
		if v.host != "" {
			f.knows(v.host, v.decision)
			continue
		}
		if h := f.Peers[v.former]; h != nil {
			f.knows(v.former, v.decision)
			if h.Written.Taken < v.decision {
				h.coming[name] = v.decision
			}
		}
		switch host, named := endpointsHost(in, name); {
		case host != "":
			f.knows(host, v.decision)
		case !named: // every host's endpoints may send its frames
			for other := range f.Peers {
				f.knows(other, v.decision)
			}
		}
	}
	f.followed, f.versions = last, versions
}

func (f *Fleet) knows(host string, decision int64) {
	if h := f.Peers[host]; h != nil && h.known < decision {
		h.known, h.Settled = decision, false
	}
}

// endpointsHost is the host where all endpoints are that a policy names, if it names any.
func endpointsHost(in *fabric.Input, policy string) (host string, named bool) {
	spec := in.Policies[policy]
	for _, end := range [...]string{spec.From, spec.To} {
		e, ok := in.Endpoints[end]
		if !ok {
			continue
		}
		at, onHost := e.At.Switch.Host()
		if !onHost || named && at != host {
			return "", true
		}
		host, named = at, true
	}
	return host, named
}

// handOver gives the numbers of a host's next assignment. What the host has steered stays its own until the router is ready to.
func (h *Peer) handOver(spec *api.AssignmentSpec, progress map[string]*Progress) {
	spec.Known = max(h.known, h.Written.Known)
	spec.Taken = spec.Known
	for name, decision := range h.coming {
		if h.Written.Taken >= decision {
			delete(h.coming, name) // not before: what is planned may not be written
		} else if p := progress[name]; p != nil && !p.ready() {
			spec.Taken = min(spec.Taken, max(h.Written.Taken, decision-1))
		}
	}
}

const drops = "drop"

// closing is a rule that drops what r is to catch.
func closing(r api.HostRule) api.HostRule {
	r.Action = api.HostAction{Op: drops}
	r.Note += " (closed until all of that is in force)"
	return r
}
