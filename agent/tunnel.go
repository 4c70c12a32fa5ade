package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// tunnel to another host, as it is.
type tunnel struct {
	want api.Tunnel
	mtu  int
	port flow.Port // 0: not in the switch
	err  error
}

// defaultMTU of endpoints.
const defaultMTU = 1500

// syncTunnels makes the wanted tunnels ports of the switch: isolated ones, since a flooded frame has reached all of a full mesh. It
// reports false if one needs another try.
func (a *Agent) syncTunnels(ctx context.Context, want share) bool {
	ok := true
	wanted := map[string]api.Tunnel{}
	if want.assignment != nil {
		for _, t := range want.assignment.Spec.Tunnels {
			wanted[t.Host] = t
		}
	}
	mtu := tunnelMTU(want)
	inside, err := a.seal(wanted, mtu)
	if inside != nil {
		defer inside.Close()
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		t := a.tunnels[name]
		if t == nil {
			t = &tunnel{}
			a.tunnels[name] = t
		}
		was := t.err
		if t.err = err; wanted[name].Key == "" || err == nil {
			t.err = a.ensureTunnel(ctx, t, inside, wanted[name], mtu)
		}
		if t.err != nil {
			ok = false
			if was == nil || was.Error() != t.err.Error() {
				a.Log.Warn("tunnel", "host", name, "error", t.err)
			}
		}
	}
	if len(wanted) > 0 {
		a.checkUnderlay(mtu, inside != nil)
	} else {
		a.underlay = nil
	}
	for name, t := range a.tunnels {
		if _, ok := wanted[name]; !ok {
			t.err = nil
		}
	}
	return ok
}

// tunnelMTU is what all endpoints of the whole Weir need.
func tunnelMTU(want share) int {
	mtu := defaultMTU
	for _, e := range want.all.endpoints {
		mtu = max(mtu, e.Spec.MTU)
	}
	return mtu
}

func (a *Agent) ensureTunnel(ctx context.Context, t *tunnel, inside *netns.Space, want api.Tunnel, mtu int) error {
	object := "tunnel/" + want.Host
	link := a.Instance.Link(object)
	if t.want != want || t.mtu != mtu || t.port == 0 || t.err != nil {
		if err := a.makeTunnel(inside, want, mtu); err != nil {
			return err
		}
		t.want, t.mtu = want, mtu
	}
	port, err := a.Switch.AddEndpoint(ctx, datapath.Endpoint{Name: object, Link: link, Fabric: true, Isolated: true})
	if errors.Is(err, datapath.ErrNotFound) {
		t.port = 0 // somebody removed the link
	}
	if err != nil {
		return err
	}
	t.port = port
	return nil
}

// makeTunnel makes the interface. inside is where WireGuard decrypts; nil if nothing is encrypted.
func (a *Agent) makeTunnel(inside *netns.Space, want api.Tunnel, mtu int) error {
	object := "tunnel/" + want.Host
	remote, err := netip.ParseAddr(want.Remote)
	if err != nil {
		return fmt.Errorf("tunnel to %s: remote %q: want an IP address", want.Host, want.Remote)
	}
	if !a.UnderlayAddress.IsValid() {
		return fmt.Errorf("tunnel to %s: this host's address in the underlay is unknown: start it with --underlay-address", want.Host)
	}
	host, err := netns.At("")
	if err != nil {
		return err
	}
	defer host.Close()
	o := netns.VXLANOptions{
		Name: a.Instance.Link(object), Alias: a.Instance.Alias(object), MAC: a.Instance.MAC(object + "/" + a.Host), VNI: want.VNI, Port: want.Port,
		Local: a.UnderlayAddress, Remote: remote, MTU: mtu,
	}
	if want.Key != "" {
		o.Local, o.Remote = api.TunnelAddress(a.Host), api.TunnelAddress(want.Host)
		_, err = host.VXLANThrough(inside, o)
	} else {
		_, err = host.VXLAN(o)
	}
	return err
}

func (a *Agent) tunnelErrors() []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(a.tunnels)) {
		if err := a.tunnels[name].err; err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// releaseTunnels removes tunnels that nobody wants and no installed rule names.
func (a *Agent) releaseTunnels(ctx context.Context, want share, used map[flow.Port]bool) {
	wanted := map[string]bool{}
	if want.assignment != nil {
		for _, t := range want.assignment.Spec.Tunnels {
			wanted[t.Host] = true
		}
	}
	for name, t := range a.tunnels {
		if wanted[name] || used[t.port] {
			continue
		}
		if err := a.removeTunnel(ctx, name); err != nil {
			a.Log.Warn("remove tunnel", "host", name, "error", err)
			continue
		}
		delete(a.tunnels, name)
	}
}

func (a *Agent) removeTunnel(ctx context.Context, host string) error {
	object := "tunnel/" + host
	return errors.Join(a.Switch.Remove(ctx, "endpoint/"+object), a.deleteLinks(object))
}

// underlayEvery is how often the underlay's MTU is looked at.
const underlayEvery = 10 * time.Second

// checkUnderlay notes whether whole frames fit the underlay. If not, the kernel cuts the outer packets into fragments, which keeps those
// inside as they were and costs throughput; where the inner packet forbids fragments it answers the sender with ICMP (Linux 5.9).
func (a *Agent) checkUnderlay(mtu int, sealed bool) {
	now := time.Now()
	need := mtu + netns.VXLANOptions{Local: a.UnderlayAddress}.Overhead()
	if sealed {
		need = sealedMTU(mtu) + netns.WireGuardOverhead(a.UnderlayAddress)
	}
	if a.underlay != nil && a.underlayMTU == need && now.Sub(a.underlayAt) < underlayEvery {
		return
	}
	a.underlayAt, a.underlayMTU = now, need
	f := api.Feature{Name: "underlay MTU"}
	host, err := netns.At("")
	var l netns.Link
	if err == nil {
		defer host.Close()
		l, err = host.LinkWith(a.UnderlayAddress)
	}
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
	if a.underlay == nil || *a.underlay != f {
		a.underlay = &f
		a.news.Store(true)
		if !f.OK {
			a.Log.Warn("underlay", "detail", f.Detail)
		}
	}
}
