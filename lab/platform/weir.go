package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/ebpf"
	"weir.dev/weir/datapath/ovs"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
	"weir.dev/weir/router"
)

// Suffixes of the platforms' instances.
const (
	suffixEBPF = "-e"
	suffixOVS  = "-o"
)

// Interface indexes inside a function's namespace, as an agent gives them.
const (
	indexIn  = 1024
	indexOut = 1025
)

const (
	wireImage = "wire"
	builders  = 2 // containers that are made at a time
	patience  = time.Minute
)

// Weir is a switch with wires, made by the drivers as an agent would.
type weir struct {
	inst       instance.Instance
	home       string // the switch's namespace
	sw         datapath.Switch
	settle     func(context.Context) error // nil: nothing to wait for
	destroy    func(context.Context) error // the switch, also when it was never opened
	rt         *oci.Runtime
	store      *image.Store
	img        image.Image
	root       string
	ports      map[string]flow.Port // endpoints
	functions  map[string]router.Function
	wires      int // that are there
	inForce    int // wires of the path in force; -1 none
	from, to   string
	sourceLink string
}

func checkWeir(o Options) string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	for _, f := range ebpf.Features() {
		if f.Required && !f.OK {
			return "this kernel lacks " + f.Name + ": " + f.Detail
		}
	}
	return checkContainers(o)
}

func checkContainers(o Options) string {
	if err := tools.Installed("runc"); err != nil {
		return err.Error()
	}
	inst, err := instance.New("0", os.DevNull)
	if err != nil {
		return err.Error()
	}
	if _, err := image.Open(inst, o.Images...).Resolve(wireImage); err != nil {
		return fmt.Sprintf("image %s: %s (make build)", wireImage, err)
	}
	return ""
}

func checkOVS(o Options) string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	if err := tools.Installed("ovs-vswitchd", "ovsdb-server"); err != nil {
		return "Open vSwitch is not installed (apt-get install openvswitch-switch)"
	}
	return checkContainers(o)
}

func openEBPF(ctx context.Context, o Options) (Platform, error) {
	w, err := newWeir(o, suffixEBPF)
	if err != nil {
		return nil, err
	}
	w.destroy = func(ctx context.Context) error { return ebpf.Destroy(ctx, ebpf.Options{Instance: w.inst}) }
	return w.open(ctx, o, func() (datapath.Switch, error) {
		s, err := ebpf.Open(ctx, ebpf.Options{Instance: w.inst})
		if err == nil {
			w.settle = s.Settle
		}
		return s, err
	})
}

func openOVS(ctx context.Context, o Options) (Platform, error) {
	w, err := newWeir(o, suffixOVS)
	if err != nil {
		return nil, err
	}
	options := ovs.Options{Instance: w.inst, OVSDB: ovs.Private, Logger: slog.New(slog.DiscardHandler)}
	w.destroy = func(ctx context.Context) error { return ovs.Destroy(ctx, options) }
	return w.open(ctx, o, func() (datapath.Switch, error) { return ovs.Open(ctx, options) })
}

func newWeir(o Options, suffix string) (*weir, error) {
	inst, err := instance.New(o.Name+suffix, "")
	if err != nil {
		return nil, err
	}
	return &weir{inst: inst, ports: map[string]flow.Port{}, functions: map[string]router.Function{}, inForce: -1,
		home: filepath.Join(inst.NetnsDir(), "home"), from: filepath.Join(inst.NetnsDir(), "alice"), to: filepath.Join(inst.NetnsDir(), "bob"),
		sourceLink: inst.Link("endpoint/alice")}, nil
}

func (w *weir) open(ctx context.Context, o Options, sw func() (datapath.Switch, error)) (Platform, error) {
	if err := w.build(ctx, o, sw); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *weir) build(ctx context.Context, o Options, sw func() (datapath.Switch, error)) (err error) {
	if err := os.MkdirAll(w.inst.NetnsDir(), 0o755); err != nil {
		return err
	}
	for _, space := range []string{w.home, w.from, w.to} {
		if err := netns.Create(space, netns.Options{}); err != nil {
			return err
		}
	}
	if err := netns.Do(w.home, func() (err error) { w.sw, err = sw(); return err }); err != nil {
		w.sw = nil // not a nil pointer in an interface
		return err
	}
	if w.rt, err = oci.New(ctx, w.inst, oci.Options{Adopt: true}); err != nil {
		return err
	}
	w.store = image.Open(w.inst, o.Images...)
	if w.img, err = w.store.Resolve(wireImage); err != nil {
		return err
	}
	if w.root, err = w.store.Mount(ctx, wireImage); err != nil {
		return err
	}
	if err := w.station(ctx, "alice", w.from, netns.VethOptions{Addresses: []netip.Prefix{sourceAddress}}); err != nil {
		return err
	}
	return w.station(ctx, "bob", w.to, netns.VethOptions{Addresses: []netip.Prefix{targetAddress}})
}

