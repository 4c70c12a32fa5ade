package platform

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/router"
	"weir.dev/weir/store/mem"
)

// running is the real manager over the in-memory store. Its hosts have no machine under them: they report at once what is wanted of them.
type running struct {
	api API
	c   *api.Client
}

func startManager(t *testing.T, hosts map[string]api.HostStatus) running {
	t.Helper()
	m, err := manager.New(manager.Options{Store: mem.New(), Validate: router.ValidateChange})
	if err != nil {
		t.Fatal(err)
	}
	r := running{api: API{Socket: filepath.Join(t.TempDir(), "api.sock")}}
	s, err := m.Listen(manager.ServeOptions{Socket: r.api.Socket})
	if err != nil {
		t.Fatal(err)
	}
	if r.c, err = r.api.dial(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = s.Serve(ctx) })
	t.Cleanup(func() { cancel(); all.Wait(); r.c.Close() })
	for name, status := range hosts {
		if err := r.c.Report(ctx, api.StatusReport{Host: name, HostState: &status}); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for ctx.Err() == nil {
				r.obey(ctx, name)
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	return r
}

// obey takes down what a host is to take down.
func (r running) obey(ctx context.Context, host string) {
	news := api.StatusReport{Host: host, Functions: map[string]api.FunctionStatus{},
		Endpoints: map[string]api.EndpointStatus{}, Policies: map[string]api.PolicyStatus{}}
	if list, err := r.c.Functions().List(ctx, api.ListOptions{}); err == nil {
		for _, f := range list.Items {
			if f.At() == host && f.Deleting != nil {
				news.Functions[f.Name] = api.FunctionStatus{State: api.FunctionDeleted, Host: host}
			}
		}
	}
	if list, err := r.c.Endpoints().List(ctx, api.ListOptions{}); err == nil {
		for _, e := range list.Items {
			if e.At() == host && e.Deleting != nil {
				news.Endpoints[e.Name] = api.EndpointStatus{State: "deleted", Host: host}
			}
		}
	}
	if list, err := r.c.Policies().List(ctx, api.ListOptions{}); err == nil {
		for _, p := range list.Items {
			if p.Deleting != nil {
				news.Policies[p.Name] = api.PolicyStatus{State: "deleted"}
			}
		}
	}
	_ = r.c.Report(ctx, news) // again soon
}

// status of a host that is this machine.
func status(t *testing.T) api.HostStatus {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return api.HostStatus{State: "ready", Cores: 2, Memory: 4 << 30, Images: []string{"wire"}, BootID: strings.TrimSpace(string(boot))}
}

func TestHostsSayWhyAPathCannotBe(t *testing.T) {
	here, lost, far, bare := status(t), status(t), status(t), status(t)
	lost.State, far.BootID, bare.Images = "lost", "another", nil
	r := startManager(t, map[string]api.HostStatus{"a-lost": lost, "b-far": far, "c-bare": bare, "d": here, "e": here})
	away := startManager(t, map[string]api.HostStatus{"far": far})
	token := filepath.Join(t.TempDir(), "token")
	for _, x := range []struct {
		api  API
		l    Layout
		want string // empty: it can be
	}{
		{r.api, Layout{Chain: 2}, ""},
		{r.api, Layout{Chain: 3, Placement: PlacedSpread}, ""},
		{r.api, Layout{Chain: 3, Placement: "b-far+e", Stations: "e+d"}, ""},
		{r.api, Layout{Chain: 1, Placement: PlacedSpread}, "wants two hosts and two functions at least: here it is 3 and 1"},
		{r.api, Layout{Chain: 1, Placement: "x"}, "there is no host x at " + r.api.Socket + ": want one of a-lost, b-far, c-bare, d, e"},
		{r.api, Layout{Chain: 1, Placement: "d+a-lost"}, "host a-lost is lost"},
		{r.api, Layout{Chain: 0, Placement: "c-bare"}, "host c-bare has no image wire"},
		{r.api, Layout{Stations: "b-far"}, "host b-far is not this machine"},
		{r.api, Layout{Stations: "d+a-lost"}, "host a-lost is lost"},
		{r.api, Layout{Stations: "x"}, "there is no host x"},
		{away.api, Layout{}, "none of the hosts at " + away.api.Socket + " is this machine (far)"},
		{API{}, Layout{}, "no Weir is given"},
		{API{Socket: "/run/weir/nowhere/api.sock"}, Layout{}, "not reachable at /run/weir/nowhere/api.sock"},
		{API{URL: "http://127.0.0.1:1", TokenFile: token}, Layout{}, "read token for http://127.0.0.1:1"},
	} {
		got := checkHosts(Options{API: x.api, Layout: x.l})
		if x.want == "" && got != "" || !strings.Contains(got, x.want) {
			t.Errorf("%+v: %q: want %q", x.l, got, x.want)
		}
	}
}

func TestFunctionsAreSpreadInTurns(t *testing.T) {
	ok := status(t)
	closed := api.Host{Meta: api.Meta{Name: "c"}, Status: ok, Spec: api.HostSpec{Unschedulable: true}}
	s := survey{image: wireImage, hosts: []api.Host{
		{Meta: api.Meta{Name: "a"}, Status: ok}, {Meta: api.Meta{Name: "b"}, Status: ok}, closed, {Meta: api.Meta{Name: "d"}, Status: ok},
	}}
	for placement, want := range map[string][]string{
		"one": {"b", "b", "b", "b"}, "spread": {"b", "a", "d", "b"}, "d": {"d", "d", "d", "d"}, "d+a+d": {"d", "a", "d", "d"},
	} {
		got, err := s.place(Layout{Placement: placement, Chain: 4}, "b")
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", placement, err, diff)
		}
	}
}

