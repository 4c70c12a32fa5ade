package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// endpoint is a port that the agent made or took.
type endpoint struct {
	port flow.Port
	mac  flow.MAC // of the station behind it; zero if unknown
	spec api.EndpointSpec
	made bool // the link is ours
}

// syncEndpoints makes every wanted endpoint a port. It reports false if one of them needs another try.
func (a *Agent) syncEndpoints(ctx context.Context, want state) bool {
	ok := true
	for name, w := range want.endpoints {
		if w.Deleting != nil {
			continue
		}
		e, err := a.ensureEndpoint(ctx, name, w.Spec)
		status := api.EndpointStatus{ObservedGeneration: w.Generation, Host: a.Host, State: "up"}
		if err != nil {
			ok = false
			status.State, status.Message = "error", err.Error()
			if w.Status.Message != status.Message {
				a.Log.Warn("endpoint", "endpoint", name, "error", err)
			}
		} else {
			status.Port, status.Link = uint32(e.port), a.endpointLink(name, w.Spec)
			if e.mac != (flow.MAC{}) {
				status.MAC = e.mac.String()
			}
			a.endpoints[name] = e
		}
		a.report.endpoint(name, w.UID, status)
	}
	return ok
}

func (a *Agent) endpointLink(name string, s api.EndpointSpec) string {
	if s.Netns == "" {
		return s.Interface
	}
	return a.Instance.Link("endpoint/" + name)
}

func (a *Agent) ensureEndpoint(ctx context.Context, name string, s api.EndpointSpec) (*endpoint, error) {
	object := "endpoint/" + name
	if old := a.endpoints[name]; old != nil && (old.spec.Netns != s.Netns || old.spec.Interface != s.Interface || old.spec.MAC != s.MAC || old.spec.MTU != s.MTU) {
		if err := a.removeEndpoint(ctx, name, old); err != nil {
			return nil, err
		}
		delete(a.endpoints, name)
	}
	e := &endpoint{spec: s, made: s.Netns != ""}
	if e.made {
		o := netns.VethOptions{
			HostName: a.endpointLink(name, s), Alias: a.Instance.Alias(object), HostMAC: a.Instance.MAC(object + "/switch"),
			PeerName: s.Interface, MTU: s.MTU,
		}
		e.mac = a.Instance.MAC(object)
		if s.MAC != "" {
			hw, err := net.ParseMAC(s.MAC)
			if err != nil || len(hw) != 6 {
				return nil, fmt.Errorf("mac %q: want six hexadecimal bytes such as 02:00:00:00:00:01", s.MAC)
			}
			e.mac = flow.MAC(hw)
		}
		o.PeerMAC = e.mac
		for _, text := range append([]string{s.Address}, s.Addresses...) {
			if text == "" {
				continue
			}
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("address %q: want an address with its prefix length such as 10.9.0.1/24", text)
			}
			o.Addresses = append(o.Addresses, p)
		}
		if _, err := netns.Veth("", s.Netns, o); err != nil {
			return nil, err
		}
	}
	port, err := a.Switch.AddEndpoint(ctx, datapath.Endpoint{Name: name, Link: a.endpointLink(name, s), Peer: e.mac})
	if err != nil {
		return nil, err
	}
	e.port = port
	return e, nil
}

func (a *Agent) removeEndpoint(ctx context.Context, name string, e *endpoint) error {
	object := "endpoint/" + name
	err := a.Switch.Remove(ctx, object)
	if e.made {
		err = errors.Join(err, a.deleteLinks(object))
	}
	return err
}

// deleteLinks removes the links that carry the mark of an object or of a part of it.
func (a *Agent) deleteLinks(object string) error {
	alias := a.Instance.Alias(object)
	links, err := netns.Links(alias)
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Alias == alias || strings.HasPrefix(l.Alias, alias+"/") {
			err = errors.Join(err, a.deleteLink(l.Name))
		}
	}
	return err
}

func (a *Agent) deleteLink(name string) error {
	host, err := netns.At("")
	if err != nil {
		return err
	}
	defer host.Close()
	return host.Delete(name)
}

// objectOf splits an object such as "function/fw/in" into its kind and name.
func objectOf(object string) (kind, name string) {
	kind, rest, _ := strings.Cut(object, "/")
	name, _, _ = strings.Cut(rest, "/")
	return kind, name
}
