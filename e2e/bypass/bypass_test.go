// Package bypass counts what passes a policy by: for every way in which a function can come, fail, be replaced and go, at both switches.
package bypass

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

var switches = []string{"ebpf", "ovs"}

// frames that each case counts at least: more with FRAMES=N.
var frames = func() int {
	if n, err := strconv.Atoi(os.Getenv("FRAMES")); err == nil && n > 0 {
		return n
	}
	return 1000
}()

const (
	policies = `
chains:
  c: fw
policies:
  p: {from: alice, to: bob, chain: c}
`
	guard = `
functions:
  fw: {image: firewall, on_fail: drop, config: {allow: [udp/9000]}}
` + policies
	// It runs, and hands nothing on, not even a probe.
	never = `
functions:
  fw: {image: firewall, on_fail: drop, command: [/bin/busybox, sleep, "1000000"]}
` + policies
)

// scene is a running Weir with a policy in force and traffic.
type scene struct {
	*testing.T
	*rig.Rig
	*traffic
	ctx context.Context
}

// change applies a document that replaces the one before. It need not come into force.
func (s *scene) change(document string) {
	s.Helper()
	rig.Eventually(s.ctx, s.T, "the document is accepted", func() (bool, string) {
		_, err := s.Apply(s.ctx, s.Endpoints()+document, "--prune", "--wait=false")
		var exit *rig.ExitError
		if err != nil && (!errors.As(err, &exit) || exit.Code != command.ExitConflict) { // a conflict: an object of that name is being deleted
			s.Fatal(err)
		}
		return err == nil, fmt.Sprint(err)
	})
}

func (s *scene) weir(args ...string) {
	s.Helper()
	if _, err := s.Weir(s.ctx, args...); err != nil {
		s.Fatal(err)
	}
}

// up waits until the function is healthy, in another process than pid.
func (s *scene) up(name string, pid int) {
	s.Helper()
	rig.Eventually(s.ctx, s.T, name+" is up", func() (bool, string) {
		var f api.Function
		err := s.Get(s.ctx, &f, "function", name)
		return err == nil && f.Status.Healthy && f.Status.PID != pid, fmt.Sprintf("%v: %+v", err, f.Status)
	})
}

// took waits until the function's last spec is in force.
func (s *scene) took(name string) {
	s.Helper()
	rig.Eventually(s.ctx, s.T, name+" has its last spec", func() (bool, string) {
		var f api.Function
		err := s.Get(s.ctx, &f, "function", name)
		return err == nil && f.Status.Healthy && f.Status.ObservedGeneration == f.Generation, fmt.Sprintf("%v: generation %d, %+v", err, f.Generation, f.Status)
	})
}

func (s *scene) pid() int { s.Helper(); return function(s.ctx, s.T, s.Rig, "fw").Status.PID }

func (s *scene) kill() {
	s.Helper()
	if err := syscall.Kill(s.pid(), syscall.SIGKILL); err != nil {
		s.Fatal(err)
	}
}

// crash ends the daemon by kill -9.
func (s *scene) crash() {
	s.Helper()
	if err := s.Rig.Kill(syscall.SIGKILL); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) start() {
	s.Helper()
	if err := s.Up(s.ctx); err != nil {
		s.Fatal(err)
	}
}

