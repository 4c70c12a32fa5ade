package join

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/pki"
)

// document is a chain at one host with both stations.
func (w *world) document(host string) string {
	return "endpoints:\n" +
		"  alice: {netns: " + w.Alice() + ", interface: eth0, address: " + rig.AliceAddr + "/24, host: " + host + "}\n" +
		"  bob: {netns: " + w.Bob() + ", interface: eth0, address: " + rig.BobAddr + "/24, host: " + host + "}\n" +
		"functions:\n  fw: {image: firewall, config: {allow: [udp, icmp]}, host: " + host + "}\n" +
		"chains: {web: fw}\n" +
		"policies:\n  guests: {from: alice, to: bob, match: [udp, icmp], chain: web}\n"
}

// wires is the same with a function that the kernel forwards for: it needs no processor of its own, so no frame waits for one.
func (w *world) wires(host string) string {
	return strings.Replace(w.document(host), "image: firewall, config: {allow: [udp, icmp]}", "image: wire", 1)
}

// steered tells how many packets the function has taken.
func (w *world) steered(ctx context.Context, t *testing.T, host string) uint64 {
	t.Helper()
	var c api.Counters
	if err := w.Get(ctx, &c, "counters", host); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Ports {
		if p.Name == "function/fw/in" {
			return p.Tx.Packets
		}
	}
	t.Fatalf("no port of fw at %s: %+v", host, c.Ports)
	return 0
}

