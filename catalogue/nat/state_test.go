package main

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

const statePool = `{"pool": ["10.0.0.100"], "clients": ["10.0.1.0/24"], "forward": [{"protocol": "tcp", "port": 8080, "to": "10.0.1.9:80"}]}`

// direct is where no frames are.
func direct(f func()) { f() }

// A table that takes another's state in has the same sessions, places and counts, and a client that had to take another port keeps it.
func TestStateIsHandedOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, err := parseConfig([]byte(statePool))
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(1e9, 0)
		from, to := newTable(&cfg), newTable(&cfg)
		for range rapid.IntRange(0, 60).Draw(t, "packets") {
			host := byte(rapid.IntRange(1, 4).Draw(t, "client"))
			client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, host}), uint16(rapid.IntRange(40000, 40003).Draw(t, "port")))
			server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 9, 1}), uint16(rapid.IntRange(80, 83).Draw(t, "server")))
			if rapid.Bool().Draw(t, "from out") {
				from.down(outer{nf.TCP, tags{}, netip.MustParseAddrPort("10.0.0.100:8080"), server}, now)
			} else if s := from.up(inner{nf.TCP, tags{}, client, server}, [6]byte{2, host}, now); s != nil {
				from.met(s, [6]byte{2, host})
			}
		}
		taken, left, err := to.restore(direct, from.export(direct, now.Add(time.Second)), now.Add(time.Second))
		if err != nil || taken != len(from.all) || left != 0 {
			t.Fatalf("%d of %d taken, %d left, %v", taken, len(from.all), left, err)
		}
		for k, s := range from.inner {
			got := to.inner[k]
			if got == nil || got.pool != s.pool || got.mac != s.mac || got.unproven != s.unproven || !got.seen.Equal(s.seen) || to.outer[s.outer()] != got {
				t.Fatalf("%+v became %+v", s, got)
			}
		}
		if len(to.taken) != len(from.taken) || len(to.homes) != len(from.homes) || len(to.waiting) != len(from.waiting) || len(to.clients) != len(from.clients) || len(to.macs) != len(from.macs) {
			t.Errorf("taken %d %d, homes %d %d, waiting %d %d", len(to.taken), len(from.taken), len(to.homes), len(from.homes), len(to.waiting), len(from.waiting))
		}
		for who, h := range from.homes {
			if *to.homes[who] != *h {
				t.Errorf("home of %v: %+v, want %+v", who, to.homes[who], h)
			}
		}
		if again, left, err := to.restore(direct, from.export(direct, now), now); again != 0 || left != len(from.all) || err != nil {
			t.Errorf("twice: %d taken, %d left, %v", again, left, err)
		}
		for _, s := range append([]*session{}, to.all...) {
			to.remove(s)
		}
		if len(to.taken)+len(to.homes)+len(to.clients)+len(to.macs)+len(to.used)+len(to.mapped) > 0 {
			t.Errorf("left behind: %+v", to)
		}
	})
}

// Sessions that the configuration does not allow are left out: another pool, another client behind a port, somebody who is no client any more, and what is over.
func TestStateOfAnotherConfiguration(t *testing.T) {
	table := func(config string) *table {
		cfg, err := parseConfig([]byte(config))
		must(t, err)
		return newTable(&cfg)
	}
	now := time.Unix(1e9, 0)
	from := table(statePool)
	server := netip.MustParseAddrPort("10.0.9.1:80")
	for _, client := range []string{"10.0.1.1:1000", "10.0.1.200:1000"} {
		from.up(inner{nf.UDP, tags{}, netip.MustParseAddrPort(client), server}, [6]byte{2}, now)
	}
	from.down(outer{nf.TCP, tags{}, netip.MustParseAddrPort("10.0.0.100:8080"), server}, now)
	for name, tt := range map[string]struct {
		config string
		later  time.Duration
		taken  int
	}{
		"the same":                  {statePool, 0, 3},
		"later":                     {statePool, silentUDP + time.Second, 1},
		"another pool":              {strings.Replace(statePool, "10.0.0.100", "10.0.0.101", 1), 0, 0},
		"fewer clients":             {strings.Replace(statePool, "10.0.1.0/24", "10.0.1.0/25", 1), 0, 2},
		"another behind a port":     {strings.Replace(statePool, "10.0.1.9:80", "10.0.1.8:80", 1), 0, 2},
		"the port is not forwarded": {strings.Replace(statePool, `, "forward": [{"protocol": "tcp", "port": 8080, "to": "10.0.1.9:80"}]`, "", 1), 0, 2},
	} {
		to := table(tt.config)
		at := now.Add(tt.later)
		if taken, left, err := to.restore(direct, from.export(direct, at), at); err != nil || taken != tt.taken || taken+left != 3 {
			t.Errorf("%s: %d taken, %d left, %v: want %d", name, taken, left, err, tt.taken)
		}
	}
}

