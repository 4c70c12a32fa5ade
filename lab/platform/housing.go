package platform

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// housing makes the containers that members are. House is called from several goroutines.
type housing interface {
	// house makes a container: its network namespace, and files by which a process enters its cgroups.
	house(ctx context.Context, c berth) (at string, groups []string, err error)
	// ill says which of their processes have ended, and their last words; nil: none has.
	ill(ctx context.Context) error
	close(ctx context.Context) error
}

// berth of a container.
type berth struct {
	name, space string   // where its network namespace may be made
	group       string   // at the top, for a group of its own if it is no container; empty: it gets none
	relay       []string // arguments of its own process, which is socat; nil: it has one that waits

	// Where the network is the runtime's own (byTool), the port that it publishes at an address of the host, or its address on the host's network.
	port            int
	outside, inside netip.Prefix
}

// housingMaker makes housings of one kind.
type housingMaker struct {
	name, about string
	memory      int64 // bytes that a container takes beside what runs in it, about
	check       func(o Options) string
	open        func(ctx context.Context, o MemberOptions, i instance.Instance) (housing, error)
}

// What a container takes, about: of a docker one its shim is most.
const (
	bareMemory   = 1 << 20
	ownMemory    = 4 << 20
	dockerMemory = 20 << 20
)

func housings() []housingMaker {
	out := []housingMaker{{
		bare, "a network namespace; a process in it is one of the host's", bareMemory, free,
		func(ctx context.Context, o MemberOptions, i instance.Instance) (housing, error) {
			return unhoused{newProcesses(o.Options, i, "")}, nil
		},
	}, {
		byDocker, "a container of a Docker engine of the lab's own (docker run --network none)", dockerMemory, checkDocker,
		func(_ context.Context, o MemberOptions, _ instance.Instance) (housing, error) {
			return dockerHousing{o, rand.Text()[:8]}, nil
		},
	}}
	for _, r := range runtimes() {
		if r.name == bare || r.name == byDocker || r.machine { // those are above, and programs cannot enter a machine
			continue
		}
		open := r.open
		out = append(out, housingMaker{r.name, "a container of the runtime " + r.name, ownMemory, r.check, func(ctx context.Context, o MemberOptions, i instance.Instance) (housing, error) {
			var f function
			if o.Relays {
				f.program = relayProgram([]string{})
			}
			rt, err := open(ctx, o.Options, i, f)
			if rt == nil {
				return nil, err
			}
			return housed{rt}, err
		}})
	}
	return out
}

func findHousing(name string) (housingMaker, error) {
	return find("runtime", name, housings(), func(h housingMaker) string { return h.name })
}

// MemberRuntimes are what members can be.
func MemberRuntimes() (names []string) {
	for _, h := range housings() {
		names = append(names, h.name)
	}
	return names
}

// relayImage is that of socat; see lab/functions.
const relayImage = "socat"

// relayProgram is socat with arguments; nil: there is none.
func relayProgram(args []string) *program {
	if args == nil {
		return nil
	}
	return &program{
		image: relayImage, host: func(string) (string, error) { return exec.LookPath(relayImage) }, arguments: func(ports) []string { return args },
	}
}

// unhoused is members that are no containers.
type unhoused struct{ rt runtime }

func (h unhoused) house(ctx context.Context, c berth) (string, []string, error) {
	if err := netns.Create(c.space, netns.Options{Quiet: true}); err != nil {
		return c.space, nil, err
	}
	pid, err := h.rt.run(ctx, work{name: c.name, space: c.space, program: relayProgram(c.relay)})
	if err != nil || c.group == "" {
		return c.space, nil, err
	}
	groups, err := ownGroup(c.group, c.name, pid)
	return c.space, groups, err
}
func (h unhoused) ill(ctx context.Context) error   { return h.rt.ill(ctx) }
func (h unhoused) close(ctx context.Context) error { return h.rt.close(ctx) }

// housed is containers of a driver, as functions have them.
type housed struct{ rt runtime }

func (h housed) house(ctx context.Context, c berth) (string, []string, error) {
	if err := netns.Create(c.space, netns.Options{Quiet: true}); err != nil {
		return c.space, nil, err
	}
	pid, err := h.rt.run(ctx, work{name: c.name, space: c.space, program: relayProgram(c.relay)})
	if err != nil {
		return c.space, nil, err
	}
	groups, err := groupsOf(pid)
	return c.space, groups, err
}
func (h housed) ill(ctx context.Context) error   { return h.rt.ill(ctx) }
func (h housed) close(ctx context.Context) error { return h.rt.close(ctx) }

