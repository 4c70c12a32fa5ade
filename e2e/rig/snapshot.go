package rig

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"weir.dev/weir/netns"
)

// Snapshot is everything outside files that a Weir could leave behind, one fact a line: links, addresses, routes, qdiscs,
// nftables and sysctls of the given namespaces, the list of namespaces, mounts, cgroups, BPF links and programs that are pinned.
func Snapshot(ctx context.Context, spaces ...string) ([]string, error) {
	var facts []string
	add := func(topic, text string) {
		for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
			if l = strings.TrimSpace(l); l != "" {
				facts = append(facts, topic+": "+l)
			}
		}
	}
	for _, s := range spaces {
		for _, argv := range [][]string{
			{"ip", "-d", "-o", "link"}, {"ip", "-o", "addr"}, {"ip", "route", "show", "table", "all"}, {"tc", "qdisc"},
			{"bridge", "fdb"}, {"nft", "-s", "list", "ruleset"}, {"sysctl", "-a", "--pattern", `^net\.(ipv[46]|bridge)\.(conf\.|ip_forward|bridge-nf|neigh)`},
		} {
			c := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + netns.Path(s)}, argv...)...)
			out, err := c.Output()
			if err != nil {
				return nil, fmt.Errorf("%s in %s: %w", strings.Join(argv, " "), s, err)
			}
			add(s+" "+argv[0]+" "+argv[len(argv)-1], volatile.ReplaceAllString(string(out), ""))
		}
	}
	for _, dir := range []string{netns.Dir, "/run/weir"} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		for _, e := range entries {
			if e.Name() == ".ids" { // all Weirs of the machine share it: it comes and goes with any of them
				continue
			}
			if dir != netns.Dir || slices.ContainsFunc(spaces, func(s string) bool { return s == e.Name() }) || strings.Contains(e.Name(), "weir") {
				facts = append(facts, dir+": "+e.Name())
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for _, l := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(l); len(f) > 4 {
			facts = append(facts, "mount: "+f[4])
		}
	}
	facts = append(facts, cgroups("/sys/fs/cgroup")...)
	facts = slices.DeleteFunc(facts, func(f string) bool { return others(f, spaces[0]) })
	slices.Sort(facts)
	return facts, nil
}

// cgroups are those of instances of Weir: other programs make some all the time. The parent of all instances' goes with the last of them.
func cgroups(top string) (facts []string) {
	_ = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(strings.TrimPrefix(p, top), "/weir/") {
			facts = append(facts, "cgroup: "+p)
		}
		return nil // a cgroup may vanish while we walk
	})
	return facts
}

// others reports whether a fact is about another instance or rig on this machine. ours is one of the rig's namespaces; its instances' names begin
// with the rig's.
func others(fact, ours string) bool {
	rig := rigName.FindString(ours)
	if strings.HasPrefix(fact, "mount: "+netns.Dir+"/") && !strings.Contains(fact, rig) { // people make namespaces all the time
		return true
	}
	if strings.HasPrefix(fact, "mount: "+os.TempDir()+"/") && !strings.Contains(fact, rig) { // other tests mount there; a rig's state has its name in its path
		return true
	}
	if strings.HasPrefix(fact, "mount: /run/weir-dockerd-") { // other tests' engines
		return true
	}
	if strings.HasPrefix(fact, "cgroup: ") || strings.HasPrefix(fact, "mount: ") || strings.HasPrefix(fact, "/run/") {
		if m := instanceDir.FindStringSubmatch(fact); m != nil && !strings.HasPrefix(m[1], rig) {
			return true
		}
	}
	return slices.ContainsFunc(rigName.FindAllString(fact, -1), func(n string) bool { return n != rig })
}

var (
	instanceDir = regexp.MustCompile(`/weir(?:/|: )([a-z0-9-]+)`)
	rigName     = regexp.MustCompile(`\bt[0-9a-f]{6}\b`)
)

// volatile is what changes by itself: lifetimes, ages, statistics, timers, carrier.
var volatile = regexp.MustCompile(`(valid_lft|preferred_lft|expires|used|hoplimit) \S+|\btentative\b|NO-CARRIER,| state \S+|\w+_timer +[0-9.]+`)

// Diff tells what b has more (+) and less (-) than a.
func Diff(a, b []string) []string {
	var out []string
	for _, l := range b {
		if !slices.Contains(a, l) {
			out = append(out, "+ "+l)
		}
	}
	for _, l := range a {
		if !slices.Contains(b, l) {
			out = append(out, "- "+l)
		}
	}
	return out
}