func (w *weir) station(ctx context.Context, name, space string, o netns.VethOptions) error {
	object := "endpoint/" + name
	o.HostName, o.Alias, o.HostMAC = w.inst.Link(object), w.inst.Alias(object), w.inst.MAC(object+"/switch")
	o.PeerName, o.PeerMAC = Station, w.inst.MAC(object)
	if _, err := netns.Veth(w.home, space, o); err != nil {
		return err
	}
	port, err := w.sw.AddEndpoint(ctx, datapath.Endpoint{Name: name, Link: o.HostName, Peer: o.PeerMAC, Netns: space})
	w.ports[name] = port
	return err
}

// Path grows the host to n wires and leads everything between the stations through the first n.
func (w *weir) Path(ctx context.Context, n int) (Path, error) {
	p := Path{From: w.from, To: w.to, Source: sourceAddress.Addr(), Address: targetAddress.Addr(), Space: w.home, Link: w.sourceLink}
	if n == w.inForce {
		return p, nil
	}
	if err := w.grow(ctx, n); err != nil {
		return p, err
	}
	in := router.Input{Endpoints: w.ports, Functions: w.functions, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{}}
	if n > 0 {
		var names []string
		for i := range n {
			names = append(names, wireName(i))
		}
		in.Chains["wires"] = api.ChainSpec{Path: strings.Join(names, " | ")}
		in.Policies["all"] = api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp", "udp", "icmp"}, Chain: "wires"}
	}
	out := router.Compile(in)
	for name, err := range out.Errors {
		return p, fmt.Errorf("policy %s: %w", name, err)
	}
	w.inForce = -1
	if _, err := w.sw.Commit(ctx, out.Rules); err != nil {
		return p, err
	}
	w.inForce = n
	return p, p.Try(ctx)
}

func wireName(i int) string { return fmt.Sprintf("w%03d", i) }

// grow makes wires until there are n.
func (w *weir) grow(ctx context.Context, n int) error {
	if n <= w.wires {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(n)*time.Second)
	defer cancel()
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	next := make(chan int)
	for range builders {
		all.Go(func() {
			for i := range next {
				f, err := w.wire(ctx, wireName(i))
				mu.Lock()
				if err != nil {
					errs = append(errs, fmt.Errorf("wire %d: %w", i, err))
				}
				w.functions[wireName(i)] = f
				mu.Unlock()
			}
		})
	}
	for i := w.wires; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	all.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	w.wires = n
	if w.settle != nil {
		return w.settle(ctx)
	}
	return nil
}

// wire makes one function: namespace, links, ports, container.
func (w *weir) wire(ctx context.Context, name string) (router.Function, error) {
	space := filepath.Join(w.inst.NetnsDir(), name)
	var f router.Function
	if err := netns.Create(space, netns.Options{Quiet: true}); err != nil {
		return f, err
	}
	link := func(side flow.Side, index int) (string, error) {
		object := side.Of(name)
		o := netns.VethOptions{
			HostName: w.inst.Link(object), Alias: w.inst.Alias(object), HostMAC: w.inst.MAC(object + "/switch"), PeerMAC: w.inst.MAC(object),
			PeerName: side.String(), PeerIndex: index, Quiet: true,
		}
		_, err := netns.Veth(w.home, space, o)
		return o.HostName, err
	}
	in, err := link(flow.In, indexIn)
	if err != nil {
		return f, err
	}
	out, err := link(flow.Out, indexOut)
	if err != nil {
		return f, err
	}
	ports, err := w.sw.AddFunction(ctx, datapath.Function{Name: name, Netns: space, In: in, Out: out, InPeer: flow.In.String(), OutPeer: flow.Out.String(), Forwarder: w.img.Contract.Forwarder})
	if err != nil {
		return f, err
	}
	if err := w.rt.Run(ctx, Container(name, space, w.root, w.img)); err != nil {
		return f, err
	}
	st, err := w.rt.Status(ctx, name)
	if err != nil {
		return f, err
	}
	return router.Function{In: ports.In, Out: ports.Out}, w.sw.SetState(ctx, name, datapath.Up, st.PID)
}

// Container is what runs in a function of an image.
func Container(id, space, root string, img image.Image) container.Spec {
	return container.Spec{
		ID: id, Rootfs: root, ReadOnly: true, Args: img.Args, Env: img.Env, Dir: img.Dir, Netns: space, Capabilities: img.Contract.Capabilities,
	}
}

// Close removes everything; it also removes what a crash left.
func (w *weir) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	if w.rt == nil {
		var err error
		if w.rt, err = oci.New(ctx, w.inst, oci.Options{Remove: true}); err != nil {
			errs = append(errs, err)
		}
	}
	if w.rt != nil {
		errs = append(errs, w.rt.Destroy(ctx), w.rt.Close())
	}
	switch {
	case w.sw != nil:
		errs = append(errs, w.sw.Destroy(ctx))
	case netns.Exists(w.home):
		errs = append(errs, netns.Do(w.home, func() error { return w.destroy(ctx) }))
	}
	errs = append(errs, image.Open(w.inst).Destroy(ctx))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove %s: %w", w.inst.Name, err)
	}
	return removeInstance(w.inst)
}

// removeInstance takes an instance's namespaces and directories away.
func removeInstance(i instance.Instance) error {
	s := spaces{dir: i.NetnsDir()}
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		s.made = append(s.made, filepath.Join(s.dir, e.Name()))
	}
	return errors.Join(s.close(), os.RemoveAll(i.Run), os.RemoveAll(i.Root))
}