// dockerHousing is containers of an engine. It ends with the engine.
type dockerHousing struct {
	o  MemberOptions
	id string // several housings have one engine
}

func (d dockerHousing) house(ctx context.Context, c berth) (string, []string, error) {
	e, err := d.o.Engine(ctx)
	if err != nil {
		return "", nil, err
	}
	name := c.name + "-" + d.id
	network := []string{"--network", "none"}
	switch d.o.Network {
	case byHost:
		network = []string{"--network", "host"} // which is the engine's
	case ownNAT:
		network = []string{"--network", "bridge", "--publish", fmt.Sprintf("%s:%d:%d/udp", c.outside.Addr(), c.port, c.port)}
	case ownMacvlan:
		if err := e.macvlan(ctx, c.inside); err != nil {
			return "", nil, err
		}
		network = []string{"--network", engineMacvlan, "--ip", c.inside.Addr().String()}
	}
	process := []string{DockerImage, WireProgram}
	if c.relay != nil {
		if err := e.load(ctx, d.o.Options, relayImage); err != nil {
			return "", nil, err
		}
		process = append([]string{relayImage, "/usr/bin/" + relayImage}, c.relay...)
	}
	if _, err := e.Docker(ctx, nil, slices.Concat([]string{"run", "-d", "--name", name}, network, process)...); err != nil {
		return "", nil, err
	}
	out, err := e.Docker(ctx, nil, "inspect", "-f", "{{.State.Pid}} {{.NetworkSettings.SandboxKey}}", name)
	if err != nil {
		return "", nil, err
	}
	pid, sandbox, _ := strings.Cut(out, " ")
	root := fmt.Sprintf("/proc/%d/root", e.pid) // the engine's mounts and processes are its own
	space := root + sandbox
	if d.o.Network == byHost {
		space = e.space
	}
	if err := netns.Do(space, func() error { return errors.Join(netns.DisableIPv6("default"), netns.DisableIPv6("all")) }); err != nil {
		return space, nil, err
	}
	groups, err := groupsAt(filepath.Join(root, "proc", pid, "cgroup"))
	return space, groups, err
}
func (d dockerHousing) ill(ctx context.Context) error {
	e, err := d.o.Engine(ctx)
	if err != nil {
		return err
	}
	ended, err := e.Docker(ctx, nil, "ps", "--all", "--filter", "status=exited", "--filter", "name="+d.id, "--format", "{{.Names}} ({{.Status}})")
	if err != nil || ended == "" {
		return err
	}
	name, _, _ := strings.Cut(ended, " ")
	said, err := e.Docker(ctx, nil, "logs", "--tail", "5", name)
	return errors.Join(fmt.Errorf("%s: %s", strings.ReplaceAll(ended, "\n", ", "), said), err)
}
func (dockerHousing) close(context.Context) error { return nil }

// groupsOf a process are files by which another one enters its cgroups: it writes "0" to each.
func groupsOf(pid int) ([]string, error) { return groupsAt("/proc/" + strconv.Itoa(pid) + "/cgroup") }

// groupsAt reads the cgroup file of a process.
func groupsAt(file string) (out []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) { // ID:CONTROLLERS:PATH
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || !filepath.IsAbs(f[2]) {
			continue
		}
		entrance := "tasks" // of a single-threaded process: no wait for a lock of all
		if f[1] == "" {
			entrance = "cgroup.procs"
		}
		mount, ok := mounts[f[1]]
		if path := filepath.Join(mount, f[2], entrance); ok && exists(path) {
			out = append(out, path)
		}
	}
	return out, nil
}

// cgroupMounts by the controllers that /proc/PID/cgroup names; "" is version 2.
func cgroupMounts() (map[string]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		left, right, _ := strings.Cut(s.Text(), " - ")
		at, fs := strings.Fields(left), strings.Fields(right)
		if len(at) < 5 || len(fs) < 3 {
			continue
		}
		switch fs[0] {
		case "cgroup2":
			out[""] = at[4]
		case "cgroup":
			out[controllers(fs[2])] = at[4]
		}
	}
	return out, nil
}

// controllers among the options of a mount, as /proc/PID/cgroup has them.
func controllers(options string) string {
	var out []string
	for o := range strings.SplitSeq(options, ",") {
		if !slices.Contains([]string{"rw", "ro", "xattr", "clone_children", "noprefix"}, o) && !strings.HasPrefix(o, "release_agent=") {
			out = append(out, o)
		}
	}
	return strings.Join(out, ",")
}
