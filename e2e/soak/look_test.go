package soak

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/oracle"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// settled tells what is not yet as the document says: what the API says, and what is there.
func (w *walk) settled() error {
	o := api.ListOptions{}
	endpoints, err1 := w.client.Endpoints().List(w.ctx, o)
	functions, err2 := w.client.Functions().List(w.ctx, o)
	chains, err3 := w.client.Chains().List(w.ctx, o)
	policies, err4 := w.client.Policies().List(w.ctx, o)
	hosts, err5 := w.client.Hosts().List(w.ctx, o)
	switches, err6 := w.client.Switches().List(w.ctx, o)
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return err
	}
	doc := w.model.doc
	if err := errors.Join(same("endpoints", endpoints.Items, doc.Endpoints), same("functions", functions.Items, doc.Functions),
		same("chains", chains.Items, doc.Chains), same("policies", policies.Items, doc.Policies)); err != nil {
		return err
	}
	for _, h := range hosts.Items {
		if h.Status.State != "ready" {
			return fmt.Errorf("host %s is %s", h.Name, h.Status.State)
		}
	}
	for _, s := range switches.Items {
		if s.Status.State != "connected" {
			return fmt.Errorf("switch %s is %s", s.Name, s.Status.State)
		}
	}
	for _, e := range endpoints.Items {
		if e.Status.State != "up" || e.Status.ObservedGeneration != e.Generation {
			if e.Spec.Interface == "" { // a station of the fabric is found when it speaks
				_ = w.hello(e.Name)
			}
			return fmt.Errorf("endpoint %s is %s %s", e.Name, e.Status.State, e.Status.Message)
		}
	}
	for _, f := range functions.Items {
		want := api.FunctionStarted
		if w.model.stopped[f.Name] {
			want = api.FunctionStopped
		}
		if f.Status.State != want || f.Status.ObservedGeneration != f.Generation || want == api.FunctionStarted && !f.Status.Healthy {
			return fmt.Errorf("function %s is %s, healthy %v, generation %d of %d: %s", f.Name, f.Status.State, f.Status.Healthy, f.Status.ObservedGeneration, f.Generation, f.Status.Message)
		}
		if want == api.FunctionStarted && syscall.Kill(f.Status.PID, 0) != nil {
			return fmt.Errorf("function %s has no process %d", f.Name, f.Status.PID)
		}
	}
	for _, p := range policies.Items {
		if p.Status.ObservedGeneration != p.Generation || len(w.model.stopped) == 0 && (p.Status.State != "active" || p.Status.Message != "") {
			return fmt.Errorf("policy %s is %s, generation %d of %d: %s", p.Name, p.Status.State, p.Status.ObservedGeneration, p.Generation, p.Status.Message)
		}
	}
	for _, c := range chains.Items {
		if c.Status.ObservedGeneration != c.Generation || c.Status.State != "ready" && len(w.model.stopped) == 0 {
			return fmt.Errorf("chain %s is %s: %s", c.Name, c.Status.State, c.Status.Message)
		}
	}
	return w.there(hosts.Items, functions.Items)
}

