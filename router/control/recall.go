package control

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/rollout"
)

// recall takes over a switch's ports as they were reported in an earlier life.
func (n *network) recall(d *sw, ports []api.SwitchPort, byName map[string]*sw, now time.Time) {
	for _, x := range ports {
		p := &port{number: x.Number, name: x.Name, up: x.State == api.LinkUp}
		d.ports[x.Number] = p
		peer, end, _ := strings.Cut(x.Peer, ":")
		number, err := strconv.ParseUint(end, 10, 32)
		other := byName[peer]
		switch {
		case !p.up:
		case x.Kind == "host":
			p.heard, p.from = now, fabric.At{Switch: rollout.HostID(peer), Port: fabric.Port{Name: "uplink/" + end}}
		case x.Kind == "link" && other != nil && err == nil:
			p.heard, p.from, p.looped = now, fabric.At{Switch: other.id, Port: fabric.Port{Number: flow.Port(number)}}, other == d
		case x.Kind == "edge":
			p.edge, p.first = true, now
			for _, text := range x.Stations {
				mac, ips, ok := parseStation(text)
				if !ok {
					continue
				}
				n.stations.see(mac, firstOf(ips), seat{d.id, x.Number}, now)
				for _, ip := range ips {
					n.stations.see(mac, ip, seat{d.id, x.Number}, now)
				}
			}
		}
	}
}

func firstOf[T any](s []T) T {
	var zero T
	return append(slices.Clip(s), zero)[0]
}
