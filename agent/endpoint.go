package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
	"weir.dev/weir/router"
)

// endpoint is a port that the agent made or took.
type endpoint struct {
	port flow.Port
	mac  flow.MAC // of the station behind it; zero if unknown
	spec api.EndpointSpec
	made bool      // the link is ours
	held bool      // until the rules that name it are in force
	anew bool      // the link was made just now
	lost time.Time // since when it cannot be a port; zero: it is one
}

// wire is a link that only somebody else takes away.
type wire struct {
	gone  time.Time // zero: it is there
	quiet time.Time // until then a pass is due anyway: what makes its link anew each time may not keep the agent busy
}

// wireGone has endpoints looked at now if the link is one's, or their bridge.
func (a *Agent) wireGone(link string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.wires[link]; w != nil && w.gone.IsZero() {
		w.gone = time.Now()
		if w.gone.After(w.quiet) {
			a.poke()
		}
	}
}

// watchWire notes that a link is there, and tells since when it was not, zero if nothing told.
func (a *Agent) watchWire(link string, anew bool) (gone time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.wires[link]; w != nil {
		gone = w.gone
	}
	w := &wire{}
	if anew {
		w.quiet = time.Now().Add(retryAfter)
	}
	a.wires[link] = w
	return gone
}

func (a *Agent) forgetWire(link string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.wires, link)
}

// syncEndpoints makes every wanted endpoint a port, a new one held: its first frame has to meet the rules. It reports false if one of them
// needs another try.
func (a *Agent) syncEndpoints(ctx context.Context, want share) bool {
	ok := true
	for name, w := range want.endpoints {
		if w.Deleting != nil {
			continue
		}
		e, err := a.ensureEndpoint(ctx, name, w.Spec)
		if err != nil {
			ok = false
			a.endpointLost(name, err)
			a.endpointFailed(name, w, err)
			continue
		}
		if a.endpointBack(name, e) {
			ok = false // look once more soon
		}
		a.endpoints[name] = e
		if !e.held {
			a.endpointUp(name, w, e)
		}
	}
	a.watchWire(a.Instance.Bridge(), false)
	return ok
}

// endpointLost tells that an endpoint which was up is one no more. Until it is back it is tried again and again.
func (a *Agent) endpointLost(name string, err error) {
	old := a.endpoints[name]
	if old == nil || old.held || !old.lost.IsZero() {
		return
	}
	old.lost = time.Now()
	a.forgetWire(a.endpointLink(name, old.spec))
	a.endpointEvent(api.Warning, "EndpointLost", name, err.Error(), 0)
}

// endpointBack tells that an endpoint is up again, and reports whether its link had to be made anew.
func (a *Agent) endpointBack(name string, e *endpoint) bool {
	old := a.endpoints[name]
	lost := old != nil && !old.held && (!old.lost.IsZero() || e.anew)
	gone := a.watchWire(a.endpointLink(name, e.spec), lost)
	if !lost {
		return false
	}
	var outage time.Duration // unknown
	if old.lost.IsZero() {
		a.endpointEvent(api.Warning, "EndpointLost", name, "its link was deleted", 0)
		if !gone.IsZero() {
			outage = time.Since(gone)
		}
	} else {
		outage = time.Since(old.lost)
	}
	a.endpointEvent(api.Info, "EndpointRecovered", name, "up again", outage)
	return true
}

func (a *Agent) endpointEvent(s api.Severity, reason, name, message string, outage time.Duration) {
	a.report.Event(api.Event{Severity: s, Reason: reason, Kind: api.KindEndpoint, Object: name, Message: message, OutageNs: outage.Nanoseconds()})
}

// letEndpointsGo joins those that were held with the others. It reports false if one of them needs another try.
func (a *Agent) letEndpointsGo(ctx context.Context, want share, inForce error) bool {
	ok := true
	for name, e := range a.endpoints {
		w, wanted := want.endpoints[name]
		if !e.held || !wanted || w.Deleting != nil {
			continue
		}
		err := inForce
		if err == nil {
			_, err = a.Switch.AddEndpoint(ctx, a.switchEndpoint(name, e))
		} else {
			err = fmt.Errorf("its rules are not in force: %w", err)
		}
		if err != nil {
			ok = false
			a.endpointFailed(name, w, err)
			continue
		}
		e.held = false
		a.endpointUp(name, w, e)
	}
	return ok
}

