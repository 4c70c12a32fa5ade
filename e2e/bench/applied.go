package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

const (
	applies     = 40    // of a policy whose function runs
	anywhere    = 40    // of one that names no endpoint
	starts      = 30    // of a policy whose function is to be started
	appliedPPS  = 2000  // of the stream that meets the new policy: the figures are no finer than its pause
	appliedPort = 20000 // UDP, of the first stream
	firstWithin = 10 * time.Second
)

// applied: from `weir apply` to the first packet that has been through the policy's function, on the network of the paper's Fig. 2: VM1 at one
// OpenFlow switch sends to VM2 at the next one, where the server with the function is. A frame counts when it comes back from the server.
func (b *bench) applied() error {
	n, err := newFig2(b.ctx)
	if err != nil {
		return err
	}
	err = b.firsts(n)
	return errors.Join(err, n.close())
}

func (b *bench) firsts(n *fig2) error {
	if err := n.apply(fig2Base, "--prune"); err != nil {
		return err
	}
	if err := n.reach(); err != nil {
		return err
	}
	var took, unnamed, started []float64
	lost := 0
	for i := range applies + starts + anywhere {
		name := fmt.Sprint("p", i)
		document := fmt.Sprintf("policies:\n  %s: {from: vm1, match: [udp/%d], chain: through}\n", name, appliedPort+i)
		into := &took
		switch {
		case i >= applies+starts:
			document = strings.Replace(document, "vm1", "10.0.0.0/24", 1)
			into = &unnamed
		case i >= applies:
			document = fmt.Sprintf("functions:\n  f%d: {image: wire}\nchains:\n  c%d: f%d\n", i, i, i) + strings.Replace(document, "through", fmt.Sprint("c", i), 1)
			into = &started
		}
		d, missed, err := n.first(document, uint16(appliedPort+i))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		*into = append(*into, d.Seconds()*1e3)
		lost += missed
		if err := n.apply(fig2Base, "--prune"); err != nil {
			return err
		}
	}
	b.add("apply to first steered packet, p50", "ms", took, nil, "", false, 0)
	b.add("apply to first steered packet, p99", "ms", []float64{percentile(took, 99)}, nil, "", false, 0)
	b.add("the same, no endpoint named, p50", "ms", unnamed, nil, "", false, 0)
	b.add("the same, no endpoint named, p99", "ms", []float64{percentile(unnamed, 99)}, nil, "", false, 0)
	b.add("the same, function started, p50", "ms", started, nil, "", false, 0)
	b.add("the same, function started, p99", "ms", []float64{percentile(started, 99)}, nil, "", false, 0)
	b.Notes = append(b.Notes, fmt.Sprintf("%d, %d and %d applies under streams of %d packets/s, of which %d were lost", applies, anywhere, starts, appliedPPS, lost))
	return nil
}

const fig2Base = "endpoints:\n  vm1: {address: 10.0.0.1/24}\n  vm2: {address: 10.0.0.2/24}\nfunctions:\n  nf: {image: wire}\nchains:\n  through: nf\n"

// fig2 is a testbed of examples/fig2.yaml under a name of its own.
type fig2 struct {
	ctx  context.Context
	bin  string
	dir  string
	name string
	env  []string
}

func newFig2(ctx context.Context) (*fig2, error) {
	top, err := rig.Top()
	if err != nil {
		return nil, err
	}
	bin, images, err := rig.Programs()
	if err != nil {
		return nil, err
	}
	var id [3]byte
	_, _ = rand.Read(id[:]) // never fails
	n := &fig2{ctx: ctx, bin: bin, name: "t" + hex.EncodeToString(id[:])}
	n.env = append(os.Environ(), "WEIR_NAME="+n.name, "WEIR_IMAGES="+images, "NO_COLOR=1")
	text, err := os.ReadFile(filepath.Join(top, "examples", "fig2.yaml"))
	if err != nil {
		return nil, err
	}
	if n.dir, err = os.MkdirTemp("", "weir-fig2-"); err != nil {
		return nil, err
	}
	file := filepath.Join(n.dir, "fig2.yaml")
	err = os.WriteFile(file, bytes.Replace(text, []byte("name: fig2"), []byte("name: "+n.name), 1), 0o600)
	if err == nil {
		err = n.weir("", "testbed", "up", file)
	}
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *fig2) close() error {
	n.ctx = context.WithoutCancel(n.ctx)
	return errors.Join(n.weir("", "testbed", "down", n.name), os.RemoveAll(n.dir))
}