func same[T any, S any](what string, got []T, want map[string]S) error {
	var names []string
	for _, x := range got {
		m := any(&x).(interface{ Metadata() *api.Meta }).Metadata()
		if m.Deleting != nil {
			return fmt.Errorf("%s is being deleted", m.Name)
		}
		names = append(names, m.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, sortedKeys(want)) {
		return fmt.Errorf("%s are %v, want %v", what, names, sortedKeys(want))
	}
	return nil
}

// there compares hosts with what the API says: functions where they are and nowhere else, ports, rules of policies that are there.
func (w *walk) there(hosts []api.Host, functions []api.Function) error {
	daemons, err := w.world.daemons()
	if err != nil {
		return err
	}
	for _, h := range hosts {
		d, ok := daemons[h.Name]
		if len(hosts) == 1 && !ok {
			d = daemons["weir"]
		}
		var want []string
		ports := map[string]bool{}
		for _, f := range functions {
			if f.Status.Host != h.Name {
				continue
			}
			want = append(want, f.Name)
			if f.Spec.Image == "monitor" {
				ports["function/"+f.Name+"/tap"] = true
			} else {
				ports["function/"+f.Name+"/in"], ports["function/"+f.Name+"/out"] = true, true
			}
		}
		slices.Sort(want)
		for _, dir := range []string{"netns", "functions"} {
			entries, err := os.ReadDir(filepath.Join("/run/weir", d.instance, dir))
			if err != nil && !os.IsNotExist(err) {
				return err
			}
			var got []string
			for _, e := range entries {
				got = append(got, e.Name())
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("%s of host %s are %v, want %v", dir, h.Name, got, want)
			}
		}
		c, err := w.client.Counters(w.ctx, h.Name)
		if err != nil {
			return err
		}
		for _, p := range c.Ports {
			if strings.HasPrefix(p.Name, "function/") && !ports[p.Name] {
				return fmt.Errorf("host %s has a port %s", h.Name, p.Name)
			}
			delete(ports, p.Name)
		}
		if len(ports) > 0 {
			return fmt.Errorf("host %s has no port %v", h.Name, sortedKeys(ports))
		}
		for _, r := range c.Rules {
			for _, name := range strings.Split(r.Policy, ",") { // that of a steering and of a copying one may be one rule
				if _, ok := w.model.doc.Policies[name]; name != "" && !ok {
					return fmt.Errorf("host %s has a rule of policy %s: %s", h.Name, name, r.Note)
				}
			}
		}
	}
	return nil
}

// link is a station's interface.
func (w *walk) link(station string) string {
	return cmpOr(w.model.doc.Endpoints[station].Interface, "eth0")
}

func (w *walk) address(station string) rig.Station {
	i := int(station[0] - 'a')
	mac, err := net.ParseMAC(fmt.Sprintf("02:aa:00:00:00:%02d", i+1))
	if err != nil {
		panic(err)
	}
	return rig.Station{MAC: mac, Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}
}

// hello is a gratuitous ARP: switches learn where the station is.
func (w *walk) hello(station string) error {
	s, err := rig.NewSender(w.world.space(station), w.link(station))
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Send(announcement(w.address(station)))
}

func announcement(a rig.Station) []byte {
	broadcast := []byte{255, 255, 255, 255, 255, 255}
	ip := a.Addr.AsSlice()
	return bytes.Join([][]byte{broadcast, a.MAC, {0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1}, a.MAC, ip, {0, 0, 0, 0, 0, 0}, ip, make([]byte, 18)}, nil)
}

// input of the oracle: what the document means now, with functions where they are.
func (w *walk) input() (fabric.Input, error) {
	m := w.model
	in := fabric.Input{Topology: fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}}, Endpoints: map[string]fabric.Endpoint{}, Functions: map[string]fabric.Function{},
		Chains: m.doc.Chains, Policies: m.doc.Policies, InForce: map[string]bool{}}
	for _, at := range m.kind.places {
		_, host := at.Host()
		in.Switches[at] = fabric.Switch{Host: host}
	}
	for s := range m.doc.Endpoints {
		a := w.address(s)
		in.Endpoints[s] = fabric.Endpoint{At: fabric.At{Switch: m.kind.places[s], Port: fabric.Port{Name: "endpoint/" + s}}, MACs: []flow.MAC{flow.MAC(a.MAC)},
			Prefixes: []netip.Prefix{netip.PrefixFrom(a.Addr, 32)}}
	}
	functions, err := w.client.Functions().List(w.ctx, api.ListOptions{})
	for _, f := range functions.Items {
		at := fabric.HostID(f.Status.Host)
		if len(m.kind.hosts) == 1 {
			at = fabric.HostID("h")
		}
		in.Switches[at] = fabric.Switch{Host: true}
		in.Functions[f.Name] = fabric.Function{Host: at, Tap: f.Spec.Image == "monitor", Ready: !m.stopped[f.Name], OnFail: f.Spec.OnFail}
	}
	for p := range m.doc.Policies {
		in.InForce[p] = true
	}
	return in, err
}

// probe is a frame with what is predicted of it.
type probe struct {
	text, payload string
	frame         []byte
	want          map[string]int
	may           map[string]int // where it may be seen besides: what cannot pass a chain is dropped at its entry, or by the function that is down
}

