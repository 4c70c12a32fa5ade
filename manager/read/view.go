package read

import (
	"context"
	"encoding/json"
	"sync"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// maxViews bounds the views that are kept. One is some 300 octets.
const maxViews = 50_000

// views keeps what hosts may see of endpoints and functions that are placed elsewhere. It is the same for all of them, so a change is
// computed once, however many agents watch.
type views struct {
	mu sync.Mutex
	by map[string]elsewhereView // by key
}

type elsewhereView struct {
	revision int64
	host     string // where it is placed
	value    []byte
}

// viewOf is how the caller of a request may see stored objects of a kind. Agents see in full what is placed on their host; of endpoints and
// functions elsewhere they see what chains across hosts need: see elsewhereOf.
func (rd *Reader) viewOf(ctx context.Context, n object.Noun) func(key string, value []byte, revision int64) []byte {
	who, isAgent := web.AgentOf(ctx)
	if !isAgent || n.Kind != api.KindFunction && n.Kind != api.KindEndpoint {
		return func(_ string, value []byte, _ int64) []byte { return value }
	}
	return func(key string, value []byte, revision int64) []byte {
		v := rd.views.of(n.Kind, key, value, revision)
		if v.host == who.Host && v.host != "" {
			return value
		}
		return v.value
	}
}

func (c *views) of(kind api.Kind, key string, value []byte, revision int64) elsewhereView {
	c.mu.Lock()
	v, known := c.by[key]
	c.mu.Unlock()
	if known && v.revision == revision && revision > 0 {
		return v
	}
	v = elsewhereOf(kind, key, value)
	v.revision = revision
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil || len(c.by) >= maxViews {
		c.by = map[string]elsewhereView{}
	}
	if c.by[key].revision < revision { // a watch that is behind drives nothing out
		c.by[key] = v
	}
	return v
}

// elsewhereOf is what an agent sees of an endpoint or a function of another host: its name and life, where it is, whether it is well, what
// happens while it is not, and its addresses, which stations see on the wire. It never has env, config, secrets, command, image, namespaces,
// processes or messages. What cannot be read is only a name.
func elsewhereOf(kind api.Kind, key string, value []byte) elsewhereView {
	meta := func(m api.Meta) api.Meta {
		return api.Meta{Name: m.Name, UID: m.UID, Generation: m.Generation, Deleting: m.Deleting}
	}
	place := func(p *api.Placement) (*api.Placement, string) {
		if p == nil {
			return nil, ""
		}
		return &api.Placement{Host: p.Host}, p.Host
	}
	if kind == api.KindFunction {
		var f api.Function
		if json.Unmarshal(value, &f) == nil {
			p, host := place(f.Placement)
			return elsewhereView{host: host, value: object.Marshal(api.Function{Meta: meta(f.Meta), Placement: p, Spec: api.FunctionSpec{OnFail: f.Spec.OnFail},
				Status: api.FunctionStatus{State: f.Status.State, Healthy: f.Status.Healthy}})}
		}
	}
	if kind == api.KindEndpoint {
		var e api.Endpoint
		if json.Unmarshal(value, &e) == nil {
			p, host := place(e.Placement)
			s := e.Spec
			return elsewhereView{host: host, value: object.Marshal(api.Endpoint{Meta: meta(e.Meta), Placement: p,
				Spec:   api.EndpointSpec{Address: s.Address, Addresses: s.Addresses, MAC: s.MAC, MTU: s.MTU, Switch: s.Switch, SwitchPort: s.SwitchPort},
				Status: api.EndpointStatus{State: e.Status.State, MAC: e.Status.MAC}})}
		}
	}
	return elsewhereView{value: object.Marshal(api.Meta{Name: store.NameOf(key)})}
}
