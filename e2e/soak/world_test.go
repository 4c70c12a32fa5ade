package soak

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/testbed"
)

// kind of a world, as far as steps depend on it.
type kind struct {
	name    string
	args    []string // of weir up
	file    string   // of the testbed, without its name; "" is one host
	hosts   []string // that functions may be pinned to; "" leaves it to the manager
	daemons []string // to kill
	flaps   []string
	kept    bool // weir down --keep-state can be tried
	places  map[string]fabric.SwitchID
}

var kinds = []kind{
	{name: "ebpf", hosts: []string{""}, daemons: []string{"weir"}, flaps: []string{"link a down", "link b down", "link c deleted"}, kept: true,
		places: map[string]fabric.SwitchID{"a": "host:h", "b": "host:h", "c": "host:h"}},
	{name: "ovs", args: []string{"--switch", "ovs"}, hosts: []string{""}, daemons: []string{"weir"}, flaps: []string{"link a down", "link b down", "link c deleted"}, kept: true,
		places: map[string]fabric.SwitchID{"a": "host:h", "b": "host:h", "c": "host:h"}},
	{name: "openflow", file: `
manager: {}
switches: {s1: {dpid: 1}, s2: {dpid: 2}}
agents: {h1: {}, h2: {switch: ovs}}
hosts:
  a: {address: 10.0.0.1/24, mac: "02:aa:00:00:00:01"}
  b: {agent: h1}
  c: {address: 10.0.0.3/24, mac: "02:aa:00:00:00:03"}
links:
  - {a: "s1:1", b: "s2:1"}
  - {a: "s1:2", b: a}
  - {a: "s2:2", b: c}
  - {a: "s1:3", b: h1}
  - {a: "s2:3", b: h2}
`, hosts: []string{"h1", "h2", ""}, daemons: []string{"manager", "h1", "h2"}, flaps: []string{"cut s1:1", "cut s1:2", "cut s2:3", "cut h2:mgmt"},
		places: map[string]fabric.SwitchID{"a": "of:0000000000000001", "b": "host:h1", "c": "of:0000000000000002"}},
	{name: "vxlan", file: `
manager: {underlay: vxlan}
agents: {h1: {}, h2: {}, h3: {}}
hosts: {a: {agent: h1}, b: {agent: h2}, c: {agent: h2}}
`, hosts: []string{"h1", "h2", "h3", ""}, daemons: []string{"manager", "h1", "h2", "h3"}, flaps: []string{"cut h2:mgmt", "cut h3:mgmt"},
		places: map[string]fabric.SwitchID{"a": "host:h1", "b": "host:h2", "c": "host:h2"}},
}

// daemon is a process of Weir with what belongs to it.
type daemon struct {
	pid            int
	instance, root string
	netns          string // path
}

// world is a Weir with three stations, a, b and c.
type world interface {
	up(ctx context.Context) error
	socket() string
	weir(ctx context.Context, stdin string, args ...string) (string, error)
	stations() map[string]api.EndpointSpec
	space(station string) string // path of its namespace
	daemons() (map[string]daemon, error)
	kill(node string, s syscall.Signal) error
	flap(ctx context.Context, what string, off time.Duration) error
	logs() string
	down(ctx context.Context) error // and tells what is left
}

func station(i int) api.EndpointSpec {
	return api.EndpointSpec{Address: fmt.Sprintf("10.0.0.%d/24", i+1), MAC: fmt.Sprintf("02:aa:00:00:00:%02d", i+1)}
}

// one host, by weir up.
type one struct {
	*rig.Rig
	before []string
	spaces []string
}

func newOne(ctx context.Context, k kind) (*one, error) {
	r, err := rig.New(rig.Options{Args: k.args})
	if err != nil {
		return nil, err
	}
	o := &one{Rig: r, spaces: []string{r.Netns}}
	for s := range k.places {
		if err := r.Namespace(r.Name + "-" + s); err != nil {
			return nil, errors.Join(err, r.Discard())
		}
		o.spaces = append(o.spaces, r.Name+"-"+s)
	}
	if o.before, err = rig.Snapshot(ctx, o.spaces...); err != nil {
		return nil, errors.Join(err, r.Discard())
	}
	return o, nil
}

func (o *one) up(ctx context.Context) error { return o.Up(ctx) }
func (o *one) socket() string               { return filepath.Join("/run/weir", o.Name, "api.sock") }
func (o *one) space(s string) string        { return "/run/netns/" + o.Name + "-" + s }
func (o *one) logs() string                 { return o.Log(60) }
func (o *one) weir(ctx context.Context, stdin string, args ...string) (string, error) {
	return o.WeirInput(ctx, stdin, args...)
}

func (o *one) stations() map[string]api.EndpointSpec {
	all := map[string]api.EndpointSpec{}
	for i, s := range []string{"a", "b", "c"} {
		e := station(i)
		e.Netns, e.Interface = o.Name+"-"+s, "eth0"
		all[s] = e
	}
	return all
}

func (o *one) daemons() (map[string]daemon, error) {
	return map[string]daemon{"weir": {o.PID(), o.Name, o.Root, "/run/netns/" + o.Netns}}, nil
}

func (o *one) kill(_ string, s syscall.Signal) error { return o.Kill(s) }

