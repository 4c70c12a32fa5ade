// Package portkind names the kinds of ports that join a function with a host's switch: a container runtime says which kinds it gives, a switch which it takes.
// A driver names only kinds that work.
package portkind

import (
	"slices"
	"strings"
)

// Kind is how a port is made. The next one would be AF_XDP.
type Kind string

const (
	Veth      Kind = "veth"       // a pair of links: one end in the function's network namespace, the other in the switch's
	Tap       Kind = "tap"        // a link in the switch's namespace whose frames the function (a virtual machine) reads and writes by a file
	VhostUser Kind = "vhost-user" // memory that the function shares with a switch in user space, by a socket
)

// Join is the first kind that a runtime gives and a switch takes; "" none. Both list what they prefer first; the runtime decides.
func Join(gives, takes []Kind) Kind {
	for _, k := range gives {
		if slices.Contains(takes, k) {
			return k
		}
	}
	return ""
}

// List is kinds as a message has them.
func List(kinds []Kind) string {
	var names []string
	for _, k := range kinds {
		names = append(names, string(k))
	}
	if len(names) == 0 {
		return "no kind"
	}
	return strings.Join(names, ", ")
}
