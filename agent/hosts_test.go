package agent_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/agent"
	"weir.dev/weir/agent/kernel"
	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	runtime "weir.dev/weir/container/kernel"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/datapath/ebpf"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/managertest"
	"weir.dev/weir/netns"
	"weir.dev/weir/store/mem"
)

// role makes this test's program an agent, in the namespace where it is started.
const role = "WEIR_TEST_AGENT"

type childOptions struct {
	Instance instance.Instance
	Host     string
	Socket   string
	Address  netip.Addr
	Uplink   string
	Layout   string // of images
}

func TestMain(m *testing.M) {
	if text := os.Getenv(role); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := flag.Set("test.parallel", "16"); err != nil { // those that run in parallel wait more than they work
		panic(err)
	}
	os.Exit(m.Run())
}

// child runs an agent until it is told to end; then it removes what its switch made if that is asked for.
func child(text string) error {
	var o childOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	sw, err := ebpf.Open(ctx, ebpf.Options{Instance: o.Instance, Logger: log})
	if err != nil {
		return err
	}
	rt, err := oci.New(ctx, o.Instance, oci.Options{Options: runtime.Options{Adopt: true}})
	if err != nil {
		return err
	}
	images := image.Open(o.Instance)
	if o.Layout != "" {
		images = image.Open(o.Instance, o.Layout)
	}
	if o.Host == "" { // its end
		err = errors.Join(rt.Destroy(ctx), sw.Destroy(ctx), images.Destroy(ctx))
		spaces, _ := os.ReadDir(o.Instance.NetnsDir()) // not there: none
		for _, s := range spaces {
			err = errors.Join(err, netns.Delete(filepath.Join(o.Instance.NetnsDir(), s.Name())))
		}
		return errors.Join(err, sandbox.New(o.Instance, kernel.Host{}, nil).DeleteAll(context.Background()))
	}
	defer sw.Close()
	client, err := api.Dial(api.Options{Socket: o.Socket})
	if err != nil {
		return err
	}
	defer client.Close()
	return agent.New(agent.Options{
		Instance: o.Instance, Host: o.Host, API: client, Switch: sw, Runtime: rt, Images: images, Log: log,
		Uplink: o.Uplink, UnderlayAddress: o.Address, Joined: true,
		Config: func(ctx context.Context) (api.AgentConfig, error) { return client.AgentConfig(ctx, o.Host) },
	}).Run(ctx)
}

// world is a manager and hosts in namespaces of their own.
type world struct {
	t      *testing.T
	dir    string
	socket string
	client *api.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	dir, err := os.MkdirTemp("", "weir-agent-")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, socket: filepath.Join(dir, "api.sock")}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("leftovers: %v", err)
		}
	})
	w.manage()
	if w.client, err = api.Dial(api.Options{Socket: w.socket}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.client.Close() })
	return w
}

// manage runs a manager until the test ends.
func (w *world) manage() {
	m, err := manager.New(manager.Options{Store: mem.New()})
	if err != nil {
		w.t.Fatal(err)
	}
	managertest.Serve(w.t, m, manager.ServeOptions{Socket: w.socket})
}

func (w *world) path(name string) string { return filepath.Join(w.dir, "ns", name) }

func (w *world) namespace(name string) *netns.Space {
	w.t.Helper()
	if err := netns.Create(w.path(name), netns.Options{Quiet: true}); err != nil {
		w.t.Fatal(err)
	}
	s, err := netns.At(w.path(name))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		s.Close()
		if err := netns.Delete(w.path(name)); err != nil {
			w.t.Error(err)
		}
	})
	return s
}

// host is a machine: a namespace, and an agent in it.
type host struct {
	w     *world
	o     childOptions
	space *netns.Space
	cmd   *exec.Cmd
	log   *os.File
}

func (w *world) host(name string, o childOptions) *host {
	w.t.Helper()
	h := &host{w: w, o: o, space: w.namespace(name)}
	h.o.Host, h.o.Socket = name, w.socket
	h.o.Instance = instance.Instance{Name: name + filepath.Base(w.dir)[len("weir-agent-"):][:4], Root: filepath.Join(w.dir, name), Run: filepath.Join(w.dir, name+"-run")}
	for _, d := range []string{h.o.Instance.Root, h.o.Instance.Run} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		w.t.Fatal(err)
	}
	h.log = log
	w.t.Cleanup(func() {
		h.stop(unix.SIGTERM)
		o := h.o
		o.Host = ""
		cmd := h.command(o)
		if err := h.space.Do(cmd.Start); err != nil {
			w.t.Error(err)
		} else if err := cmd.Wait(); err != nil {
			w.t.Errorf("destroy the switch of %s: %v", name, err)
		}
		if _, err := h.space.DeleteByAlias(h.o.Instance.Alias(""), nil); err != nil {
			w.t.Error(err)
		}
		_ = unix.Unmount(h.o.Instance.BPFFS(), unix.MNT_DETACH)
		if w.t.Failed() {
			_, _ = log.Seek(0, io.SeekStart)
			b, _ := io.ReadAll(log)
			w.t.Logf("agent of %s:\n%s", name, b)
		}
		log.Close()
	})
	return h
}

