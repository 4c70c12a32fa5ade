package manager_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/managertest"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
	"weir.dev/weir/store/mem"
)

const patience = 10 * time.Second

// bench is a manager that serves on a Unix socket and on loopback TCP.
type bench struct {
	*api.Client
	m      *manager.Manager
	store  store.Store
	socket string
	url    string
	token  string
	ui     string // address of the web UI, if there is one
	stop   func() // ends Serve and waits
}

// shortDir is a directory whose path leaves room for Unix sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func start(t testing.TB, o manager.Options) *bench {
	t.Helper()
	return startIn(t, shortDir(t), o)
}

func startIn(t testing.TB, dir string, o manager.Options) *bench {
	t.Helper()
	if o.Store == nil {
		o.Store = mem.New()
	}
	m, err := manager.New(o)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{m: m, store: o.Store, socket: filepath.Join(dir, "api.sock")}
	tokenFile := filepath.Join(dir, "token")
	var s *web.Server
	s, b.stop = managertest.Serve(t, m, manager.ServeOptions{Socket: b.socket, Listen: "127.0.0.1:0", TokenFile: tokenFile, UI: "127.0.0.1:0"})
	if at := s.UIAddr(); at != nil {
		b.ui = "http://" + at.String()
	}
	b.url = "http://" + s.TCPAddr().String()
	secret, err := os.ReadFile(tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	b.token = string(secret[:len(secret)-1])
	if b.Client, err = api.Dial(api.Options{Socket: b.socket}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Client.Close)
	return b
}

func ctx(t testing.TB) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), 6*patience)
	t.Cleanup(cancel)
	return c
}

// must fails the test unless the call worked.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// demo is the document of the README.
func demo() api.Document {
	return api.Document{
		Endpoints: map[string]api.EndpointSpec{
			"alice": {Netns: "alice", Interface: "eth0", Address: "10.9.0.1/24"},
			"bob":   {Netns: "bob", Interface: "eth0", Address: "10.9.0.2/24"},
		},
		Functions: map[string]api.FunctionSpec{
			"fw":  {Image: "firewall", Config: map[string]any{"allow": []any{"tcp/80", "icmp"}}, Memory: "64M"},
			"w1":  {Image: "wire"},
			"mon": {Image: "monitor"},
		},
		Chains:   map[string]api.ChainSpec{"web": {Path: "fw | w1 | tap:mon"}},
		Policies: map[string]api.PolicySpec{"guests": {From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web", Priority: 100}},
	}
}

var listAll = store.ListOptions{}

func putRaw(key string) []store.Op {
	return []store.Op{{Key: key, Value: []byte(`{"name":"` + store.NameOf(key) + `","spec":{},"status":{}}`)}}
}

func problem(t testing.TB, body []byte) *api.ProblemError {
	t.Helper()
	p := &api.ProblemError{}
	if err := json.Unmarshal(body, p); err != nil {
		t.Fatalf("no problem document: %s", body)
	}
	return p
}

func contextWithCancel(t testing.TB) (context.Context, context.CancelFunc) {
	c, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return c, cancel
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
