package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/docker/dockerd"
	"weir.dev/weir/container/kernel/suite"
)

func TestAbout(t *testing.T) {
	r, _ := fresh(t, shared) // writes the runtime
	must(t, r.Close())
	a := About(t.Context(), optionsOf(shared))
	if a.Missing != "" || !a.Userns || !strings.HasPrefix(a.Version, "Docker engine ") || len(a.Ports) != 1 {
		t.Errorf("%+v", a)
	}
}

// old is an engine that answers with another version of its API.
func old(t *testing.T, version string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if version != "" {
			w.Header().Set("Api-Version", version)
		}
		fmt.Fprint(w, "OK")
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return "unix://" + socket
}

// What keeps an engine from being used is said with what would help, by About and by New.
func TestEnginesThatCannotBeUsed(t *testing.T) {
	dead := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	bare := private(t, "b", func(o *dockerd.Options) { o.Runtimes = nil })
	other := private(t, "o", func(o *dockerd.Options) { o.Runtimes = map[string]string{runtimeName: "/usr/bin/other"} })
	for name, tt := range map[string]struct {
		options Options
		want    []string
	}{
		"no socket":      {Options{Host: "unix:///run/no-such.sock"}, []string{"no socket at /run/no-such.sock", "apt-get install docker.io", "DOCKER_HOST"}},
		"nobody listens": {Options{Host: "unix://" + dead}, []string{"nobody listens at " + dead, "systemctl start docker"}},
		"by the network": {Options{Host: "tcp://127.0.0.1:2375"}, []string{`engine at "tcp://127.0.0.1:2375"`, "want unix:///PATH"}},
		"too old":        {Options{Host: old(t, "1.24")}, []string{"speaks version 1.24 of its API", "want 1.40 or newer"}},
		"older still":    {Options{Host: old(t, "")}, []string{"tells no version of its API", "want API 1.40"}},
		"not registered": {optionsOf(bare), []string{"the engine has no runtime weir", `{"runtimes":{"weir":{"path":"` + optionsOf(bare).Script + `"}}}`,
			"/etc/docker/daemon.json", "systemctl reload docker"}},
		"registered so":    {optionsOf(other), []string{"the engine's runtime weir is /usr/bin/other, want " + optionsOf(other).Script}},
		"answers nonsense": {Options{Host: old(t, "1.41")}, []string{"the engine does not answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := About(t.Context(), tt.options)
			_, err := New(t.Context(), suite.NewInstance(t), tt.options)
			if err == nil {
				t.Fatal("it was opened")
			}
			for _, want := range tt.want {
				if !strings.Contains(a.Missing, want) || !strings.Contains(err.Error(), want) {
					t.Errorf("about: %s\nnew: %v\nwant %q", a.Missing, err, want)
				}
			}
		})
	}
}

// An operator who registers the runtime, as About says, need not restart anything.
func TestRuntimeIsRegisteredWithoutRestart(t *testing.T) {
	d := private(t, "r", func(o *dockerd.Options) { o.Runtimes = nil })
	mustImport(t, d, "op:1")
	mustCLI(t, d, "run", "-d", "--name", "running", "--network", "none", "op:1", "sleep", "1000")
	before, o := d.PID(), optionsOf(d)
	must(t, d.Register(map[string]string{runtimeName: o.Script}))
	eventually(t, "nothing is missing", func() bool { return About(t.Context(), o).Missing == "" })
	r, spec := fresh(t, d)
	spec.ID, spec.Args = "a", waiting
	must(t, r.Run(t.Context(), spec))
	if got := mustCLI(t, d, "inspect", "--format", "{{.State.Running}}", "running"); got != "true" || d.PID() != before {
		t.Errorf("another container is running: %s", got)
	}
	must(t, r.Delete(t.Context(), "a"))
	must(t, d.Register(nil)) // and takes it away again
	eventually(t, "the runtime is missing", func() bool { return About(t.Context(), o).Missing != "" })
	if err := r.Run(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "the engine has lost its runtime weir") {
		t.Errorf("run without the runtime: %v", err)
	}
	if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left %v, %v", list, err)
	}
}

