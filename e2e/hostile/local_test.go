package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(nobodysEnv); text != "" {
		if err := beNobody(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	secretValue = "canary-of-a-secret-value"
	maxDaemon   = 300 << 10 // KiB of memory of the daemon
	maxAudit    = 1 << 20   // bytes that a thousand refusals may add to the audit log
	maxWait     = time.Second
	crowdTime   = 12 * time.Second // longer than a stranger's connection may last
)

// nobody is a process of uid 65534.
type nobody struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func start(t *testing.T, r *rig.Rig, p prey) *nobody {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	n := &nobody{cmd: r.Command(t.Context(), "", self)}
	n.cmd.Env = []string{nobodysEnv + "=" + string(text)}
	n.cmd.Dir = "/"
	n.cmd.Stderr = os.Stderr
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if n.in, err = n.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	n.lines = bufio.NewScanner(out)
	n.lines.Buffer(nil, 1<<20)
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return n
}

// next is what nobody tells; false: it has ended.
func (n *nobody) next(t *testing.T) (a attempted, more bool) {
	t.Helper()
	if !n.lines.Scan() {
		if err := n.cmd.Wait(); err != nil {
			t.Fatalf("nobody: %v", err)
		}
		return a, false
	}
	if err := json.Unmarshal(n.lines.Bytes(), &a); err != nil {
		t.Fatalf("nobody says %q: %v", n.lines.Text(), err)
	}
	return a, true
}

func (n *nobody) goOn(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(n.in, "\n"); err != nil {
		t.Fatal(err)
	}
}

// TestALocalUser: what a user of the machine without any rights tries against Weir, before it starts and while it runs. Each attempt is refused, and the
// table says by what.
func TestALocalUser(t *testing.T) {
	for _, sw := range switches {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.Bare(t, rig.Options{Open: true, Args: []string{"--switch", sw, "--openflow", "127.0.0.1:6653", "--agents", "127.0.0.1:7412"}})
			var table strings.Builder
			w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ATTEMPT\tSTOPPED BY")
			p := prey{Instance: r.Name, Run: filepath.Join("/run/weir", r.Name), Root: r.Root, Bin: r.Bin, API: "127.0.0.1:7411", Agents: "127.0.0.1:7412", Fabric: "127.0.0.1:6653",
				Secret: secretValue, Token: "no token yet", Bridge: "weir-" + r.Name}
			fmt.Fprintf(w, "take the API's port before Weir starts\t%s\n", squatted(ctx, t, r, p))
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			p = settle(ctx, t, r, p)
			p.Do = "attempts"
			n := start(t, r, p)
			attempts := 1
			for {
				a, more := n.next(t)
				if !more {
					break
				}
				switch {
				case a.Pause:
					look[a.Name](ctx, t, r)
					n.goOn(t)
					continue
				case a.Passed:
					t.Errorf("%s: it goes through", a.Name)
					a.Stopped = "NOTHING"
				}
				attempts++
				fmt.Fprintf(w, "%s\t%s\n", a.Name, a.Stopped)
			}
			_ = w.Flush()
			t.Logf("%d attempts\n%s", attempts, table.String())
			if attempts < len(localAttempts()) {
				t.Errorf("%d attempts, want %d", attempts, len(localAttempts()))
			}
			unharmed(ctx, t, r, p)
		})
	}
}

// squatted starts Weir while somebody has its port.
func squatted(ctx context.Context, t *testing.T, r *rig.Rig, p prey) string {
	t.Helper()
	p.Do = "squat"
	n := start(t, r, p)
	if a, more := n.next(t); !more || !a.Pause {
		t.Fatalf("%+v: want the port to be taken", a)
	}
	err := r.Up(ctx)
	if err == nil || !strings.Contains(err.Error(), p.API) {
		t.Errorf("weir up where the port is taken: %v: want an error that names %s", err, p.API)
	}
	n.goOn(t)
	a, _ := n.next(t)
	if strings.Contains(strings.ToLower(a.Stopped), "bearer") {
		t.Errorf("a token came to the port that nobody has: %q", a.Stopped)
	}
	if _, more := n.next(t); more {
		t.Error("nobody says more")
	}
	return "weir up ends and names the port; no token is sent there"
}

