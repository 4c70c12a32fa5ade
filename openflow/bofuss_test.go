//go:build bofuss

package openflow_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
	. "weir.dev/weir/openflow"
)

// TestBOFUSS drives a second, independent OpenFlow 1.3 switch; testdata/bofuss.sh builds it. $BOFUSS is its directory.
func TestBOFUSS(t *testing.T) {
	dir, err := os.MkdirTemp("", "bofuss-")
	if err != nil {
		t.Fatal(err)
	}
	ns, socket := filepath.Join(dir, "ns"), filepath.Join(dir, "dp.sock")
	if err := netns.Create(ns, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() {
		cancel()
		if err := netns.Delete(ns); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	inside := func(argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + ns}, argv...)...)
	}
	for i := 1; i <= 3; i++ {
		v, w := fmt.Sprintf("v%d", i), fmt.Sprintf("w%d", i)
		for _, argv := range [][]string{{"ip", "link", "add", v, "up", "type", "veth", "peer", "name", w}, {"ip", "link", "set", w, "up"}} {
			if out, err := inside(argv...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", argv, err, out)
			}
		}
	}
	var log strings.Builder
	dp := inside(filepath.Join(os.Getenv("BOFUSS"), "udatapath/ofdatapath"), "--no-slicing", "--no-local-port", "-d", "00000000000a",
		"-i", "v1,v2,v3", "punix:"+socket)
	dp.Stderr = &log
	if err := dp.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dp.Process.Kill()
		dp.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	var c *Conn
	for c == nil {
		if c, err = Dial(ctx, "unix:"+socket, Options{}); err != nil {
			select {
			case <-ctx.Done():
				t.Fatal(err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	defer c.Close()
	if f := c.Features(); f.DatapathID != 0xa || f.Tables != 64 {
		t.Errorf("features %+v", f)
	}
	bofussEntries(t, ctx, c)

	// A frame goes out by packet-out, and one comes in: to another port by an entry, and to the controller.
	if err := c.Transact(ctx, &FlowMod{Command: FlowDelete, Table: TableAll},
		&FlowMod{Priority: 5, Match: Match{EthType(0x88cc)}, Instructions: apply(Output{PortController, MaxLenNoBuffer})},
		&FlowMod{Priority: 6, Match: Match{InPort(2), EthType(0x0800), IPSrc(cidr("10.0.0.1/32"))}, Instructions: apply(Output{Port: 1})}); err != nil {
		t.Fatal(err)
	}
	udp := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0x66, 0xbb, 10, 0, 0, 1, 10, 1, 0, 2,
		16, 0, 32, 0, 0, 12, 0, 0, 'w', 'e', 'i', 'r'}, make([]byte, 14)...)
	lldp := append([]byte{1, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xcc, 2, 7, 4, 2, 0, 0, 0, 0, 1}, make([]byte, 37)...)
	if err := netns.Do(ns, func() error {
		w1, w2, w3 := packetSocket(t, "w1"), packetSocket(t, "w2"), packetSocket(t, "w3")
		defer func() { unix.Close(w1); unix.Close(w2); unix.Close(w3) }()
		unix.Write(w3, lldp)
		if in := await[*PacketIn](t, ctx, c); in.InPort() != 3 || string(in.Data) != string(lldp) {
			t.Errorf("packet-in at port %d: %x", in.InPort(), in.Data)
		}
		unix.Write(w2, udp)
		receives(t, w1, udp)
		if err := c.Send(ctx, &PacketOut{Actions: []Action{Output{Port: 1}}, Data: lldp}); err != nil {
			t.Error(err)
		}
		receives(t, w1, lldp)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// bofussEntries: what belongs to plain OpenFlow 1.3 is kept and read back equal.
func bofussEntries(t *testing.T, ctx context.Context, c *Conn) {
	t.Helper()
	var plain []int
	for i, k := range cases {
		extension := []string{"reg", "REG", "resubmit", "load:", "note", "learn", "tcp_flags", "/0xfc00", "mpls", "LOCAL", "vlan_tci=0x0000", "vlan_tci=0x1000"}
		if slices.ContainsFunc(extension, func(s string) bool { return strings.Contains(k.text, s) }) {
			continue
		}
		plain = append(plain, i)
		if err := c.Transact(ctx, &FlowMod{Priority: 1000 + uint16(i), Cookie: uint64(i), Match: k.m, Instructions: k.is}); err != nil {
			t.Errorf("%s: %v", k.text, err)
		}
	}
	got, err := c.Flows(ctx, FlowStatsRequest{Table: TableAll})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(plain) || len(plain) < 20 {
		t.Errorf("%d entries, want %d", len(got), len(plain))
	}
	for _, f := range got {
		k := cases[f.Cookie]
		m, is := normal(f.Match, f.Instructions)
		wantM, wantI := normal(k.m, k.is)
		if d := cmp.Diff(wantM, m); d != "" || is != wantI {
			t.Errorf("%s: %s\n-want +got\n%s", k.text, f, d)
		}
	}
	if err := c.Bundle(ctx, BundleAtomic, &FlowMod{}); !errors.Is(err, ErrNoBundles) {
		t.Errorf("got %v, want ErrNoBundles", err)
	}
}

func packetSocket(t *testing.T, link string) int {
	t.Helper()
	const all = 0x0300 // ETH_P_ALL in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err != nil {
		t.Fatal(err)
	}
	ifr, err := unix.NewIfreq(link)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: int(ifr.Uint32())}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		t.Fatal(err)
	}
	return fd
}

func receives(t *testing.T, fd int, want []byte) {
	t.Helper()
	b := make([]byte, 2048)
	for range 50 {
		n, err := unix.Read(fd, b)
		if err != nil {
			break
		}
		if string(b[:n]) == string(want) {
			return
		}
	}
	t.Errorf("frame %x did not come", want)
}
