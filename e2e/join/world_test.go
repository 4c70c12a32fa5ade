// Package join: hosts join a manager over TCP in namespaces of their own, lose it, find it again; who must not join is told why.
package join

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// managerAddr is where agents reach the manager; the hosts have the addresses after it.
const (
	managerAddr = "10.77.0.1"
	agentsPort  = "7412"
)

// world is a manager in a namespace of its own, and hosts beside it on one bridge.
type world struct {
	*rig.Rig
	hosts []*host
}

// host is a machine: a namespace, an instance, and its agent's process.
type host struct {
	w           *world
	name, netns string
	root        string
	address     string
	cmd         *exec.Cmd
	done        chan struct{}
	log         *os.File
}

// newWorld is a running manager; args are further arguments of `weir manager`.
func newWorld(t *testing.T, args ...string) (*world, context.Context) {
	t.Helper()
	r, ctx := rig.Bare(t, rig.Options{Args: append([]string{"--listen", "none", "--agents", managerAddr + ":" + agentsPort}, args...)})
	r.Verb = "manager"
	w := &world{Rig: r}
	for _, argv := range [][]string{
		{"ip", "link", "add", "br0", "type", "bridge"}, {"ip", "addr", "add", managerAddr + "/24", "dev", "br0"}, {"ip", "link", "set", "br0", "up"},
	} {
		if _, err := r.Run(ctx, "", argv...); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the rig takes the namespaces away
		down, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, h := range w.hosts {
			if t.Failed() {
				t.Logf("host %s:\n%s", h.name, h.tail())
			}
			if _, err := h.weir(down, "down"); err != nil {
				t.Errorf("take down host %s: %v", h.name, err)
			}
			if h.done != nil {
				<-h.done
			}
			h.log.Close()
			if err := os.RemoveAll(filepath.Dir(h.root)); err != nil {
				t.Error(err)
			}
		}
	})
	return w, ctx
}

// host makes a machine's namespace with a link to the manager's.
func (w *world) host(ctx context.Context, t *testing.T, name string) *host {
	t.Helper()
	n := len(w.hosts)
	root, err := os.MkdirTemp("", "weir-"+w.Name+"-"+name+"-") // the test's own directories are gone before the agent is
	if err != nil {
		t.Fatal(err)
	}
	h := &host{w: w, name: name, netns: fmt.Sprintf("%s-%d", w.Netns, n), root: filepath.Join(root, "state"), address: fmt.Sprintf("10.77.0.%d", n+2)}
	if err := w.Namespace(h.netns); err != nil {
		t.Fatal(err)
	}
	if h.log, err = os.Create(filepath.Join(root, "log")); err != nil {
		t.Fatal(err)
	}
	w.hosts = append(w.hosts, h)
	link := fmt.Sprintf("v%d", n)
	for space, lines := range map[string][][]string{
		"":      {{"ip", "link", "add", link, "type", "veth", "peer", "name", "eth9", "netns", h.netns}, {"ip", "link", "set", link, "master", "br0", "up"}},
		h.netns: nil,
	} {
		for _, argv := range lines {
			if _, err := w.Run(ctx, space, argv...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, argv := range [][]string{{"ip", "addr", "add", h.address + "/24", "dev", "eth9"}, {"ip", "link", "set", "eth9", "up"}} {
		if _, err := w.Run(ctx, h.netns, argv...); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// instance is the name of the host's Weir on the machine that all share.
func (h *host) instance() string { return h.w.Name + string(rune('a'+h.index())) }

func (h *host) index() int {
	for i, x := range h.w.hosts {
		if x == h {
			return i
		}
	}
	panic("a host of another world")
}

func (h *host) command(ctx context.Context, args ...string) *exec.Cmd {
	c := h.w.Command(ctx, h.netns, append([]string{h.w.Bin}, args...)...)
	c.Env = append(os.Environ(), "WEIR_NAME="+h.instance(), "WEIR_ROOT="+h.root, "WEIR_IMAGES="+h.w.Images, "WEIR_YES=true", "NO_COLOR=1")
	return c
}

// weir runs a command of the binary for the host's instance; its error has what it printed.
func (h *host) weir(ctx context.Context, args ...string) (string, error) {
	c := h.command(ctx, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out.String(), &rig.ExitError{Argv: c.Args, Code: exit.ExitCode(), Stderr: errs.String() + out.String()}
	}
	return out.String(), err
}

// agentArgs are those of this host's agent.
func (h *host) agentArgs(more ...string) []string {
	return append([]string{"agent", "--host", h.name, "--manager", "https://" + managerAddr + ":" + agentsPort}, more...)
}

// start runs the agent until it is killed or taken down.
func (h *host) start(t *testing.T, more ...string) {
	t.Helper()
	h.run(t, h.command(context.Background(), h.agentArgs(more...)...))
}

func (h *host) run(t *testing.T, c *exec.Cmd) {
	t.Helper()
	c.Stdout, c.Stderr = h.log, h.log
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	h.cmd, h.done = c, make(chan struct{})
	go func() { _ = c.Wait(); close(h.done) }()
}

// kill ends the agent with SIGKILL. The command is nsenter, which the agent has replaced.
func (h *host) kill(t *testing.T) {
	t.Helper()
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-h.done
}

func (h *host) tail() string {
	b, err := os.ReadFile(h.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// token writes a join token into a file.
func (w *world) token(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.Weir(ctx, append([]string{"token", "create"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, out)
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// join makes a host and starts its agent with a token of its own.
func (w *world) join(ctx context.Context, t *testing.T, name string, more ...string) *host {
	t.Helper()
	h := w.host(ctx, t, name)
	h.start(t, append([]string{"--token-file", w.token(ctx, t)}, more...)...)
	w.state(ctx, t, name, "ready")
	return h
}

// state waits for a host's state.
func (w *world) state(ctx context.Context, t *testing.T, name, want string) {
	t.Helper()
	rig.Eventually(ctx, t, "host "+name+" "+want, func() (bool, string) {
		var x api.Host
		if err := w.Get(ctx, &x, "hosts", name); err != nil {
			return false, err.Error()
		}
		return string(x.Status.State) == want, string(x.Status.State)
	})
}

// events counts the events of a reason.
func (w *world) events(ctx context.Context, t *testing.T, reason string) int {
	t.Helper()
	var list struct {
		Items []api.Event `json:"items"`
	}
	if err := w.Get(ctx, &list, "events"); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range list.Items {
		if e.Reason == reason {
			n += max(e.Count, 1)
		}
	}
	return n
}

// allArrived ends a stream of which nothing may be lost or doubled.
func allArrived(t *testing.T, s *rig.Stream) {
	t.Helper()
	o, err := s.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d datagrams, %d lost, longest gap %v", o.Sent, o.Lost, o.LongestGap)
	if o.Lost != 0 || o.Duplicated != 0 {
		t.Errorf("lost %d, twice %d of %d", o.Lost, o.Duplicated, o.Sent)
	}
}
