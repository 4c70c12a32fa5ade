package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/daemon/config"
	"weir.dev/weir/instance"
	"weir.dev/weir/manager"
	"weir.dev/weir/store/mem"
)

// clock is the machine's, set off.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time      { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) set(d time.Duration) { c.ahead.Store(int64(d)) }

// membership is a manager, and a host that has joined it for an hour; each has a clock.
type membership struct {
	theirs, ours clock
	options      AgentOptions
	stop         func() // of the manager
	socket       string // of its API
}

func joined(t *testing.T) (*membership, *member) {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir") // a short path, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	x := &membership{}
	a := &admission{}
	m, err := manager.New(manager.Options{Store: mem.New(), CertificateLife: time.Hour, Now: x.theirs.now, Admit: a.admit})
	if err != nil {
		t.Fatal(err)
	}
	a.manager = m
	socket := filepath.Join(dir, "api.sock")
	x.socket = socket
	s, err := m.Listen(manager.ServeOptions{Socket: socket, Agents: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	x.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(x.stop)
	admin, err := api.Dial(api.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	token, err := admin.NewToken(t.Context(), api.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	x.options = AgentOptions{
		Instance: instance.Instance{Name: "t", Root: dir, Run: dir}, Managers: []string{s.AgentsAddr().String()}, TokenFile: file,
		Host: config.Host{Name: "h1"}, Log: slog.New(slog.DiscardHandler), Now: x.ours.now,
	}
	host, err := enter(t.Context(), x.options)
	if err != nil {
		t.Fatal(err)
	}
	x.options.TokenFile = ""
	return x, host
}

// A certificate is renewed when it is time by the manager's clock, whatever the host's says.
func TestRenewalIsByTheManagersClock(t *testing.T) {
	x, m := joined(t)
	x.ours.set(-2 * time.Hour)
	c, err := m.client()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { m.keepCurrent(ctx, c) })
	wg.Go(func() { (&link{m: m, address: m.managers[0]}).beat(ctx) })
	_, first := m.id.Load().Valid()
	x.theirs.set(41 * time.Minute)
	x.ours.set(41*time.Minute - 2*time.Hour)
	for deadline := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		if _, until := m.id.Load().Valid(); until.Sub(first) > 30*time.Minute {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("not renewed")
		}
	}
}

// A certificate that has expired by the host's clock is the manager's to judge.
func TestExpiryIsByTheManagersClock(t *testing.T) {
	x, _ := joined(t)
	x.ours.set(2 * time.Hour)
	if _, err := enter(t.Context(), x.options); err != nil {
		t.Errorf("the host's clock is two hours ahead: %v", err)
	}
	x.theirs.set(2 * time.Hour)
	if _, err := enter(t.Context(), x.options); !errors.Is(err, ErrNotJoined) || !strings.Contains(err.Error(), "certificate expired") || !strings.Contains(err.Error(), "weir token create") {
		t.Errorf("it has expired: %v", err)
	}
	x.stop()
	if _, err := enter(t.Context(), x.options); err != nil {
		t.Errorf("there is no manager to ask: %v", err)
	}
}
