package fabric

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/netns"
)

// What does not belong into a fabric is refused with a clear word, and what is there goes on.
func TestWhatDoesNotBelongIsRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t, "fig2.yaml", nil)
	b.reach("vm1", "10.0.0.2")
	b.apply(b.example("fig2-policy.yaml"))
	for _, x := range []struct {
		name string
		do   func(*bed)
	}{
		{"a switch that speaks OpenFlow 1.0 only", (*bed).oldSwitch},
		{"garbage on the controller's port", (*bed).garbage},
		{"two switches of one datapath id", (*bed).duplicateDPID},
		{"an agent with a wrong token", (*bed).wrongToken},
		{"an agent with an expired token", (*bed).expiredToken},
		{"a second agent of one name", (*bed).secondAgent},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := b.in(t)
			x.do(b)
			b.reach("vm1", "10.0.0.2")
			b.tableI()
		})
	}
}

// told waits for an event or a switch's message that contains all words.
func (b *bed) told(words ...string) {
	b.t.Helper()
	has := func(text string) bool {
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	}
	b.await(fmt.Sprintf("something tells of %q", words), func() (bool, string) {
		l, err := b.client.Switches().List(b.ctx, api.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, s := range l.Items {
			if has(s.Name + " " + string(s.Status.State) + " " + s.Status.DatapathID + " " + s.Status.Message) {
				return true, ""
			}
		}
		var last string
		events, err := b.client.Events().List(b.ctx, api.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, e := range events.Items {
			if last = e.Reason + " " + e.Object + " " + e.Message; has(last) {
				return true, ""
			}
		}
		return false, "the last event: " + last
	})
}

func (b *bed) garbage() {
	var wg sync.WaitGroup
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "\x04\x00\x00\x07\x00\x00\x00\x00", "\x04\x00\xff\xff", "\x00"} {
		var c net.Conn
		err := netns.Do(b.netns("ovs"), func() (err error) {
			c, err = net.DialTimeout("tcp", "100.64.0.1:6653", patience)
			return err
		})
		if err != nil {
			b.t.Fatal(err)
		}
		if _, err := c.Write([]byte(text)); err != nil {
			b.t.Error(err)
		}
		wg.Go(func() {
			_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond))
			_, _ = io.Copy(io.Discard, c) // until it hung up; or it waits for the rest
			_ = c.Close()
		})
	}
	wg.Wait()
}

// vsctl changes the switches behind the testbed's back.
func (b *bed) vsctl(args ...string) {
	b.t.Helper()
	argv := append([]string{"ovs-vsctl", "--db=unix:/run/weir-testbed/" + b.name + "/ovs/db.sock", "--timeout=10"}, args...)
	if out, err := b.exec("ovs", argv...); err != nil {
		b.t.Fatal(out)
	}
}

func (b *bed) strange(name, protocol, dpid string) {
	b.t.Helper()
	b.vsctl("add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure", "protocols="+protocol,
		"other-config:datapath-id="+dpid, "other-config:dp-desc="+name, "--", "set-controller", name, "ssl:100.64.0.1:6653")
}

func (b *bed) oldSwitch() {
	b.strange("old", "OpenFlow10", "00000000000000aa")
	defer b.vsctl("del-br", "old")
	b.told("1.0 at most", "1.3")
}

func (b *bed) duplicateDPID() {
	b.strange("twin", "OpenFlow13", "0000000000000001")
	defer b.vsctl("del-br", "twin")
	b.told("0000000000000001", "datapath id")
}

// stray runs an agent in nfv1's namespace until it ends, and wants it to say why.
func (b *bed) stray(token string, args []string, words ...string) {
	b.t.Helper()
	dir := b.t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	argv := append([]string{"--net=" + b.netns("nfv1"), "--", b.bin, "agent", "--name", b.name[:7] + "x", "--root", dir,
		"--manager", "https://100.64.0.1:7443", "--token-file", file}, args...)
	out, err := exec.CommandContext(ctx, "nsenter", argv...).CombinedOutput()
	_ = exec.CommandContext(b.ctx, b.bin, "down", "--yes", "--name", b.name[:7]+"x", "--root", dir).Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || ctx.Err() != nil {
		b.t.Fatalf("the agent does not end with an error: %v\n%s", err, out)
	}
	for _, w := range words {
		if !strings.Contains(string(out), w) {
			b.t.Errorf("it does not say %q: %s", w, out)
		}
	}
	if strings.Contains(string(out), token) {
		b.t.Errorf("it prints the token")
	}
}

func (b *bed) wrongToken() {
	good := strings.TrimSpace(b.must("token", "create"))
	parts := strings.Split(good, ".")
	if len(parts) != 4 {
		b.t.Fatalf("a token of %d parts", len(parts))
	}
	parts[2] = strings.Repeat("0", len(parts[2]))
	b.stray(strings.Join(parts, "."), []string{"--host", "h9"}, "token")
	b.stray("nonsense", []string{"--host", "h9"}, "token")
}

func (b *bed) expiredToken() {
	token := strings.TrimSpace(b.must("token", "create", "--ttl", "1s"))
	time.Sleep(1100 * time.Millisecond) // its life
	b.stray(token, []string{"--host", "h9"}, "token", "expired")
}

func (b *bed) secondAgent() {
	token := strings.TrimSpace(b.must("token", "create"))
	b.stray(token, []string{"--host", "nfv1"}, "nfv1")
}