// settle gives nobody something to find.
func settle(ctx context.Context, t *testing.T, r *rig.Rig, p prey) prey {
	t.Helper()
	if _, err := r.WeirInput(ctx, secretValue, "secret", "set", "canary"); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, r.Endpoints()+"functions:\n  w: {image: wire, secrets: [canary]}\nchains:\n  c: w\npolicies:\n  p: {from: alice, to: bob, match: [icmp], chain: c}\n")
	token, err := os.ReadFile(filepath.Join(r.Root, "token"))
	if err != nil {
		t.Fatal(err)
	}
	var f api.Function
	if err := r.Get(ctx, &f, "function", "w"); err != nil {
		t.Fatal(err)
	}
	p.PID, p.Function, p.Token = r.PID(), f.Status.PID, string(token[:16]) // not all of it: nobody's environment is nobody's
	p.Namespace, p.Container = filepath.Join(p.Run, "sandboxes", "w.1", "net"), filepath.Join(r.Root, "native", "logs", "w.log")
	for _, path := range []string{p.Namespace, p.Container, filepath.Join(r.Root, "secrets.key"), filepath.Join(r.Root, "audit.log"), filepath.Join(p.Run, "lock"), filepath.Join(p.Run, "api.sock")} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%v: what nobody looks for is not there", err)
		}
	}
	return p
}

// look is what the test sees to while an attempt waits.
var look = map[string]func(ctx context.Context, t *testing.T, r *rig.Rig){
	"apply": func(ctx context.Context, t *testing.T, r *rig.Rig) {
		r.MustApply(ctx, t, "functions:\n  more: {image: firewall, config: {allow: [tcp]}}\n")
		if _, err := r.Weir(ctx, "function", "restart", "more"); err != nil {
			t.Error(err)
		}
	},
	"refusals": func(_ context.Context, t *testing.T, r *rig.Rig) {
		b, err := os.ReadFile(filepath.Join(r.Root, "audit.log"))
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > maxAudit {
			t.Errorf("the audit log has %d bytes", len(b))
		}
		for line := range strings.Lines(string(b)) {
			var rec api.AuditRecord
			if err := json.Unmarshal([]byte(line), &rec); err != nil || rec.Who == "forged" {
				t.Errorf("a line of the audit log: %q: %v", line, err)
			}
		}
	},
	"crowd": func(ctx context.Context, t *testing.T, r *rig.Rig) {
		most, requests := time.Duration(0), 0
		for end := time.Now().Add(crowdTime); time.Now().Before(end); requests++ {
			took := time.Duration(0)
			for range 2 { // a machine that stands still once is nobody's doing
				began := time.Now()
				if _, err := r.Weir(ctx, "get", "functions", "--url", "http://127.0.0.1:7411", "--token-file", filepath.Join(r.Root, "token")); err != nil {
					t.Errorf("the operator is not answered: %v", err)
					return
				}
				if took = time.Since(began); took <= maxWait {
					break
				}
			}
			most = max(most, took)
		}
		t.Logf("in the crowd: %d requests, the slowest took %v", requests, most.Round(time.Millisecond))
		if most > maxWait {
			t.Errorf("the operator waited %v: want at most %v", most, maxWait)
		}
	},
}

// unharmed fails the test if the daemon, its function or its traffic suffered.
func unharmed(ctx context.Context, t *testing.T, r *rig.Rig, p prey) {
	t.Helper()
	var f api.Function
	if err := r.Get(ctx, &f, "function", "w"); err != nil || f.Status.PID != p.Function || f.Status.Restarts != 0 {
		t.Errorf("the function: process %d, %d restarts, %v: want process %d", f.Status.PID, f.Status.Restarts, err, p.Function)
	}
	if out, err := r.Run(ctx, r.Alice(), "ping", "-q", "-c", "5", "-i", "0.1", "-W", "2", rig.BobAddr); err != nil {
		t.Errorf("alice and bob: %v\n%s", err, out)
	}
	var functions api.List[api.Function]
	if err := r.Get(ctx, &functions, "functions"); err != nil || len(functions.Items) != 2 {
		t.Errorf("%d functions, %v: want those that the operator made", len(functions.Items), err)
	}
	var switches api.List[api.Switch]
	if err := r.Get(ctx, &switches, "switches"); err != nil || len(switches.Items) != 0 {
		t.Errorf("%d switches, %v: want none", len(switches.Items), err)
	}
	if err := exec.CommandContext(ctx, "test", "!", "-e", "/run/weir/squatted").Run(); err != nil {
		t.Error("somebody made /run/weir/squatted")
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.PID()))
	if err = errors.Join(err, ctx.Err()); err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(b)
	if m == nil {
		t.Fatal("the daemon is gone")
	}
	kib, _ := strconv.Atoi(string(m[1]))
	t.Logf("the daemon used at most %d KiB", kib)
	if kib > maxDaemon {
		t.Errorf("the daemon used %d KiB: want at most %d", kib, maxDaemon)
	}
}