func (a *Agent) endpointUp(name string, w api.Endpoint, e *endpoint) {
	s := api.EndpointStatus{ObservedGeneration: w.Generation, Host: a.Host, State: api.EndpointUp, Port: uint32(e.port), Link: a.endpointLink(name, w.Spec)}
	if e.mac != (flow.MAC{}) {
		s.MAC = e.mac.String()
	}
	if a.troubles[name] != "" {
		delete(a.troubles, name)
		a.poke() // its policies are well again
	}
	a.report.Endpoint(name, w.UID, s)
}

func (a *Agent) endpointFailed(name string, w api.Endpoint, err error) {
	if w.Status.Message != err.Error() {
		a.Log.Warn("endpoint", "endpoint", name, "error", err)
	}
	a.troubles[name] = err.Error()
	reason := api.ReasonError
	if w.Spec.Netns != "" && errors.Is(err, fs.ErrNotExist) {
		reason = api.ReasonNamespace
	}
	s := api.EndpointStatus{ObservedGeneration: w.Generation, Host: a.Host, State: api.EndpointError}
	s.Say(api.Condition{Type: api.ConditionFailed, Reason: reason, Message: err.Error()})
	a.report.Endpoint(name, w.UID, s)
}

// switchEndpoint is the endpoint as the switch takes it.
func (a *Agent) switchEndpoint(name string, e *endpoint) datapath.Endpoint {
	return datapath.Endpoint{Name: name, Link: a.endpointLink(name, e.spec), Peer: e.mac, Netns: e.spec.Netns, Guard: router.Guard(e.spec, e.mac)}
}

func (a *Agent) endpointLink(name string, s api.EndpointSpec) string {
	if s.Netns == "" {
		return s.Interface
	}
	return a.Instance.Link("endpoint/" + name)
}

func (a *Agent) ensureEndpoint(ctx context.Context, name string, s api.EndpointSpec) (*endpoint, error) {
	object := "endpoint/" + name
	// A link cannot change these properties: it is made anew.
	if old := a.endpoints[name]; old != nil && (old.spec.Netns != s.Netns || old.spec.Interface != s.Interface || old.spec.MAC != s.MAC || old.spec.MTU != s.MTU) {
		if err := a.removeEndpoint(ctx, name, old); err != nil {
			return nil, err
		}
		delete(a.endpoints, name)
	}
	old := a.endpoints[name]
	e := &endpoint{spec: s, made: s.Netns != "", held: old == nil || old.held}
	// Weir makes the link into a namespace. An interface of the host is taken as it is.
	if e.made {
		o := netns.VethOptions{
			HostName: a.endpointLink(name, s), Alias: a.Instance.Alias(object), HostMAC: a.Instance.MAC(object + "/switch"),
			PeerName: s.Interface, MTU: s.MTU,
			Reserved: s.PortSecurity != nil && len(s.PortSecurity.Shared) > 0,
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
		made, err := a.Kernel.Veth(s.Netns, o)
		if err != nil {
			return nil, err
		}
		e.anew = made
	}
	// A new endpoint is held: its first frame has to meet the rules.
	asked := a.switchEndpoint(name, e)
	asked.Held = e.held
	port, err := a.Switch.AddEndpoint(ctx, asked)
	if err != nil {
		return nil, err
	}
	e.port = port
	return e, nil
}

func (a *Agent) removeEndpoint(ctx context.Context, name string, e *endpoint) error {
	object := "endpoint/" + name
	a.forgetWire(a.endpointLink(name, e.spec))
	err := a.Switch.Remove(ctx, object)
	if e.made {
		err = errors.Join(err, a.Kernel.DeleteMarked(a.Instance.Alias(object)))
	}
	return err
}

// objectOf splits an object such as "function/fw/in" into its kind and name.
func objectOf(object string) (kind, name string) {
	kind, rest, _ := strings.Cut(object, "/")
	name, _, _ = strings.Cut(rest, "/")
	return kind, name
}