// unplug deletes the host's end of a link of Weir's, by the object's mark.
func (s *scene) unplug(object string) {
	s.Helper()
	i, err := instance.New(s.Rig.Name, s.Root)
	if err != nil {
		s.Fatal(err)
	}
	err = netns.Do(s.Netns, func() error {
		links, err := netns.Links(i.Alias(object))
		if err == nil && len(links) != 1 {
			err = fmt.Errorf("links of %s: %v", object, links)
		}
		if err != nil {
			return err
		}
		out, err := s.Rig.Run(s.ctx, "", "ip", "link", "del", links[0].Name)
		if err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
}

// closed waits until the policy says that its traffic is dropped until its chain works.
func (s *scene) closed() {
	s.Helper()
	rig.Eventually(s.ctx, s.T, "the policy is closed", func() (bool, string) {
		var p api.Policy
		err := s.Get(s.ctx, &p, "policy", "p")
		return err == nil && p.Status.State == "pending" && p.Status.Conditions.Get(api.ConditionClosed) != nil, fmt.Sprintf("%v: %+v", err, p.Status)
	})
}

// A case begins with the policy in force and ends so, too. Nothing forbidden may pass meanwhile.
var cases = []struct {
	name string
	do   func(s *scene)
}{
	{"killed (-9) three times", func(s *scene) {
		for range 3 {
			pid := s.pid()
			s.kill()
			s.up("fw", pid)
		}
	}},
	{"restarted", func(s *scene) { s.weir("function", "restart", "fw") }},
	{"stopped and started", func(s *scene) {
		s.weir("function", "stop", "fw")
		s.more(s.ctx, s.T, 100)
		s.weir("function", "start", "fw")
	}},
	{"another config, taken by the same process", func(s *scene) {
		pid := s.pid()
		s.change(strings.Replace(guard, "[udp/9000]", "[udp/9000, tcp/80]", 1))
		if s.took("fw"); s.pid() != pid {
			s.Errorf("another process has it: %d, then %d", pid, s.pid())
		}
	}},
	{"another environment, in another process", func(s *scene) {
		pid := s.pid()
		s.change(strings.Replace(guard, "on_fail: drop", "on_fail: drop, env: {A: b}", 1))
		s.up("fw", pid)
	}},
	{"killed while its config changes", func(s *scene) {
		pid := s.pid()
		s.change(strings.Replace(guard, "[udp/9000]", "[udp/9000, tcp/81]", 1))
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone already
		s.up("fw", pid)
	}},
	{"another image, and back", func(s *scene) {
		s.change(strings.Replace(guard, "image: firewall", "image: hole", 1) + "\n")
		s.more(s.ctx, s.T, 500)
		s.change(guard)
	}},
	{"out of memory", func(s *scene) {
		s.change(strings.Replace(guard, "on_fail: drop", "on_fail: drop, memory: 1M", 1))
		s.more(s.ctx, s.T, 2000)
		s.change(guard)
	}},
	{"its process hangs before it is up", func(s *scene) {
		s.change(never)
		s.more(s.ctx, s.T, 2000)
		s.change(guard)
	}},
	{"its links are deleted", func(s *scene) {
		sides := []string{"in", "out"}
		if frames < 10000 {
			sides = sides[:1] // it takes the agent seconds
		}
		for _, side := range sides {
			s.unplug("function/fw/" + side)
			s.more(s.ctx, s.T, 500)
			s.flows(s.ctx, s.T)
		}
	}},
	{"a function is put before it", func(s *scene) {
		s.change(strings.Replace(strings.Replace(guard, "c: fw", "c: w | fw", 1), "functions:", "functions:\n  w: {image: wire}", 1))
		s.up("w", 0)
	}},
	{"another one takes its place", func(s *scene) {
		s.change(strings.ReplaceAll(guard, "fw", "other"))
		s.up("other", 0)
		s.more(s.ctx, s.T, 200)
		s.change(guard)
		s.up("fw", 0)
	}},
	{"the policy is replaced by another", func(s *scene) {
		s.change(strings.Replace(guard, "p: {from", "q: {from", 1))
		s.more(s.ctx, s.T, 200)
	}},
	{"an endpoint's link is deleted", func(s *scene) {
		s.unplug("endpoint/bob")
		s.flows(s.ctx, s.T)
		s.unplug("endpoint/alice")
		s.flows(s.ctx, s.T)
	}},
	{"the daemon is killed, and the function while it is away", func(s *scene) {
		pid := s.pid()
		s.crash()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			s.Fatal(err)
		}
		s.more(s.ctx, s.T, 500)
		s.start()
		s.up("fw", pid)
	}},
	{"the daemon is killed while the function restarts", func(s *scene) {
		pid := s.pid()
		s.weir("function", "restart", "fw", "--wait=false")
		s.crash()
		s.more(s.ctx, s.T, 200)
		s.start()
		s.up("fw", pid)
	}},
	{"the daemon is killed while the document changes", func(s *scene) {
		s.change(strings.Replace(strings.Replace(guard, "c: fw", "c: fw | w", 1), "functions:", "functions:\n  w: {image: wire}", 1))
		s.crash()
		s.start()
		s.up("w", 0)
	}},
	{"the daemon is upgraded, and downgraded", func(s *scene) {
		former := s.Rig.Bin
		for _, bin := range []string{another(s), former} {
			s.crash()
			s.more(s.ctx, s.T, 200)
			s.Rig.Bin = bin
			s.start()
			s.more(s.ctx, s.T, 200)
			pid := s.pid()
			s.kill() // the other program brings back what it has found
			s.up("fw", pid)
		}
	}},
	{"the host reboots", func(s *scene) {
		s.weir("down", "--keep-state")
		s.crash()
		s.start()
		s.up("fw", 0)
	}},
	{"the host reboots with a function that does not come up", func(s *scene) {
		s.change(never)
		s.weir("down", "--keep-state")
		s.crash()
		s.start()
		s.more(s.ctx, s.T, 2000)
		s.change(guard)
	}},
}

// another is a program of another version.
func another(s *scene) string {
	s.Helper()
	bin := filepath.Join(s.TempDir(), "weir")
	build := exec.Command("go", "build", "-ldflags", "-s -w -X main.version=another", "-o", bin, "../..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		s.Fatalf("build: %v\n%s", err, out)
	}
	out, err := exec.Command(bin, "version").Output()
	if err != nil || !strings.Contains(string(out), "weir another ") {
		s.Fatalf("its version: %q, %v", out, err)
	}
	return bin
}

// images is the catalogue, and an image whose process only sleeps.
func images(ctx context.Context, t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	layout := filepath.Join(dir, "images")
	if err := os.CopyFS(layout, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	recipe := "name: hole\ntag: \"1\"\ndescription: Hands nothing on\nentrypoint: [/bin/busybox, sleep, \"1000000\"]\n" +
		"config_schema: schema.json\nfiles:\n  - {to: /note, from: note}\n"
	for name, text := range map[string]string{"note": "nothing\n", "schema.json": "{}", image.RecipeFile: recipe} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := image.LoadRecipe(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Build(ctx, layout); err != nil {
		t.Fatal(err)
	}
	return layout
}

func open(t *testing.T, sw string) (*rig.Rig, context.Context) {
	t.Helper()
	r, ctx := rig.Bare(t, rig.Options{Args: []string{"--switch", sw}})
	r.Images = images(ctx, t, r.Images)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	return r, ctx
}

func TestMain(m *testing.M) { os.Exit(rig.AtOnce(m, 3)) }

// Whatever happens to a function, nothing that its policy closes passes.
func TestNothingPassesAPolicyBy(t *testing.T) {
	t.Parallel()
	for _, sw := range switches {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := open(t, sw)
			r.MustApply(ctx, t, r.Endpoints()+guard)
			s := startTraffic(ctx, t, r)
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					x := &scene{t, r, s, ctx}
					r.MustApply(ctx, t, r.Endpoints()+guard, "--prune")
					s.flows(ctx, t)
					first := s.sent[1].Load()
					c.do(x)
					if sent := s.sent[1].Load() - first; sent < int64(frames) {
						s.more(ctx, t, int64(frames)-sent)
					}
					s.flows(ctx, t)
					s.drained(ctx, t)
					sent, passed := s.sent[1].Load()-first, s.count(1, first)
					fmt.Printf("%-5s %-58s %6d sent %6d passed\n", sw, c.name, sent, passed)
					if passed > 0 {
						t.Errorf("%d of %d forbidden datagrams passed", passed, sent)
					}
				})
			}
		})
	}
}