const (
	quiet = 60 * time.Millisecond // a copy too many would follow at once
	lost  = time.Second           // what has not come by then will not
)

// look sends frames of several kinds between all stations, and tells which went otherwise than the policies say.
func (w *walk) look() (wrong []string, err error) {
	in, err := w.input()
	if err != nil {
		return nil, err
	}
	at, closeAll, err := w.listen(in)
	defer closeAll()
	if err != nil { // a link that was deleted may be on its way back, and Weir not have seen that it was gone
		return []string{err.Error()}, nil
	}
	before, err := netns.Overruns()
	if err != nil {
		return nil, err
	}
	probes, err := w.probes(in)
	if err != nil {
		return nil, err
	}
	byPayload := map[string]*probe{}
	for i := range probes {
		byPayload[probes[i].payload] = &probes[i]
	}
	count := func() (got map[string]map[string]int, changed []string) {
		got = map[string]map[string]int{}
		for place, c := range at {
			for _, f := range c.Seen() {
				p := byPayload[rig.PayloadOf(f.Data)]
				if p == nil || f.Outgoing || !rig.SameSender(f.Data, p.frame) { // else an answer, which quotes it
					continue
				}
				if got[p.payload] == nil {
					got[p.payload] = map[string]int{}
				}
				got[p.payload][place]++
				if !bytes.Equal(f.Data, p.frame) {
					changed = append(changed, fmt.Sprintf("%s at %s is\n%x, sent was\n%x", p.text, place, f.Data, p.frame))
				}
			}
		}
		return got, changed
	}
	arrived := func(got map[string]map[string]int) bool {
		return !slices.ContainsFunc(probes, func(p probe) bool {
			for place, n := range p.want {
				if got[p.payload][place] < n {
					return true
				}
			}
			return false
		})
	}
	for begin := time.Now(); time.Since(begin) < lost; time.Sleep(5 * time.Millisecond) {
		if got, _ := count(); arrived(got) {
			break
		}
	}
	time.Sleep(quiet)
	got, changed := count()
	for _, p := range probes {
		g := got[p.payload]
		if !p.fits(g) {
			wrong = append(wrong, fmt.Sprintf("%s: by the policies %v, seen %v", p.text, p.want, g))
		}
	}
	after, err := netns.Overruns()
	if err == nil && after > before && len(wrong) > 0 { // something else on this machine had its queues overrun: only a later look tells
		w.t.Logf("the processors' receive queues overran by %d", after-before)
	}
	return append(changed, wrong...), err
}

// purge empties the caches of one Open vSwitch after the other, and tells after whose frames go as they should. Its switch in user space (3.1.0)
// may go on with what it has cached of an entry that is gone, for as long as frames of that kind come.
func (w *walk) purge() (cache string, err error) {
	daemons, err := w.world.daemons()
	if err != nil {
		return "", err
	}
	var all []string
	for _, node := range sortedKeys(daemons) {
		all = append(all, "/run/weir/"+daemons[node].instance+"/ovs")
		if testbed, ok := strings.CutSuffix(daemons[node].netns, "/netns/"+node); ok && len(all) == 1 {
			all = append(all, testbed+"/ovs")
		}
	}
	for _, dir := range all {
		ctl := dir + "/ovs-vswitchd.ctl"
		if _, err := os.Stat(ctl); err != nil {
			continue
		}
		if out, err := exec.CommandContext(w.ctx, "ovs-appctl", "-t", ctl, "revalidator/purge").CombinedOutput(); err != nil {
			return "", fmt.Errorf("empty the cache of %s: %w: %s", ctl, err, out)
		}
		if wrong, err := w.look(); err != nil || len(wrong) == 0 {
			return dir, err
		}
	}
	return "", nil
}