func (h *host) command(o childOptions) *exec.Cmd {
	text, err := json.Marshal(o)
	if err != nil {
		h.w.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), role+"="+string(text))
	cmd.Stdout, cmd.Stderr = h.log, h.log
	return cmd
}

func (h *host) start() {
	h.w.t.Helper()
	h.cmd = h.command(h.o)
	if err := h.space.Do(h.cmd.Start); err != nil {
		h.w.t.Fatal(err)
	}
}

func (h *host) stop(sig unix.Signal) {
	if h.cmd == nil {
		return
	}
	_ = h.cmd.Process.Signal(sig)
	_ = h.cmd.Wait()
	h.cmd = nil
}

func (w *world) until(what string, done func(ctx context.Context) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// assign does what the router does.
func (w *world) assign(all map[string]api.AssignmentSpec) {
	w.t.Helper()
	if err := w.client.Fabric(w.t.Context(), api.FabricReport{Assignments: all}); err != nil {
		w.t.Fatal(err)
	}
}

// installed waits for the answer to the assignment as it is now.
func (w *world) installed(host string) api.AssignmentStatus {
	w.t.Helper()
	var a api.Assignment
	w.until("assignment of "+host+" is acknowledged", func(ctx context.Context) bool {
		var err error
		a, err = w.client.Assignments().Get(ctx, host)
		return err == nil && a.Status.ObservedGeneration == a.Generation && a.Status.State != "partial"
	})
	return a.Status
}

func (w *world) endpoint(name, host string) *stationSocket {
	w.t.Helper()
	return newStation(w.t, w.station(name, host, ""))
}

// station is an endpoint, and the namespace behind it.
func (w *world) station(name, host, address string) *netns.Space {
	w.t.Helper()
	s := w.namespace(name)
	spec := api.EndpointSpec{Host: host, Netns: w.path(name), Interface: "eth0", Address: address}
	if address == "" { // its frames are of any MAC
		spec.PortSecurity = &api.PortSecurity{Mode: api.PortSecurityOff}
	}
	if _, err := w.client.Endpoints().Put(w.t.Context(), name, spec); err != nil {
		w.t.Fatal(err)
	}
	w.until("endpoint "+name+" is up", func(ctx context.Context) bool {
		e, err := w.client.Endpoints().Get(ctx, name)
		return err == nil && e.Status.State == "up" && e.Status.Host == host
	})
	return s
}

// stationSocket plays a machine, or a function, behind an endpoint.
type stationSocket struct {
	t     *testing.T
	fd    int
	index int
}

func newStation(t *testing.T, s *netns.Space) *stationSocket {
	t.Helper()
	l, err := s.Link("eth0")
	if err != nil {
		t.Fatal(err)
	}
	st := &stationSocket{t: t, index: l.Index}
	err = s.Do(func() (err error) {
		all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		if st.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(st.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(st.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(st.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20000}); err != nil {
			return err
		}
		return unix.Bind(st.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(st.fd) })
	return st
}

func (s *stationSocket) send(frame []byte) {
	s.t.Helper()
	if err := unix.Sendto(s.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: s.index}); err != nil {
		s.t.Fatal(err)
	}
}

// receive waits for a frame with the mark; nil after the time.
func (s *stationSocket) receive(mark string, wait time.Duration) []byte {
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); {
		n, on, _, _, err := unix.Recvmsg(s.fd, buf, oob, 0)
		if err == nil && bytes.Contains(buf[:n], []byte(mark)) {
			return whole(buf[:n], oob[:on])
		}
	}
	return nil
}

// whole puts the tag back that the kernel took off.
func whole(frame, oob []byte) []byte {
	frame = bytes.Clone(frame)
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return frame
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 20 &&
			binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			tag := binary.BigEndian.AppendUint16(nil, binary.NativeEndian.Uint16(m.Data[18:]))
			tag = binary.BigEndian.AppendUint16(tag, binary.NativeEndian.Uint16(m.Data[16:]))
			return slices.Insert(frame, 12, tag...)
		}
	}
	return frame
}

func logged(h *host, text string) bool {
	b, _ := os.ReadFile(h.log.Name())
	return strings.Contains(string(b), text)
}

func address(t *testing.T, s *netns.Space, link, prefix string) {
	t.Helper()
	err := s.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(prefix)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, a)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// setLink of the thread's namespace up or down.
func setLink(name string, up bool) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if up {
		return netlink.LinkSetUp(l)
	}
	return netlink.LinkSetDown(l)
}

// moveAway takes a link from the thread's namespace to another, where it is up.
func moveAway(name string, space *netns.Space, as string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetNoMaster(l); err != nil {
		return err
	}
	if err := netlink.LinkSetDown(l); err != nil {
		return err
	}
	if err := netlink.LinkSetName(l, as); err != nil {
		return err
	}
	if err := netlink.LinkSetNsFd(l, space.Fd()); err != nil {
		return err
	}
	return space.Do(func() error { return setLink(as, true) })
}
