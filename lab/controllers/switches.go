package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"weir.dev/weir/netns"
	"weir.dev/weir/openflow"
	"weir.dev/weir/ovsdb/ovsproc"
)

// Switches are bridges of a private Open vSwitch in a namespace of their own, or what stands for them there. Controllers listen at its loopback
// interface.
type Switches struct {
	o       Options
	proc    *ovsproc.Process // nil: none was needed yet
	entries []string         // in the bridges after the first controller
}

// Options of switches.
type Options struct {
	Dir      string // of everything that is made; it must not be there
	Program  string // a Weir, to be a sink
	Switches int    // numbered from 1 by their datapath ids
}

func (o Options) space() string { return filepath.Join(o.Dir, "netns") }

func (o Options) ovs() ovsproc.Options {
	return ovsproc.Options{Dir: filepath.Join(o.Dir, "ovs"), Netns: o.space()}
}

// Open makes the namespace. The bridges are made when they are needed.
func Open(o Options) (*Switches, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	s := &Switches{o: o}
	if err := netns.Create(o.space(), netns.Options{}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close removes everything.
func (s *Switches) Close() error { return Remove(context.Background(), s.o.Dir) }

// Remove takes away what was made in a directory, after any crash. Nothing there: nil.
func Remove(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	o := Options{Dir: dir}
	ctx, cancel := context.WithTimeout(ctx, installing)
	defer cancel()
	if err := ovsproc.At(o.ovs()).Destroy(ctx); err != nil {
		return err
	}
	if err := netns.Delete(o.space()); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// Listen for a controller of ours.
func (s *Switches) Listen() (l net.Listener, err error) {
	err = netns.Do(s.o.space(), func() error {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	return l, err
}

// Space is the namespace, for controllers that are programs.
func (s *Switches) Space() string { return s.o.space() }

// FreePort is one at which such a controller can listen.
func (s *Switches) FreePort() (int, error) {
	l, err := s.Listen()
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// build the bridges, once.
func (s *Switches) build(ctx context.Context) (err error) {
	if s.proc != nil {
		return nil
	}
	proc, err := ovsproc.Start(ctx, s.o.ovs())
	if err != nil {
		return err
	}
	s.proc = proc
	return s.bridges(ctx, func(i int, name string) []string {
		return []string{"add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13",
			fmt.Sprintf("other-config:datapath-id=%016x", i), "other-config:disable-in-band=true"}
	})
}

// bridges runs one ovs-vsctl for all of them.
func (s *Switches) bridges(ctx context.Context, what func(i int, name string) []string) error {
	args := []string{"--timeout=20", "--db=" + s.proc.DB()}
	for i := 1; i <= s.o.Switches; i++ {
		args = append(append(args, "--"), what(i, fmt.Sprint("s", i))...)
	}
	if out, err := exec.CommandContext(ctx, "ovs-vsctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ovs-vsctl: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// WithOVS has the bridges, empty, connect to a controller at a port while it runs. Then they have to hold what the first controller left in them.
func (s *Switches) WithOVS(ctx context.Context, port int, controller func() error) error {
	if err := s.build(ctx); err != nil {
		return err
	}
	if _, err := s.dump(ctx, true); err != nil {
		return err
	}
	err := s.bridges(ctx, func(_ int, name string) []string {
		return []string{"set-controller", name, fmt.Sprintf("tcp:127.0.0.1:%d", port), "--", "set", "controller", name, "max_backoff=1000"}
	})
	if err == nil {
		err = controller()
	}
	if err := errors.Join(err, s.bridges(ctx, func(_ int, name string) []string { return []string{"del-controller", name} })); err != nil {
		return err
	}
	now, err := s.dump(ctx, false)
	if err != nil {
		return err
	}
	if s.entries == nil {
		s.entries = now
	}
	return same(s.entries, now)
}

// same tells how the entries of two controllers differ.
func same(first, now []string) error {
	if slices.Equal(first, now) {
		return nil
	}
	i := 0
	for i < min(len(now), len(first)) && first[i] == now[i] {
		i++
	}
	at := func(s []string) string {
		if i < len(s) {
			return s[i]
		}
		return "none"
	}
	return fmt.Errorf("%d entries, the first controller left %d; the first that differs is %q, was %q", len(now), len(first), at(now), at(first))
}

// dump lists all entries of all bridges, sorted; forget removes them.
func (s *Switches) dump(ctx context.Context, forget bool) ([]string, error) {
	var all []string
	for i := 1; i <= s.o.Switches; i++ {
		c, err := openflow.Dial(ctx, "unix:"+s.proc.Mgmt(fmt.Sprint("s", i)), openflow.Options{})
		if err != nil {
			return nil, err
		}
		if forget {
			err = c.Transact(ctx, &openflow.FlowMod{Command: openflow.FlowDelete, Table: openflow.TableAll})
		} else {
			var flows []openflow.FlowStats
			flows, err = c.Flows(ctx, openflow.FlowStatsRequest{Table: openflow.TableAll})
			for _, f := range flows {
				all = append(all, fmt.Sprintf("s%d table=%d priority=%d cookie=%#x %s %s", i, f.Table, f.Priority, f.Cookie, f.Match.Normal(), openflow.InstructionString(f.Instructions)))
			}
		}
		if err := errors.Join(err, c.Close()); err != nil {
			return nil, fmt.Errorf("entries of s%d: %w", i, err)
		}
	}
	slices.Sort(all)
	return all, nil
}

// WithSink has a sink connect to a controller at a port while it runs; it must have got all flow-mods.
func (s *Switches) WithSink(ctx context.Context, port, mods int, controller func() error) error {
	ctx, cancel := context.WithTimeout(ctx, oskenTime)
	defer cancel()
	argv := append([]string{"--net=" + s.o.space(), "--", s.o.Program}, SinkCommand...)
	c := exec.CommandContext(ctx, "nsenter", append(argv, fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprint(s.o.Switches))...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		return fmt.Errorf("sink: %w", err)
	}
	err := controller()
	if err != nil {
		cancel()
	}
	if werr := c.Wait(); err == nil && werr != nil {
		err = fmt.Errorf("sink: %w: %s", werr, strings.TrimSpace(errs.String()))
	}
	if err != nil {
		return err
	}
	var got sinkCount
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return fmt.Errorf("sink says %q: %w", out.String(), err)
	}
	if got.FlowMods != int64(mods) {
		return fmt.Errorf("the sink got %d flow-mods, want %d", got.FlowMods, mods)
	}
	return nil
}
