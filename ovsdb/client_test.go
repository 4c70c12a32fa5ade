package ovsdb_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
	"weir.dev/weir/ovsdb"
	"weir.dev/weir/ovsdb/ovsproc"
)

const db = "Open_vSwitch"

func context20(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// server is a private ovsdb-server with a client.
func server(t *testing.T, o ovsdb.Options) (*ovsproc.Process, *ovsdb.Client) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	dir, err := os.MkdirTemp("", "ovsdb-")
	if err != nil {
		t.Fatal(err)
	}
	ns := filepath.Join(dir, "ns")
	if err := netns.Create(ns, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	p, err := ovsproc.Start(context20(t), ovsproc.Options{Dir: filepath.Join(dir, "o"), Netns: ns})
	t.Cleanup(func() {
		if err := ovsproc.At(ovsproc.Options{Dir: filepath.Join(dir, "o")}).Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		if err := netns.Delete(ns); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, dial(t, p.DB(), o)
}

func dial(t *testing.T, address string, o ovsdb.Options) *ovsdb.Client {
	t.Helper()
	c, err := ovsdb.Dial(context20(t), address, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func bridge(name string) []ovsdb.Op {
	return []ovsdb.Op{
		ovsdb.Insert{Table: "Bridge", Name: "b", Row: ovsdb.Row{"name": name, "datapath_type": "netdev", "fail_mode": "secure",
			"external_ids": map[string]string{"owner": "test", "other": "x"}}},
		ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.Put, Value: ovsdb.NamedUUID("b")}}},
	}
}

func TestRealServer(t *testing.T) {
	p, c := server(t, ovsdb.Options{})
	ctx := context20(t)
	if err := c.Echo(ctx); err != nil {
		t.Fatal(err)
	}
	names, err := c.Databases(ctx)
	if err != nil || !strings.Contains(fmt.Sprint(names), db) {
		t.Fatalf("databases %v, %v", names, err)
	}
	s, err := c.Schema(ctx, db)
	if err != nil {
		t.Fatal(err)
	}
	ids := s.Tables["Bridge"].Columns["external_ids"].Type
	if s.Name != db || ids.Key.Type != "string" || ids.Value.Type != "string" || ids.Max != -1 || ids.Min != 0 {
		t.Errorf("schema: %+v", ids)
	}
	if ref := s.Tables["Bridge"].Columns["ports"].Type.Key.RefTable; ref != "Port" {
		t.Errorf("bridges refer to %q", ref)
	}

	m, err := c.Monitor(ctx, db, map[string]ovsdb.MonitorTable{"Bridge": {Columns: []string{"name", "external_ids", "fail_mode"}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Initial()["Bridge"]) != 0 {
		t.Errorf("initially %v", m.Initial())
	}
	res, err := c.Transact(ctx, db, append(bridge("br0"), ovsdb.Commit{Durable: true})...)
	if err != nil {
		t.Fatal(err)
	}
	id := res[0].UUID
	if len(id) != 36 || res[1].Count != 1 {
		t.Errorf("results %+v", res)
	}
	next := func() ovsdb.RowUpdate {
		t.Helper()
		for {
			select {
			case u, ok := <-m.Updates():
				if !ok {
					t.Fatal("updates ended: ", c.Err())
				}
				if r, mine := u["Bridge"][id]; mine {
					return r
				}
			case <-ctx.Done():
				t.Fatal("no update")
			}
		}
	}
	want := ovsdb.RowUpdate{New: ovsdb.Row{"name": "br0", "fail_mode": "secure", "external_ids": ovsdb.Map{"owner": "test", "other": "x"}}}
	if d := cmp.Diff(want, next()); d != "" {
		t.Error("insert: ", d)
	}
	res, err = c.Transact(ctx, db,
		ovsdb.Mutate{Table: "Bridge", Where: ovsdb.ByUUID(id), Mutations: []ovsdb.Mutation{
			{Column: "external_ids", Mutator: ovsdb.Take, Value: ovsdb.Set{"other"}},
			{Column: "external_ids", Mutator: ovsdb.Put, Value: map[string]string{"more": "y"}}}},
		ovsdb.Update{Table: "Bridge", Where: ovsdb.ByUUID(id), Row: ovsdb.Row{"fail_mode": ovsdb.Set{}}},
		ovsdb.Select{Table: "Bridge", Where: []ovsdb.Condition{{Column: "name", Test: ovsdb.Equal, Value: "br0"}}, Columns: []string{"external_ids", "fail_mode", "_uuid"}},
		ovsdb.Comment{Text: "test"},
	)
	if err != nil {
		t.Fatal(err)
	}
	wantRows := []ovsdb.Row{{"_uuid": id, "fail_mode": ovsdb.Set{}, "external_ids": ovsdb.Map{"owner": "test", "more": "y"}}}
	if d := cmp.Diff(wantRows, res[2].Rows); d != "" {
		t.Error(d)
	}
	u := next()
	if u.Old == nil || u.New == nil || u.Old.Text("fail_mode") != "secure" || u.New.Text("fail_mode") != "" {
		t.Errorf("modification: %+v", u)
	}
	// ovs-vsctl is the oracle.
	if got := u.New.Texts("external_ids"); got["more"] != "y" || got["other"] != "" {
		t.Errorf("external ids %v", got)
	}

	for _, c2 := range []struct {
		name  string
		ops   []ovsdb.Op
		index int
		code  string
	}{
		{"unknown table", []ovsdb.Op{ovsdb.Comment{Text: "a"}, ovsdb.Insert{Table: "Nothing"}}, 1, ovsdb.CodeSyntax},
		{"wait in vain", []ovsdb.Op{ovsdb.Wait{Table: "Bridge", Where: ovsdb.ByUUID(id), Columns: []string{"name"}, Rows: []ovsdb.Row{{"name": "other"}}}}, 0, ovsdb.CodeTimedOut},
		{"aborted", []ovsdb.Op{ovsdb.Delete{Table: "Bridge"}, ovsdb.Abort{}}, 1, ovsdb.CodeAborted},
		{"not the lock's owner", []ovsdb.Op{ovsdb.Assert{Lock: "nobodys"}}, 0, ovsdb.CodeNotOwner},
		{"twice the same name, refused at the commit", append(bridge("br1"), twin("br1"), mention("c")), 4, ovsdb.CodeConstraint},
		{"out of range", []ovsdb.Op{ovsdb.Update{Table: "Bridge", Row: ovsdb.Row{"fail_mode": "sometimes"}}}, 0, ovsdb.CodeConstraint},
	} {
		_, err := c.Transact(ctx, db, c2.ops...)
		var oe *ovsdb.OpError
		if !errors.As(err, &oe) || oe.Index != c2.index || oe.Code != c2.code {
			t.Errorf("%s: %v (%+v), want operation %d: %s", c2.name, err, oe, c2.index, c2.code)
		}
	}
	if _, err := c.Transact(ctx, db, ovsdb.Wait{Table: "Bridge", Where: ovsdb.ByUUID(id), Columns: []string{"name"}, Rows: []ovsdb.Row{{"name": "br0"}}}); err != nil {
		t.Errorf("a wait for what is so: %v", err)
	}
	var re *ovsdb.RPCError
	if _, err := c.Schema(ctx, "nothing"); !errors.As(err, &re) || re.Code != ovsdb.CodeUnknownDB {
		t.Errorf("schema of an unknown database: %v", err)
	}
	if err := c.Call(ctx, "nonsense", []string{}, nil); !errors.As(err, &re) {
		t.Errorf("unknown method: %v", err)
	}

	if _, err := c.Transact(ctx, db, ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.Take, Value: id}}}); err != nil {
		t.Fatal(err)
	}
	for u = next(); u.New != nil; u = next() { // what ovs-vswitchd wrote meanwhile
	}
	if u.Old == nil {
		t.Errorf("deletion: %+v", u)
	}
	if err := m.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	for range m.Updates() {
	}

	control := dial(t, "unix:"+p.SwitchControl(), ovsdb.Options{})
	var version string
	if err := control.Call(ctx, "version", []string{}, &version); err != nil || !strings.Contains(version, "Open vSwitch") {
		t.Errorf("control socket: %q, %v", version, err)
	}
	if err := control.Call(ctx, "nonsense", []string{}, nil); !errors.As(err, &re) || !strings.Contains(re.Code, "not a valid command") {
		t.Errorf("control socket, unknown command: %v", err)
	}
}

func twin(name string) ovsdb.Op {
	i := bridge(name)[0].(ovsdb.Insert)
	i.Name = "c"
	return i
}

func mention(name string) ovsdb.Op {
	return ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.Put, Value: ovsdb.NamedUUID(name)}}}
}