// A new policy is closed from the moment when it is accepted until its chain works, unless all its functions say bypass.
func TestANewPolicyIsClosedUntilItsChainWorks(t *testing.T) {
	t.Parallel()
	for _, sw := range switches {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := open(t, sw)
			r.MustApply(ctx, t, r.Endpoints())
			s := startTraffic(ctx, t, r)
			x := &scene{t, r, s, ctx}
			for _, c := range []struct{ name, document string }{
				{"it never comes up", never},
				{"it hands nothing on", strings.Replace(guard, "image: firewall", "image: hole", 1)},
				{"it ends at once", strings.Replace(never, "/bin/busybox, sleep, \"1000000\"", "/bin/busybox, \"false\"", 1)},
				{"one of two never comes up", strings.Replace(strings.Replace(never, "c: fw", "c: w | fw", 1), "functions:", "functions:\n  w: {image: wire, on_fail: bypass}", 1)},
				{"the chain was there before", never},
				{"it names one endpoint", strings.Replace(never, "{from: alice, to: bob,", "{from: alice, to: any,", 1)},
				{"it names no endpoint", strings.Replace(never, "{from: alice, to: bob,", "{from: 10.9.0.0/24, to: any, symmetric: false, match: [ip], mode: selective,", 1)},
				{"selective, and back", strings.Replace(never, "{from: alice,", "{match: [udp], mode: selective, from: alice,", 1)},
				{"it is for a host that is not", strings.Replace(never, "on_fail: drop", "on_fail: drop, host: elsewhere", 1)},
			} {
				name, document := c.name, c.document
				t.Run(name, func(t *testing.T) {
					x.T = t
					before := ""
					if name == "the chain was there before" {
						before = "functions:\n  w: {image: wire}\nchains:\n  c: w\n"
					}
					r.MustApply(ctx, t, r.Endpoints()+before, "--prune")
					first := s.sent[1].Load()
					rig.Eventually(ctx, t, "traffic flows without a policy", func() (bool, string) { return s.count(1, first) > 20, "" })
					accepted := s.sent[1].Load()
					if _, err := r.Apply(ctx, r.Endpoints()+document, "--prune", "--wait=false"); err != nil {
						var refused *rig.ExitError
						if strings.Contains(document, "elsewhere") && errors.As(err, &refused) && refused.Code == command.ExitInvalid {
							return // it is not even accepted
						}
						t.Fatal(err)
					}
					returned := s.sent[1].Load()
					if !strings.Contains(document, "elsewhere") && !strings.Contains(document, "hole") {
						x.closed()
					}
					s.more(ctx, t, int64(frames))
					s.drained(ctx, t)
					late := s.count(0, returned) + s.count(1, returned)
					fmt.Printf("%-5s %-58s %6d sent %6d passed after acceptance (%d of them while apply ran, %d after it)\n", sw, "new policy: "+name,
						s.sent[1].Load()-accepted, s.count(1, accepted), s.count(1, accepted)-s.count(1, returned), late)
					if late > 0 {
						t.Errorf("%d datagrams passed a policy that waits for its function", late)
					}
				})
			}
			t.Run("all functions say bypass", func(t *testing.T) {
				r.MustApply(ctx, t, r.Endpoints(), "--prune")
				if _, err := r.Apply(ctx, r.Endpoints()+strings.Replace(never, "on_fail: drop", "on_fail: bypass", 1), "--prune", "--wait=false"); err != nil {
					t.Fatal(err)
				}
				first := s.sent[1].Load()
				s.more(ctx, t, 1000)
				s.drained(ctx, t)
				if n := s.count(1, first); n < 900 {
					t.Errorf("%d of 1000 datagrams passed", n)
				}
			})
		})
	}
}
