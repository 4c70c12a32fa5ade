package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// Where agents reach the manager of TestHostsJoinAndGo; the hosts have the addresses after it.
const managerAddr = "10.77.0.1:7412"

// machine is a namespace on the manager's bridge where a host runs.
type machine struct{ space, name, root string }

// TestHostsJoinAndGo: the command that the UI shows is run at two more machines, as it is.
func TestHostsJoinAndGo(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{Args: []string{"--agents", managerAddr, "--underlay", "vxlan"}})
	r.Verb = "manager"
	for _, argv := range [][]string{{"ip", "link", "add", "br0", "type", "bridge"}, {"ip", "addr", "add", "10.77.0.1/24", "dev", "br0"}, {"ip", "link", "set", "br0", "up"}} {
		if _, err := r.Run(ctx, "", argv...); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	machines := map[string]machine{}
	in := func(ctx context.Context, m machine, argv ...string) (string, error) {
		c := r.Command(ctx, m.space, argv...)
		c.Env = append(os.Environ(), "PATH="+filepath.Dir(r.Bin)+":"+os.Getenv("PATH"), "WEIR_NAME="+m.name, "WEIR_ROOT="+m.root, "WEIR_IMAGES="+r.Images, "WEIR_YES=true", "NO_COLOR=1")
		var errs bytes.Buffer
		c.Stderr = &errs
		out, err := c.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%v: %w: %s", argv, err, errs.String())
		}
		return string(out), err
	}
	t.Cleanup(func() { // before the rig takes the namespaces away
		down, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, m := range machines {
			if _, err := in(down, m, r.Bin, "down"); err != nil {
				t.Errorf("take down %s: %v", m.space, err)
			}
			if err := os.RemoveAll(filepath.Dir(m.root)); err != nil {
				t.Error(err)
			}
		}
	})
	do := links(ctx, r)
	do["manager"] = func(question) (any, error) { return map[string]string{"address": managerAddr}, nil }
	do["run"] = func(q question) (any, error) {
		n := len(machines)
		dir, err := os.MkdirTemp("", "weir-"+r.Name+"-"+q.Name+"-")
		if err != nil {
			return nil, err
		}
		m := machine{space: fmt.Sprintf("%s-%d", r.Netns, n), name: fmt.Sprintf("%s%c", r.Name, 'a'+n), root: filepath.Join(dir, "state")}
		if err := r.Namespace(m.space); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		machines[q.Name] = m
		link := fmt.Sprintf("v%d", n)
		for _, x := range []struct{ space, command string }{
			{"", "ip link add " + link + " type veth peer name eth9 netns " + m.space}, {"", "ip link set " + link + " master br0 up"},
			{m.space, fmt.Sprintf("ip addr add 10.77.0.%d/24 dev eth9", n+2)}, {m.space, "ip link set eth9 up"},
		} {
			if _, err := r.Run(ctx, x.space, strings.Fields(x.command)...); err != nil {
				return nil, err
			}
		}
		_, err = in(ctx, m, "sh", "-c", q.Command)
		return nil, err
	}
	do["apply"] = func(question) (any, error) {
		_, err := r.Apply(ctx, "functions: {movable: {image: wire}, fixed: {image: wire, host: h1}}\n")
		if err != nil {
			return nil, err
		}
		// It begins on h1, wherever it was placed, and is not pinned there.
		if _, err = r.Apply(ctx, "functions: {movable: {image: wire, host: h1}}\n"); err == nil {
			_, err = r.Apply(ctx, "functions: {movable: {image: wire}}\n")
		}
		return nil, err
	}
	do["host"] = func(q question) (any, error) {
		var h api.Host
		err := r.Get(ctx, &h, "host", q.Name)
		return h, err
	}
	do["stop"] = func(q question) (any, error) {
		_, err := in(ctx, machines[q.Name], r.Bin, "down")
		return nil, err
	}
	play(ctx, t, r, "hosts", do)
}
