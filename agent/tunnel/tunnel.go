// Package tunnel joins this host with others where there is no OpenFlow between them: VXLAN tunnels (RFC 7348) that are ports of the switch, inside
// WireGuard where both hosts' kernels have it. The assignment says to which hosts. Not safe for several goroutines, but for Key and Features.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Switch is what tunnels need of the host's switch; see datapath.Switch.
type Switch interface {
	AddEndpoint(ctx context.Context, e datapath.Endpoint) (flow.Port, error)
	Remove(ctx context.Context, object string) error
}

// Kernel is what tunnels need of the kernel; see package kernel.
type Kernel interface {
	VXLAN(sockets string, o netns.VXLANOptions) error
	WireGuard(path string, o netns.WireGuardOptions) error
	ProbeWireGuard() error
	LinkWith(a netip.Addr) (netns.Link, error)
	DeleteMarked(alias string) error
	Exists(path string) bool
	Delete(path string) error
}

// Options of a host's tunnels. All are needed.
type Options struct {
	Instance instance.Instance
	Host     string
	Address  netip.Addr // of this host in the underlay; invalid: it has none
	Switch   Switch
	Kernel   Kernel
	Log      *slog.Logger
	Now      func() time.Time
	News     func() // the host's status has changed
}

// Set is the tunnels of one host.
type Set struct {
	Options
	all     map[string]*tunnel // by the other host
	sealing sealing

	underlay    *api.Feature // nil: no tunnels
	underlayMTU int
	underlayAt  time.Time
}

// New makes an empty set; see Prepare.
func New(o Options) *Set { return &Set{Options: o, all: map[string]*tunnel{}} }

// tunnel to another host, as it is.
type tunnel struct {
	want api.Tunnel
	mtu  int
	port flow.Port // 0: not in the switch
	err  error
}

// Adopt notes a tunnel of an earlier run, to be looked at by Sync or removed by Release.
func (s *Set) Adopt(host string) { s.all[host] = &tunnel{} }

// Ports are the tunnels that are ports of the switch, by the other host.
func (s *Set) Ports() map[string]flow.Port {
	ports := map[string]flow.Port{}
	for name, t := range s.all {
		if t.port != 0 {
			ports[name] = t.port
		}
	}
	return ports
}

// Features are what the host's status says of tunnels.
func (s *Set) Features() []api.Feature {
	var all []api.Feature
	if s.Address.IsValid() {
		all = append(all, s.sealing.feature)
	}
	if s.underlay != nil {
		all = append(all, *s.underlay)
	}
	return all
}

// Sync makes the wanted tunnels ports of the switch: isolated ones, since a flooded frame has reached all of a full mesh. mtu is what all endpoints of the
// whole Weir need. It reports false if one needs another try.
func (s *Set) Sync(ctx context.Context, want []api.Tunnel, mtu int) bool {
	ok := true
	wanted := map[string]api.Tunnel{}
	for _, t := range want {
		wanted[t.Host] = t
	}
	sealed, err := s.seal(wanted, mtu)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		t := s.all[name]
		if t == nil {
			t = &tunnel{}
			s.all[name] = t
		}
		was := t.err
		if t.err = err; wanted[name].Key == "" || err == nil {
			t.err = s.ensure(ctx, t, wanted[name], mtu)
		}
		if t.err != nil {
			ok = false
			if was == nil || was.Error() != t.err.Error() {
				s.Log.Warn("tunnel", "host", name, "error", t.err)
			}
		}
	}
	if len(wanted) > 0 {
		s.checkUnderlay(mtu, sealed)
	} else {
		s.underlay = nil
	}
	for name, t := range s.all {
		if _, ok := wanted[name]; !ok {
			t.err = nil
		}
	}
	return ok
}

