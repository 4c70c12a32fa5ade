package xsk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// pair makes a veth pair in a fresh namespace and does something there.
func pair(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes network namespaces (sudo make test)")
	}
	path := filepath.Join(t.TempDir(), "net")
	if err := netns.Create(path, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netns.Delete(path); err != nil {
			t.Error(err)
		}
	}()
	space, err := netns.At(path)
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	if _, err := space.Veth(space, netns.VethOptions{HostName: "host", PeerName: "in", Alias: "weir:test", Quiet: true, Queues: 2}); err != nil {
		t.Fatal(err)
	}
	if err := space.Do(func() error { do(); return nil }); err != nil {
		t.Fatal(err)
	}
}

func xdpOf(t *testing.T, link string) netlink.LinkXdp {
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Error(err)
		return netlink.LinkXdp{}
	}
	if x := l.Attrs().Xdp; x != nil {
		return *x
	}
	return netlink.LinkXdp{}
}

// The program stands where it is wanted, is the same for all sockets of the link, and goes by Remove alone.
func TestSocketsOfQueues(t *testing.T) {
	if err := Supported(); err != nil {
		t.Fatal(err)
	}
	for generic, want := range map[bool]uint32{false: nl.XDP_ATTACHED_DRV, true: nl.XDP_ATTACHED_SKB} {
		pair(t, func() {
			fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(fd)
			if err := Remove("in"); err != nil {
				t.Errorf("remove nothing: %v", err)
			}
			id := uint32(0)
			for i, n := range []uint32{0, 1, 0} {
				if err := Put(Queue{Link: "in", N: n, Generic: generic}, fd); err != nil {
					t.Errorf("queue %d: %v", n, err)
				}
				x := xdpOf(t, "in")
				if x.AttachMode != want || i > 0 && x.ProgId != id {
					t.Errorf("queue %d, generic %t: %+v, want mode %d, and program %d", n, generic, x, want, id)
				}
				id = x.ProgId
			}
			if err := Put(Queue{Link: "in", N: 2, Generic: generic}, fd); err == nil || !strings.Contains(err.Error(), "want 0 to 1") {
				t.Errorf("a queue that is not there: %v", err)
			}
			if err := Put(Queue{Link: "none"}, fd); err == nil || !strings.Contains(err.Error(), "link none") {
				t.Errorf("a link that is not there: %v", err)
			}
			for range 2 {
				if err := Remove("in"); err != nil {
					t.Error(err)
				}
			}
			if x := xdpOf(t, "in"); x.Attached {
				t.Errorf("after Remove: %+v", x)
			}
		})
	}
}

// What the map cannot hold leaves no program behind, and a link whose MTU is too large says so.
func TestWhatCannotBeLed(t *testing.T) {
	pair(t, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		if err := Put(Queue{Link: "in"}, fd); err == nil {
			t.Error("a socket of another family is taken")
		}
		own, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(own)
		mtu := func(n int) {
			for _, name := range []string{"in", "host"} {
				l, err := netlink.LinkByName(name)
				if err == nil {
					err = netlink.LinkSetMTU(l, n)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
		mtu(9000)
		if err := Put(Queue{Link: "in"}, own); err == nil || !strings.Contains(err.Error(), "too large for XDP") {
			t.Errorf("an MTU of 9000: %v", err)
		}
		if x := xdpOf(t, "in"); x.Attached {
			t.Errorf("%+v is left", x)
		}
		mtu(3400) // what the agent gives such links at most
		if err := Put(Queue{Link: "in"}, own); err != nil {
			t.Errorf("an MTU of 3400: %v", err)
		}
	})
}