// An instance that never used an engine is destroyed without one; one that did says what it needs.
func TestDestroyWithoutEngine(t *testing.T) {
	inst := suite.NewInstance(t)
	o := Options{Host: "unix:///run/no-such.sock", Remove: true}
	r, err := New(t.Context(), inst, o)
	must(t, err)
	must(t, r.Destroy(t.Context()))
	used, err := New(t.Context(), inst, optionsOf(shared))
	must(t, err)
	defer used.Close()
	must(t, used.Run(t.Context(), container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: waiting}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // else it waits for the engine
	if _, err := New(ctx, inst, o); err == nil {
		t.Error("an instance that has containers is opened without their engine")
	}
	o.Host = shared.Host()
	r, err = New(t.Context(), inst, o)
	must(t, err)
	must(t, r.Destroy(t.Context()))
}

// A disk that is full is said to be so, and nothing half-made is left.
func TestDiskFull(t *testing.T) {
	data := filepath.Join(engineOptions("m").Dir, "data")
	must(t, os.MkdirAll(data, 0o755))
	must(t, unix.Mount("small", data, "tmpfs", 0, "size=4m"))
	d := private(t, "m", nil)
	r, spec := fresh(t, d)
	spec.ID, spec.Args = "a", waiting
	fill := filepath.Join(data, "fill")
	out, err := exec.Command("dd", "if=/dev/zero", "of="+fill, "bs=4096").CombinedOutput()
	if err == nil {
		t.Fatalf("the disk is not full: %s", out)
	}
	if err := r.Run(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "disk full") || !strings.Contains(err.Error(), "docker system df") {
		t.Errorf("got %v", err)
	}
	if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left %v, %v", list, err)
	}
	must(t, os.Remove(fill))
	must(t, r.Run(t.Context(), spec))
}

func TestBridgeNotes(t *testing.T) {
	for rules, want := range map[string]bool{"-P FORWARD DROP\n-A FORWARD -j DOCKER\n": true, "-P FORWARD ACCEPT\n": false, "": false} {
		if got := drops(rules); got != want {
			t.Errorf("%q: %v", rules, got)
		}
	}
	if note := bridgeNote("iptables", true, true); !strings.Contains(note, "set net.bridge.bridge-nf-call-iptables=0") {
		t.Error(note)
	}
	if note := bridgeNote("iptables", false, true); !strings.Contains(note, "bridged traffic is not affected") {
		t.Error(note)
	}
	if note := bridgeNote("ip6tables", true, false); note != "" {
		t.Error(note)
	}
}

// The script hands on what is not ours as it is, and of ours what it should.
func TestScript(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weir-runtime")
	must(t, os.WriteFile(path, script, 0o755))
	const runc = "#!/bin/sh\nprintf '%s|' \"$@\"\nfor a; do [ \"$last\" = --pid-file ] && echo 1 >\"$a\"; last=$a; done\nexit 0\n"
	must(t, os.WriteFile(filepath.Join(dir, "runc"), []byte(runc), 0o755))
	inst := suite.NewInstance(t)
	e := &engine{inst: inst}
	bundle, theirs := e.bundle("a"), filepath.Join(dir, "bundle")
	for _, d := range []string{bundle, e.linksDir(), theirs} {
		must(t, os.MkdirAll(d, 0o700))
	}
	t.Cleanup(func() { os.RemoveAll(inst.Run) })
	log := filepath.Join(dir, "log")
	must(t, errors.Join(os.WriteFile(filepath.Join(bundle, "config.json"), []byte("ours"), 0o600), os.Symlink(log, filepath.Join(bundle, "log")),
		os.Symlink(bundle, filepath.Join(e.linksDir(), "ff00"))))
	call := func(args ...string) (string, error) {
		cmd := exec.Command(path, args...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	global := []string{"--root", "/r o", "--log", filepath.Join(dir, "their.log"), "--log-format", "json", "--systemd-cgroup"}
	for _, tt := range []struct{ args, want []string }{
		{[]string{"create", "--bundle", "/b", "aa11"}, append(global, "create", "--bundle", "/b", "aa11")}, // another's
		{[]string{"kill", "ff00", "15"}, append(global, "kill", "ff00", "15")},
		{[]string{"start", "ff00"}, nil},
		{[]string{"delete", "--force", "ff00"}, append(global[:6:6], "delete", "--force", "ff00")},
	} {
		got, err := call(append(append([]string{}, global...), tt.args...)...)
		want := strings.Join(append(tt.want, ""), "|")
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v: %v: %s", tt.args, err, diff)
		}
	}
	create := append(append([]string{}, global...), "create", "--bundle", theirs, "--pid-file", filepath.Join(dir, "pid"), "ff00")
	out, err := call(create...)
	if err != nil || out != "" {
		t.Errorf("create: %q, %v", out, err)
	}
	for file, want := range map[string]string{filepath.Join(theirs, "config.json"): "ours", filepath.Join(bundle, "pid"): "1\n",
		filepath.Join(bundle, "made"): "/r o\nff00\n" + theirs + "\n",
		log:                           strings.Join(append(global[:6:6], create[len(global):]...), "|") + "|"} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
	if out, err = call(create...); err == nil || !strings.Contains(out, "belongs to Weir") {
		t.Errorf("a second create: %q, %v", out, err)
	}
}

// A container that ends by itself just when it is to be killed is removed all the same.
func TestARemovalThatMeetsTheEnd(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	asked := 0
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		if r.Method != http.MethodDelete {
			return
		}
		if asked++; asked == 1 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, `{"message": "Could not kill running container x, cannot remove - Container x is not running"}`)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	c, err := client.New(client.WithHost("unix://" + socket))
	must(t, err)
	defer c.Close()
	must(t, (&engine{api: c}).removeContainer(t.Context(), "x"))
	if asked != 2 {
		t.Errorf("asked %d times, want 2", asked)
	}
}
