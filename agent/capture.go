package agent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/agent/capture"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// maxCaptures bounds the captures of one host: each may take some of a processor.
const maxCaptures = 4

// Capture streams the frames of a port of a function, or of an endpoint, as pcapng. It hears them inside the namespace of the function or station: what the switch
// hands there passes no interface of the host.
func (a *Agent) Capture(ctx context.Context, kind api.Kind, name string, o api.CaptureOptions) (io.ReadCloser, error) {
	var at capture.Place
	switch kind {
	case api.KindFunction:
		a.mu.Lock()
		f := a.functions[name]
		a.mu.Unlock()
		if f == nil {
			return nil, fmt.Errorf("function %s: %w", name, container.ErrNotFound)
		}
		v := f.view()
		if !v.placed {
			return nil, fmt.Errorf("function %s has no ports yet: %w", name, container.ErrState)
		}
		has := flow.SidesOf(v.tap)
		side := has[0]
		found := o.Port == ""
		for _, s := range has {
			if s.String() == o.Port {
				side, found = s, true
			}
		}
		if !found {
			return nil, api.Refuse(http.StatusBadRequest, fmt.Sprintf("function %s has no port %s: want one of %v", name, o.Port, has))
		}
		at = capture.Place{Space: f.netns(), Link: side.String(), Name: side.Of(name)}
		if f.kernel.Load() && !v.tap { // the wire hands frames on past the interface by which they leave
			at.Opposite = map[flow.Side]flow.Side{flow.In: flow.Out, flow.Out: flow.In}[side].String()
		}
	case api.KindEndpoint:
		w, ok := a.intent.snapshot(time.Now()).endpoints[name]
		if o.Port != "" {
			return nil, api.Refuse(http.StatusBadRequest, fmt.Sprintf("endpoint %s has one port only: leave %s out", name, o.Port))
		}
		if !ok || w.Spec.Interface == "" {
			return nil, api.Refuse(http.StatusConflict, fmt.Sprintf("endpoint %s is no interface of host %s: interfaces of hosts and links into namespaces are captured", name, a.Host))
		}
		var err error
		if at, err = a.endpointPlace(ctx, name, w.Spec); err != nil {
			return nil, err
		}
	default:
		return nil, api.Refuse(http.StatusBadRequest, fmt.Sprintf("capture at a %s: want a function or an endpoint", kind))
	}
	if a.captures.Add(1) > maxCaptures {
		a.captures.Add(-1)
		return nil, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("host %s has %d captures: end one first", a.Host, maxCaptures))
	}
	ctx, cancel := context.WithCancel(ctx)
	r, err := capture.Open(ctx, at, o)
	if err != nil {
		cancel()
		a.captures.Add(-1)
		return nil, err
	}
	return &capturing{r, sync.OnceFunc(func() { cancel(); a.captures.Add(-1) })}, nil
}

// endpointPlace is where an endpoint's frames are heard, if it is a port of the switch. What the spec names is none before the switch has taken it: an operator may have
// named the host's loopback, or a namespace of others.
func (a *Agent) endpointPlace(ctx context.Context, name string, s api.EndpointSpec) (capture.Place, error) {
	object, link := "endpoint/"+name, a.endpointLink(name, s)
	ports, err := a.Switch.Ports(ctx)
	if err != nil {
		return capture.Place{}, err
	}
	if !slices.ContainsFunc(ports, func(p datapath.PortStatus) bool { return p.Name == object && p.Link == link }) {
		return capture.Place{}, api.Refuse(http.StatusConflict, fmt.Sprintf("endpoint %s is no port of host %s now, and only ports are captured: weir describe endpoint %s says why", name, a.Host, name))
	}
	at := capture.Place{Space: s.Netns, Link: s.Interface, Name: object}
	if s.Netns != "" {
		l, err := a.Kernel.Link("", link)
		if err != nil {
			return capture.Place{}, err
		}
		at.OtherEnd = &l
	}
	return at, nil
}

// capturing is a capture under way.
type capturing struct {
	io.ReadCloser
	end func()
}

func (c *capturing) Close() error {
	c.end()
	return c.ReadCloser.Close()
}