// probes are sent. To a station that no other can have heard of none is: switches that learn would flood it.
func (w *walk) probes(in fabric.Input) (probes []probe, err error) {
	known := map[string]bool{}
	stations := sortedKeys(in.Endpoints)
	senders := map[string]*rig.Sender{}
	for _, s := range stations {
		if senders[s], err = rig.NewSender(w.world.space(s), w.link(s)); err != nil {
			return nil, err
		}
		defer senders[s].Close()
		hello := announcement(w.address(s))
		known[s] = len(oracle.Predict(in, s, hello, nil).Arrives) > 0
		if err := senders[s].Send(hello); err != nil {
			return nil, err
		}
	}
	time.Sleep(quiet)
	for _, from := range stations {
		for _, to := range stations {
			if from == to || !known[to] {
				continue
			}
			a, b := w.address(from), w.address(to)
			packet := func(proto uint8, port uint16) func(string) []byte {
				return func(payload string) []byte {
					return rig.Packet{Proto: proto, Src: 40000, Dst: port, TTL: 33, Payload: payload}.Bytes(a, b)
				}
			}
			for _, k := range []struct {
				text string
				make func(string) []byte
			}{
				{"udp/53", packet(unix.IPPROTO_UDP, 53)}, {"udp/9500", packet(unix.IPPROTO_UDP, 9500)}, {"tcp/80", packet(unix.IPPROTO_TCP, 80)}, {"icmp", packet(unix.IPPROTO_ICMP, 0)},
				{"not IP", func(payload string) []byte {
					return bytes.Join([][]byte{b.MAC, a.MAC, {0x88, 0xb6}, []byte(payload), make([]byte, 46)}, nil)
				}},
			} {
				w.frames++
				p := probe{text: from + " to " + to + ", " + k.text, payload: fmt.Sprintf("<%d.%d>", w.seed, w.frames), want: map[string]int{}, may: map[string]int{}}
				p.frame = k.make(p.payload)
				means := oracle.Predict(in, from, p.frame, nil)
				for _, port := range slices.Concat(means.Meets, means.Copies) {
					p.want[port]++
				}
				for to := range means.Arrives {
					p.want["station/"+to]++
				}
				if len(means.Arrives) == 0 {
					for _, port := range ready(in, from, p.frame) {
						p.may[port]++
					}
				}
				probes = append(probes, p)
				if err := senders[from].Send(p.frame); err != nil {
					return nil, fmt.Errorf("send %s: %w", p.text, err)
				}
			}
		}
	}
	return probes, nil
}

// ready are the functions that a frame would meet if all were up.
func ready(in fabric.Input, from string, frame []byte) []string {
	in.Functions = maps.Clone(in.Functions)
	for name, f := range in.Functions {
		f.Ready = true
		in.Functions[name] = f
	}
	means := oracle.Predict(in, from, frame, nil)
	return slices.Concat(means.Meets, means.Copies)
}

// fits tells whether a frame was seen where it should be, and nowhere else.
func (p probe) fits(seen map[string]int) bool {
	for place, n := range seen {
		if n > max(p.want[place], p.may[place]) {
			return false
		}
	}
	for place, n := range p.want {
		if seen[place] < n {
			return false
		}
	}
	return true
}

// listen captures at all stations and at all functions' ports.
func (w *walk) listen(in fabric.Input) (at map[string]*rig.Capture, closeAll func(), err error) {
	at = map[string]*rig.Capture{}
	closeAll = func() {
		var ends sync.WaitGroup
		for _, c := range at {
			ends.Go(c.Close)
		}
		ends.Wait()
	}
	daemons, err := w.world.daemons()
	if err != nil {
		return at, closeAll, err
	}
	open := func(place, space, link string) {
		c, failed := rig.Listen(space, link)
		if failed != nil {
			err = errors.Join(err, failed)
			return
		}
		at[place] = c
	}
	for s := range in.Endpoints {
		open("station/"+s, w.world.space(s), w.link(s))
	}
	for name, f := range in.Functions {
		if !f.Ready {
			continue
		}
		host, _ := f.Host.Host()
		d, ok := daemons[host]
		if !ok {
			d = daemons["weir"]
		}
		for _, side := range map[bool][]string{false: {"in", "out"}, true: {"tap"}}[f.Tap] {
			open("function/"+name+"/"+side, filepath.Join("/run/weir", d.instance, "netns", name), side)
		}
	}
	return at, closeAll, err
}