func TestFunctionsOfHostsElsewhereAreAsOnesOwn(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t)
	w.join(ctx, t, "h1")
	w.join(ctx, t, "h2")
	w.MustApply(ctx, t, w.document("h2"))
	if _, err := w.Ping(ctx, w.Alice(), rig.BobAddr, 5, "0.05"); err != nil {
		t.Fatal(err)
	}
	if n := w.steered(ctx, t, "h2"); n < 5 {
		t.Errorf("%d packets went through the function", n)
	}
	if out, err := w.WeirInput(ctx, "hello", "function", "exec", "-i", "fw", "--", "/bin/firewall", "-h"); err == nil && out == "" {
		t.Error("exec: no answer")
	}
	if out, err := w.Weir(ctx, "function", "logs", "fw"); err != nil || !strings.Contains(out, "rules in force") {
		t.Errorf("logs: %v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "fw.pcapng")
	captured := make(chan error, 1)
	go func() {
		_, err := w.Weir(ctx, "capture", "fw/out", "--count", "2", "--duration", "20s", "--filter", "icmp", "-w", file)
		captured <- err
	}()
	rig.Eventually(ctx, t, "the capture has begun", func() (bool, string) {
		i, err := os.Stat(file)
		return err == nil && i.Size() > 0, fmt.Sprint(err)
	})
	if _, err := w.Ping(ctx, w.Alice(), rig.BobAddr, 2, "0.05"); err != nil {
		t.Fatal(err)
	}
	if err := <-captured; err != nil {
		t.Errorf("capture: %v", err)
	}
	if out, err := w.Run(ctx, "", "tcpdump", "-nr", file); err != nil || strings.Count(out, "ICMP echo") != 2 {
		t.Errorf("capture: %v\n%s", err, out)
	}
	_, err := w.Weir(ctx, "function", "exec", "fw", "--", "/no/such/program")
	if err == nil {
		t.Error("exec of a program that is not there: no error")
	}
	var times []time.Duration
	for range 20 {
		began := time.Now()
		if _, err := w.Weir(ctx, "get", "counters", "h2"); err != nil {
			t.Fatal(err)
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	t.Logf("weir get counters of a host elsewhere, the command included: p50 %v, max %v", times[10], times[19])
	if _, err := w.Weir(ctx, "apply", "-f", "-"); err == nil {
		t.Error("an empty document was taken")
	}
	bad := strings.Replace(w.document("h2"), "image: firewall", "image: nonesuch", 1)
	if out, err := w.Apply(ctx, bad); err == nil || !strings.Contains(err.Error(), "nonesuch") {
		t.Errorf("an image that host h2 lacks: %v\n%s", err, out)
	}
}

func TestTrafficGoesOnWithoutManagerAndAgent(t *testing.T) {
	w, ctx := newWorld(t)
	h := w.join(ctx, t, "h1")
	w.MustApply(ctx, t, w.wires("h1"))
	s, err := rig.NewStream(w.Alice(), w.Bob(), rig.BobAddr, 9000, 1000)
	if err != nil {
		t.Fatal(err)
	}
	on := func(what string) {
		t.Helper()
		if err := s.Await(ctx, 500); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	on("all is up")
	if err := w.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	on("the manager is dead")
	h.kill(t)
	on("the agent is dead, too")
	h.start(t) // no token, no manager
	rig.Eventually(ctx, t, "the agent starts without a manager", func() (bool, string) {
		return strings.Contains(h.tail(), "going on with what it said last"), h.tail()
	})
	on("the agent runs again, without a manager")
	if err := w.Up(ctx); err != nil {
		t.Fatal(err)
	}
	w.state(ctx, t, "h1", "ready")
	on("the manager is back")
	allArrived(t, s)
	w.MustApply(ctx, t, strings.Replace(w.wires("h1"), "match: [udp, icmp]", "match: [icmp]", 1)) // and it is heard again
}

func TestCertificatesAreRenewedUnderWay(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t, "--certificate-life", "12s")
	h := w.join(ctx, t, "h1")
	w.MustApply(ctx, t, w.document("h1"))
	serial := func() time.Time {
		id, err := pki.LoadIdentity(filepath.Join(h.root, "agent.pem"))
		if err != nil {
			t.Fatal(err)
		}
		_, until := id.Valid()
		return until
	}
	first := serial()
	rig.Eventually(ctx, t, "a renewal", func() (bool, string) {
		now := serial()
		return now.Sub(first) >= 7*time.Second, fmt.Sprintf("valid until %v, at first %v", now, first)
	})
	if _, err := w.Ping(ctx, w.Alice(), rig.BobAddr, 3, "0.05"); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, "the host is asked over its new connection", func() (bool, string) {
		_, err := w.Weir(ctx, "get", "counters", "h1")
		return err == nil, fmt.Sprint(err)
	})
	w.MustApply(ctx, t, strings.Replace(w.document("h1"), "[udp, icmp]}", "[icmp]}", 1))
	if n := w.events(ctx, t, "HostLost"); n != 0 {
		t.Errorf("the host was lost %d times", n)
	}
}

func TestWhoMustNotJoinIsToldWhy(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t)
	used := w.token(ctx, t)
	h := w.host(ctx, t, "h1")
	h.start(t, "--token-file", used)
	w.state(ctx, t, "h1", "ready")
	other, octx := newWorldBeside(t)
	short := w.token(ctx, t, "--ttl", "1s")
	expired := time.Now().Add(2 * time.Second)

	x := w.host(ctx, t, "h2")
	text, err := os.ReadFile(used)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(strings.TrimSpace(string(text)), ".")
	secret := []byte(parts[2])
	slices.Reverse(secret)
	wrong := write(t, strings.Join([]string{parts[0], parts[1], string(secret), parts[3]}, "."))
	rig.Eventually(ctx, t, "the token expires", func() (bool, string) { return time.Now().After(expired), "" })
	for name, c := range map[string]struct {
		args []string
		code int
		says []string
	}{
		"no token":                {nil, 7, []string{"has not joined", "weir token create", "--token-file"}},
		"no token file":           {[]string{"--token-file", "/no/such/file"}, 3, []string{"/no/such/file", "no such file"}},
		"a file that is no token": {[]string{"--token-file", write(t, "hello")}, 3, []string{"no join token", "weir token create"}},
		"used":                    {[]string{"--token-file", used}, 7, []string{"used by host h1", "works once"}},
		"wrong secret":            {[]string{"--token-file", wrong}, 7, []string{"no such join token"}},
		"expired":                 {[]string{"--token-file", short}, 7, []string{"expired at", "the manager's clock says", "--ttl"}},
		"of another Weir":         {[]string{"--token-file", other.token(octx, t)}, 7, []string{"not by the authority that the token names"}},
		"for another host":        {[]string{"--token-file", w.token(ctx, t, "--host", "h9")}, 7, []string{"is for host h9"}},
		"a name that is taken":    {[]string{"--token-file", w.token(ctx, t), "--host", "h1"}, 5, []string{"h1 has joined already", "--replace --host h1"}},
		"a name that is none":     {[]string{"--token-file", used, "--host", "No Name"}, 2, []string{"--host"}},
		"a manager that is none":  {[]string{"--token-file", used, "--manager", "ftp://x"}, 2, []string{"ftp://x", "https://HOST:PORT"}},
	} {
		_, err := x.weir(ctx, x.agentArgs(c.args...)...)
		var exit *rig.ExitError
		if !errors.As(err, &exit) || exit.Code != c.code {
			t.Errorf("%s: %v, want exit code %d", name, err, c.code)
			continue
		}
		for _, word := range c.says {
			if !strings.Contains(exit.Stderr, word) {
				t.Errorf("%s: does not say %q: %s", name, word, exit.Stderr)
			}
		}
		if _, err := os.Stat(filepath.Join("/run/weir", x.instance())); err == nil {
			t.Errorf("%s: left /run/weir/%s", name, x.instance())
		}
	}
	w.state(ctx, t, "h1", "ready") // who was there is not hurt

	// With leave to replace it, the second one joins, and the first ends, saying why.
	y := w.host(ctx, t, "h1")
	y.start(t, "--token-file", w.token(ctx, t, "--host", "h1", "--replace"))
	rig.Eventually(ctx, t, "the former agent ends", func() (bool, string) {
		select {
		case <-h.done:
			return true, ""
		default:
			return false, h.tail()
		}
	})
	if !strings.Contains(h.tail(), "no longer accepted") {
		t.Errorf("the former agent: %s", h.tail())
	}
	w.state(ctx, t, "h1", "ready")
	if n := w.events(ctx, t, "HostReplaced"); n != 1 {
		t.Errorf("%d events HostReplaced", n)
	}

	// With a token of its own it comes back, although it has a certificate yet: it is not accepted any more.
	h.start(t, "--token-file", w.token(ctx, t, "--host", "h1", "--replace"))
	rig.Eventually(ctx, t, "the first agent is back", func() (bool, string) { return w.events(ctx, t, "HostReplaced") == 2, h.tail() })
	w.state(ctx, t, "h1", "ready")
}

// newWorldBeside is another Weir, in a namespace of its own.
func newWorldBeside(t *testing.T) (*world, context.Context) {
	t.Helper()
	return newWorld(t)
}

func TestDownLeavesNothingOfAnAgent(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t)
	h := w.host(ctx, t, "h1")
	before, err := rig.Snapshot(ctx, h.netns)
	if err != nil {
		t.Fatal(err)
	}
	h.start(t, "--token-file", w.token(ctx, t))
	w.state(ctx, t, "h1", "ready")
	w.MustApply(ctx, t, w.document("h1"))
	w.state(ctx, t, "h1", "ready")
	// more are the facts about the agent that were none before, by their kinds.
	more := func() (left []string, kinds map[string]bool) {
		after, err := rig.Snapshot(ctx, h.netns)
		if err != nil {
			t.Fatal(err)
		}
		kinds = map[string]bool{}
		for _, fact := range after {
			if !slices.Contains(before, fact) && (strings.Contains(fact, h.instance()) || strings.Contains(fact, h.root)) {
				left = append(left, fact)
				kind, _, _ := strings.Cut(fact, ": ")
				kinds[kind] = true
			}
		}
		return left, kinds
	}
	rig.Eventually(ctx, t, "the agent shows", func() (bool, string) { // else the comparison proves nothing
		facts, kinds := more()
		return kinds["cgroup"] && kinds["mount"] && kinds["/run/weir"], strings.Join(facts, "\n")
	})
	if _, err := h.weir(ctx, "down"); err != nil {
		t.Fatal(err)
	}
	<-h.done
	rig.Eventually(ctx, t, "nothing of it is left", func() (bool, string) { // what the kernel frees in the background takes a moment
		left, _ := more()
		return len(left) == 0, strings.Join(left, "\n")
	})
	left, err := os.ReadDir(h.root)
	if err != nil && !os.IsNotExist(err) || len(left) != 0 {
		t.Errorf("left in %s: %v, %v", h.root, left, err)
	}
	w.state(ctx, t, "h1", "lost")
	for _, args := range [][]string{{"logs", "fw"}, {"exec", "fw", "--", "ls"}, {"restart", "fw", "--timeout", "0"}} {
		_, err := w.Weir(ctx, append([]string{"function"}, args...)...)
		var exit *rig.ExitError
		if !errors.As(err, &exit) || exit.Code != 1 || !strings.Contains(exit.Stderr, "host h1 is lost: its agent has been silent for ") {
			t.Errorf("%v of a function at a lost host: %v", args, err)
		}
	}
}

// A machine that is suspended for a while, or has no processor for manager and agent, does not take living hosts for lost when it goes on.
func TestAManagerThatWasHeldUpLosesNobody(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t)
	h := w.join(ctx, t, "h1")
	w.MustApply(ctx, t, w.wires("h1"))
	signal := func(pid int, s syscall.Signal) {
		if err := syscall.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range []int{h.cmd.Process.Pid, w.PID()} {
		signal(pid, syscall.SIGSTOP)
		defer signal(pid, syscall.SIGCONT)
	}
	time.Sleep(api.BeatLost + api.Beat)
	signal(w.PID(), syscall.SIGCONT)
	time.Sleep(api.Beat / 2) // it looks at its hosts four times a second
	signal(h.cmd.Process.Pid, syscall.SIGCONT)
	w.MustApply(ctx, t, strings.Replace(w.wires("h1"), "match: [udp, icmp]", "match: [icmp]", 1))
	if n := w.events(ctx, t, "HostLost"); n != 0 {
		t.Errorf("the host was lost %d times", n)
	}
}
