package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/agent/kernel"
	"weir.dev/weir/api"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Two hosts' agents join them by encrypted tunnels: the sockets are not in the hosts, what one sends arrives at the other, a host without the
// key is refused, and without tunnels nothing is left. Run in a kernel with WireGuard by e2e/vm.
func TestSealedTunnelsJoinTwoHosts(t *testing.T) {
	if err := netns.ProbeWireGuard(); errors.Is(err, netns.ErrNoWireGuard) && os.Getenv("WEIR_TEST_WIREGUARD") == "" {
		t.Skip("kernel lacks WireGuard: e2e/vm runs this test in one that has it")
	} else if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var agents [2]*Set
	var spaces [2]string
	for i := range agents {
		spaces[i] = filepath.Join(dir, fmt.Sprint("h", i))
		if err := netns.Create(spaces[i], netns.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netns.Delete(spaces[i]); err != nil {
				t.Error(err)
			}
		})
		in := instance.Instance{Name: fmt.Sprint("seal", i), Root: filepath.Join(dir, fmt.Sprint("root", i)), Run: filepath.Join(dir, fmt.Sprint("run", i))}
		for _, d := range []string{in.Root, in.Run} {
			if err := os.MkdirAll(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		agents[i] = New(Options{Instance: in, Host: fmt.Sprint("host", i), Kernel: kernel.Host{}, Now: time.Now, Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})})
		agents[i].Prepare()
		if f := agents[i].sealing.feature; !f.OK {
			t.Fatalf("%+v", f)
		}
		again := New(agents[i].Options)
		again.Prepare()
		if again.Key() != agents[i].Key() {
			t.Error("an agent that starts again has another key")
		}
	}
	if _, err := netns.Veth(spaces[0], spaces[1], netns.VethOptions{HostName: "eth0", PeerName: "eth0", Alias: "t:veth"}); err != nil {
		t.Fatal(err)
	}
	run := func(i int, argv ...string) (string, error) {
		var out []byte
		err := netns.Do(spaces[i], func() (err error) {
			out, err = exec.Command(argv[0], argv[1:]...).CombinedOutput()
			return err
		})
		return string(out), err
	}
	must := func(i int, argv ...string) {
		t.Helper()
		if out, err := run(i, argv...); err != nil {
			t.Fatal(argv, err, out)
		}
	}
	seal := func(i int, tunnels ...api.Tunnel) error {
		wanted := map[string]api.Tunnel{}
		for _, x := range tunnels {
			wanted[x.Host] = x
		}
		return netns.Do(spaces[i], func() error {
			if _, err := agents[i].seal(wanted, 1500); err != nil {
				return err
			}
			for _, x := range tunnels {
				if err := agents[i].makeLink(x, 1500); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i := range agents {
		other := agents[1-i]
		must(i, "ip", "addr", "add", agents[i].Address.String()+"/24", "dev", "eth0")
		must(i, "ip", "link", "set", "eth0", "up")
		tunnel := api.Tunnel{Host: other.Host, Remote: other.Address.String(), VNI: 9, Port: 4789, Key: other.Key()}
		if err := seal(i, tunnel); err != nil {
			t.Fatal(err)
		}
		link := agents[i].Instance.Link("tunnel/" + other.Host)
		must(i, "ip", "addr", "add", fmt.Sprintf("10.9.0.%d/24", i+1), "dev", link)
		must(i, "ip", "link", "set", link, "up")
		if err := seal(i, tunnel); err != nil { // again: it stays as it is
			t.Fatal(err)
		}
		if err := netns.Do(spaces[i], func() error { // nobody but the tunnels' namespace has a socket of VXLAN
			c, err := net.ListenPacket("udp", ":4789")
			if err == nil {
				c.Close()
			}
			return err
		}); err != nil {
			t.Errorf("VXLAN's port is taken in the host: %v", err)
		}
	}
	answers := func() bool {
		_, err := run(0, "ping", "-c", "1", "-W", "1", "-s", "1472", "10.9.0.2")
		return err == nil
	}
	for end := time.Now().Add(20 * time.Second); !answers(); {
		if time.Now().After(end) {
			t.Fatal("the other host does not answer")
		}
	}
	if err := seal(1); err != nil { // no tunnels any more
		t.Fatal(err)
	}
	if netns.Exists(agents[1].Instance.TunnelNetns()) {
		t.Error("the tunnels' namespace is left")
	}
	for end := time.Now().Add(20 * time.Second); answers(); { // the kernel takes a namespace's links down after the call
		if time.Now().After(end) {
			t.Fatal("a host without tunnels answers")
		}
	}
	if err := seal(0); err != nil {
		t.Fatal(err)
	}
}
