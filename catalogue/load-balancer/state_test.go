package main

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// stateConfig has two services with targets in another order than those of its other form.
func stateConfig(t *testing.T, text string) *config {
	t.Helper()
	cfg, err := parseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return &cfg
}

const (
	oneState   = `{"services": {"a": {"address": "10.0.0.1", "port": 80, "protocol": "tcp", "targets": [{"address": "10.0.1.1", "port": 80, "mac": "02:00:00:00:00:01"}, {"address": "10.0.1.2", "port": 80, "mac": "02:00:00:00:00:01"}]}, "b": {"address": "2001:db8::1", "port": 53, "protocol": "udp", "targets": [{"address": "2001:db8::2", "port": 53, "mac": "02:00:00:00:00:01"}]}}}`
	otherState = `{"services": {"0": {"address": "10.0.0.9", "port": 80, "protocol": "tcp", "targets": [{"address": "10.0.9.1", "port": 80, "mac": "02:00:00:00:00:01"}]}, "z": {"address": "10.0.0.1", "port": 80, "protocol": "tcp", "targets": [{"address": "10.0.1.2", "port": 80, "mac": "02:00:00:00:00:01"}, {"address": "10.0.1.3", "port": 80, "mac": "02:00:00:00:00:01"}]}}}`
)

// direct is where no frames are.
func direct(f func()) { f() }

// TestStateIsHandedOver: connections keep their targets in a new instance, also where services and targets have other numbers; those of a target that is gone are left.
func TestStateIsHandedOver(t *testing.T) {
	now := time.Now()
	b := newBalancer(stateConfig(t, oneState), nil, nil, nil)
	client := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	v := b.at[place{nf.TCP, client("10.0.0.1:80")}]
	for i, c := range []string{"10.9.0.1:1000", "10.9.0.1:1001", "10.9.0.2:1000"} {
		b.table.add(key{v.index, client(c)}, uint8(i%2), open, now.Add(-time.Duration(i)*time.Minute))
	}
	u := b.at[place{nf.UDP, client("[2001:db8::1]:53")}]
	b.table.add(key{u.index, client("[2001:db8::9]:5000")}, 0, datagrams, now.Add(-time.Minute)).answered = true
	b.answered(member{v, 1}, &nf.Packet{Proto: nf.TCP, Dst: netip.MustParseAddr("10.9.0.7"), DstPort: 1000, Flags: nf.ACK}, now) // a guess, which no other instance is to have
	guess := key{v.index, client("10.9.0.7:1000")}
	if c := b.table.all[guess]; c == nil || !c.guessed {
		t.Fatalf("%+v: want a guess", c)
	}
	state := b.export(direct, now)
	b.table.remove(b.table.all[guess])

	same := newBalancer(stateConfig(t, oneState), nil, nil, nil)
	if taken, left, err := same.restore(direct, state, now); taken != 4 || left != 0 || err != nil {
		t.Fatalf("%d taken, %d left, %v", taken, left, err)
	}
	for k, c := range b.table.all {
		if got := same.table.all[k]; got == nil || got.target != c.target || got.phase != c.phase || got.answered != c.answered || !got.used.Equal(c.used) {
			t.Errorf("%v: %+v, want %+v", k, got, c)
		}
	}
	if again, left, err := same.restore(direct, state, now); again != 0 || left != 4 || err != nil {
		t.Errorf("again: %d taken, %d left, %v", again, left, err)
	}

	other := newBalancer(stateConfig(t, otherState), nil, nil, nil)
	if taken, left, err := other.restore(direct, state, now); taken != 1 || left != 3 || err != nil {
		t.Fatalf("%d taken, %d left, %v", taken, left, err)
	}
	w := other.at[place{nf.TCP, client("10.0.0.1:80")}]
	if c := other.table.all[key{w.index, client("10.9.0.1:1001")}]; c == nil || w.members[c.target].at != client("10.0.1.2:80") {
		t.Errorf("%+v: want the second target of before", c)
	}
	if taken, _, _ := newBalancer(stateConfig(t, oneState), nil, nil, nil).restore(direct, state, now.Add(24*time.Hour)); taken != 4 { // silence is told, not a time of day
		t.Errorf("%d taken a day later", taken)
	}
}

// TestATargetTakesNoConnectionsOfOthers: what a target sends to a client's port leads a connection that is older than the instance, and no new one.
func TestATargetTakesNoConnectionsOfOthers(t *testing.T) {
	now := time.Now()
	b := newBalancer(stateConfig(t, oneState), nil, nil, nil)
	v := b.at[place{nf.TCP, netip.MustParseAddrPort("10.0.0.1:80")}]
	for port := range uint16(64) {
		client := netip.AddrPortFrom(netip.MustParseAddr("10.9.0.1"), 1000+port)
		up := &nf.Packet{Proto: nf.TCP, Src: client.Addr(), SrcPort: client.Port(), Flags: nf.SYN}
		own := v.fresh[v.hash(client)%slots]
		other := 1 - own
		b.answered(member{v, other}, &nf.Packet{Proto: nf.TCP, Dst: client.Addr(), DstPort: client.Port(), Flags: nf.ACK}, now)
		if port%2 == 0 { // an old connection
			up.Flags = nf.ACK
			if got := b.choose(v, up, now).target; got != other {
				t.Errorf("%s: an old connection goes to %d: want %d, which has spoken", client, got, other)
			}
			continue
		}
		if got := b.choose(v, up, now).target; got != own {
			t.Errorf("%s: a new connection goes to %d, which has taken it: want %d", client, got, own)
		}
	}
}

