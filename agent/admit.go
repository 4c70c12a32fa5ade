package agent

import (
	"context"
	"errors"
	"fmt"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/netns"
)

// CheckEndpoint tells why this host could not make an endpoint of a document a port. It changes nothing.
func (a *Agent) CheckEndpoint(ctx context.Context, name string, d api.Document) error {
	s := d.Endpoints[name]
	if s.Netns == "" {
		return a.Switch.CheckEndpoint(ctx, datapath.Endpoint{Name: name, Link: s.Interface})
	}
	inside, err := netns.At(s.Netns)
	if err != nil {
		return err
	}
	defer inside.Close()
	l, err := inside.Link(s.Interface)
	if errors.Is(err, netns.ErrNoLink) {
		return nil
	}
	if err != nil {
		return err
	}
	kind, owner := objectOf(l.Alias, a.Instance)
	if kind == "endpoint" {
		other, stays := d.Endpoints[owner]
		if owner == name || !stays || other.Interface != s.Interface { // ours, or about to go
			return nil
		}
		return fmt.Errorf("interface %s in netns %s is that of endpoint %q already", s.Interface, s.Netns, owner)
	}
	return fmt.Errorf("interface %s exists in netns %s already and was not made by Weir", s.Interface, s.Netns)
}
