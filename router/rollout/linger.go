package rollout

import (
	"encoding/binary"
	"errors"
	"strconv"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
)

// Lingering are the rules for fabric tags that are in force somewhere although the target does not have them: until they are gone, frames
// may carry these tags. After a restart that is all that was found.
func (f *Fleet) Lingering() []fabric.Lingering {
	var all []fabric.Lingering
	for id, n := range f.Nodes {
		for k := range n.Differs {
			h, r := n.Held[k], n.Target[k]
			if h == nil || r != nil && r.Identity == h.Identity {
				continue
			}
			if tag, port, ok := actsOn(h.Match); ok {
				all = append(all, fabric.Lingering{At: fabric.At{Switch: id, Port: fabric.Port{Number: port}}, Tag: tag, Cookie: h.Identity})
			}
		}
	}
	// A host may have in force what it confirmed, what was written, and every assignment sent since.
	for name, h := range f.Peers {
		if h.Settled {
			continue
		}
		left := func(r api.HostRule) {
			cookie, err := strconv.ParseUint(r.Cookie, 16, 64)
			if _, wanted := h.Target[r.Cookie]; wanted || r.Match.Tag == 0 || err != nil {
				return
			}
			all = append(all, fabric.Lingering{At: fabric.At{Switch: fabric.HostID(name), Port: fabric.Port{Name: r.Match.InPort}}, Tag: r.Match.Tag, Cookie: cookie})
		}
		for _, r := range h.Written.Rules {
			left(r)
		}
		for _, s := range h.Sent {
			for _, r := range s.spec.Rules {
				if _, twice := find(h.Written.Rules, r.Cookie); !twice {
					left(r)
				}
			}
		}
		for c, r := range h.Acked {
			if _, twice := find(h.Written.Rules, c); !twice {
				left(r)
			}
		}
	}
	return all
}

// find looks for a rule among those of an assignment, which are in the order of their cookies.
func find(rules []api.HostRule, cookie string) (api.HostRule, bool) {
	for lo, hi := 0, len(rules); lo < hi; {
		mid := (lo + hi) / 2
		switch c := rules[mid].Cookie; {
		case c == cookie:
			return rules[mid], true
		case c < cookie:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return api.HostRule{}, false
}

// actsOn is the fabric tag and the port that an entry looks at.
func actsOn(m openflow.Match) (tag uint16, port flow.Port, ok bool) {
	in, ok := m.InPort()
	if !ok {
		return 0, 0, false
	}
	v, ok := m.Field(openflow.FieldVLANVID)
	if !ok || v.Masked {
		return 0, 0, false
	}
	tag = binary.BigEndian.Uint16(v.Value[:2]) &^ openflow.VLANPresent
	return tag, flow.Port(in), tag >= flow.TagFirst && tag <= flow.TagLast
}

// WantsTags tells that some policy waits for a tag.
func WantsTags(errs map[string]error) bool {
	for _, err := range errs {
		if errors.Is(err, fabric.ErrTags) {
			return true
		}
	}
	return false
}
