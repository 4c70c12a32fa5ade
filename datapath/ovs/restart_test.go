package ovs

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/ovsdb"
	"weir.dev/weir/ovsdb/ovsproc"
)

// steered is a rig whose frames from alice to bob go through a wire.
func steered(t *testing.T, open suite.Factory) (r *suite.Rig, alice, bob *suite.Station) {
	t.Helper()
	r = suite.NewRig(t, open)
	alice, bob = r.Station("alice"), r.Station("bob")
	wire := r.Wire("wire")
	r.Commit(
		flow.Rule{Cookie: 1, Priority: 10, Stage: flow.Egress, Match: flow.Match{InPort: alice.Port, OutPort: bob.Port, EtherType: 0x1234},
			Action: flow.Action{Op: flow.Output, Port: wire.Ports.In}, Note: "in"},
		flow.Rule{Cookie: 2, Priority: 10, Match: flow.Match{InPort: wire.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: bob.Port}, Note: "out"})
	return r, alice, bob
}

// paced is a stream of numbered frames at a fixed rate.
type paced struct {
	every time.Duration
	to    *suite.Station
	stop  chan struct{}
	done  sync.WaitGroup
	sent  uint64
}

const (
	frameLen = 68
	settle   = 50 // a frame behind which none comes in so many looks, 20 ms apart, is lost: time alone may be the whole machine's
)

// pace a stream, however many frames are under way.
func pace(t *testing.T, from, to *suite.Station, pps int) *paced {
	p := &paced{every: time.Second / time.Duration(pps), to: to, stop: make(chan struct{})}
	p.done.Go(func() {
		start := time.Now()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
			}
			for due := uint64(time.Since(start) / p.every); p.sent < due; p.sent++ {
				f := append(append(append([]byte{}, to.MAC[:]...), from.MAC[:]...), 0x12, 0x34)
				from.Send(t, binary.BigEndian.AppendUint64(append(f, make([]byte, frameLen-len(f)-8)...), p.sent))
			}
		}
	})
	return p
}

// end the stream, and tell lost and doubled frames and the longest row of lost ones.
func (p *paced) end(t *testing.T) (lost, twice int, outage time.Duration) {
	t.Helper()
	close(p.stop)
	p.done.Wait()
	seen := make([]int, p.sent)
	count := func() int {
		clear(seen)
		got := 0
		for _, f := range p.to.Frames([]byte{0x12, 0x34, 0, 0, 0, 0}) {
			if len(f) == frameLen {
				seen[binary.BigEndian.Uint64(f[frameLen-8:])]++
				got++
			}
		}
		return got
	}
	for vain, before := 0, -1; vain < settle; vain++ { // what is under way
		now := count()
		if now >= len(seen) {
			break
		}
		if now != before {
			before, vain = now, 0
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 2e7}, nil)
	}
	row, longest := 0, 0
	for _, n := range seen {
		switch {
		case n == 0:
			lost++
			row++
			longest = max(longest, row)
			continue
		case n > 1:
			twice += n - 1
		}
		row = 0
	}
	return lost, twice, time.Duration(longest) * p.every
}

