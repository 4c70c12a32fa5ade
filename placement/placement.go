// Package placement decides where functions run. It is pure: the same hosts, functions and context give the same decisions.
//
// It owns what must hold of a placement (a pin, a host that is there, takes new functions, has the runtime, the image and has room) and the
// strategies that choose among the hosts for which it holds. What is placed stays where it is until its host is lost, removed or drained, or
// its pin says otherwise: no strategy moves it. Who reads hosts and writes placements is the manager.
package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/portkind"
)

// Context is what the functions are for. The zero value will do; strategies then have less to choose by.
type Context struct {
	Strategy  Strategy // default MostAvailable
	Chains    map[string]api.ChainSpec
	Policies  map[string]api.PolicySpec // for Nearest, as are the next
	Endpoints map[string]string         // the node where an endpoint is: a host's name, or SwitchNode of a switch; absent: not known
	// Changed are functions that name another runtime now: they leave a host that lacks it, if another can have them. Others stay whatever their host loses.
	Changed map[string]bool
	// Distance is the number of links between two nodes of the fabric, false if no way is known; see Topology. nil: 0 on one host, else 1.
	Distance func(a, b string) (hops int, ok bool)
}

// Decision is about one function. Functions that stay where they are have none.
type Decision struct {
	Function  string
	From      string         // the host where it was; "" for its first placement
	Placement *api.Placement // nil: nowhere; Problem says why. If From is set it stays there
	Problem   string
}

// Host states that matter here; see api.HostStatus.
const lost = api.HostLost

// Place decides about every function that has no host, or whose host is lost, removed, drained, or not the one that it is pinned to, in
// the order that sort says. Hosts' states are as they are now (State "lost" included).
//
// Requests (cpus, memory) of what is placed on a host never exceed what the host has, with two exceptions, where there is nothing to
// choose: a function that is pinned, and a Weir with one host.
func Place(hosts []api.Host, functions []api.Function, c Context, now time.Time) []Decision {
	open := Unsettled(hosts, functions)
	if len(open)+len(c.Changed) == 0 {
		return nil
	}
	v := newView(hosts, functions, c)
	open = append(open, v.stranded(open)...)
	v.sort(open)
	var out []Decision
	for _, f := range open {
		if d, news := v.place(f, now); news {
			out = append(out, d)
		}
	}
	return out
}

// Unsettled are the functions about which there is something to decide.
func Unsettled(hosts []api.Host, functions []api.Function) []*api.Function {
	there := make(map[string]bool, len(hosts))
	for i := range hosts {
		there[hosts[i].Name] = hosts[i].Status.State != lost && !hosts[i].Spec.Drain
	}
	var out []*api.Function
	for i := range functions {
		f := &functions[i]
		at := f.At()
		if f.Deleting == nil && (at == "" || !there[at] || f.Spec.Host != "" && f.Spec.Host != at) {
			out = append(out, f)
		}
	}
	return out
}

// stranded are the functions that name another runtime now, which their host lacks; but not those in open.
func (v *View) stranded(open []*api.Function) (out []*api.Function) {
	for _, name := range slices.Sorted(maps.Keys(v.Changed)) {
		f := v.functions[name]
		if f == nil || f.Deleting != nil || f.Spec.Host != "" || slices.Contains(open, f) {
			continue
		}
		if h := v.byName[f.At()]; h != nil && h.lacks(f) != "" {
			out = append(out, f)
		}
	}
	return out
}

// Candidate is a host with what is placed on it.
type Candidate struct {
	Host      *api.Host
	CPUs      float64 // requested by the functions here, cores
	Memory    int64   // bytes
	Functions int
	images    map[string]int // functions by image
	chains    map[string]int // and by chain
}

// freeCPUs is what is left of the cores: neither promised nor, as far as the load tells, in use.
func (h *Candidate) freeCPUs() float64 {
	return max(0, float64(h.Host.Status.Cores)-max(h.CPUs, h.Host.Status.Load))
}

// freeMemory is what is neither promised nor in use.
func (h *Candidate) freeMemory() int64 {
	free := h.Host.Status.Memory - h.Memory
	if now := h.Host.Status.Free; now > 0 {
		free = min(free, now)
	}
	return max(0, free)
}