func TestLevelsOfPlacesAreChecked(t *testing.T) {
	for level, fine := range map[string]bool{
		"one": true, "spread": true, "h1": true, "h1+h2+h1": true, "Node-1.example.org": true, "": false, "+": false, "h1+": false, "h 1": false,
	} {
		if err := CheckPlacement(level); (err == nil) != fine {
			t.Errorf("placement %q: %v", level, err)
		}
	}
	for level, fine := range map[string]bool{"here": true, "h1": true, "h1+h2": true, "h1+h2+h3": false, "h1+": false} {
		if err := CheckStations(level); (err == nil) != fine {
			t.Errorf("stations %q: %v", level, err)
		}
	}
}

func TestStationsHaveAddressesOfTheirOwn(t *testing.T) {
	var taken []api.Endpoint
	for _, n := range []uint16{0, 0, 1, 0x8000, 0xffff, 0xffff} {
		a, b, err := freePair(taken, n)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range taken {
			for _, p := range e.Spec.Prefixes() {
				if p.Addr() == a.Addr() || p.Addr() == b.Addr() {
					t.Errorf("%s and %s: one of them is taken", a, b)
				}
			}
		}
		if !benchmarks.Contains(a.Addr()) || !benchmarks.Contains(b.Addr()) || a.Masked() != b.Masked() {
			t.Errorf("%s and %s: want two of a network in %s", a, b, benchmarks)
		}
		taken = append(taken, api.Endpoint{Spec: api.EndpointSpec{Address: a.String(), Addresses: []string{b.String()}}})
	}
}

