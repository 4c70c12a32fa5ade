package ebpf

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// A crash may come between making the bridge and marking it: that one is taken over, another's of that name is not.
func TestBridgeThatWasNotMarkedYet(t *testing.T) {
	bridge := func(i instance.Instance, group uint32) (*netlink.Bridge, error) {
		b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: i.Bridge(), Group: group}}
		return b, netlink.LinkAdd(b)
	}
	r := suite.NewRig(t, func(i instance.Instance) (datapath.Switch, error) {
		foreign, err := bridge(i, 0)
		if err != nil {
			return nil, err
		}
		if s, err := factory(HookAuto)(i); err == nil {
			return nil, errors.Join(errors.New("a bridge of others was taken"), s.Close())
		} else if !strings.Contains(err.Error(), "is in the way: it is not this Weir's bridge") {
			return nil, fmt.Errorf("with a bridge of others: %w", err)
		}
		if err := netlink.LinkDel(foreign); err != nil {
			return nil, err
		}
		if _, err := bridge(i, netns.Unmarked(i.Alias(""))); err != nil {
			return nil, err
		}
		return factory(HookAuto)(i)
	})
	l, err := r.Host.Link(r.Instance.Bridge())
	if err != nil || l.Alias != r.Instance.Alias("bridge") || l.Group != 0 || !l.Up {
		t.Errorf("%+v, %v", l, err)
	}
}
