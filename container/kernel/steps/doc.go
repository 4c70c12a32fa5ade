// Package steps writes how a process becomes one of a container, as lists for package launcher: for engines that make containers by lists from the first
// step on (native), and for those whose program makes the namespaces and the root (package entry).
//
// It owns how a process becomes what kernel.Config asks for (mounts, limits, user, capabilities, filter of system calls), how it waits for its start, and how
// one more process gets into a container. It does not own namespaces, roots or cgroups. See DESIGN.md of package kernel.
package steps
