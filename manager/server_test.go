package manager_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/store/mem"
)

func listen(t *testing.T, o manager.ServeOptions) error {
	t.Helper()
	m := must(manager.New(manager.Options{Store: mem.New()}))(t)
	s, err := m.Listen(o)
	if err != nil {
		return err
	}
	c, cancel := contextWithCancel(t)
	cancel()
	return s.Serve(c)
}

func TestListeningIsRefusedWithAReason(t *testing.T) {
	dir := shortDir(t)
	b := startIn(t, filepath.Join(dir, "up"), manager.Options{})
	write := func(name, text string, mode fs.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	long := strings.Repeat("x", 40)
	for name, x := range map[string]struct {
		o    manager.ServeOptions
		says string
	}{
		"nothing to listen on":       {manager.ServeOptions{}, "neither a socket nor a TCP address"},
		"another weir answers":       {manager.ServeOptions{Socket: b.socket}, "weir down"},
		"not loopback":               {manager.ServeOptions{Listen: "0.0.0.0:0", TokenFile: filepath.Join(dir, "t")}, "not loopback"},
		"no host means all":          {manager.ServeOptions{Listen: ":0", TokenFile: filepath.Join(dir, "t")}, "not loopback"},
		"no port":                    {manager.ServeOptions{Listen: "127.0.0.1"}, "want host:port"},
		"port in use":                {manager.ServeOptions{Listen: strings.TrimPrefix(b.url, "http://"), TokenFile: filepath.Join(dir, "t")}, "address already in use"},
		"no token file":              {manager.ServeOptions{Listen: "127.0.0.1:0"}, "no token file"},
		"token that others can read": {manager.ServeOptions{Listen: "127.0.0.1:0", TokenFile: write("open", long, 0o644)}, "others may have read it"},
		"token too short":            {manager.ServeOptions{Listen: "127.0.0.1:0", TokenFile: write("short", "secret", 0o600)}, "at least 32"},
	} {
		if err := listen(t, x.o); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want %q", name, err, x.says)
		}
	}
	if err := b.Health(ctx(t)); err != nil {
		t.Errorf("the one that was up: %v", err)
	}
}

func TestSocketAndTokenArePrivateAndTheTokenStays(t *testing.T) {
	dir := shortDir(t)
	b := startIn(t, dir, manager.Options{})
	first := b.token
	for _, f := range []string{"api.sock", "token"} {
		info := must(os.Stat(filepath.Join(dir, f)))(t)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, want 0600", f, info.Mode())
		}
	}
	b.stop()
	left := must(os.ReadDir(dir))(t)
	if len(left) != 1 || left[0].Name() != "token" {
		t.Errorf("left over: %v", left)
	}
	if b = startIn(t, dir, manager.Options{}); b.token != first || len(first) < 43 {
		t.Errorf("token %d characters, then another", len(first))
	}
}

func TestASocketLeftByACrashIsReplaced(t *testing.T) {
	dir := shortDir(t)
	l := must(net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "api.sock"), Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	l.Close()
	b := startIn(t, dir, manager.Options{})
	if err := b.Health(ctx(t)); err != nil {
		t.Error(err)
	}
}

func TestTCPNeedsTheToken(t *testing.T) {
	b := start(t, manager.Options{})
	for name, x := range map[string]struct {
		token string
		ok    bool
	}{
		"the token":   {b.token, true},
		"none":        {"", false},
		"a prefix":    {b.token[:len(b.token)-1], false},
		"another":     {strings.Repeat("x", len(b.token)), false},
		"with a tail": {b.token + "x", false},
	} {
		c := must(api.Dial(api.Options{URL: b.url, Token: x.token}))(t)
		_, err := c.Chains().List(ctx(t), api.ListOptions{})
		if x.ok && err != nil || !x.ok && !errors.Is(err, api.ErrUnauthorized) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Health(ctx(t)); err != nil {
			t.Errorf("%s: health: %v", name, err)
		}
		c.Close()
	}
}

func TestAClientWithoutServerSaysWhatToDo(t *testing.T) {
	dir := shortDir(t)
	stale := filepath.Join(dir, "stale")
	l := must(net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	l.Close()
	for name, o := range map[string]api.Options{
		"no socket":    {Socket: filepath.Join(dir, "none")},
		"stale socket": {Socket: stale},
		"closed port":  {URL: "http://127.0.0.1:1"},
	} {
		c := must(api.Dial(o))(t)
		_, err := c.Chains().List(ctx(t), api.ListOptions{})
		if !errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), "is weir up? start it with `weir up`") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, o := range []api.Options{{}, {URL: "127.0.0.1:7411"}, {URL: "ftp://x"}} {
		if _, err := api.Dial(o); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