// What is no state is refused, and nothing of it is taken in.
func TestWhatIsNoState(t *testing.T) {
	cfg, err := parseConfig([]byte(statePool))
	must(t, err)
	from := newTable(&cfg)
	now := time.Unix(1e9, 0)
	from.up(inner{nf.UDP, tags{}, netip.MustParseAddrPort("10.0.1.1:1000"), netip.MustParseAddrPort("10.0.9.1:80")}, [6]byte{2}, now)
	good := from.export(direct, now)
	for name, state := range map[string][]byte{
		"nothing": nil, "another version": bytes.Replace(good, []byte("nat 1"), []byte("nat 2"), 1), "cut off": good[:len(good)-1],
		"too many": append(bytes.Clone(good), bytes.Repeat(good[len(stateHead):], maxSessions)...),
	} {
		to := newTable(&cfg)
		if taken, _, err := to.restore(direct, state, now); err == nil || taken+len(to.all) > 0 {
			t.Errorf("%s: %d taken, %v", name, taken, err)
		}
	}
}

func FuzzRestore(f *testing.F) {
	cfg, err := parseConfig([]byte(statePool))
	must(f, err)
	from := newTable(&cfg)
	now := time.Unix(1e9, 0)
	from.up(inner{nf.UDP, tags{}, netip.MustParseAddrPort("10.0.1.1:1000"), netip.MustParseAddrPort("10.0.9.1:80")}, [6]byte{2}, now)
	f.Add(from.export(direct, now)[len(stateHead):])
	f.Fuzz(func(t *testing.T, records []byte) {
		to := newTable(&cfg)
		taken, _, err := to.restore(direct, append([]byte(stateHead), records...), now)
		if taken != len(to.all) || err != nil && taken > 0 || len(to.inner) != len(to.outer) {
			t.Errorf("%d taken, %d there, %v", taken, len(to.all), err)
		}
	})
}

// full is a table with as many sessions as there may be.
func full(t testing.TB, cfg *config, now time.Time) *table {
	t.Helper()
	out := newTable(cfg)
	for i := range maxSessions {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i % 64)}), uint16(1024+i/64))
		s := out.up(inner{nf.TCP, tags{}, client, netip.MustParseAddrPort("10.0.9.1:80")}, [6]byte{2, byte(i % 64)}, now)
		if s == nil {
			t.Fatalf("no room for session %d", i)
		}
		out.met(s, [6]byte{2, byte(i % 64)})
	}
	return out
}