// flap takes a station's link down for a while, or deletes it: then Weir makes it anew.
func (o *one) flap(ctx context.Context, what string, off time.Duration) error {
	f := strings.Fields(what) // link a down
	links, err := o.Run(ctx, o.Name+"-"+f[1], "ip", "-o", "link", "show", "type", "veth")
	if err != nil || links == "" {
		return err // the station is not there now
	}
	name, _, _ := strings.Cut(strings.Fields(links)[1], "@")
	if f[2] == "deleted" {
		_, err := o.Run(ctx, o.Name+"-"+f[1], "ip", "link", "del", name)
		return err
	}
	if _, err := o.Run(ctx, o.Name+"-"+f[1], "ip", "link", "set", name, "down"); err != nil {
		return err
	}
	time.Sleep(off) // the length of the flap is drawn
	_, err = o.Run(ctx, o.Name+"-"+f[1], "ip", "link", "set", name, "up")
	return err
}

func (o *one) down(ctx context.Context) error {
	_, err := o.Weir(ctx, "down")
	if err != nil {
		return errors.Join(err, o.Close())
	}
	var left []string
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) { // what the kernel frees in the background takes a moment
		after, err := rig.Snapshot(ctx, o.spaces...)
		if err != nil {
			return errors.Join(err, o.Discard())
		}
		if left = rig.Diff(o.before, after); len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(left) > 0 {
		err = fmt.Errorf("weir down leaves:\n%s", strings.Join(left, "\n"))
	}
	return errors.Join(err, o.Discard())
}

// several hosts and a manager, by weir testbed.
type several struct {
	kind      kind
	name, bin string
	file      string
}

func newSeveral(k kind, dir string) (*several, error) {
	bin, err := filepath.Abs(cmpOr(os.Getenv("WEIR_BIN"), "../../bin/weir"))
	if err != nil {
		return nil, err
	}
	var id [3]byte
	_, _ = rand.Read(id[:]) // never fails
	s := &several{kind: k, name: "t" + hex.EncodeToString(id[:]), bin: bin, file: filepath.Join(dir, k.name+".yaml")}
	return s, os.WriteFile(s.file, []byte("name: "+s.name+k.file), 0o600)
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (s *several) up(ctx context.Context) error {
	_, err := s.weir(ctx, "", "testbed", "up", s.file)
	return err
}

func (s *several) weir(ctx context.Context, stdin string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, s.bin, args...)
	c.Env = append(os.Environ(), "WEIR_NAME="+s.name, "WEIR_YES=true", "NO_COLOR=1")
	c.Stdin = strings.NewReader(stdin)
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("weir %s: %w: %s%s", strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), nil
}

func (s *several) socket() string {
	if status, err := testbed.List(s.name); err == nil && len(status.Nodes) > 0 {
		return status.Nodes[0].Socket
	}
	return ""
}

func (s *several) space(station string) string {
	return "/run/weir-testbed/" + s.name + "/netns/" + station
}

func (s *several) stations() map[string]api.EndpointSpec {
	all := map[string]api.EndpointSpec{}
	for i, name := range []string{"a", "b", "c"} {
		e := station(i)
		if host, ok := s.kind.places[name].Host(); ok {
			e.Netns, e.Interface, e.Host = s.space(name), "eth0", host
		} else {
			e.MAC = "" // the router sees it
		}
		all[name] = e
	}
	return all
}

func (s *several) daemons() (map[string]daemon, error) {
	status, err := testbed.List(s.name)
	if err != nil {
		return nil, err
	}
	all := map[string]daemon{}
	for _, n := range status.Nodes {
		if n.Instance != "" && len(n.PIDs) > 0 {
			all[n.Name] = daemon{n.PIDs[0], n.Instance, n.Root, n.Netns}
		}
	}
	return all, nil
}

func (s *several) kill(node string, sig syscall.Signal) error {
	all, err := s.daemons()
	if err != nil {
		return err
	}
	d := all[node]
	if d.pid == 0 {
		return fmt.Errorf("%s does not run", node)
	}
	if err := syscall.Kill(d.pid, sig); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); all[node].pid == d.pid; time.Sleep(5 * time.Millisecond) { // else the testbed may find it running yet
		if time.Now().After(deadline) {
			return fmt.Errorf("%s (process %d) does not end", node, d.pid)
		}
		if all, err = s.daemons(); err != nil {
			return err
		}
	}
	return nil
}

// flap pulls a cable for a while; that of a host's management for so long that the host is lost.
func (s *several) flap(ctx context.Context, what string, off time.Duration) error {
	at := strings.TrimPrefix(what, "cut ")
	if strings.HasSuffix(at, ":mgmt") {
		off += api.BeatLost + 2*api.Beat
	}
	if err := testbed.Cut(s.name, at); err != nil {
		return err
	}
	select {
	case <-time.After(off):
	case <-ctx.Done():
	}
	return testbed.Heal(s.name, at)
}

func (s *several) logs() string {
	var all strings.Builder
	found, _ := filepath.Glob("/run/weir-testbed/" + s.name + "/log/*.log")
	for _, path := range found {
		text, _ := os.ReadFile(path)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&all, "%s:\n%s\n", filepath.Base(path), strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
	return all.String()
}

func (s *several) down(ctx context.Context) error {
	if _, err := s.weir(ctx, "", "testbed", "down", s.name); err != nil {
		return err
	}
	var left []string
	for _, pattern := range []string{"/run/weir-testbed/", "/var/lib/weir-testbed/", "/run/weir/", "/sys/fs/cgroup/weir/", "/sys/fs/cgroup/*/weir/"} {
		found, _ := filepath.Glob(pattern + s.name + "*")
		left = append(left, found...)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for l := range strings.Lines(string(mounts)) {
		if strings.Contains(l, "/"+s.name) {
			left = append(left, l)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("weir testbed down leaves %v", left)
	}
	return nil
}
