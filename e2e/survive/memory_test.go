package survive

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"weir.dev/weir/e2e/rig"
)

const manyPolicies = 5000

// many is a document of policies over one chain; match gives each its own.
func many(match func(i int) string) string {
	var b strings.Builder
	b.WriteString("functions: {w: {image: wire}}\nchains: {c: w}\npolicies:\n")
	for i := range manyPolicies {
		fmt.Fprintf(&b, "  p%d: {%s, chain: c, symmetric: false}\n", i, match(i))
	}
	return b.String()
}

// prefix is a random one of a family, by its octets, at least least bits long.
func prefix(random *rand.Rand, octets, least int) netip.Prefix {
	b := make([]byte, octets)
	for i := range b {
		b[i] = byte(random.IntN(256))
	}
	b[0] = 10
	if octets == 16 {
		b[0] = 0xfd
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, least+random.IntN(8*octets-least)).Masked()
}

// memory of a process in KiB: now, and at most so far.
func memory(t *testing.T, pid int) (now, most int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string) int {
		m := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(b)
		if m == nil {
			t.Fatalf("no %s of process %d", name, pid)
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return of("VmRSS"), of("VmHWM")
}

// Bounds of the daemon's memory. What it needs of 5,000 policies is some 40 MiB, and some 40 more are files that are mapped. How much garbage lies beside that is
// for how fast the machine collects it. So the daemon has a limit: it collects before it takes more than that, and passes the limit only with what it needs.
const (
	limit    = "GOMEMLIMIT=150MiB"
	mostKiB  = 260 << 10 // ever
	quietKiB = 200 << 10 // soon after a change
)

// 5,000 policies, in force or refused since the switch has no room for them, take bounded memory.
func TestMemoryOfManyPolicies(t *testing.T) {
	r, ctx := rig.Bare(t, rig.Options{})
	r.Extra = []string{limit}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, r.Endpoints())
	random := rand.New(rand.NewPCG(1, 2))
	for _, d := range []struct {
		name, document string
		refused        string // what is said, if they are
	}{
		{"ports", many(func(i int) string { return fmt.Sprintf("from: alice, to: bob, match: [tcp/%d]", i+1) }), ""},
		{"prefixes of all lengths", many(func(i int) string {
			return fmt.Sprintf("from: %s, to: %s, match: [udp/%d], priority: %d", prefix(random, 4, 16), prefix(random, 4, 16), i+1, 1+i%1000)
		}), ""},
		{"more shapes of rules than the switch has room for", many(func(i int) string {
			return fmt.Sprintf("from: '%s', to: '%s', match: [udp/%d-%d, tcp, icmp], priority: %d", prefix(random, 16, 32), prefix(random, 16, 32), i+1, i+500, 1+i%1000)
		}), "switch table full"},
	} {
		_, err := r.Apply(ctx, d.document, "--timeout", "3m")
		switch {
		case d.refused != "" && (err == nil || !strings.Contains(err.Error(), d.refused)):
			t.Errorf("%s: %v: want %q", d.name, err, d.refused)
		case d.refused == "" && err != nil:
			t.Fatalf("%s: %.1000s", d.name, err)
		case d.refused == "":
			if _, err := r.WeirInput(ctx, d.document, "delete", "-f", "-"); err != nil {
				t.Error(err)
			}
		}
		now, most := memory(t, r.PID())
		t.Logf("%-50s %4d MiB now, %4d MiB at most", d.name, now>>10, most>>10)
		if most > mostKiB {
			t.Errorf("%s: the daemon used %d MiB: want at most %d", d.name, most>>10, mostKiB>>10)
		}
	}
	head, policies, _ := strings.Cut(many(func(i int) string {
		return fmt.Sprintf("from: '%s', to: '%s', match: [udp/%d-%d, tcp, icmp], priority: %d", prefix(random, 16, 32), prefix(random, 16, 32), i+1, i+500, 1+i%1000)
	}), "policies:\n")
	r.MustApply(ctx, t, head)
	if _, err := r.Apply(ctx, "policies:\n"+policies); err == nil || !strings.Contains(err.Error(), "switch table full") {
		t.Errorf("policies alone for which the switch has no room: %v", err)
	}
	rig.Eventually(ctx, t, "the daemon gives memory back", func() (bool, string) {
		now, _ := memory(t, r.PID())
		return now <= quietKiB, fmt.Sprintf("%d MiB: want at most %d", now>>10, quietKiB>>10)
	})
}
