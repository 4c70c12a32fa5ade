package platform

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/nspawn"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab/traffic/datagrams"
)

// Datagrams pass all processors of a line, on every network and on one host or two, and closing leaves nothing.
func TestLinesCarry(t *testing.T) {
	for _, network := range ProcessorNetworks() {
		if network == NetworkWeir { // e2e/lab has a Weir that runs
			continue
		}
		own := byTool(network)
		for _, c := range []struct {
			runtime string
			hosts   int
			relays  bool
		}{{bare, 1, false}, {bare, 2, true}, {"native", 1, false}, {"native", 2, true}, {"oci", 1, true}, {"lxc", 1, true}, {"nspawn", 1, true}, {byDocker, 1, true}} {
			t.Run(fmt.Sprintf("%s %s %d %t", network, c.runtime, c.hosts, c.relays), func(t *testing.T) {
				if c.runtime == bare || c.runtime == byDocker { // the containers of Weir's runtimes have one group at the top, whose weight each line sets
					t.Parallel()
				}
				o := ProcessorOptions{MemberOptions: MemberOptions{Options: testOptions(t), Runtime: c.runtime, Network: network, Relays: c.relays}, Hosts: c.hosts, Mbps: 1000}
				if own && (c.runtime != nspawn.Name && c.runtime != byDocker || !c.relays) {
					if why := CheckProcessors(o); c.runtime != nspawn.Name && c.runtime != byDocker && !strings.Contains(why, "no network of its own") {
						t.Errorf("%q", why)
					}
					return
				}
				if why := CheckProcessors(o); why != "" {
					t.Fatalf("not on this machine: %s", why)
				}
				if c.runtime == byDocker {
					e, err := StartEngine(t.Context(), o.Options)
					if err != nil {
						t.Fatal(err)
					}
					defer func() {
						if err := e.Close(); err != nil {
							t.Error(err)
						}
					}()
					o.Engine = func(context.Context) (*Engine, error) { return e, nil }
				}
				carries(t, o)
			})
		}
	}
}

// Who is stopped while a line is made gets an error, and nothing stays.
func TestStoppedWhileALineIsMade(t *testing.T) {
	for _, runtime := range []string{bare, "native", "oci", "lxc", "nspawn"} {
		stopped, stop := context.WithCancel(t.Context())
		stop()
		o := ProcessorOptions{MemberOptions: MemberOptions{Options: testOptions(t), Runtime: runtime, Network: byHost, Relays: true}, Hosts: 1, Mbps: 1000}
		l, err := OpenProcessors(stopped, o)
		if err == nil { // nothing asked
			err = l.Close()
			if err != nil {
				t.Errorf("%s: %v", runtime, err)
			}
		}
		if i, _ := instance.New(o.Name+"-0", ""); exists(i.Run) || exists(i.Root) {
			t.Errorf("%s: left behind: %v", runtime, err)
		}
	}
}

func carries(t *testing.T, o ProcessorOptions) {
	t.Helper()
	l, err := OpenProcessors(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if exists(l.inst.Run) || exists(l.inst.Root) {
			t.Error("left behind")
		}
	}()
	sink, err := datagrams.Listen(l.outside, l.sink)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	for run, n := range []int{1, 4} {
		list, err := l.Grow(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		var all []*datagrams.Forwarder
		for i, p := range list {
			if o.Relays {
				break
			}
			to := l.sink
			if i+1 < n {
				to = list[i+1].Reach
			}
			f, err := datagrams.Forward(p.Space, p.Listen, to)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, f)
		}
		if got, want := weightsOf(t, list), n; got != want {
			t.Errorf("%d processors have the weight of %d processes", want, got)
		}
		c, err := sink.Run(t.Context(), datagrams.Options{Space: l.outside, To: list[0].Reach, Payload: 1454, Rate: 200, Duration: 500 * time.Millisecond, Run: uint32(run)})
		if err != nil || c.Unique < c.Sent.Sent*9/10 || c.Damaged+c.Foreign != 0 { // the first ones may wait for an address
			t.Errorf("%d processors: %d of %d, %d damaged, %d foreign: %v", n, c.Unique, c.Sent.Sent, c.Damaged, c.Foreign, err)
		}
		for _, f := range all {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := l.Ill(t.Context()); err != nil {
		t.Error(err)
	}
	if o.Relays && len(l.all[0].Groups) > 0 {
		endOne(t, l)
	}
	if have, err := l.Conditions(); err != nil || have[SettingMTU] != "1500" {
		t.Errorf("%v, %v", have, err)
	}
}

// weightsOf the group at the top that all processors are in, in processes.
func weightsOf(t *testing.T, list []Processor) int {
	t.Helper()
	tree, ok, err := findCPU()
	if err != nil || !ok {
		t.Fatalf("no cpu controller: %v", err)
	}
	file, one := tree.weight(weightOf)
	unit, err := strconv.Atoi(one)
	if err != nil {
		t.Fatal(err)
	}
	top := tree.top(list[0].Groups)
	for _, p := range list {
		if got := tree.top(p.Groups); got == "" || got != top {
			t.Errorf("processor %s is in %q, the first one in %q (%v)", p.Name, got, top, p.Groups)
			return 0
		}
	}
	text, err := os.ReadFile(filepath.Join(top, file))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n / unit
}

// endOne processor: it is told.
func endOne(t *testing.T, l *Processors) {
	t.Helper()
	text, err := os.ReadFile(l.all[0].Groups[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range strings.Fields(string(text)) {
		n, _ := strconv.Atoi(pid)
		if err := unix.Kill(n, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for begin := time.Now(); l.Ill(t.Context()) == nil; time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("a processor was killed, and nobody says so")
		}
	}
}
