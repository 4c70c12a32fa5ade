package read

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// maxViews bounds the views that are kept. One is some 300 octets.
const maxViews = 50_000

// views keeps what hosts may see of endpoints and functions that are placed elsewhere, and of chains and policies. It is the same for all of them, so a change
// is computed once, however many agents watch.
type views struct {
	mu sync.Mutex
	by map[string]hostView // by key
}

type hostView struct {
	revision int64
	host     string // where it is placed
	value    []byte
	compared bool // with what was there before,
	same     bool // and it looks the same
}

// view is what the client may see of a value at a revision; 0: of one that is gone. last is what was there before, nil if that is not known or asked for. same
// says that it looks the same to the client.
type view func(key string, value, last []byte, revision int64) (seen []byte, same bool)

// viewOf is how the caller of a request may see stored objects of a kind. Agents see in full what is placed on their host; of endpoints and
// functions elsewhere they see what chains across hosts need, and chains and policies without their status, which other agents have told: see forHosts. So
// hosts do not hear of each other's small changes.
func (rd *Reader) viewOf(ctx context.Context, n object.Noun) view {
	who, isAgent := web.AgentOf(ctx)
	switch n.Kind {
	case api.KindFunction, api.KindEndpoint, api.KindChain, api.KindPolicy:
	default:
		isAgent = false
	}
	if !isAgent {
		return func(_ string, value, _ []byte, _ int64) ([]byte, bool) { return value, false }
	}
	return func(key string, value, last []byte, revision int64) ([]byte, bool) {
		v := rd.views.of(n.Kind, key, value, last, revision)
		if v.host == who.Host && v.host != "" {
			return value, false
		}
		return v.value, v.same
	}
}

func (c *views) of(kind api.Kind, key string, value, last []byte, revision int64) hostView {
	c.mu.Lock()
	v, known := c.by[key]
	c.mu.Unlock()
	if known && v.revision == revision && revision > 0 && (v.compared || last == nil) {
		return v
	}
	v = forHosts(kind, key, value)
	v.revision = revision
	if last != nil {
		was := forHosts(kind, key, last)
		v.compared, v.same = true, was.host == v.host && bytes.Equal(was.value, v.value)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil || len(c.by) >= maxViews {
		c.by = map[string]hostView{}
	}
	if now := c.by[key]; now.revision < revision || now.revision == revision && v.compared { // a watch that is behind drives nothing out
		c.by[key] = v
	}
	return v
}

// forHosts is what an agent sees of an endpoint or a function of another host: its name and life, where it is, whether it is well, what
// happens while it is not, and its addresses, which stations see on the wire. It never has env, config, secrets, command, image, namespaces,
// processes or messages. Of a chain or a policy it sees all but the status. What cannot be read is only a name.
func forHosts(kind api.Kind, key string, value []byte) hostView {
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
			return hostView{host: host, value: object.Marshal(api.Function{Meta: meta(f.Meta), Placement: p, Spec: api.FunctionSpec{OnFail: f.Spec.OnFail},
				Status: api.FunctionStatus{State: f.Status.State, Healthy: f.Status.Healthy}})}
		}
	}
	if kind == api.KindEndpoint {
		var e api.Endpoint
		if json.Unmarshal(value, &e) == nil {
			p, host := place(e.Placement)
			s := e.Spec
			return hostView{host: host, value: object.Marshal(api.Endpoint{Meta: meta(e.Meta), Placement: p,
				Spec:   api.EndpointSpec{Address: s.Address, Addresses: s.Addresses, MAC: s.MAC, MTU: s.MTU, Switch: s.Switch, SwitchPort: s.SwitchPort},
				Status: api.EndpointStatus{State: e.Status.State, MAC: e.Status.MAC}})}
		}
	}
	if kind == api.KindChain {
		var c api.Chain
		if json.Unmarshal(value, &c) == nil {
			c.Status, c.Updated, c.Revision = api.ChainStatus{}, time.Time{}, 0
			return hostView{value: object.Marshal(c)}
		}
	}
	if kind == api.KindPolicy {
		var p api.Policy
		if json.Unmarshal(value, &p) == nil {
			p.Status, p.Updated, p.Revision = api.PolicyStatus{}, time.Time{}, 0
			return hostView{value: object.Marshal(p)}
		}
	}
	return hostView{value: object.Marshal(api.Meta{Name: store.NameOf(key)})}
}
