package netns

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wgHost is a machine of the test: out reaches the other, in is where WireGuard decrypts.
type wgHost struct {
	out, in *Space
	key     [32]byte // private
	o       WireGuardOptions
}

func public(t *testing.T, key [32]byte) [32]byte {
	t.Helper()
	k, err := ecdh.X25519().NewPrivateKey(key[:])
	if err != nil {
		t.Fatal(err)
	}
	return [32]byte(k.PublicKey().Bytes())
}

func newKey(t *testing.T) [32]byte {
	t.Helper()
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return [32]byte(k.Bytes())
}

// needWireGuard skips where the kernel lacks it: e2e/vm runs these tests in a kernel that has it.
func needWireGuard(t *testing.T) {
	t.Helper()
	err := ProbeWireGuard()
	if errors.Is(err, ErrNoWireGuard) && os.Getenv("WEIR_TEST_WIREGUARD") == "" {
		t.Skip("kernel lacks WireGuard: e2e/vm runs this test in one that has it")
	}
	if err != nil {
		t.Fatal(err)
	}
}

const secretText = "a frame that nobody may read"

// Between two hosts VXLAN goes through WireGuard: on the underlay there is UDP of WireGuard and nothing else, whole frames of 1,500 octets
// arrive, VXLAN from outside does not, and keys are rotated and revoked.
func TestVXLANGoesThroughWireGuard(t *testing.T) {
	needWireGuard(t)
	dir := t.TempDir()
	var hosts [2]*wgHost
	for i := range hosts {
		h := &wgHost{key: newKey(t)}
		for _, x := range []struct {
			space **Space
			name  string
		}{{&h.out, "out"}, {&h.in, "in"}} {
			path := filepath.Join(dir, fmt.Sprint(x.name, i))
			if err := Create(path, Options{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := Delete(path); err != nil {
					t.Error(err)
				}
			})
			s, err := At(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			*x.space = s
		}
		hosts[i] = h
	}
	underlay := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	inner := [2]netip.Addr{netip.MustParseAddr("fd57::1"), netip.MustParseAddr("fd57::2")}
	if _, err := hosts[0].out.Veth(hosts[1].out, VethOptions{
		HostName: "eth0", PeerName: "eth0", Alias: "t:veth",
	}); err != nil {
		t.Fatal(err)
	}
	ip := func(i int, args ...string) {
		t.Helper()
		err := hosts[i].out.Do(func() error {
			out, err := exec.Command("ip", args...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("ip %v: %w %s", args, err, out)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const mtu = 1500
	settle := func() {
		t.Helper()
		for i, h := range hosts {
			o := VXLANOptions{Name: "vx0", Alias: "t:vx", MAC: [6]byte{2, 0, 0, 0, 0, byte(i + 1)}, VNI: 7, Port: 4789, Local: inner[i], Remote: inner[1-i], MTU: mtu}
			h.o.Name, h.o.Alias, h.o.Key, h.o.Port, h.o.Address, h.o.MTU = "wg0", "t:wg", h.key, 51820, inner[i], Padded(mtu+o.Overhead())
			if err := h.out.WireGuard(h.in, h.o); err != nil {
				t.Fatal(err)
			}
			if _, err := h.out.VXLANThrough(h.in, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range hosts {
		ip(i, "addr", "add", underlay[i].String()+"/24", "dev", "eth0")
		ip(i, "link", "set", "eth0", "up")
		hosts[i].o.Peers = []WireGuardPeer{{Key: public(t, hosts[1-i].key), Endpoint: netip.AddrPortFrom(underlay[1-i], 51820), Allowed: inner[1-i]}}
	}
	settle()
	settle() // safe to call again
	for i := range hosts {
		ip(i, "addr", "add", fmt.Sprintf("10.9.0.%d/24", i+1), "dev", "vx0")
		ip(i, "link", "set", "vx0", "up")
	}
	wire := capture(t, hosts[0].out, "eth0")
	reach := func(what string, want bool) {
		t.Helper()
		if got := talk(t, hosts[0].out, hosts[1].out, 8*time.Second, want); got != want {
			t.Fatalf("%s: frames pass: %t, want %t", what, got, want)
		}
	}
	reach("at first", true)
	udp, other := wire()
	if udp == 0 || len(other) > 0 {
		t.Errorf("on the underlay: %d packets of WireGuard, and %v", udp, other)
	}

	// An outsider's VXLAN finds no socket.
	before, err := hosts[0].out.Received("vx0")
	if err != nil {
		t.Fatal(err)
	}
	inject(t, hosts[1].out, underlay[0])
	if after, _ := hosts[0].out.Received("vx0"); after != before {
		t.Errorf("%d injected frames arrived", after-before)
	}

	// Another key at one end, made known at the other.
	hosts[1].key = newKey(t)
	hosts[0].o.Peers[0].Key = public(t, hosts[1].key)
	settle()
	reach("after a rotation", true)
	// Revoked.
	hosts[0].o.Peers = nil
	settle()
	reach("after the peer was removed", false)
}

// talk sends datagrams that fill a frame through the tunnel until one arrives whole, or until the time is over. If none is wanted it is short.
func talk(t *testing.T, from, to *Space, patience time.Duration, want bool) bool {
	t.Helper()
	if !want {
		patience = time.Second
	}
	payload := append([]byte(secretText), make([]byte, 1500-28-len(secretText))...)
	var in net.PacketConn
	if err := to.Do(func() (err error) {
		in, err = net.ListenPacket("udp4", "10.9.0.2:7777")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out net.Conn
	if err := from.Do(func() (err error) {
		out, err = net.Dial("udp4", "10.9.0.2:7777")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	b := make([]byte, 2000)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		_, _ = out.Write(payload)
		_ = in.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if n, _, err := in.ReadFrom(b); err == nil && bytes.Equal(b[:n], payload) {
			return true
		}
	}
	return false
}

// capture notes what passes an interface; the function ends it and tells how many packets were WireGuard's UDP (fragments of them counted),
// and what else there was besides ARP and IPv6 neighbour discovery.
func capture(t *testing.T, s *Space, link string) func() (wireguard int, other []string) {
	t.Helper()
	fd := -1
	err := s.Do(func() error {
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(binary.BigEndian.Uint16([]byte{0, 3})<<8)); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 3 << 8, Ifindex: l.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000})
	return func() (wireguard int, other []string) {
		defer unix.Close(fd)
		b := make([]byte, 4096)
		for {
			n, _, err := unix.Recvfrom(fd, b, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return wireguard, other
			}
			f := b[:n]
			switch kind := binary.BigEndian.Uint16(f[12:]); {
			case bytes.Contains(f, []byte(secretText)):
				other = append(other, "the frame's text")
			case kind == 0x806 || kind == 0x86dd && f[20] == 58 || kind == 0x86dd && f[20] == 0:
			case kind == 0x800 && f[23] == 17 && (binary.BigEndian.Uint16(f[20:])&0x1fff != 0 || binary.BigEndian.Uint16(f[36:]) == 51820):
				wireguard++
			default:
				other = append(other, fmt.Sprintf("%x", f[:min(n, 48)]))
			}
		}
	}
}

// inject sends VXLAN with the tunnel's identifier to a host's address.
func inject(t *testing.T, s *Space, to netip.Addr) {
	t.Helper()
	err := s.Do(func() error {
		var d net.Dialer
		c, err := d.DialContext(context.Background(), "udp4", netip.AddrPortFrom(to, 4789).String())
		if err != nil {
			return err
		}
		defer c.Close()
		frame := append([]byte{8, 0, 0, 0, 0, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 9, 9, 9, 9, 9, 8, 6}, make([]byte, 46)...)
		for range 20 {
			_, _ = c.Write(frame) // refused: there is no socket
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
