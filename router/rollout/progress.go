package rollout

import (
	"time"

	"weir.dev/weir/router/fabric"
)

// Progress is how far a policy's change has come.
type Progress struct {
	Hosts    int // rules of hosts, besides those that catch frames, that are not in force
	deepest  int // highest hop of an entry that is not in force; 0 none above 0
	turning  int // hosts that lead frames elsewhere yet, rules that take other policies' frames over and are not in force
	Catching int // rules of hop 0, on switches and hosts, that are not in force
	Open     int // of these, those in whose place nothing drops the frames
	leaving  int // rules that catch frames, on switches that answer and hosts, that are in force yet and shall not be
	over     int // rules of hosts that take over other policies' frames, likewise
	early    int // as leaving, of entries the lowest hop of those that go before the rest; 0 none
	WaitsFor string
	Refused  error
}

func (p *Progress) led() bool   { return p.Hosts == 0 && p.deepest == 0 }
func (p *Progress) ready() bool { return p.led() && p.turning == 0 }
func (p *Progress) Done() bool  { return p.ready() && p.Catching == 0 }

// measure counts what each policy still lacks.
func (f *Fleet) measure(now time.Time) map[string]*Progress {
	out := map[string]*Progress{}
	at := func(policy string) *Progress {
		p := out[policy]
		if p == nil {
			p = &Progress{}
			out[policy] = p
		}
		return p
	}
	// Switches: entries that are to go, entries that are not confirmed yet.
	for id, n := range f.Nodes {
		n.Pending = 0
		for k := range n.Differs {
			r := n.Target[k]
			if r == nil {
				switch h := n.Held[k]; {
				case h == nil || !h.Known || h.Policy == "" || !n.Reachable:
				case h.Hop == 0:
					at(h.Policy).leaving++
				case f.early(h):
					if p := at(h.Policy); p.early == 0 || int(h.Hop) < p.early {
						p.early = int(h.Hop)
					}
				}
				continue
			}
			n.Pending++
			if r.Policy == "" {
				continue
			}
			p := at(r.Policy)
			if x, ok := n.Refused[k]; ok && x.Content == r.Content && now.Before(x.Until) {
				p.Refused = x.Err
			}
			if !n.Reachable {
				p.WaitsFor = string(id)
			}
			if r.Hop == 0 {
				p.Catching++
				p.Open++
			} else {
				p.deepest = max(p.deepest, int(r.Hop))
			}
		}
	}
	// Hosts: rules that are to go, turns that are due, rules that are not in force yet.
	shared := map[fabric.SwitchID]int{} // rules that a host lacks and that belong to a chain, not to one policy
	for name, h := range f.Peers {
		if h.Settled {
			continue
		}
		t := h.turns()
		for c, r := range h.Acked {
			switch _, wanted := h.Target[c]; {
			case wanted || r.Policy == "" || !h.Present:
			case r.Catches():
				at(r.Policy).leaving++
			case t.over[c]:
				at(r.Policy).over++
			}
		}
		for _, s := range h.Sent {
			for _, r := range s.spec.Rules {
				if _, wanted := h.Target[r.Cookie]; !wanted && r.Policy != "" && h.Present && r.Catches() {
					at(r.Policy).leaving++
				}
			}
		}
		// A turn is counted for each policy whose frames it leads on.
		f.concerns(name, t, func(policy string) {
			p := at(policy)
			p.turning++
			p.WaitsFor = "host " + name
		})
		for c, r := range h.Target {
			a, there := h.Has(c)
			if there && SameHostRule(a, r) || t.in[c] {
				continue
			}
			if r.Policy == "" {
				shared[fabric.HostID(name)]++
				continue
			}
			p := at(r.Policy)
			p.WaitsFor = "host " + name
			switch {
			case r.Catches():
				if p.Catching++; !there || a.Action.Op != drops {
					p.Open++
				}
			case t.over[c]:
				p.turning++
			default:
				p.Hosts++
			}
		}
	}
	// A missing rule of a chain counts for every policy whose path meets that host.
	if len(shared) > 0 {
		for policy, path := range f.Paths.All() {
			for _, id := range path.Switches {
				if shared[id] > 0 {
					p := at(policy)
					p.Hosts += shared[id]
					host, _ := id.Host()
					p.WaitsFor = "host " + host
				}
			}
		}
	}
	return out
}
