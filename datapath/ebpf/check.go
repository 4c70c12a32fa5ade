package ebpf

import (
	"context"
	"fmt"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/hostlink"
)

// CheckEndpoint tells whether AddEndpoint would take the link. A link that another endpoint took is no obstacle: that one may be
// about to give it up.
func (s *Switch) CheckEndpoint(ctx context.Context, e datapath.Endpoint) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	l, err := hostlink.ByName(s.nl, s.home, e.Link)
	if err != nil {
		return err
	}
	if slot, taken := s.byIndex[uint32(l.Attrs().Index)]; taken {
		if p := s.ports[slot]; s.own(l) && p.Name != "endpoint/"+e.Name {
			return fmt.Errorf("interface %s is already the port %s", e.Link, p.Name)
		}
		return nil
	}
	return hostlink.Check(s.nl, s.bridge, l)
}
