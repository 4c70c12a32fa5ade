package placement_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/placement"
)

// world is a Weir as it may be in the middle of its life.
type world struct {
	hosts     []api.Host
	functions []api.Function
	context   placement.Context
}

func drawWorld(t *rapid.T) world {
	w := world{context: placement.Context{Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{}, Endpoints: map[string]string{}}}
	name := rapid.SampledFrom(placement.Names()).Draw(t, "strategy")
	w.context.Strategy, _ = placement.Named(name)
	n := rapid.IntRange(0, 6).Draw(t, "hosts")
	for i := range n {
		h := host(fmt.Sprintf("h%d", i), rapid.IntRange(0, 8).Draw(t, "cores"), int64(rapid.IntRange(0, 4).Draw(t, "memory")), load(rapid.Float64Range(0, 10).Draw(t, "load")))
		h.Status.State = rapid.SampledFrom([]api.HostState{api.HostReady, api.HostReady, api.HostStarting, api.HostLost}).Draw(t, "state")
		h.Spec.Unschedulable = rapid.IntRange(0, 4).Draw(t, "unschedulable") == 0
		h.Spec.Drain = rapid.IntRange(0, 4).Draw(t, "drain") == 0
		if rapid.Bool().Draw(t, "lists images") {
			h.Status.Images = rapid.SliceOfDistinct(rapid.SampledFrom([]string{"wire:latest", "firewall:latest", "monitor:v2"}), rapid.ID).Draw(t, "images")
		}
		w.hosts = append(w.hosts, h)
	}
	somewhere := rapid.Custom(func(t *rapid.T) string { return fmt.Sprintf("h%d", rapid.IntRange(0, 7).Draw(t, "at")) }) // perhaps a host that is gone
	path := ""
	for i := range rapid.IntRange(0, 20).Draw(t, "functions") {
		f := function(fmt.Sprintf("f%d", i), image(rapid.SampledFrom([]string{"wire", "firewall", "monitor:v2"}).Draw(t, "image")),
			cpus(rapid.SampledFrom([]string{"", "0.5", "2"}).Draw(t, "cpus")), memory(rapid.SampledFrom([]string{"", "64M", "2G"}).Draw(t, "memory")))
		if rapid.Bool().Draw(t, "placed") {
			at(somewhere.Draw(t, "where"))(&f)
		}
		if rapid.IntRange(0, 5).Draw(t, "pinned") == 0 {
			f.Spec.Host = somewhere.Draw(t, "pin")
		}
		if rapid.IntRange(0, 9).Draw(t, "deleting") == 0 {
			deleting(&f)
		}
		w.functions = append(w.functions, f)
		if path += f.Name; i%4 == 3 {
			c := fmt.Sprintf("c%d", i)
			w.context.Chains[c], path = api.ChainSpec{Path: path}, ""
			w.context.Policies["p"+c] = api.PolicySpec{Chain: c, From: "x", To: "10.0.0.0/8"}
		} else {
			path += "|"
		}
	}
	if rapid.Bool().Draw(t, "located") {
		w.context.Endpoints["x"] = somewhere.Draw(t, "x")
	}
	return w
}

// after is the world once decisions are carried out.
func (w world) after(ds []placement.Decision) world {
	next := w
	next.functions = append([]api.Function(nil), w.functions...)
	for _, d := range ds {
		for i := range next.functions {
			if next.functions[i].Name == d.Function && d.Placement != nil {
				next.functions[i].Placement = d.Placement
			}
		}
	}
	return next
}

func (w world) host(name string) *api.Host {
	for i := range w.hosts {
		if w.hosts[i].Name == name {
			return &w.hosts[i]
		}
	}
	return nil
}