// TestStateThatIsNone is refused, and takes nothing in.
func TestStateThatIsNone(t *testing.T) {
	now := time.Now()
	b := newBalancer(stateConfig(t, oneState), nil, nil, nil)
	v := b.at[place{nf.TCP, netip.MustParseAddrPort("10.0.0.1:80")}]
	b.table.add(key{v.index, netip.MustParseAddrPort("10.9.0.1:1000")}, 0, open, now)
	state := b.export(direct, now)
	for name, x := range map[string]struct {
		state []byte
		want  string
	}{
		"nothing":    {nil, "no state of a load-balancer"},
		"a nat's":    {[]byte("weir-nat 1\n"), "no state of a load-balancer"},
		"cut off":    {state[:len(state)-1], "cut off"},
		"much of it": {append([]byte(stateHead), bytes.Repeat(state[len(stateHead):], mostExported+1)...), "want at most"},
	} {
		n := newBalancer(stateConfig(t, oneState), nil, nil, nil)
		if _, _, err := n.restore(direct, x.state, now); err == nil || !strings.Contains(err.Error(), x.want) || len(n.table.all) > 0 {
			t.Errorf("%s: %v, %d taken: want %q", name, err, len(n.table.all), x.want)
		}
	}
	for i := len(stateHead); i < len(state); i++ { // whatever a byte is: no panic, and one connection at most
		bad := bytes.Clone(state)
		bad[i] ^= 0xff
		n := newBalancer(stateConfig(t, oneState), nil, nil, nil)
		if _, _, err := n.restore(direct, bad, now); err != nil || len(n.table.all) > 1 {
			t.Errorf("byte %d: %v, %d taken", i, err, len(n.table.all))
		}
		n.tick(now.Add(time.Minute))
	}
}

// A full table is exported and restored in pieces, between which frames go on; what comes and goes meanwhile is no harm. The times of this machine are logged.
func TestFramesDoNotWaitForAFullTable(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := time.Now()
	cfg := stateConfig(t, strings.Replace(oneState, `{"services"`, `{"connections": 262144, "services"`, 1))
	from := newBalancer(cfg, nil, nil, nil)
	v := from.at[place{nf.TCP, netip.MustParseAddrPort("10.0.0.1:80")}]
	client := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), uint16(1000+i>>16))
	}
	for i := range from.table.room {
		from.table.add(key{v.index, client(i)}, uint8(i%2), open, now.Add(time.Duration(i)))
	}
	at := now.Add(time.Second)
	state := from.export(direct, at)
	want := min(from.table.room, mostExported)
	to := newBalancer(cfg, nil, nil, nil)
	for _, x := range []struct {
		name string
		f    func(do nf.Between) int
	}{
		{"export", func(do nf.Between) int {
			return (len(from.export(do, at)) - len(stateHead)) / binary.Size(record{})
		}},
		{"import", func(do nf.Between) int {
			taken, _, err := to.restore(do, state, at)
			must(t, err)
			return taken
		}},
	} {
		n, begin := 0, time.Now()
		times, all, longest := rig.Waits(t, func(do func(func())) { n = x.f(do) })
		t.Logf("%s of %d connections: %s; frames wait %d times, for %s of processor time in all, %s at once", x.name, n, time.Since(begin), times, all, longest)
		if n != want || times < want/nf.AtOnce {
			t.Errorf("%s: %d connections in %d pieces: want %d, at most %d at once", x.name, n, times, want, nf.AtOnce)
		}
	}
	if c := to.table.phases[open].Front().Value.(*connection); !c.used.Equal(now.Add(time.Duration(from.table.room - want))) {
		t.Errorf("the first one to go was used %s after the first of all: want the least recently used one, %d ns after", c.used.Sub(now), from.table.room-want)
	}
	for i, c := range to.table.list {
		if c.at != i || to.table.all[c.key] != c {
			t.Fatalf("connection %d of the list is %+v", i, c)
		}
	}

	// Half of them go while they are copied, others come.
	left, looks := 0, 0
	copied := from.table.copies(func(f func()) {
		f()
		if looks++; looks == 3 { // they are known, and some are copied
			for i := range from.table.room / 2 {
				from.table.remove(from.table.all[key{v.index, client(2 * i)}])
				left++
			}
			from.table.add(key{v.index, netip.MustParseAddrPort("10.8.0.1:1000")}, 0, open, now)
		}
	})
	if most := from.table.room - left + nf.AtOnce; left == 0 || len(copied) < from.table.room-left || len(copied) > most {
		t.Errorf("%d copied, want %d to %d", len(copied), from.table.room-left, most)
	}
}
