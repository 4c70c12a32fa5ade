package ovsdb_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
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
	var names []string
	if err := c.Call(ctx, "list_dbs", []string{}, &names); err != nil || !slices.Contains(names, db) {
		t.Fatalf("databases %v, %v", names, err)
	}
	res, err := c.Transact(ctx, db, bridge("br0")...)
	if err != nil {
		t.Fatal(err)
	}
	id := res[0].UUID
	if len(id) != 36 || res[1].Count != 1 {
		t.Errorf("results %+v", res)
	}
	where := []ovsdb.Condition{{Column: "_uuid", Test: ovsdb.Equal, Value: id}}
	res, err = c.Transact(ctx, db,
		ovsdb.Mutate{Table: "Bridge", Where: where, Mutations: []ovsdb.Mutation{
			{Column: "external_ids", Mutator: ovsdb.Take, Value: ovsdb.Set{"other"}},
			{Column: "external_ids", Mutator: ovsdb.Put, Value: map[string]string{"more": "y"}}}},
		ovsdb.Update{Table: "Bridge", Where: where, Row: ovsdb.Row{"fail_mode": ovsdb.Set{}}},
		ovsdb.Select{Table: "Bridge", Where: []ovsdb.Condition{{Column: "name", Test: ovsdb.Equal, Value: "br0"}}, Columns: []string{"external_ids", "fail_mode", "_uuid"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	wantRows := []ovsdb.Row{{"_uuid": id, "fail_mode": ovsdb.Set{}, "external_ids": ovsdb.Map{"owner": "test", "more": "y"}}}
	if d := cmp.Diff(wantRows, res[2].Rows); d != "" {
		t.Error(d)
	}
	for _, c2 := range []struct {
		name  string
		ops   []ovsdb.Op
		index int
		code  string
	}{
		{"unknown table", []ovsdb.Op{ovsdb.Select{Table: "Bridge"}, ovsdb.Insert{Table: "Nothing"}}, 1, "syntax error"},
		{"twice the same name, refused at the commit", append(bridge("br1"), twin("br1"), mention("c")), 4, "constraint violation"},
		{"out of range", []ovsdb.Op{ovsdb.Update{Table: "Bridge", Row: ovsdb.Row{"fail_mode": "sometimes"}}}, 0, "constraint violation"},
	} {
		_, err := c.Transact(ctx, db, c2.ops...)
		var oe *ovsdb.OpError
		if !errors.As(err, &oe) || oe.Index != c2.index || oe.Code != c2.code {
			t.Errorf("%s: %v (%+v), want operation %d: %s", c2.name, err, oe, c2.index, c2.code)
		}
	}
	var re *ovsdb.RPCError
	if err := c.Call(ctx, "get_schema", []string{"nothing"}, nil); !errors.As(err, &re) || re.Code != "unknown database" {
		t.Errorf("schema of an unknown database: %v", err)
	}
	if err := c.Call(ctx, "nonsense", []string{}, nil); !errors.As(err, &re) {
		t.Errorf("unknown method: %v", err)
	}

	if _, err := c.Transact(ctx, db, ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.Take, Value: id}}}); err != nil {
		t.Fatal(err)
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
	waits := make(chan error, 1)
	go func() { // for a row that never comes
		waits <- c.Call(context20(t), "transact", []any{db, map[string]any{"op": "wait", "timeout": 60000, "table": "Bridge", "until": "!=",
			"where": []any{}, "columns": []string{"name"}, "rows": []any{}}}, nil)
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

func TestEchoIsAnswered(t *testing.T) {
	_, peer := pair(t, ovsdb.Options{})
	d := json.NewDecoder(peer)
	go func() { _, _ = peer.Write([]byte(`{"id": "echo", "method": "echo", "params": ["a", 1]}`)) }()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"id": "echo", "result": []any{"a", 1.0}, "error": nil}, m); diff != "" {
		t.Error(diff)
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
