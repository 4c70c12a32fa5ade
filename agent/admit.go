package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/cpuset"
	"weir.dev/weir/datapath"
	"weir.dev/weir/image"
	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

// CheckEndpoint tells why this host could not make an endpoint of a document a port, nil if it could; the problem's path is the
// field. It changes nothing.
func (a *Agent) CheckEndpoint(ctx context.Context, name string, d api.Document) *api.Problem {
	s := d.Endpoints[name]
	if s.Netns == "" {
		if s.Interface == a.Uplink && s.Interface != "" {
			return &api.Problem{Path: "interface", Message: fmt.Sprintf("interface %s is host %s's uplink into the fabric", s.Interface, a.Host),
				Hint: "a station of the fabric needs no interface: leave it out, and give switch and switch_port, address or mac"}
		}
		err := a.Switch.CheckEndpoint(ctx, datapath.Endpoint{Name: name, Link: s.Interface})
		if errors.Is(err, datapath.ErrNotFound) {
			return &api.Problem{Path: "interface", Message: err.Error(), Hint: "`ip link` lists those that are there; with netns, Weir makes one"}
		}
		return problem("interface", err)
	}
	if p := a.macTaken(name, d); p != nil {
		return p
	}
	if err := a.Kernel.Check(s.Netns); err != nil {
		return problem("netns", err)
	}
	l, err := a.Kernel.Link(s.Netns, s.Interface)
	if errors.Is(err, netns.ErrNoLink) {
		return nil
	}
	if err != nil {
		return problem("interface", err)
	}
	owner := "not by Weir"
	if kind, other := objectOf(strings.TrimPrefix(l.Alias, a.Instance.Alias(""))); kind == "endpoint" {
		spec, stays := d.Endpoints[other]
		if other == name || !stays || spec.Interface != s.Interface { // ours, or about to go
			return nil
		}
		owner = fmt.Sprintf("by endpoint %q", other)
	}
	return &api.Problem{Path: "interface", Message: fmt.Sprintf("interface %s exists in netns %s already, made %s", s.Interface, s.Netns, owner),
		Hint: "choose another name for it, or remove the one that is there"}
}

// CheckFunction tells why a function with this image could not run here, nil if it could.
func (a *Agent) CheckFunction(ctx context.Context, name string, f api.FunctionSpec, img image.Image) *api.Problem {
	about, err := a.runtime(ctx, f.Runtime)
	if err != nil && started(f) { // else nobody could stop it
		return &api.Problem{Path: "runtime", Message: err.Error(), Hint: "`weir get hosts -o wide` shows which runtimes hosts have: name another, or set host to another host"}
	}
	return a.checkIn(about, name, f, img)
}

// started tells whether a function is to run.
func started(f api.FunctionSpec) bool { return f.State == "" || f.State == api.FunctionStarted }

// checkIn is CheckFunction for a runtime that is there.
func (a *Agent) checkIn(about container.About, name string, f api.FunctionSpec, img image.Image) *api.Problem {
	can := a.Switch.Abilities()
	if _, err := a.portKind(name, about); err != nil {
		field := "image"
		if f.Runtime != "" {
			field = "runtime"
		}
		return &api.Problem{Path: field, Message: err.Error(), Hint: "start the agent of this host with another --switch, or set host to another host"}
	}
	if want := img.Contract.Forwarder; want != "" && !machine(about) && !slices.Contains(can.Forwarders, want) {
		return &api.Problem{Path: "image", Message: fmt.Sprintf("image %s wants the forwarder %s; switch %s of host %s has %s", f.Image, want, a.SwitchName, a.Host,
			cmp.Or(strings.Join(can.Forwarders, ", "), "none")), Hint: "the label weir.forwarder names a program of the switch; an image without it forwards by itself"}
	}
	if p := a.checkXDP(about, f, img); p != nil {
		return p
	}
	if err := a.checkCPUSet(f); err != nil {
		return &api.Problem{Path: "cpuset", Message: err.Error(), Hint: "leave cpuset out, or set host to a host that has these processors"}
	}
	if p := checkMemory(about, f); p != nil {
		return p
	}
	if p := a.checkBare(about, f, img); p != nil {
		return p
	}
	return a.CheckCapabilities(about, f, img)
}

// checkXDP refuses an image that takes frames by AF_XDP sockets where no frame could be led into them.
func (a *Agent) checkXDP(about container.About, f api.FunctionSpec, img image.Image) *api.Problem {
	if !img.Contract.XDP {
		return nil
	}
	if machine(about) {
		return &api.Problem{Path: "runtime", Message: fmt.Sprintf("image %s takes frames by AF_XDP sockets of host %s's kernel, and functions in the runtime %s have a kernel of their own", f.Image, a.Host, about.Name),
			Hint: "name a runtime whose functions run on the host's kernel, such as native or oci; or use an image that does not need AF_XDP, such as wire-packet"}
	}
	if err := a.Kernel.ProbeXDP(); err != nil {
		return &api.Problem{Path: "image", Message: fmt.Sprintf("image %s takes frames by AF_XDP sockets, which host %s does not support: %s", f.Image, a.Host, err), Hint: "set host to another host, or name another image"}
	}
	return nil
}

