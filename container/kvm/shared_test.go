package kvm

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/container"
)

// Shared ports that cannot be are refused before anything is made.
func TestSharedPortsAreChecked(t *testing.T) {
	t.Parallel()
	dir, full := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const enough = 256 << 20
	for name, c := range map[string]struct {
		s      container.Shared
		memory int64
		want   string // in the error; "": none
	}{
		"two":                   {container.Shared{Dir: dir, Ports: []string{"in", "out"}, Direct: true}, enough, ""},
		"none":                  {container.Shared{Dir: dir}, enough, "0: want 1 to 4"},
		"one twice":             {container.Shared{Dir: dir, Ports: []string{"in", "in"}}, enough, `name "in"`},
		"a path":                {container.Shared{Dir: dir, Ports: []string{"../in"}}, enough, `name "../in"`},
		"an argument of QEMU's": {container.Shared{Dir: dir, Ports: []string{"in,path=x"}}, enough, `name "in,path=x"`},
		"no directory":          {container.Shared{Dir: filepath.Join(dir, "none"), Ports: []string{"in"}}, enough, "no such file or directory"},
		"a relative one":        {container.Shared{Dir: ".", Ports: []string{"in"}}, enough, "want the path of a directory"},
		"one of others' files":  {container.Shared{Dir: full, Ports: []string{"in"}}, enough, "has file in it"},
		"a long one":            {container.Shared{Dir: "/" + strings.Repeat("x", 110), Ports: []string{"in"}}, enough, "more than 107 bytes"},
		"little memory":         {container.Shared{Dir: dir, Ports: []string{"in"}, Direct: true}, 128 << 20, "wants at least 192M"},
	} {
		err := checkShared(&c.s, c.memory)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v: want %q", name, err, c.want)
		}
	}
	if err := checkShared(nil, 0); err != nil {
		t.Error(err)
	}
}

// A machine whose ports no switch serves is an error that names the port, and nothing stays: neither where nobody connects, nor where somebody does who is no switch.
func TestPortsThatNobodyServes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		switches func(conn net.Conn)
		want     string
	}{
		"nobody connects":               {nil, "port in: no switch serves it within 3s: a port of kind vhost-user of the switch has to connect to "},
		"one who goes away":             {func(conn net.Conn) { conn.Close() }, "port in: no switch serves it within 3s"},
		"one who speaks something else": {func(conn net.Conn) { _, _ = conn.Write(make([]byte, 12)) }, "port in: no switch serves it within 3s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, spec := fresh(t)
			r.engine.joins = 3 * time.Second
			dir, err := os.MkdirTemp("/run", "weir-kvm-") // a socket's path is short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			ended := make(chan struct{})
			defer close(ended)
			if c.switches != nil {
				go func() {
					for {
						if conn, err := net.Dial("unix", filepath.Join(dir, "in")); err == nil {
							c.switches(conn)
						}
						select {
						case <-ended:
							return
						case <-time.After(100 * time.Millisecond):
						}
					}
				}()
			}
			spec.ID, spec.Args, spec.Shared = "a", waiting, &container.Shared{Dir: dir, Ports: []string{"in", "out"}}
			begin := time.Now()
			err = r.Run(t.Context(), spec)
			if err == nil || !strings.Contains(err.Error(), c.want) || time.Since(begin) > time.Minute {
				t.Errorf("%v after %s: want %q", err, time.Since(begin), c.want)
			}
			t.Log(err)
			if all, err := r.List(t.Context()); err != nil || len(all) > 0 {
				t.Errorf("%+v, %v", all, err)
			}
			if left, _ := os.ReadDir(r.engine.home.Bundle("a")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
