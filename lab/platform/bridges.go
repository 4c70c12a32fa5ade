package platform

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"weir.dev/weir/netns"
)

// bridged is a Linux bridge for each joint of a chain: between a station and a function, or two functions. That is what anybody can build with what the
// kernel has.
type bridged struct {
	links
	stations []string // their links, in the order in which they were joined
	mu       sync.Mutex
	ports    map[string][2]string // in and out, by function
	at       map[string]int       // joint, by link
	joints   int                  // that are there
}

func bridgeNetwork() networkMaker {
	return networkMaker{
		name: byBridges, about: "Linux bridges", check: free, destroy: nothingLeft,
		open: func(_ context.Context, l links, _ function) (network, error) {
			return &bridged{links: l, ports: map[string][2]string{}, at: map[string]int{}}, nil
		},
	}
}

// nothingLeft: all of it goes with its namespaces.
func nothingLeft(context.Context, links) error { return nil }

func (b *bridged) station(_ context.Context, name, space string, address netip.Prefix) error {
	link, err := b.joinStation(name, space, address)
	b.stations = append(b.stations, link.Name)
	return err
}

func (b *bridged) add(_ context.Context, name, space string) error {
	in, out, err := b.joinFunction(name, space)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ports[name] = [2]string{in.Name, out.Name}
	return err
}

func (b *bridged) ready(context.Context, string, int) error { return nil }

// lead moves no more links than it has to: those of another chain stay where they are in nobody's way.
func (b *bridged) lead(_ context.Context, chains [][]string) error {
	functions := chains[0] // it does not split
	last := len(functions)
	want := map[string]int{b.stations[0]: 0, b.stations[1]: last}
	for i, name := range functions {
		want[b.ports[name][0]], want[b.ports[name][1]] = i, i+1
	}
	return netns.Do(b.home, func() error {
		for ; b.joints <= last; b.joints++ {
			if err := makeBridge(joint(b.joints), b.inst.Alias(joint(b.joints))); err != nil {
				return err
			}
		}
		for _, link := range slices.Sorted(maps.Keys(b.at)) {
			if to, wanted := want[link]; wanted && to != b.at[link] || !wanted && b.at[link] <= last {
				if err := moveTo("", link); err != nil {
					return err
				}
				delete(b.at, link)
			}
		}
		for _, link := range slices.Sorted(maps.Keys(want)) {
			if _, there := b.at[link]; there {
				continue
			}
			if err := moveTo(joint(want[link]), link); err != nil {
				return err
			}
			b.at[link] = want[link]
		}
		return nil
	})
}

func joint(i int) string { return fmt.Sprintf("j%d", i) }

func (b *bridged) entry() string { return b.stations[0] }

func (b *bridged) close(context.Context) error { return nil }