// checkMemory refuses a limit with which the runtime makes nothing.
func checkMemory(about container.About, f api.FunctionSpec) *api.Problem {
	if m, err := api.ParseMemory(f.Memory); err != nil || m == 0 || m >= about.LeastMemory || !started(f) {
		return nil
	}
	return &api.Problem{Path: "memory", Message: fmt.Sprintf("memory %s: a function in the runtime %s wants at least %s, most of it for its kernel", f.Memory, about.Name, size(about.LeastMemory)),
		Hint: "leave memory out for the host's default"}
}

// checkBare refuses to run on the host itself what does not come with this program.
func (a *Agent) checkBare(about container.About, f api.FunctionSpec, img image.Image) *api.Problem {
	if about.Name != api.RuntimeBare || a.AllowBare {
		return nil
	}
	why := ""
	switch {
	case a.Catalogue == nil || !a.Catalogue(img.Digest):
		why = "the image is none of the catalogue"
	case len(f.Command) > 0:
		why = "its command is not the image's"
	default:
		return nil
	}
	return &api.Problem{Path: "runtime", Message: fmt.Sprintf("the runtime bare runs image %s as processes of host %s itself, and %s", f.Image, a.Host, why),
		Hint: "name another runtime; or, if you trust all that is applied with this host, start its agent with --allow-bare"}
}

// checkCPUSet refuses processors that this machine lacks. Empty: all of them. A function that is not to run can be changed though its host has lost a
// processor: else nobody could stop it.
func (a *Agent) checkCPUSet(f api.FunctionSpec) error {
	want, err := cpuset.Parse(f.CPUSet)
	if err != nil || len(want) == 0 || !started(f) {
		return err
	}
	online, err := cpuset.Online()
	if err != nil {
		return fmt.Errorf("processors of host %s: %w", a.Host, err)
	}
	if lacks := want.Without(online); len(lacks) > 0 {
		return fmt.Errorf("cpuset %s: host %s has no processor %s, it has %s", want, a.Host, lacks, online)
	}
	return nil
}

// portKind is the kind of ports by which functions in a runtime are joined with the switch here.
func (a *Agent) portKind(function string, about container.About) (portkind.Kind, error) {
	gives, takes := about.Ports, a.Switch.Abilities().Ports
	kind := portkind.Join(gives, takes)
	if kind == "" {
		return "", fmt.Errorf("function %s: runtime %s gives ports of kind %s; switch %s of host %s takes %s",
			function, about.Name, portkind.List(gives), a.SwitchName, a.Host, portkind.List(takes))
	}
	return kind, nil
}

// CheckCapabilities tells which capabilities an image asks for that its function may not have here, nil if it may have them all.
func (a *Agent) CheckCapabilities(about container.About, f api.FunctionSpec, img image.Image) *api.Problem {
	if gets := img.Contract.Needs(f.Allow); img.Contract.Foreign && len(gets) < len(f.Allow) {
		never := slices.DeleteFunc(slices.Clone(f.Allow), func(name string) bool { return slices.Contains(gets, name) })
		return &api.Problem{Path: "allow", Message: strings.Join(never, ", ") + " cannot be granted: a function would get out of its container with it", Hint: "leave it out"}
	}
	unshared := a.unsharedIn(about)
	refused := img.Contract.Refused(f.Allow, unshared == nil)
	if len(refused) == 0 {
		return nil
	}
	list := strings.Join(refused, ", ")
	why := "which the operator has to allow"
	switch {
	case unshared != nil && !sandbox.Cannot(unshared):
		why = fmt.Sprintf("and whether a user namespace can bound them on host %s is not known: %v", a.Host, unshared)
	case !about.Userns:
		why = fmt.Sprintf("which would count on host %s itself, as functions in the runtime %s have no user namespaces", a.Host, about.Name)
	case unshared != nil:
		why = fmt.Sprintf("which would count on host %s itself, as its functions have no user namespaces (%v)", a.Host, unshared)
	}
	return &api.Problem{Path: "image", Message: fmt.Sprintf("image %s asks for %s, %s", f.Image, list, why),
		Hint: fmt.Sprintf("write allow: [%s] into the function if you trust the image with that", list)}
}

func problem(field string, err error) *api.Problem {
	if err == nil {
		return nil
	}
	return &api.Problem{Path: field, Message: err.Error()}
}
