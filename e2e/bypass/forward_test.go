package bypass

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// Docker sets the policy of FORWARD to DROP, and has bridged packets shown to it. Open vSwitch's frames do not meet it. The eBPF switch's bridge does: with
// --accept-bridged all passes, IPv4 and IPv6, steered and not; without it nothing that crosses the bridge. Other people's rules stay as they are.
func TestAForwardPolicyOfDrop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		args   []string
		passes bool
	}{
		{"ebpf", []string{"--switch", "ebpf"}, false},
		{"ebpf, accept-bridged", []string{"--switch", "ebpf", "--accept-bridged"}, true},
		{"ovs", []string{"--switch", "ovs"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.Bare(t, rig.Options{Args: c.args})
			f := &forwarding{t, r, ctx}
			for _, name := range []string{"iptables", "ip6tables"} {
				f.run("sysctl", "-qw", "net.bridge.bridge-nf-call-"+name+"=1")
				f.run(name, "-w", "5", "-P", "FORWARD", "DROP")
				f.run(name, "-w", "5", "-A", "FORWARD", "-i", "docker0", "-o", "eth9", "-j", "ACCEPT")
			}
			before := f.rules()
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			endpoints := strings.NewReplacer(rig.AliceAddr+"/24", rig.AliceAddr+`/24, addresses: ["fd00:9::1/64"]`, rig.BobAddr+"/24", rig.BobAddr+`/24, addresses: ["fd00:9::2/64"]`).Replace(r.Endpoints())
			r.MustApply(ctx, t, endpoints)
			f.pass("nothing steers", c.passes)
			r.MustApply(ctx, t, endpoints+"functions:\n  w: {image: wire, on_fail: drop}\nchains:\n  c: w\npolicies:\n  p: {from: alice, to: bob, chain: c}\n")
			f.pass("a chain", c.passes)
			if rules := f.rules(); slices.Contains(c.args, "--accept-bridged") {
				f.flushed(before)
			} else if rules != before {
				t.Errorf("nobody told Weir to change rules of iptables. Before:\n%s\nnow:\n%s", before, rules)
			}
			if _, err := r.Weir(ctx, "down"); err != nil {
				t.Fatal(err)
			}
			if after := f.rules(); after != before {
				t.Errorf("after weir down:\n%s\nbefore weir up:\n%s", after, before)
			}
		})
	}
}

type forwarding struct {
	*testing.T
	*rig.Rig
	ctx context.Context
}

func (f *forwarding) run(argv ...string) string {
	f.Helper()
	out, err := f.Rig.Run(f.ctx, "", argv...)
	if err != nil {
		f.Fatal(err)
	}
	return out
}

func (f *forwarding) rules() string {
	f.Helper()
	return f.run("iptables", "-w", "5", "-S", "FORWARD") + f.run("ip6tables", "-w", "5", "-S", "FORWARD")
}

func (f *forwarding) pass(when string, want bool) {
	f.Helper()
	for _, to := range []string{rig.BobAddr, "fd00:9::2"} {
		var came bool
		var out string
		for range 5 { // a new IPv6 address may be tentative
			var err error
			if out, err = f.Rig.Run(f.ctx, f.Alice(), "ping", "-q", "-c", "3", "-i", "0.2", "-W", "1", to); err == nil {
				came = true
			}
			if came == want {
				break
			}
		}
		if came != want {
			f.Errorf("%s: %s answers: %v, want %v\n%s", when, to, came, want, out)
		}
	}
}

// flushed: the rule comes back when somebody flushes the chain, there is one of each, and the next start without the flag removes them.
func (f *forwarding) flushed(before string) {
	f.Helper()
	f.run("iptables", "-w", "5", "-D", "FORWARD", "1")
	rig.Eventually(f.ctx, f.T, "the rule is back", func() (bool, string) {
		rules := f.rules()
		return strings.Count(rules, "weir:"+f.Rig.Name+":bridge") == 2, rules
	})
	f.pass("the rule is back", true)
	if err := f.Kill(syscall.SIGTERM); err != nil {
		f.Fatal(err)
	}
	f.pass("the daemon is away", true)
	f.Args = slices.DeleteFunc(f.Args, func(a string) bool { return a == "--accept-bridged" })
	if err := f.Up(f.ctx); err != nil {
		f.Fatal(err)
	}
	if after := f.rules(); after != before {
		f.Errorf("after a start without the flag:\n%s\nbefore the first:\n%s", after, before)
	}
}