// What bears a run's name and is not its own is not taken, nor removed.
func TestHostsTakeOnlyTheirOwn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := startManager(t, map[string]api.HostStatus{"d": status(t)})
	o := testOptions(t)
	o.API = r.api
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(recordPath(o, suffixHosts))) })
	put := func(name string) {
		t.Helper()
		if _, err := r.c.Functions().Put(ctx, name, api.FunctionSpec{Image: "wire", Host: "d"}); err != nil {
			t.Fatal(err)
		}
	}
	p, err := openHosts(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	h := p.(*hosts)
	put(o.Name + suffixHosts + "-w001") // another makes it meanwhile
	if err := create(ctx, h.record, api.KindFunction, h.c.Functions(), o.Name+suffixHosts+"-w000", api.FunctionSpec{Image: "wire", Host: "d"}); err != nil {
		t.Fatal(err)
	}
	err = create(ctx, h.record, api.KindFunction, h.c.Functions(), o.Name+suffixHosts+"-w001", api.FunctionSpec{Image: "wire", Host: "d"})
	if err == nil || !strings.Contains(err.Error(), "function "+o.Name+suffixHosts+"-w001 exists already") || !strings.Contains(err.Error(), "run it again") {
		t.Errorf("it takes another's function: %v", err)
	}
	if _, err := openHosts(ctx, o); err == nil || !strings.Contains(err.Error(), "function "+o.Name+suffixHosts+"-w000, function "+o.Name+suffixHosts+"-w001 is there already") {
		t.Errorf("it begins where its names are taken: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.c.Functions().Get(ctx, o.Name+suffixHosts+"-w000"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("its own is left: %v", err)
	}
	if f, err := r.c.Functions().Get(ctx, o.Name+suffixHosts+"-w001"); err != nil || f.Deleting != nil {
		t.Errorf("another's is gone: %v", err)
	}
}

// What a crashed run has left is removed by name. A manager that is away keeps nobody from measuring, and is not forgotten.
func TestLeftoversAtAManagerAreRemoved(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := startManager(t, map[string]api.HostStatus{"d": status(t)})
	o := testOptions(t)
	dir := filepath.Dir(recordPath(o, suffixHosts))
	t.Cleanup(func() { os.RemoveAll(dir) })
	crashed := &record{API: API{Socket: filepath.Join(t.TempDir(), "away.sock")}, path: recordPath(o, suffixHosts)}
	name := func(s string) string { return o.Name + suffixHosts + "-" + s }
	on := func(name, a string) api.EndpointSpec {
		return api.EndpointSpec{Host: "d", Netns: name, Interface: "eth0", Address: a}
	}
	if err := errors.Join(
		create(ctx, crashed, api.KindEndpoint, r.c.Endpoints(), name("alice0"), on("x", "198.18.0.0/31")),
		create(ctx, crashed, api.KindEndpoint, r.c.Endpoints(), name("bob0"), on("y", "198.18.0.1/31")),
		create(ctx, crashed, api.KindFunction, r.c.Functions(), name("w000"), api.FunctionSpec{Image: "wire", Host: "d"}),
		create(ctx, crashed, api.KindChain, r.c.Chains(), name("chain"), api.ChainSpec{Path: name("w000")}),
		create(ctx, crashed, api.KindPolicy, r.c.Policies(), name("policy0"), api.PolicySpec{From: name("alice0"), To: name("bob0"), Chain: name("chain")}),
		crashed.add(object{api.KindFunction, name("w001")}), // killed before it was made
	); err != nil {
		t.Fatal(err)
	}
	if _, err := r.c.Functions().Put(ctx, name("w002"), api.FunctionSpec{Image: "wire", Host: "d"}); err != nil { // not on record
		t.Fatal(err)
	}
	if err := removeHosts(ctx, o, suffixHosts); err != nil {
		t.Errorf("a manager that is away: %v", err)
	}
	if text := Owed(o.Name); !strings.Contains(text, "has left 6 objects at "+crashed.API.Socket) || !strings.Contains(text, "remove "+dir) {
		t.Errorf("it does not say what is left: %q", text)
	}
	crashed.API = r.api // it is back
	if err := crashed.write(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // safe to call twice
		if err := removeHosts(ctx, o, suffixHosts); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || Owed(o.Name) != "" {
		t.Errorf("%s: %v; %s", dir, err, Owed(o.Name))
	}
	functions, err1 := r.c.Functions().List(ctx, api.ListOptions{})
	endpoints, err2 := r.c.Endpoints().List(ctx, api.ListOptions{})
	chains, err3 := r.c.Chains().List(ctx, api.ListOptions{})
	policies, err4 := r.c.Policies().List(ctx, api.ListOptions{})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if len(functions.Items) != 1 || functions.Items[0].Name != name("w002") || len(endpoints.Items)+len(chains.Items)+len(policies.Items) > 0 {
		t.Errorf("functions %v, %d endpoints, %d chains, %d policies: want %s only",
			functions.Items, len(endpoints.Items), len(chains.Items), len(policies.Items), name("w002"))
	}
}