// A full table is exported, restored and followed in pieces, between which frames go on. The times of this machine are logged.
func TestFramesDoNotWaitForAFullTable(t *testing.T) {
	cfg, err := parseConfig([]byte(`{"pool": ["10.0.0.100-10.0.0.103"], "clients": ["10.0.1.0/24"], "sessions_per_client": 60000}`))
	must(t, err)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := time.Now()
	from := full(t, &cfg, now)
	for _, x := range []struct {
		name string
		f    func(do nf.Between) int // how many sessions it was about
	}{
		{"export", func(do nf.Between) int {
			return (len(from.export(do, now)) - len(stateHead)) / binary.Size(record{})
		}},
		{"import", func(do nf.Between) int {
			taken, _, err := newTable(&cfg).restore(do, from.export(direct, now), now)
			must(t, err)
			return taken
		}},
		{"reload", func(do nf.Between) int {
			to := newTable(&cfg)
			do(to.follow(do, from, nf.AtOnce, now))
			return len(to.all)
		}},
	} {
		n, begin := 0, time.Now()
		times, all, longest := rig.Waits(t, func(do func(func())) { n = x.f(do) })
		t.Logf("%s of %d sessions: %s; frames wait %d times, for %s of processor time in all, %s at once", x.name, n, time.Since(begin), times, all, longest)
		if n != maxSessions || times < maxSessions/nf.AtOnce {
			t.Errorf("%s: %d sessions in %d pieces: want %d, at most %d at once", x.name, n, times, maxSessions, nf.AtOnce)
		}
	}
}

// A table that follows one in force has its sessions in the end, whatever frames do meanwhile.
func TestATableFollowsAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, err := parseConfig([]byte(statePool))
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		from, to := newTable(&cfg), newTable(&cfg)
		frames := func() {
			for range rapid.IntRange(0, 8).Draw(t, "frames") {
				host := byte(rapid.IntRange(1, 4).Draw(t, "client"))
				client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, host}), uint16(rapid.IntRange(40000, 40003).Draw(t, "port")))
				k := inner{nf.TCP, tags{}, client, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 9, 1}), uint16(rapid.IntRange(80, 83).Draw(t, "server")))}
				switch rapid.IntRange(0, 3).Draw(t, "what") {
				case 0:
					if s := from.inner[k]; s != nil {
						from.remove(s)
					}
				case 1:
					if s := from.down(outer{nf.TCP, tags{}, netip.MustParseAddrPort("10.0.0.100:8080"), k.remote}, now); s != nil {
						from.change(s)
						s.acked++
					}
				default:
					if s := from.up(k, [6]byte{2, host}, now); s != nil {
						from.change(s)
						from.met(s, [6]byte{2, host})
						s.acked++
					}
				}
			}
		}
		do := func(f func()) { frames(); f(); frames() }
		rest := to.follow(do, from, rapid.IntRange(0, 8).Draw(t, "few"), now)
		rest()
		if len(to.all) != len(from.all) || from.follows || from.changes != nil {
			t.Fatalf("%d sessions, want %d; %d changes are left", len(to.all), len(from.all), len(from.changes))
		}
		for k, s := range from.inner {
			if got := to.inner[k]; got == nil || got.pool != s.pool || got.mac != s.mac || got.acked != s.acked || got.unproven != s.unproven || to.outer[s.outer()] != got {
				t.Fatalf("%+v became %+v", s, got)
			}
		}
		for _, s := range append([]*session{}, to.all...) {
			to.remove(s)
		}
		if len(to.taken)+len(to.homes)+len(to.clients)+len(to.macs)+len(to.used)+len(to.mapped) > 0 {
			t.Errorf("left behind: %+v", to)
		}
	})
}

// A session that the switch translates is silent for the function; it is handed over all the same.
func TestSettledSessionsAreHandedOver(t *testing.T) {
	cfg, err := parseConfig([]byte(statePool))
	must(t, err)
	from, now := newTable(&cfg), time.Unix(1e9, 0)
	s := from.up(inner{nf.UDP, tags{}, netip.MustParseAddrPort("10.0.1.1:1000"), netip.MustParseAddrPort("10.0.9.1:81")}, [6]byte{2}, now)
	s.settled[nf.Up] = true
	for after, want := range map[time.Duration]int{silentUDP + time.Second: 1, settledLasts + silentUDP + time.Second: 0} {
		at := now.Add(after)
		if taken, _, err := newTable(&cfg).restore(direct, from.export(direct, at), at); err != nil || taken != want {
			t.Errorf("after %s: %d taken, %v: want %d", after, taken, err, want)
		}
	}
}