func TestServerKilled(t *testing.T) {
	p, c := server(t, ovsdb.Options{})
	m, err := c.Monitor(context20(t), db, map[string]ovsdb.MonitorTable{"Open_vSwitch": {}})
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() { // for a row that never comes
		_, err := c.Transact(context20(t), db, ovsdb.Wait{TimeoutMS: 60000, Table: "Bridge", Unequal: true, Columns: []string{"name"}})
		waits <- err
	}()
	if err := c.Echo(context20(t)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(p.ServerPID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the end of the server was not noticed")
	}
	if err := c.Err(); !errors.Is(err, ovsdb.ErrClosed) {
		t.Errorf("err: %v", err)
	}
	if err := <-waits; !errors.Is(err, ovsdb.ErrClosed) {
		t.Errorf("the transaction under way: %v", err)
	}
	for range m.Updates() {
	}
	if err := c.Echo(context20(t)); !errors.Is(err, ovsdb.ErrClosed) {
		t.Errorf("a call afterwards: %v", err)
	}
	if err := p.StartServer(context20(t)); err != nil {
		t.Fatal(err)
	}
	if err := dial(t, p.DB(), ovsdb.Options{}).Echo(context20(t)); err != nil {
		t.Error(err)
	}
}

// pair is a client and the other end of its connection.
func pair(t *testing.T, o ovsdb.Options) (*ovsdb.Client, net.Conn) {
	t.Helper()
	a, b := net.Pipe()
	c := ovsdb.New(a, o)
	t.Cleanup(func() { c.Close(); b.Close() })
	return c, b
}

func TestBadPeers(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"no JSON", "HTTP/1.1 400 Bad Request\r\n", ovsdb.ErrMalformed},
		{"cut short", `{"id": 1, "res`, ovsdb.ErrMalformed},
		{"an array", `[1, 2]`, ovsdb.ErrMalformed},
		{"an id of another kind", `{"id": {"a": 1}, "result": 1, "error": null}`, ovsdb.ErrMalformed},
		{"an update without parameters", `{"method": "update", "params": 3, "id": null}`, ovsdb.ErrMalformed},
		{"too long", `{"id": "` + strings.Repeat("x", 5000) + `"}`, ovsdb.ErrMalformed},
		{"nothing", "", ovsdb.ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, peer := pair(t, ovsdb.Options{MaxMessage: 4096})
			go func() {
				_, _ = peer.Write([]byte(c.text))
				peer.Close()
			}()
			select {
			case <-client.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("the connection goes on")
			}
			if err := client.Err(); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestEchoIsAnsweredAndSilenceNoticed(t *testing.T) {
	client, peer := pair(t, ovsdb.Options{Echo: time.Second})
	d := json.NewDecoder(peer)
	go func() { _, _ = peer.Write([]byte(`{"id": "echo", "method": "echo", "params": ["a", 1]}`)) }()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"id": "echo", "result": []any{"a", 1.0}, "error": nil}, m); diff != "" {
		t.Error(diff)
	}
	if err := d.Decode(&m); err != nil || m["method"] != "echo" { // it asks, too
		t.Fatal(m, err)
	}
	select {
	case <-client.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("silence was not noticed")
	}
}

