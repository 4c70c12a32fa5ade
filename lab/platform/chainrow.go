package platform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
)

// ProcessorFunction of Weir's catalogue is what the processors of network weir are.
const ProcessorFunction = "udp-forward"

// chainRow is processors that are functions of a Weir that runs, made through its API: a chain of the catalogue's udp-forward on one of its hosts, or in turns on
// two. The outside is two endpoints of the first host, and everything that the first one sends passes the chain.
//
// As of Processors, the last one of a chain is made first, and sends to the sink: a shorter chain is the end of a longer one, and no function's configuration changes.
type chainRow struct {
	*hosts
	want  ProcessorOptions
	on    []string // hosts
	ends  *pair
	net   netip.Prefix
	all   []Processor
	names []string // of the functions in the chain
}

const (
	rowPort    = 7000
	firstInRow = 10 // its last byte of the address
	mostInRow  = min(api.MaxHops, mostProcessors)
	rowBits    = 24
)

// hostsOfRow are the first one here, and another where two are wanted.
func hostsOfRow(s survey, o ProcessorOptions) ([]string, error) {
	first, _, err := s.stations(StationsHere)
	if err != nil {
		return nil, err
	}
	on := []string{first}
	for _, h := range s.hosts {
		if len(on) < o.Hosts && h.Name != first && s.usable(h) == nil {
			on = append(on, h.Name)
		}
	}
	if len(on) < o.Hosts {
		return nil, fmt.Errorf("%d hosts are wanted, and at %s there is %s only that is ready and has image %s", o.Hosts, s.at, strings.Join(on, ", "), s.image)
	}
	for _, name := range on {
		h, err := s.find(name)
		if err != nil {
			return nil, err
		}
		if r, ok := h.Status.RuntimeOf(o.Runtime); !ok || !r.Available {
			return nil, fmt.Errorf("host %s has no runtime %s: %s", name, o.Runtime, cmp.Or(r.Why, "it does not know it"))
		}
	}
	return on, nil
}

func lookForRow(ctx context.Context, c *api.Client, o ProcessorOptions) ([]string, error) {
	s, err := look(ctx, c, o.API.String())
	if err != nil {
		return nil, err
	}
	s.image = ProcessorFunction
	return hostsOfRow(s, o)
}

// checkChainRow asks the manager; it changes nothing there.
func checkChainRow(o ProcessorOptions) string {
	switch {
	case os.Geteuid() != 0:
		return "needs root"
	case o.API == (API{}):
		return "no Weir is given whose functions these could be (--socket, --url)"
	case o.Mbps != 0:
		return "network weir has the links of its hosts, whatever their rate: want link: none"
	}
	c, err := o.API.dial()
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if _, err := lookForRow(context.Background(), c, o); err != nil {
		return err.Error()
	}
	return ""
}

func openChainRow(ctx context.Context, o ProcessorOptions) (_ *chainRow, err error) {
	h, err := dialHosts(ctx, o.Options, fmt.Sprintf("%s%s-%d", suffixRows, o.Runtime, o.Hosts))
	if err != nil {
		return nil, err
	}
	r := &chainRow{hosts: h, want: o}
	if err := r.build(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *chainRow) build(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if r.on, err = lookForRow(ctx, r.c, r.want); err != nil {
		return err
	}
	list, err := r.c.Endpoints().List(ctx, api.ListOptions{})
	if err != nil {
		return err
	}
	if r.net, err = freeNetwork(list.Items, r.draw(), rowBits); err != nil {
		return err
	}
	r.ends, err = r.pair(ctx, r.on[0], r.on[0], r.at(1), r.at(2))
	if err == nil {
		r.ends.spec = api.PolicySpec{From: r.ends.names[0], Mode: api.ModeExhaustive, Chain: r.name("chain")}
	}
	return err
}

// at is an address of the network.
func (r *chainRow) at(last int) netip.Prefix {
	a := r.net.Addr().As4()
	a[3] = byte(last)
	return netip.PrefixFrom(netip.AddrFrom4(a), rowBits)
}

func (r *chainRow) Outside() (from, to string, sink netip.AddrPort) {
	return r.ends.path.From, r.ends.path.To, netip.AddrPortFrom(r.ends.path.Address, rowPort)
}

// Grow makes functions until there are n, and leads what the outside sends through n of them.
func (r *chainRow) Grow(ctx context.Context, n int) ([]Processor, error) {
	if n > mostInRow {
		return nil, fmt.Errorf("%d processors: a chain of Weir has at most %d functions", n, mostInRow)
	}
	for len(r.all) < n {
		if err := r.add(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(n)*time.Second)
	defer cancel()
	r.names = nil
	for _, p := range r.all[:n] {
		r.names = append(r.names, p.Name)
	}
	if err := r.await(ctx, r.on, func() (string, error) { return r.unready(ctx, r.names) }); err != nil {
		return nil, err
	}
	slices.Reverse(r.names)
	if err := r.lead(ctx, r.ends, r.names); err != nil {
		return nil, err
	}
	chain := slices.Clone(r.all[:n])
	slices.Reverse(chain)
	s, err := look(ctx, r.c, r.o.API.String())
	if err != nil {
		return nil, err
	}
	var on []string
	for i := range n {
		on = append(on, r.hostOf(n-1-i))
	}
	r.conditions, err = r.describe(ctx, s, r.ends, on)
	return chain, err
}

func (r *chainRow) hostOf(i int) string { return r.on[i%len(r.on)] }

func (r *chainRow) add(ctx context.Context) error {
	i := len(r.all)
	_, _, to := r.Outside()
	if i > 0 {
		to = r.all[i-1].Reach
	}
	own := r.at(firstInRow + i)
	p := Processor{Member: Member{Name: r.name("p%03d", i), Address: own.Addr()}, Listen: netip.AddrPortFrom(own.Addr(), rowPort)}
	p.Reach = p.Listen
	config := api.Config{"addresses": []string{own.String()}, "relays": []map[string]any{{"port": rowPort, "to": to.String()}}}
	spec := api.FunctionSpec{Image: ProcessorFunction, Runtime: r.want.Runtime, Host: r.hostOf(i), Config: config}
	if err := create(ctx, r.record, api.KindFunction, r.c.Functions(), p.Name, spec); err != nil {
		return err
	}
	r.functions[spec.Host] = append(r.functions[spec.Host], p.Name)
	r.all = append(r.all, p)
	return nil
}

// Ill says which of the functions in the chain are not ready.
func (r *chainRow) Ill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	why, err := r.unready(ctx, r.names)
	if err == nil && why != "" {
		err = errors.New(why)
	}
	return err
}

// Conditions are those of the outside, and what Weir says of itself.
func (r *chainRow) Conditions() (map[string]string, error) {
	out, err := r.ends.path.Conditions()
	if err != nil {
		return nil, err
	}
	for name, value := range r.conditions {
		out[name] = value
	}
	return out, nil
}