// fits tells why a function cannot be here; "" if it can. A host that does not say what it has takes anything.
func (h *Candidate) fits(f *api.Function, cpus float64, memory int64) string {
	st := &h.Host.Status
	switch {
	case st.State == lost:
		return "is lost"
	case h.Host.Spec.Drain:
		return "is being drained (spec.drain)"
	case h.Host.Spec.Unschedulable:
		return "takes no new functions (spec.unschedulable)"
	case h.lacks(f) != "":
		return h.lacks(f)
	case !hasImage(st.Images, f.Spec.Image):
		return "has no image " + f.Spec.Image
	case st.Cores > 0 && h.CPUs+cpus > float64(st.Cores)+1e-9:
		return fmt.Sprintf("has %s of %d cores left, and %s are asked for", short(float64(st.Cores)-h.CPUs), st.Cores, short(cpus))
	case st.Memory > 0 && h.Memory+memory > st.Memory:
		return fmt.Sprintf("has %s of %s memory left, and %s are asked for", size(max(0, st.Memory-h.Memory)), size(st.Memory), size(memory))
	}
	return ""
}

// lacks tells what of a function's runtime is not to be had here: the runtime itself, or a kind of ports that it and the host's switch have in common;
// "" nothing.
func (h *Candidate) lacks(f *api.Function) string {
	st := &h.Host.Status
	r, ok := st.RuntimeOf(f.Spec.Runtime)
	switch {
	case !ok && len(st.Runtimes) == 0:
		return fmt.Sprintf("has no runtime %s, as far as is known: its agent names none but %s", r.Name, clip(cmp.Or(st.Runtime, "its default")))
	case !ok:
		return fmt.Sprintf("has no runtime %s: the program of its agent does not know it", r.Name)
	case !r.Available:
		return fmt.Sprintf("has no runtime %s: %s", clip(r.Name), clip(cmp.Or(r.Why, "it does not say why")))
	case len(r.Ports)+len(st.SwitchPorts) == 0 || portkind.Join(r.Ports, st.SwitchPorts) != "":
		return ""
	}
	return fmt.Sprintf("cannot join functions with its switch: runtime %s gives ports of kind %s; switch %s takes %s (start its agent with another --switch)",
		clip(r.Name), clip(portkind.List(r.Ports)), clip(st.Switch), clip(portkind.List(st.SwitchPorts)))
}

// maxClaim bounds the bytes that a host's own words take in what is said of functions.
const maxClaim = 128

func clip(words string) string {
	if len(words) <= maxClaim {
		return words
	}
	return strings.ToValidUTF8(words[:maxClaim], "") + "..."
}

// requests of a function; what it does not say is 0.
func requests(f *api.Function) (cpus float64, memory int64) {
	cpus, _ = api.ParseCPUs(f.Spec.CPUs) // refused when it was written
	memory, _ = api.ParseMemory(f.Spec.Memory)
	return cpus, memory
}

// hasImage compares as image references are: without a tag it is "latest". A host that lists none may have any.
func hasImage(list []string, image string) bool {
	full := func(s string) string {
		if strings.Contains(s[strings.LastIndexByte(s, '/')+1:], ":") || strings.Contains(s, "@") {
			return s
		}
		return s + ":latest"
	}
	return len(list) == 0 || strings.Contains(image, "@") || slices.ContainsFunc(list, func(s string) bool { return full(s) == full(image) })
}

// View is everything as it is in the middle of a Place: decisions already made count.
type View struct {
	Context
	hosts     []*Candidate // by name
	byName    map[string]*Candidate
	functions map[string]*api.Function
	at        map[string]string   // function to host, as decided so far
	chainOf   map[string]string   // function to chain
	members   map[string][]string // chain to functions, in order
	cores     int                 // of the largest host
	memory    int64
}

func newView(hosts []api.Host, functions []api.Function, c Context) *View {
	if c.Strategy == nil {
		c.Strategy = MostAvailable
	}
	if c.Distance == nil {
		c.Distance = func(a, b string) (int, bool) {
			if a == b {
				return 0, true
			}
			return 1, true
		}
	}
	v := &View{Context: c, byName: map[string]*Candidate{}, functions: map[string]*api.Function{}, at: map[string]string{},
		chainOf: map[string]string{}, members: map[string][]string{}}
	for name, chain := range c.Chains {
		v.members[name] = chain.Functions()
		for _, f := range v.members[name] {
			v.chainOf[f] = name
		}
	}
	for i := range hosts {
		h := &Candidate{Host: &hosts[i], images: map[string]int{}, chains: map[string]int{}}
		v.hosts, v.byName[hosts[i].Name] = append(v.hosts, h), h
		v.cores, v.memory = max(v.cores, hosts[i].Status.Cores), max(v.memory, hosts[i].Status.Memory)
	}
	slices.SortFunc(v.hosts, func(a, b *Candidate) int { return cmp.Compare(a.Host.Name, b.Host.Name) })
	for i := range functions {
		f := &functions[i]
		v.functions[f.Name] = f
		if at := f.At(); at != "" {
			v.put(f, at)
		}
	}
	return v
}

