package platform

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"
)

// daemons is a platform whose paths a Weir of the lab's own makes, driven as its users drive it.
type daemons struct {
	*Daemon
	document func(n int) string // that leads everything through n functions
	inForce  int                // wires of the path
	path     Path               // of them; empty: none is in force
	left     int                // programs that are tc filters still
	process  bool               // something on its way forwards in a process
	weight   string             // of its functions' processes
	service  netip.Addr         // see Path
}

// Wire is a document with one wire that nothing is led through.
func Wire(name string) string { return fmt.Sprintf("functions:\n  %s: {image: %s}\n", name, wireImage) }

// Wires is a document with a chain of n wires for everything that the stations exchange.
func Wires(n int) string {
	var d strings.Builder
	d.WriteString("functions:\n")
	var path []string
	for i := range n {
		fmt.Fprintf(&d, "  %s: {image: %s}\n", wireName(i), wireImage)
		path = append(path, wireName(i))
	}
	fmt.Fprintf(&d, "chains:\n  wires: %s\npolicies:\n  all: {from: alice, to: bob, match: [tcp, udp, icmp], chain: wires}\n", strings.Join(path, " | "))
	return d.String()
}

func openDaemon(former bool) func(ctx context.Context, o Options) (Platform, error) {
	return func(ctx context.Context, o Options) (Platform, error) {
		d, err := StartDaemon(ctx, o, former)
		if err != nil {
			return nil, err
		}
		return &daemons{Daemon: d, document: Wires}, nil
	}
}

// Path leads everything between the stations through n functions. Functions that a shorter path does not need stay.
func (d *daemons) Path(ctx context.Context, l Layout) (_ Path, err error) {
	n := l.Chain
	if n == d.inForce && d.path.From != "" {
		return d.path, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(n)*time.Second)
	defer cancel()
	d.path = Path{}
	if n == 0 {
		err = d.Apply(ctx, d.Endpoints(), "--prune")
	} else {
		err = d.Apply(ctx, d.document(n))
	}
	if err != nil {
		return Path{}, err
	}
	if d.left, err = d.Settle(ctx); err != nil {
		return Path{}, err
	}
	p, err := d.Daemon.Path(ctx)
	if err != nil {
		return p, err
	}
	if d.process {
		if d.weight, err = weighed(functionsGroup); err != nil {
			return p, err
		}
	}
	if n > 0 {
		p.Service = d.service
	}
	d.inForce, d.path = n, p
	return p, nil
}

// Conditions that its figures depend on.
func (d *daemons) Conditions() map[string]string {
	hooks := "tcx"
	if d.left > 0 {
		hooks = fmt.Sprintf("%d programs are tc filters", d.left)
	}
	out := map[string]string{"hooks": hooks, "weir": d.Version()}
	maps.Copy(out, weightIs(d.weight))
	return out
}
