// Package entry is for engines whose containers another program makes (LXC's lxc-start, systemd-nspawn, rkt): how that program is called, and how the
// launcher is the container's first process, which becomes what kernel.Config asks for once the program has made the namespaces and the root.
//
// It does not own namespaces, roots or cgroups, nor the steps themselves: see package steps, and DESIGN.md of package kernel.
package entry
