// Package entry is the first step of a container's process, for engines whose containers another program makes (LXC's lxc-start, systemd-nspawn): a small
// program, entry.c, that carries out a list of steps, and what writes the lists.
//
// It owns how a process becomes what kernel.Config asks for, once the program has made the namespaces and the root: mounts, limits, user, capabilities,
// filter of system calls; how it waits for its start; and how a further process gets into the container. It does not own namespaces, roots or cgroups.
// See DESIGN.md of package kernel.
package entry

//go:generate ./build.sh