func (n *fig2) weir(stdin string, args ...string) error {
	ctx, cancel := context.WithTimeout(n.ctx, time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, n.bin, args...)
	c.Env, c.Stdin = n.env, strings.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("weir %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

func (n *fig2) apply(document string, more ...string) error {
	return n.weir(document, append([]string{"apply", "-f", "-"}, more...)...)
}

func (n *fig2) space(node string) string { return "/run/weir-testbed/" + n.name + "/netns/" + node }

// reach waits until VM1 gets answers from VM2, and the router knows both.
func (n *fig2) reach() error {
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); err = errors.Join(err, pause(n.ctx, 50*time.Millisecond)) {
		if err = exec.CommandContext(n.ctx, "nsenter", "--net="+n.space("vm1"), "--", "ping", "-q", "-c", "3", "-i", "0.05", "-W", "1", "10.0.0.2").Run(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("vm1 does not reach vm2: %w", err)
}

// first applies a document while a stream to a port goes on, and returns how long it took until a packet of it came back from the server, and how
// many of the stream's packets were lost meanwhile.
func (n *fig2) first(document string, port uint16) (d time.Duration, lost int, err error) {
	w, err := newWitness(n.space("nfv1"), "eth1", port)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	s, err := rig.NewStream(n.space("vm1"), n.space("vm2"), "10.0.0.2", int(port), appliedPPS)
	if err != nil {
		return 0, 0, err
	}
	if err = s.Await(n.ctx, 20); err == nil {
		begin := time.Now()
		if err = n.apply(document); err == nil {
			var at time.Time
			at, err = w.wait(n.ctx)
			d = at.Sub(begin)
		}
	}
	o, serr := s.Stop()
	if err = errors.Join(err, serr); err == nil && d <= 0 {
		err = fmt.Errorf("a packet was steered %s before the policy was applied", -d)
	}
	return d, o.Lost, err
}

// witness tells when the first UDP packet for a port left an interface.
type witness struct {
	fd    int
	first chan time.Time
	stop  atomic.Bool
	done  chan struct{}
}

func newWitness(space, link string, port uint16) (*witness, error) {
	w := &witness{first: make(chan time.Time, 1), done: make(chan struct{})}
	err := netns.Do(space, func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		err = errors.Join(
			unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}),
		)
		if err != nil {
			unix.Close(w.fd)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture at %s in %s: %w", link, space, err)
	}
	go w.run(port)
	return w, nil
}

func (w *witness) run(port uint16) {
	defer close(w.done)
	frame, control := make([]byte, 256), make([]byte, 128)
	for !w.stop.Load() {
		n, cn, _, from, err := unix.Recvmsg(w.fd, frame, control, 0)
		l, _ := from.(*unix.SockaddrLinklayer)
		if err != nil || l == nil || l.Pkttype != unix.PACKET_OUTGOING || !udpTo(frame[:n], port) {
			continue
		}
		if at, ok := stamp(control[:cn]); ok {
			w.first <- at
			return
		}
	}
}

func udpTo(f []byte, port uint16) bool {
	return len(f) >= 38 && binary.BigEndian.Uint16(f[12:]) == 0x0800 && f[14] == 0x45 && f[23] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(f[36:]) == port
}

// stamp is when the kernel saw the frame.
func stamp(control []byte) (time.Time, bool) {
	ms, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, false
	}
	for _, m := range ms {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))), true
		}
	}
	return time.Time{}, false
}

func (w *witness) wait(ctx context.Context) (time.Time, error) {
	select {
	case at := <-w.first:
		return at, nil
	case <-time.After(firstWithin):
		return time.Time{}, fmt.Errorf("no packet was steered within %s", firstWithin)
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

func (w *witness) close() error {
	w.stop.Store(true)
	<-w.done
	return unix.Close(w.fd)
}