func (s *Set) ensure(ctx context.Context, t *tunnel, want api.Tunnel, mtu int) error {
	object := "tunnel/" + want.Host
	link := s.Instance.Link(object)
	if t.want != want || t.mtu != mtu || t.port == 0 || t.err != nil {
		if err := s.makeLink(want, mtu); err != nil {
			return err
		}
		t.want, t.mtu = want, mtu
	}
	port, err := s.Switch.AddEndpoint(ctx, datapath.Endpoint{Name: object, Link: link, Fabric: true, Isolated: true})
	if errors.Is(err, datapath.ErrNotFound) {
		t.port = 0 // somebody removed the link
	}
	if err != nil {
		return err
	}
	t.port = port
	return nil
}

// makeLink makes the interface. An encrypted tunnel's sockets are where WireGuard decrypts.
func (s *Set) makeLink(want api.Tunnel, mtu int) error {
	object := "tunnel/" + want.Host
	remote, err := netip.ParseAddr(want.Remote)
	if err != nil {
		return fmt.Errorf("tunnel to %s: remote %q: want an IP address", want.Host, want.Remote)
	}
	if !s.Address.IsValid() {
		return fmt.Errorf("tunnel to %s: this host's address in the underlay is unknown: start it with --underlay-address", want.Host)
	}
	o := netns.VXLANOptions{
		Name: s.Instance.Link(object), Alias: s.Instance.Alias(object), MAC: s.Instance.MAC(object + "/" + s.Host), VNI: want.VNI, Port: want.Port,
		Local: s.Address, Remote: remote, MTU: mtu,
	}
	sockets := ""
	if want.Key != "" {
		o.Local, o.Remote, sockets = api.TunnelAddress(s.Host), api.TunnelAddress(want.Host), s.Instance.TunnelNetns()
	}
	return s.Kernel.VXLAN(sockets, o)
}

// Errors tell what is wrong with which tunnels.
func (s *Set) Errors() []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		if err := s.all[name].err; err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Release removes tunnels that nobody wants and no installed rule names.
func (s *Set) Release(ctx context.Context, want []api.Tunnel, used map[flow.Port]bool) {
	for name, t := range s.all {
		if used[t.port] || slices.ContainsFunc(want, func(t api.Tunnel) bool { return t.Host == name }) {
			continue
		}
		object := "tunnel/" + name
		if err := errors.Join(s.Switch.Remove(ctx, "endpoint/"+object), s.Kernel.DeleteMarked(s.Instance.Alias(object))); err != nil {
			s.Log.Warn("remove tunnel", "host", name, "error", err)
			continue
		}
		delete(s.all, name)
	}
}

// underlayEvery is how often the underlay's MTU is looked at.
const underlayEvery = 10 * time.Second

// checkUnderlay notes whether whole frames fit the underlay. If not, the kernel cuts the outer packets into fragments, which keeps those
// inside as they were and costs throughput; where the inner packet forbids fragments it answers the sender with ICMP (Linux 5.9).
func (s *Set) checkUnderlay(mtu int, sealed bool) {
	now := time.Now()
	need := mtu + netns.VXLANOptions{Local: s.Address}.Overhead()
	if sealed {
		need = sealedMTU(mtu) + netns.WireGuardOverhead(s.Address)
	}
	if s.underlay != nil && s.underlayMTU == need && now.Sub(s.underlayAt) < underlayEvery {
		return
	}
	s.underlayAt, s.underlayMTU = now, need
	f := api.Feature{Name: "underlay MTU"}
	l, err := s.Kernel.LinkWith(s.Address)
	switch {
	case err != nil:
		f.Detail = err.Error()
	case l.MTU >= need:
		f.OK = true
		f.Detail = fmt.Sprintf("%s carries %d bytes, packets of %d between hosts need %d", l.Name, l.MTU, mtu, need)
	default:
		f.Detail = fmt.Sprintf("%s carries %d bytes, packets of %d between hosts need %d: larger ones than %d are fragmented on the way, or refused with ICMP where they forbid that; remedy: ip link set %s mtu %d on all hosts, or endpoints with mtu: %d",
			l.Name, l.MTU, mtu, need, mtu-(need-l.MTU), l.Name, need, mtu-(need-l.MTU))
	}
	if s.underlay == nil || *s.underlay != f {
		s.underlay = &f
		s.News()
		if !f.OK {
			s.Log.Warn("underlay", "detail", f.Detail)
		}
	}
}
