package control

import (
	"strings"
	"time"

	"weir.dev/weir/router/fabric"
)

// progress is how far a policy's change has come.
type progress struct {
	hosts    int // rules of hosts, besides those that catch frames, that are not in force
	deepest  int // highest hop of an entry that is not in force; 0 none above 0
	turning  int // hosts that lead frames elsewhere yet, rules that take other policies' frames over and are not in force
	catching int // rules of hop 0, on switches and hosts, that are not in force
	open     int // of these, those in whose place nothing drops the frames
	leaving  int // rules that catch frames, on switches that answer and hosts, that are in force yet and shall not be
	over     int // rules of hosts that take over other policies' frames, likewise
	early    int // as leaving, of entries the lowest hop of those that go before the rest; 0 none
	waitsFor string
	refused  error
}

func (p *progress) led() bool   { return p.hosts == 0 && p.deepest == 0 }
func (p *progress) ready() bool { return p.led() && p.turning == 0 }
func (p *progress) done() bool  { return p.ready() && p.catching == 0 }

// measure counts what each policy still lacks.
func (f *fleet) measure(now time.Time) map[string]*progress {
	out := map[string]*progress{}
	at := func(policy string) *progress {
		p := out[policy]
		if p == nil {
			p = &progress{}
			out[policy] = p
		}
		return p
	}
	for id, n := range f.nodes {
		n.pending = 0
		for k := range n.differs {
			r := n.target[k]
			if r == nil {
				switch h := n.held[k]; {
				case h == nil || !h.known || h.policy == "" || !n.reachable:
				case h.hop == 0:
					at(h.policy).leaving++
				case f.early(h):
					if p := at(h.policy); p.early == 0 || int(h.hop) < p.early {
						p.early = int(h.hop)
					}
				}
				continue
			}
			n.pending++
			if r.policy == "" {
				continue
			}
			p := at(r.policy)
			if x, ok := n.refused[k]; ok && x.content == r.content && now.Before(x.until) {
				p.refused = x.err
			}
			if !n.reachable {
				p.waitsFor = string(id)
			}
			if r.hop == 0 {
				p.catching++
				p.open++
			} else {
				p.deepest = max(p.deepest, int(r.hop))
			}
		}
	}
	shared := map[fabric.SwitchID]int{} // rules that a host lacks and that belong to a chain, not to one policy
	for name, h := range f.peers {
		if h.settled {
			continue
		}
		t := h.turns()
		for c, r := range h.acked {
			switch _, wanted := h.target[c]; {
			case wanted || r.Policy == "" || !h.present:
			case r.Catches():
				at(r.Policy).leaving++
			case t.over[c]:
				at(r.Policy).over++
			}
		}
		for _, s := range h.sent {
			for _, r := range s.spec.Rules {
				if _, wanted := h.target[r.Cookie]; !wanted && r.Policy != "" && h.present && r.Catches() {
					at(r.Policy).leaving++
				}
			}
		}
		f.concerns(name, t, func(policy string) {
			p := at(policy)
			p.turning++
			p.waitsFor = "host " + name
		})
		for c, r := range h.target {
			a, there := h.has(c)
			if there && sameHostRule(a, r) || t.in[c] {
				continue
			}
			if r.Policy == "" {
				shared[hostID(name)]++
				continue
			}
			p := at(r.Policy)
			p.waitsFor = "host " + name
			switch {
			case r.Catches():
				if p.catching++; !there || a.Action.Op != drops {
					p.open++
				}
			case t.over[c]:
				p.turning++
			default:
				p.hosts++
			}
		}
	}
	if len(shared) > 0 {
		for policy, path := range f.paths.All() {
			for _, id := range path.Switches {
				if shared[id] > 0 {
					p := at(policy)
					p.hosts += shared[id]
					p.waitsFor = "host " + strings.TrimPrefix(string(id), hostPrefix)
				}
			}
		}
	}
	return out
}
