package api

import (
	"fmt"
	"slices"
	"strings"

	"weir.dev/weir/portkind"
)

// Runtimes that a function may name. Which of them a host has, its status says.
func Runtimes() []string {
	return []string{"native", "oci", "docker", "lxc", "nspawn", "rkt", "kvm", "bare"}
}

// RuntimeOCI runs a function by the program of an OCI runtime: runc, crun, runsc, kata-runtime.
const RuntimeOCI = "oci"

// RuntimeKVM runs a function in a virtual machine.
const RuntimeKVM = "kvm"

// RuntimeBare runs a function as processes of the host itself: nothing is kept apart but its network.
const RuntimeBare = "bare"

// HostRuntime is what a host has of one runtime.
type HostRuntime struct {
	Name      string          `json:"name"`
	Version   string          `json:"version,omitempty"`
	Ports     []portkind.Kind `json:"ports,omitempty"`  // by which its functions can be joined with a switch
	Userns    bool            `json:"userns,omitempty"` // its functions can have user namespaces of their own
	Available bool            `json:"available"`
	Default   bool            `json:"default,omitempty"` // of functions that name none
	Why       string          `json:"why,omitempty"`     // it is not available, and what would help
	Note      string          `json:"note,omitempty"`    // what an operator should know of it, such as an emulated processor
}

// RuntimeNotKnown is why a runtime that has not told yet is not available.
const RuntimeNotKnown = "not known yet"

// RuntimeOf finds what a host says of the runtime of a function; spec is what the function names, "" the host's default. A host of a former version says
// nothing but the name of its only one: then ok is false for any other.
func (s *HostStatus) RuntimeOf(spec string) (r HostRuntime, ok bool) {
	i := slices.IndexFunc(s.Runtimes, func(r HostRuntime) bool { return r.Name == spec || spec == "" && r.Default })
	switch {
	case i >= 0:
		return s.Runtimes[i], true
	case spec == "" || spec == s.Runtime:
		return HostRuntime{Name: s.Runtime, Ports: s.RuntimePorts, Available: true, Default: true}, true
	}
	return HostRuntime{Name: spec}, false
}

func checkRuntime(c *check, name string) {
	if name == "" || slices.Contains(Runtimes(), name) {
		return
	}
	hint := "leave runtime out for the host's default; `weir get hosts -o wide` shows which runtimes hosts have"
	if meant := NearestRuntime(name); meant != "" {
		hint = fmt.Sprintf("did you mean %q? %s", meant, hint)
	}
	c.add("runtime", hint, "runtime %q: want %s or %s", name, strings.Join(Runtimes()[:len(Runtimes())-1], ", "), Runtimes()[len(Runtimes())-1])
}

// NearestRuntime is the runtime that a wrong name probably means, "" none.
func NearestRuntime(name string) string {
	for _, known := range Runtimes() {
		if EditDistance(strings.ToLower(name), known) <= len(known)/3 {
			return known
		}
	}
	return ""
}