func TestWhatHoldsOfEveryPlacement(t *testing.T) {
	placed, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		ds := placement.Place(w.hosts, w.functions, w.context, now)
		next := w.after(ds)
		decided := map[string]placement.Decision{}
		for _, d := range ds {
			if _, twice := decided[d.Function]; twice {
				t.Fatalf("two decisions about %s", d.Function)
			}
			decided[d.Function] = d
			if (d.Placement == nil) == (d.Problem == "") {
				t.Fatalf("neither or both of a placement and a problem: %+v", d)
			}
		}
		for i, f := range next.functions {
			before := w.functions[i]
			d, news := decided[f.Name]
			was := w.host(before.At())
			fine := was != nil && was.Status.State != "lost" && !was.Spec.Drain && (f.Spec.Host == "" || f.Spec.Host == was.Name)
			switch {
			case before.Deleting != nil || fine:
				if news {
					t.Fatalf("%s is to stay at %q, and there is a decision: %+v", f.Name, before.At(), d)
				}
				continue
			case !news:
				t.Fatalf("nothing is said of %s at %q", f.Name, before.At())
			case d.Placement == nil:
				refused++
				continue
			}
			placed++
			h := w.host(d.Placement.Host)
			if h == nil || h.Status.State == "lost" {
				t.Fatalf("%s goes to %s, which is not there", f.Name, d.Placement.Host)
			}
			if f.Spec.Host != "" {
				if h.Name != f.Spec.Host {
					t.Fatalf("%s is pinned to %s and goes to %s", f.Name, f.Spec.Host, h.Name)
				}
				continue
			}
			if h.Spec.Unschedulable || h.Spec.Drain {
				t.Fatalf("%s goes to %s, which takes nothing new", f.Name, h.Name)
			}
			if want := withTag(f.Spec.Image); len(w.hosts) > 1 && len(h.Status.Images) > 0 && !contains(h.Status.Images, want) {
				t.Fatalf("%s goes to %s, which has no %s", f.Name, h.Name, want)
			}
		}
		capacity(t, w, next, decided)
		if again := placement.Place(next.hosts, next.functions, next.context, now); len(placedIn(again)) > 0 {
			t.Fatalf("a second time moves %v", told(again))
		}
	})
	if placed == 0 || refused == 0 {
		t.Errorf("%d placed, %d refused: the worlds are too simple", placed, refused)
	}
}

// capacity checks that no choice has put more on a host than it has.
func capacity(t *rapid.T, w, next world, decided map[string]placement.Decision) {
	if len(w.hosts) < 2 {
		return
	}
	for _, h := range w.hosts {
		var cpu float64
		var mem int64
		chosenCPU, chosenMem := false, false
		for _, f := range next.functions {
			if f.At() != h.Name {
				continue
			}
			c, _ := api.ParseCPUs(f.Spec.CPUs)
			m, _ := api.ParseMemory(f.Spec.Memory)
			d, news := decided[f.Name]
			if news && d.Placement != nil && f.Spec.Host == "" {
				chosenCPU, chosenMem = chosenCPU || c > 0, chosenMem || m > 0
			}
			cpu, mem = cpu+c, mem+m
		}
		if st := h.Status; chosenCPU && st.Cores > 0 && cpu > float64(st.Cores) || chosenMem && st.Memory > 0 && mem > st.Memory {
			t.Fatalf("%s has %d cores and %d bytes, and %v and %d are asked of it, the last by choice", h.Name, st.Cores, st.Memory, cpu, mem)
		}
	}
}

func placedIn(ds []placement.Decision) []placement.Decision {
	var out []placement.Decision
	for _, d := range ds {
		if d.Placement != nil {
			out = append(out, d)
		}
	}
	return out
}

func withTag(image string) string {
	if image == "monitor:v2" {
		return image
	}
	return image + ":latest"
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func TestTheSameWorldGivesTheSameDecisions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		first := told(placement.Place(w.hosts, w.functions, w.context, now))
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		r.Shuffle(len(w.hosts), func(i, j int) { w.hosts[i], w.hosts[j] = w.hosts[j], w.hosts[i] })
		r.Shuffle(len(w.functions), func(i, j int) { w.functions[i], w.functions[j] = w.functions[j], w.functions[i] })
		if d := cmp.Diff(first, told(placement.Place(w.hosts, w.functions, w.context, now))); d != "" {
			t.Fatalf("in another order: %s", d)
		}
	})
}

// BenchmarkPlace places one more function among 10,000 on 1,000 hosts.
func BenchmarkPlace(b *testing.B) {
	var hosts []api.Host
	var functions []api.Function
	for i := range 1000 {
		hosts = append(hosts, host(fmt.Sprintf("h%d", i), 16, 64))
	}
	for i := range 10000 {
		functions = append(functions, function(fmt.Sprintf("f%d", i), at(fmt.Sprintf("h%d", i%1000)), cpus("0.5"), memory("64M")))
	}
	functions = append(functions, function("new"))
	for b.Loop() {
		if ds := placement.Place(hosts, functions, placement.Context{}, now); len(ds) != 1 {
			b.Fatal(told(ds))
		}
	}
}
