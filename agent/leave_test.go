package agent_test

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/image"
)

// wires is a layout that holds the image wire.
func wires(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	r, err := image.LoadRecipe("../catalogue/wire")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A function that is placed elsewhere now forwards as long as the assignment names it, whatever happens to the agent meanwhile; then it goes.
func TestAFunctionLeavesWhenNoRuleLeadsToIt(t *testing.T) {
	for name, x := range map[string]struct {
		away func(h *host) // before the function is placed elsewhere
		back func(h *host)
	}{
		"its agent goes on":  {func(*host) {}, func(*host) {}},
		"its agent was dead": {func(h *host) { h.stop(unix.SIGKILL) }, (*host).start},
		"its agent stood still": {func(h *host) { _ = h.cmd.Process.Signal(unix.SIGSTOP) },
			func(h *host) { _ = h.cmd.Process.Signal(unix.SIGCONT) }},
	} {
		t.Run(name, func(t *testing.T) {
			w, h, alice, bob := withFunction(t)
			pid := w.function("fw", "h1").Status.PID
			s := w.stream(alice, bob)
			s.await(20)

			x.away(h)
			w.place("fw", "h2")
			x.back(h)
			w.through(2) // any change has it look at everything
			s.await(20)
			if !h.hasFunction("fw") {
				t.Fatal("it is gone although rules lead to it")
			}

			w.place("fw", "h1") // and it was never away
			if now := w.function("fw", "h1").Status.PID; now != pid {
				t.Errorf("back again it is process %d, was %d", now, pid)
			}
			w.place("fw", "h2")
			w.through(3)
			s.await(20)

			w.assign(map[string]api.AssignmentSpec{"h1": {}})
			w.until("the function is gone", func(context.Context) bool { return !h.hasFunction("fw") })
			s.await(20)
			if lost := s.stop(); lost != 0 {
				t.Errorf("%d frames lost", lost)
			}
			if logged(h, "level=ERROR") {
				t.Error("the agent logged errors")
			}
		})
	}
}

// withFunction is a host where frames of alice pass fw on their way to bob, and a second host of which there is only the name.
func withFunction(t *testing.T) (w *world, h *host, alice, bob *stationSocket) {
	t.Helper()
	w = newWorld(t)
	h = w.host("h1", childOptions{Layout: wires(t)})
	h.start()
	report := api.StatusReport{Host: "h2", HostState: &api.HostStatus{State: "ready", Cores: 1, Memory: 1 << 30, Images: []string{"wire"}}}
	if err := w.client.Report(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	w.until("h1 is ready", func(ctx context.Context) bool {
		x, err := w.client.Hosts().Get(ctx, "h1")
		return err == nil && x.Status.State == "ready"
	})
	if _, err := w.client.Functions().Put(t.Context(), "fw", api.FunctionSpec{Image: "wire", Host: "h1"}); err != nil {
		t.Fatal(err)
	}
	alice, bob = w.endpoint("alice", "h1"), w.endpoint("bob", "h1")
	w.function("fw", "h1")
	w.through(1)
	return w, h, alice, bob
}

// through leads alice's frames through fw; n makes it another assignment than before, and it is in force when through returns.
func (w *world) through(n uint16) {
	w.t.Helper()
	w.assign(map[string]api.AssignmentSpec{"h1": {Rules: []api.HostRule{
		{Cookie: "0000000000000001", Priority: 100, Stage: "ingress", Match: api.HostMatch{InPort: "endpoint/alice", EtherType: 0x800},
			Action: api.HostAction{Op: "output", Port: "function/fw/in"}, Policy: "p"},
		{Cookie: "0000000000000002", Priority: 100, Stage: "ingress", Match: api.HostMatch{InPort: "function/fw/out"},
			Action: api.HostAction{Op: "output", Port: "endpoint/bob"}, Policy: "p"},
		{Cookie: "0000000000000003", Priority: 1000 + n, Stage: "ingress", Match: api.HostMatch{EtherType: 0x88b5}, Action: api.HostAction{Op: "drop"}, Policy: "p"},
	}}})
	if s := w.installed("h1"); s.State != "installed" {
		w.t.Fatalf("%+v", s)
	}
}

func (w *world) place(function, host string) {
	w.t.Helper()
	if _, err := w.client.Functions().Patch(w.t.Context(), function, map[string]any{"host": host}); err != nil {
		w.t.Fatal(err)
	}
}

// function waits until it is up at a host.
func (w *world) function(name, host string) api.Function {
	w.t.Helper()
	var f api.Function
	w.until("function "+name+" is up at "+host, func(ctx context.Context) bool {
		var err error
		f, err = w.client.Functions().Get(ctx, name)
		return err == nil && f.Status.Healthy && f.Status.Host == host && f.Status.ObservedGeneration == f.Generation
	})
	return f
}

// hasFunction tells whether anything of a function is at the host.
func (h *host) hasFunction(name string) bool {
	for _, path := range []string{filepath.Join(h.o.Instance.NetnsDir(), name), filepath.Join(h.o.Instance.Run, "functions", name)} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	links, err := h.space.Links(h.o.Instance.Alias("function/" + name))
	return err != nil || len(links) > 0
}

// stream sends numbered frames, a few hundred a second, and notes which come.
type stream struct {
	w       *world
	stop    func() (lost int) // safe to call twice
	mu      sync.Mutex
	sent    uint32
	came    map[uint32]bool
	sending sync.WaitGroup
}

const streamMark = "numbered"

func (w *world) stream(from, to *stationSocket) *stream {
	w.t.Helper()
	s := &stream{w: w, came: map[uint32]bool{}}
	ctx, end := context.WithCancel(context.Background())
	heard, deaf := context.WithCancel(context.Background())
	var hearing sync.WaitGroup
	s.sending.Go(func() {
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			s.mu.Lock()
			n := s.sent
			s.sent++
			s.mu.Unlock()
			f := frame(macB, macA, 100, streamMark+string(binary.BigEndian.AppendUint32(nil, n)))
			if err := unix.Sendto(from.fd, f, 0, &unix.SockaddrLinklayer{Ifindex: from.index}); err != nil {
				w.t.Errorf("send: %v", err)
				return
			}
		}
	})
	hearing.Go(func() {
		for heard.Err() == nil {
			f := to.receive(streamMark, 50*time.Millisecond)
			if _, rest, ok := strings.Cut(string(f), streamMark); ok {
				s.mu.Lock()
				s.came[binary.BigEndian.Uint32([]byte(rest))] = true
				s.mu.Unlock()
			}
		}
	})
	s.stop = sync.OnceValue(func() int {
		end()
		s.sending.Wait()
		for deadline := time.Now().Add(soon); s.missing() > 0 && time.Now().Before(deadline); {
			<-time.After(10 * time.Millisecond)
		}
		deaf()
		hearing.Wait()
		return s.missing()
	})
	w.t.Cleanup(func() { s.stop() })
	return s
}

func (s *stream) missing() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.sent) - len(s.came)
}

// await waits until more frames have come.
func (s *stream) await(more int) {
	s.w.t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.came)
	}
	before := count()
	s.w.until("frames come", func(context.Context) bool { return count() >= before+more })
}