// put counts a function at a host; one that is moved is taken from where it was.
func (v *View) put(f *api.Function, host string) {
	cpus, memory := requests(f)
	count := func(name string, by int) {
		h := v.byName[name]
		if h == nil {
			return
		}
		h.CPUs, h.Memory, h.Functions = h.CPUs+float64(by)*cpus, h.Memory+int64(by)*memory, h.Functions+by
		h.images[f.Spec.Image] += by
		if chain := v.chainOf[f.Name]; chain != "" {
			h.chains[chain] += by
		}
	}
	count(v.at[f.Name], -1)
	count(host, 1)
	v.at[f.Name] = host
}

// sort puts functions that are pinned first, since there is no choice and they may make room elsewhere; then all in the order of their
// chains, which go by name; then those of no chain.
func (v *View) sort(fs []*api.Function) {
	place := map[string]int{}
	for _, members := range v.members {
		for i, name := range members {
			place[name] = i
		}
	}
	slices.SortFunc(fs, func(a, b *api.Function) int {
		if p, q := a.Spec.Host != "", b.Spec.Host != ""; p != q {
			return map[bool]int{true: -1, false: 1}[p]
		}
		x, y := v.chainOf[a.Name], v.chainOf[b.Name]
		if (x == "") != (y == "") {
			return cmp.Compare(y, x)
		}
		return cmp.Or(cmp.Compare(x, y), cmp.Compare(place[a.Name], place[b.Name]), cmp.Compare(a.Name, b.Name))
	})
}

// place decides about one function; news is false if it stays and there is nothing to say.
func (v *View) place(f *api.Function, now time.Time) (d Decision, news bool) {
	d = Decision{Function: f.Name, From: f.At()}
	why := ""
	switch h := v.byName[d.From]; {
	case d.From == "":
	case h == nil:
		why = d.From + " was removed; "
	case h.Host.Status.State == lost:
		why = d.From + " is lost; "
	case h.Host.Spec.Drain:
		why = d.From + " is being drained; "
	case h.lacks(f) != "" && v.Changed[f.Name]:
		why = d.From + " " + h.lacks(f) + "; "
	}
	host, reason, problem := v.choose(f)
	if h := v.byName[host]; host == d.From && h != nil && h.Host.Spec.Drain {
		problem = reason
	}
	if problem != "" {
		d.Problem = why + problem
		return d, true
	}
	if host == d.From {
		return d, false
	}
	v.put(f, host)
	d.Placement = &api.Placement{Host: host, Reason: why + reason, Since: now.UTC()}
	return d, true
}

// choose finds a host, or says why there is none.
func (v *View) choose(f *api.Function) (host, reason, problem string) {
	if pin := f.Spec.Host; pin != "" {
		h := v.byName[pin]
		switch {
		case h == nil:
			return "", "", fmt.Sprintf("pinned by spec.host to %s, which is no host of this Weir", pin)
		case h.Host.Status.State == lost && f.At() != pin:
			return "", "", fmt.Sprintf("pinned by spec.host to %s, which is lost", pin)
		case h.Host.Status.State == lost:
			return "", "", "pinned there by spec.host"
		case h.lacks(f) != "":
			return "", "", fmt.Sprintf("pinned by spec.host to %s, which %s", pin, h.lacks(f))
		}
		return pin, "pinned by spec.host", ""
	}
	if len(v.hosts) == 0 {
		return "", "", "no host has joined yet"
	}
	if only := v.hosts[0]; len(v.hosts) == 1 && only.Host.Status.State != lost && only.Host.Spec.Takes() && only.lacks(f) == "" {
		return only.Host.Name, "the only host", ""
	}
	var best *Candidate
	var rank Rank
	var against []string
	cpus, memory := requests(f)
	for _, h := range v.hosts {
		if no := h.fits(f, cpus, memory); no != "" {
			against = append(against, h.Host.Name+" "+no)
			continue
		}
		if r := v.Strategy(v, f, h); best == nil || slices.Compare(r.Keys[:], rank.Keys[:]) < 0 {
			best, rank = h, r
		}
	}
	if best == nil {
		return "", "", "no host: " + list(against)
	}
	return best.Host.Name, rank.Reason(), ""
}

// maxAgainst is how many hosts a problem names.
const maxAgainst = 4

func list(against []string) string {
	more := ""
	if n := len(against) - maxAgainst; n > 0 {
		against, more = against[:maxAgainst], fmt.Sprintf("; and %d more", n)
	}
	return strings.Join(against, "; ") + more
}

func short(n float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", n), "0"), ".")
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return short(float64(n)/(1<<30)) + " GiB"
	default:
		return short(float64(n)/(1<<20)) + " MiB"
	}
}
