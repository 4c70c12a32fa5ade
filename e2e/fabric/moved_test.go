package fabric

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

const movedPolicy = `
endpoints:
  a: {address: 10.0.0.1/24}
  b: {address: 10.0.0.3/24}
functions:
  nf: {image: wire}
chains:
  through: nf
policies:
  a-through-nf: {from: a, to: b, match: [udp, icmp], chain: through}
`

// An agent dies and is away until its function is placed elsewhere. It comes back before the function's new place is ready: what it had
// forwards until then, and a counted stream loses nothing.
func TestAnAgentThatComesBackTooLateKeepsTheWayOpen(t *testing.T) {
	t.Parallel()
	b := newBed(t, "ring.yaml", func(text string) string {
		text = strings.Replace(text, "  nfv1: {}\n", "  nfv1: {}\n  nfv2: {}\n", 1)
		return text + "  - {a: \"s1:4\", b: nfv2}\n"
	})
	b.reach("h1", "10.0.0.3")
	b.apply(movedPolicy)
	b.reach("h1", "10.0.0.3")
	o := b.exact(b.comesBackTooLate)
	if o.Lost > 0 || o.Duplicated > 0 {
		t.Errorf("lost %d and duplicated %d of %d", o.Lost, o.Duplicated, o.Sent)
	}
}

// comesBackTooLate kills the agent that has the function, wherever that is, and has it back before the other has the function up.
func (b *bed) comesBackTooLate() rig.Outcome {
	b.t.Helper()
	old := b.hostOf("nf")
	other := map[string]string{"nfv1": "nfv2", "nfv2": "nfv1"}[old]
	s, err := rig.NewStream(b.netns("h1"), b.netns("h3"), "10.0.0.3", streamPort, streamRate)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := s.Await(b.ctx, streamRate/4); err != nil {
		b.t.Fatal(err)
	}

	dropped := b.discarded()
	b.kill(old)
	b.await("the function is placed elsewhere", func() (bool, string) {
		f := b.placedFunction("nf")
		return f.At() == other, f.At()
	})
	b.signal(other, syscall.SIGSTOP) // most often before it has the function up
	defer b.signal(other, syscall.SIGCONT)
	begun := make(chan error, 1)
	go func() {
		_, err := b.weir("testbed", "up", b.file) // which waits for both agents
		begun <- err
	}()
	b.await("the agent is back", func() (bool, string) {
		h, err := b.client.Hosts().Get(b.ctx, old)
		if err != nil {
			return false, err.Error()
		}
		return h.Status.State == "ready", string(h.Status.State)
	})
	f := b.placedFunction("nf")
	if _, err := os.Stat(b.function(old, "nf")); err != nil && !f.Status.Healthy {
		b.t.Errorf("the agent has come back and taken the function away, which is at %q now and %s there: %v", f.At(), f.Status.State, err)
	}
	b.t.Logf("when the agent of %s has come back, the function is at %s and %s", old, f.At(), f.Status.State)
	if err := s.Await(b.ctx, streamRate/4); err != nil {
		b.t.Fatal(err)
	}
	b.signal(other, syscall.SIGCONT)
	if err := <-begun; err != nil {
		b.t.Fatal(err)
	}
	var gone string
	b.await("the function is up at one host, and nothing of it at the other", func() (bool, string) {
		f := b.placedFunction("nf")
		gone = map[string]string{"nfv1": "nfv2", "nfv2": "nfv1"}[f.At()]
		_, err := os.Stat(b.function(gone, "nf"))
		return f.Status.Healthy && f.Status.Host == f.At() && os.IsNotExist(err), f.Status.Host + ": " + f.Status.Message
	})
	if err := s.Await(b.ctx, streamRate/4); err != nil {
		b.t.Fatal(err)
	}
	o, err := s.Stop()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Logf("the function has left %s: %s; receive queues of the switches overran by %d", gone, outage(o), b.discarded()-dropped)
	return o
}

func (b *bed) placedFunction(name string) api.Function {
	b.t.Helper()
	f, err := b.client.Functions().Get(b.ctx, name)
	if err != nil {
		b.t.Fatal(err)
	}
	return f
}

// signal a node's processes.
func (b *bed) signal(node string, s syscall.Signal) {
	b.t.Helper()
	for _, pid := range b.node(node).PIDs {
		if err := syscall.Kill(pid, s); err != nil {
			b.t.Error(err)
		}
	}
}