func TestUnreadUpdatesEndTheConnection(t *testing.T) {
	client, peer := pair(t, ovsdb.Options{Updates: 2})
	d := json.NewDecoder(peer)
	go func() {
		var m struct {
			ID     any
			Params []any
		}
		_ = d.Decode(&m)
		reply, _ := json.Marshal(map[string]any{"id": m.ID, "result": map[string]any{}, "error": nil})
		_, _ = peer.Write(reply)
		update, _ := json.Marshal(map[string]any{"id": nil, "method": "update", "params": []any{m.Params[1], map[string]any{}}})
		for range 3 {
			_, _ = peer.Write(update)
		}
	}()
	m, err := client.Monitor(context20(t), db, map[string]ovsdb.MonitorTable{"Bridge": {}})
	if err != nil {
		t.Fatal(err)
	}
	<-client.Done()
	if err := client.Err(); !errors.Is(err, ovsdb.ErrOverflow) {
		t.Error(err)
	}
	n := 0
	for range m.Updates() {
		n++
	}
	if n != 2 {
		t.Errorf("%d updates, want the 2 that had a place", n)
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	client, peer := pair(t, ovsdb.Options{})
	go func() { _ = json.NewDecoder(peer).Decode(&struct{}{}) }()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := client.Echo(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if client.Err() != nil {
		t.Error("a call that was given up ended the connection")
	}
}

func TestAddresses(t *testing.T) {
	for _, a := range []string{"", "unix:", "ssl:1.2.3.4:6640", "/run/x"} {
		if _, err := ovsdb.Dial(context20(t), a, ovsdb.Options{}); err == nil || !strings.Contains(err.Error(), "want unix:PATH") {
			t.Errorf("%q: %v", a, err)
		}
	}
}
