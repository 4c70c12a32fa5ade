package join

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/store/standalone"
)

// secondAgents is where agents reach the second manager.
const secondAgents = managerAddr + ":7413"

// manager is a further one of the same state, at the same machine under another name.
type manager struct {
	w    *world
	root string
	log  *os.File
}

// second starts another manager over the same etcd; it ends with the test.
func (w *world) second(ctx context.Context, t *testing.T, etcd string) *manager {
	t.Helper()
	root, err := os.MkdirTemp("", "weir-second-")
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{w: w, root: root}
	if m.log, err = os.Create(filepath.Join(root, "log")); err != nil {
		t.Fatal(err)
	}
	c := m.command(context.Background(), "manager", "--listen", "none", "--agents", secondAgents, "--etcd", etcd)
	c.Stdout, c.Stderr = m.log, m.log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(m.log.Name())
			t.Logf("the second manager:\n%s", b)
		}
		down, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if out, err := m.command(down, "down").CombinedOutput(); err != nil {
			t.Errorf("take down the second manager: %v %s", err, out)
		}
		m.log.Close()
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	rig.Eventually(ctx, t, "the second manager answers", func() (bool, string) {
		out, err := m.command(ctx, "status").CombinedOutput()
		return err == nil, string(out)
	})
	return m
}

func (m *manager) command(ctx context.Context, args ...string) *exec.Cmd {
	c := m.w.Command(ctx, "", append([]string{m.w.Bin}, args...)...)
	c.Env = append(os.Environ(), "WEIR_NAME="+m.w.Name+"z", "WEIR_ROOT="+filepath.Join(m.root, "state"), "WEIR_IMAGES="+m.w.Images, "WEIR_YES=true", "NO_COLOR=1")
	return c
}

func (m *manager) apply(ctx context.Context, t *testing.T, document string) {
	t.Helper()
	c := m.command(ctx, "apply", "-f", "-")
	c.Stdin = strings.NewReader(document)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func (m *manager) client(t *testing.T) *api.Client {
	t.Helper()
	c, err := api.Dial(api.Options{Socket: filepath.Join("/run/weir", m.w.Name+"z", "api.sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Two managers share an etcd. The one that leads is killed: the other finds a dead host, places its functions, and all that knew the first
// goes on with it.
func TestAnotherManagerTakesOver(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir-etcd-")
	if err != nil {
		t.Fatal(err)
	}
	etcd, stop, err := standalone.Start(standalone.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	w, ctx := newWorld(t, "--etcd", etcd)
	second := w.second(ctx, t, etcd)
	both := []string{"--manager", "https://" + secondAgents}
	hosts := map[string]*host{"h1": w.join(ctx, t, "h1", both...), "h2": w.join(ctx, t, "h2", both...)}
	c := second.client(t)
	document := strings.Replace(w.document("h1"), "functions:\n", "functions:\n  free: {image: wire}\n", 1)
	document = strings.Replace(document, "image: firewall, config: {allow: [udp, icmp]}", "image: wire", 1) // which needs no processor
	second.apply(ctx, t, document)                                                                          // one that does not lead takes what is wanted, too
	s, err := rig.NewStream(w.Alice(), w.Bob(), rig.BobAddr, 9000, 500)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Await(ctx, 100); err != nil {
		t.Fatal(err)
	}

	if err := w.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	free := func() api.Function {
		f, err := c.Functions().Get(ctx, "free")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	at := free().At()
	other := map[string]string{"h1": "h2", "h2": "h1"}[at]
	hosts[at].kill(t)
	rig.Eventually(ctx, t, "the other manager has the dead host's function elsewhere", func() (bool, string) {
		f := free()
		return f.At() == other && f.Status.Healthy && f.Status.Host == other, f.At() + " " + f.Status.Message
	})
	hosts[at].start(t, both...)
	rig.Eventually(ctx, t, "the host is back", func() (bool, string) {
		h, err := c.Hosts().Get(ctx, at)
		return err == nil && h.Status.State == api.HostReady, string(h.Status.State)
	})
	second.apply(ctx, t, strings.Replace(document, "functions:\n", "functions:\n  more: {image: wire, host: "+at+"}\n", 1))
	if out, err := second.command(ctx, "get", "counters", "h1").CombinedOutput(); err != nil || !strings.Contains(string(out), "function/fw/in") {
		t.Errorf("counters by the other manager: %v %s", err, out)
	}

	if err := w.Up(ctx); err != nil {
		t.Fatal(err)
	}
	w.state(ctx, t, at, "ready")
	if n := w.events(ctx, t, "HostLost"); n != 1 {
		t.Errorf("%d hosts were lost, one was dead", n)
	}
	allArrived(t, s)
}