func hits(t *testing.T, s datapath.Switch, cookie uint64) datapath.Counter {
	t.Helper()
	_, rules, err := s.Status(suite.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if r.Cookie == cookie {
			return r.Hits
		}
	}
	t.Fatalf("no rule %d", cookie)
	return datapath.Counter{}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatal("no such process")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func ours(r *suite.Rig) *Switch { return r.Switch.(tested).Switch }

// TestProcessesDie: under a stream of 1,000 frames a second through a chain. Outages are printed; what must hold is that it goes on, steered,
// and that counters do not go back. (A user-space datapath forwards in ovs-vswitchd's main thread, which pauses while it has no database.)
func TestProcessesDie(t *testing.T) {
	for _, c := range []struct {
		name    string
		noLoss  bool
		disturb func(t *testing.T, r *suite.Rig, p *ovsproc.Process)
	}{
		{"ovs-vswitchd killed", false, func(t *testing.T, r *suite.Rig, p *ovsproc.Process) { kill(t, p.SwitchPID()) }},
		{"ovs-vswitchd ended", false, func(t *testing.T, r *suite.Rig, p *ovsproc.Process) {
			if err := p.StopSwitch(suite.Context(t)); err != nil {
				t.Error(err)
			}
		}},
		{"ovsdb-server killed", false, func(t *testing.T, r *suite.Rig, p *ovsproc.Process) { kill(t, p.ServerPID()) }},
		{"both killed", false, func(t *testing.T, r *suite.Rig, p *ovsproc.Process) {
			kill(t, p.ServerPID())
			kill(t, p.SwitchPID())
		}},
		{"the driver gone and back", true, func(t *testing.T, r *suite.Rig, p *ovsproc.Process) {
			r.Close()
			r.Reopen()
		}},
		{"ovs-vswitchd killed while the driver was gone", false, func(t *testing.T, r *suite.Rig, p *ovsproc.Process) {
			r.Close()
			kill(t, p.SwitchPID())
			suite.Until(t, "it ended", func() bool { return p.SwitchPID() == 0 })
			r.Reopen()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, alice, bob := steered(t, factory)
			s := ours(r)
			p := s.processes.own
			version := s.rules.set.Version
			stream := pace(t, alice, bob, 1000)
			suite.Until(t, "frames come", func() bool { return bob.Count() > 200 })
			suite.Until(t, "they are counted", func() bool { return hits(t, r.Switch, 2).Packets > 100 })
			before := hits(t, r.Switch, 2)
			c.disturb(t, r, p)
			suite.Until(t, "both run", func() bool { a, b := p.Running(); return a && b })
			at := bob.Count()
			suite.Until(t, "frames come again", func() bool { return bob.Count() > at+300 })
			suite.Until(t, "it is counted on", func() bool {
				now := hits(t, r.Switch, 2)
				if now.Packets < before.Packets || now.Bytes < before.Bytes {
					t.Fatalf("the counter went back from %+v to %+v", before, now)
				}
				return now.Packets > before.Packets+250 // frames go on through the chain
			})
			lost, twice, outage := stream.end(t)
			t.Logf("of %d frames %d lost, %d doubled, outage %s", stream.sent, lost, twice, outage)
			if c.noLoss && lost > 0 || twice > 0 {
				t.Errorf("%d lost, %d doubled", lost, twice)
			}
			if v := ours(r).rules.set.Version; v != version {
				t.Errorf("version %d, was %d", v, version)
			}
			// Everything still works.
			r.Station("carol")
			if c := r.Commit(); c.Removed != 2 {
				t.Errorf("a commit of nothing: %+v", c)
			}
		})
	}
}

func TestLogsOfPrivateProcessesAreBounded(t *testing.T) {
	s := ours(suite.NewRig(t, factory))
	for _, program := range []string{"ovs-vswitchd", "ovsdb-server"} {
		if err := os.Truncate(filepath.Join(s.processes.own.Dir(), program+".log"), 5<<20); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"ovs-vswitchd", "ovsdb-server"} {
		suite.Until(t, program+"'s log is turned over", func() bool {
			path := filepath.Join(s.processes.own.Dir(), program+".log")
			old, err := os.Stat(path + ".1")
			now, nerr := os.Stat(path)
			return err == nil && nerr == nil && old.Size() >= 5<<20 && now.Size() < 1<<20
		})
	}
}

// TestCommitsUnderLoad: 100 changes of the chain under 10,000 frames a second lose and double none.
func TestCommitsUnderLoad(t *testing.T) {
	r := suite.NewRig(t, factory)
	alice, bob := r.Station("alice"), r.Station("bob")
	a, b := r.Wire("a"), r.Wire("b")
	chain := func(cookie uint64, through ...*suite.Function) []flow.Rule {
		m, stage := flow.Match{InPort: alice.Port, OutPort: bob.Port, EtherType: 0x1234}, flow.Egress
		var rules []flow.Rule
		for i, f := range through {
			rules = append(rules, flow.Rule{Cookie: cookie + uint64(i), Priority: 10, Stage: stage, Match: m, Action: flow.Action{Op: flow.Output, Port: f.Ports.In}})
			m, stage = flow.Match{InPort: f.Ports.Out}, flow.Ingress
		}
		return append(rules, flow.Rule{Cookie: cookie + 9, Priority: 10, Stage: stage, Match: m, Action: flow.Action{Op: flow.Output, Port: bob.Port}})
	}
	sets := [][]flow.Rule{chain(100, a), chain(200, b), chain(300, a, b), nil, chain(400, b, a)}
	r.Commit(sets[0]...)
	stream := pace(t, alice, bob, 10000)
	suite.Until(t, "frames come", func() bool { return bob.Count() > 1000 })
	var took time.Duration
	for i := range 100 {
		at := bob.Count()
		start := time.Now()
		r.Commit(sets[(i+1)%len(sets)]...)
		took += time.Since(start)
		suite.Until(t, "frames come", func() bool { return bob.Count() > at+20 })
	}
	lost, twice, _ := stream.end(t)
	t.Logf("of %d frames %d lost, %d doubled; a commit took %s", stream.sent, lost, twice, took/100)
	if lost+twice > 0 {
		t.Errorf("of %d frames %d lost, %d doubled", stream.sent, lost, twice)
	}
}

// TestForeign: in an Open vSwitch that others use, only Weir's own bridge and ports are touched.
func TestForeign(t *testing.T) {
	var host *ovsproc.Process
	shared := func(i instance.Instance) (datapath.Switch, error) {
		if host == nil {
			dir := filepath.Join(filepath.Dir(i.Run), "host-ovs")
			p, err := ovsproc.Start(context.Background(), ovsproc.Options{Dir: dir})
			if err != nil {
				return nil, err
			}
			host = p
			t.Cleanup(func() {
				if err := p.Destroy(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		s, err := Open(context.Background(), Options{Instance: i, OVSDB: host.DB(), Datapath: netdev})
		if err != nil {
			return nil, err
		}
		return tested{s}, nil
	}
	r, alice, bob := steered(t, shared)
	ctx := suite.Context(t)
	db, err := ovsdb.Dial(ctx, host.DB(), ovsdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	other := r.Unplugged("other")
	_, err = db.Transact(ctx, database,
		ovsdb.Insert{Table: "Interface", Name: "i", Row: ovsdb.Row{"name": other.E.Link, "external_ids": map[string]string{"weir-instance": "another"}}},
		ovsdb.Insert{Table: "Port", Name: "p", Row: ovsdb.Row{"name": other.E.Link, "interfaces": ovsdb.NamedUUID("i")}},
		ovsdb.Insert{Table: "Bridge", Name: "b", Row: ovsdb.Row{"name": "foreign", "datapath_type": netdev, "ports": ovsdb.NamedUUID("p"), "external_ids": map[string]string{"weir-instance": "another"}}},
		ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.Put, Value: ovsdb.NamedUUID("b")}}})
	if err != nil {
		t.Fatal(err)
	}
	look := func() (all []string) {
		for _, table := range []string{"Bridge", "Port", "Interface"} {
			res, err := db.Transact(ctx, database, ovsdb.Select{Table: table, Columns: []string{"_uuid", "name", "external_ids"}})
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range res[0].Rows {
				if name := row.Text("name"); name == "foreign" || name == other.E.Link {
					all = append(all, table+" "+name+" "+string(row.UUIDs("_uuid")[0]))
				}
			}
		}
		return all
	}
	before := look()
	if len(before) != 3 {
		t.Fatalf("foreign rows: %v", before)
	}
	if _, err := r.Switch.AddEndpoint(ctx, other.E); err == nil || !strings.Contains(err.Error(), "belongs to a bridge of Open vSwitch") {
		t.Errorf("a port of a foreign bridge: %v", err)
	}
	stream := pace(t, alice, bob, 1000)
	suite.Until(t, "frames come", func() bool { return bob.Count() > 200 })
	pid := host.SwitchPID()
	if err := r.Switch.Remove(ctx, "endpoint/other"); err != nil {
		t.Error(err)
	}
	stream.end(t)
	if err := r.Switch.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, look()); d != "" {
		t.Errorf("foreign rows: %s", d)
	}
	res, err := db.Transact(ctx, database, ovsdb.Select{Table: "Bridge", Where: named(r.Instance.Bridge())})
	if err != nil || len(res[0].Rows) != 0 {
		t.Errorf("Weir's bridge is still there: %v, %v", res, err)
	}
	if host.SwitchPID() != pid {
		t.Error("the host's ovs-vswitchd was restarted")
	}
	if _, err := os.Stat(filepath.Join(r.Instance.Run, "ovs")); !os.IsNotExist(err) {
		t.Errorf("files are left: %v", err)
	}
}
