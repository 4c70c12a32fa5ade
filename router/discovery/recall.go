package discovery

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
)

// Recall takes over a switch's ports as they were reported in an earlier life.
func (n *Network) Recall(d *Switch, ports []api.SwitchPort, byName map[string]*Switch, now time.Time) {
	for _, x := range ports {
		p := &Port{Number: x.Number, Name: x.Name, Up: x.State == api.LinkUp}
		d.Ports[x.Number] = p
		peer, end, _ := strings.Cut(x.Peer, ":")
		number, err := strconv.ParseUint(end, 10, 32)
		other := byName[peer]
		switch {
		case !p.Up:
		case x.Kind == "host":
			p.heard, p.from = now, fabric.At{Switch: fabric.HostID(peer), Port: fabric.Port{Name: "uplink/" + end}}
		case x.Kind == "link" && other != nil && err == nil:
			p.heard, p.from, p.looped = now, fabric.At{Switch: other.ID, Port: fabric.Port{Number: flow.Port(number)}}, other == d
		case x.Kind == "edge":
			p.edge, p.first = true, now
			for _, text := range x.Stations {
				mac, ips, ok := parseStation(text)
				if !ok {
					continue
				}
				n.Stations.See(mac, firstOf(ips), Seat{d.ID, x.Number}, now)
				for _, ip := range ips {
					n.Stations.See(mac, ip, Seat{d.ID, x.Number}, now)
				}
			}
		}
	}
}

func firstOf[T any](s []T) T {
	var zero T
	return append(slices.Clip(s), zero)[0]
}
