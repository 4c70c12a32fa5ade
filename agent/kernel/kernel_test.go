package kernel_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/agent"
	"weir.dev/weir/agent/kernel"
	"weir.dev/weir/agent/kernel/fake"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// The fake does what the agent relies on as this machine's kernel does it.
func TestKernels(t *testing.T) {
	for name, x := range map[string]struct {
		kernel agent.Kernel
		in     func(t *testing.T, f func() error) error // runs f where the host's namespace is one that is new
	}{
		"host": {kernel.Host{}, inNew},
		"fake": {fake.New(), func(_ *testing.T, f func() error) error { return f() }},
	} {
		t.Run(name, func(t *testing.T) {
			if err := x.in(t, func() error { conform(t, x.kernel); return nil }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func inNew(t *testing.T, f func() error) error {
	if os.Getuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	path := filepath.Join(t.TempDir(), "host")
	if err := netns.Create(path, netns.Options{Quiet: true}); err != nil {
		return err
	}
	t.Cleanup(func() {
		if err := netns.Delete(path); err != nil {
			t.Error(err)
		}
	})
	return netns.Do(path, f)
}

func conform(t *testing.T, k agent.Kernel) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	want := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	i := instance.Instance{Name: "kernels"}
	space := filepath.Join(t.TempDir(), "spaces", "a")
	want("a namespace before it is made", k.Exists(space), false)
	if err := k.Check(space); !errors.Is(err, netns.ErrNotFound) {
		t.Errorf("a namespace that is not there: %v", err)
	}
	pair := func(n string) netns.VethOptions {
		return netns.VethOptions{HostName: "k" + n, PeerName: n, Alias: i.Alias("function/f/" + n), HostMAC: i.MAC("h" + n), PeerMAC: i.MAC("p" + n), MTU: 1400, Quiet: true}
	}
	if _, err := k.Veth(space, pair("in")); err == nil {
		t.Error("a pair into a namespace that is not there")
	}
	for range 2 {
		must(k.Create(space))
	}
	want("the namespace", k.Exists(space), true)
	must(k.Check(space))

	for _, anew := range []bool{true, false} {
		made, err := k.Veth(space, pair("in"), pair("out"))
		must(err)
		want("pairs are made", made, anew)
	}
	l, err := k.Link("", "kin")
	must(err)
	want("alias", l.Alias, i.Alias("function/f/in"))
	want("MAC", l.MAC, i.MAC("hin"))
	want("MTU", l.MTU, 1400)
	want("up", l.Up && l.Carrier, true)
	inner, err := k.Link(space, "in")
	must(err)
	want("inner MAC", inner.MAC, i.MAC("pin"))
	if _, err := k.Link(space, "kin"); !errors.Is(err, netns.ErrNoLink) {
		t.Errorf("a link that is elsewhere: %v", err)
	}
	must(k.SetMTU(space, 1300, map[string]string{"kin": "in", "kout": "out"}))
	for at, name := range map[string]string{"": "kout", space: "out"} {
		l, err := k.Link(at, name)
		must(err)
		want("MTU of "+name, l.MTU, 1300)
	}
	bridge, err := k.LearningBridge(space, "in", "out")
	must(err)
	want("bridge", bridge, "")
	links, err := k.Links(i.Alias("function/f"))
	must(err)
	want("links by mark", len(links), 2)

	gone := make(chan string, 9)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	begun := make(chan struct{})
	watch := func() {
		defer close(ended)
		close(begun)
		_ = k.WatchLinks(ctx, func(e netns.LinkEvent) {
			if e.Gone {
				gone <- e.Name
			}
		})
	}
	if _, host := k.(kernel.Host); host {
		here, err := netns.At("")
		must(err)
		defer here.Close()
		go func() { _ = here.Do(func() error { watch(); return nil }) }()
	} else {
		go watch()
	}
	<-begun
	told := func(name string, end func() error) {
		t.Helper()
		for deadline := time.After(20 * time.Second); ; {
			must(end())
			select {
			case got := <-gone:
				want("told of", got, name)
				return
			case <-time.After(10 * time.Millisecond): // it may not watch yet
				_, err := k.Veth(space, pair("in"), pair("out"))
				must(err)
			case <-deadline:
				t.Fatalf("nobody told that %s went", name)
			}
		}
	}
	told("kout", func() error { return k.DeleteLinks("kout", "not-there") })
	if _, err := k.Link(space, "out"); !errors.Is(err, netns.ErrNoLink) {
		t.Errorf("the other end of a link that went: %v", err)
	}
	told("kin", func() error { return k.DeleteMarked(i.Alias("function/f")) })
	cancel()
	<-ended

	_, err = k.Veth(space, pair("in"))
	must(err)
	for range 2 {
		must(k.Delete(space))
	}
	want("the namespace that is deleted", k.Exists(space), false)
	for deadline := time.Now().Add(20 * time.Second); ; { // the kernel takes links down after the call
		if _, err := k.Link("", "kin"); errors.Is(err, netns.ErrNoLink) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a link outlives its namespace")
		}
	}
}
