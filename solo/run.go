package solo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// Stations are the two ends between which a function runs.
type Stations struct {
	Client, Server []netip.Prefix // addresses
	Timeout        time.Duration  // for its start
}

// Station is the interface of a station in its namespace.
const Station = "eth0"

// Ends are the namespaces of the stations.
type Ends struct{ Client, Server string }

// Between starts a function between two stations and waits until it works. A tap gets copies of what they send to each other.
func Between(ctx context.Context, o Options, s Stations) (f *Function, e Ends, err error) {
	if f, err = Prepare(ctx, o); err != nil {
		return nil, e, err
	}
	defer func() {
		if err != nil {
			if said := f.Log(); said != "" && (errors.Is(err, ErrEnded) || errors.Is(err, ErrTimeout)) {
				err = fmt.Errorf("%w; it printed:\n%s", err, strings.TrimRight(said, "\n"))
			}
			err = errors.Join(err, f.Close())
		}
	}()
	e = Ends{filepath.Join(f.inst.NetnsDir(), "client"), filepath.Join(f.inst.NetnsDir(), "server")}
	for _, space := range []string{e.Client, e.Server} {
		if err := netns.Create(space, netns.Options{}); err != nil {
			return f, e, err
		}
	}
	if f.Image.Contract.Tap {
		err = f.joinTap(e, s)
	} else {
		err = errors.Join(f.join(e.Client, flow.In, s.Client), f.join(e.Server, flow.Out, s.Server))
	}
	if err == nil {
		err = f.start(ctx)
	}
	if err == nil && !f.Image.Contract.Tap {
		err = errors.Join(f.openPort(e.Client, Station, flow.In), f.openPort(e.Server, Station, flow.Out))
	}
	if err == nil {
		err = f.ready(ctx, s.Timeout)
		f.closePorts()
	}
	return f, e, err
}

// join makes a link between a station and one of the function's ports.
func (f *Function) join(space string, side flow.Side, addresses []netip.Prefix) error {
	object := side.Of(name)
	pair := netns.VethOptions{HostName: Station, PeerName: side.String(), PeerIndex: portIndex[side], PeerMAC: f.inst.MAC(object), HostMAC: f.inst.MAC(object + "/station"),
		Alias: f.inst.Alias(object), MTU: f.o.MTU, Quiet: true}
	if _, err := netns.Veth(space, f.box.Net(), pair); err != nil {
		return err
	}
	if err := f.finish(space, Station); err != nil {
		return err
	}
	return address(space, addresses)
}

// finish has frames to the function finished by a link that leads there, if its image wants them so, as the agent does.
func (f *Function) finish(space, link string) error {
	if !f.Image.Contract.Finished {
		return nil
	}
	at, err := netns.At(space)
	if err != nil {
		return err
	}
	return errors.Join(at.Finish(link), at.Close())
}

// portIndex are the interface indexes in the function's namespace; see package sandbox.
var portIndex = [flow.Sides]int{flow.In: 1024, flow.Out: 1025, flow.Tap: 1026}

// joinTap joins the stations by a hub, which the tap hears.
func (f *Function) joinTap(e Ends, s Stations) error {
	if err := f.boxes.Plug(f.box, true, f.o.MTU); err != nil {
		return err
	}
	home := homeOf(f.inst).path
	ports := []string{f.boxes.Link(f.box, flow.Tap)}
	if err := f.finish(home, ports[0]); err != nil {
		return err
	}
	for _, end := range []struct {
		space     string
		addresses []netip.Prefix
	}{{e.Client, s.Client}, {e.Server, s.Server}} {
		station := filepath.Base(end.space)
		pair := netns.VethOptions{HostName: Station, PeerName: station, Alias: f.inst.Alias("station/" + station), MTU: f.o.MTU, Quiet: true}
		if _, err := netns.Veth(end.space, home, pair); err != nil {
			return err
		}
		if err := address(end.space, end.addresses); err != nil {
			return err
		}
		ports = append(ports, station)
	}
	return inNetlink(home, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "hub"
		off, never := false, uint32(0)
		hub := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &off, AgeingTime: &never} // it learns nothing
		if err := h.LinkAdd(hub); err != nil {
			return fmt.Errorf("hub: %w", err)
		}
		for _, port := range ports {
			l, err := h.LinkByName(port)
			if err == nil {
				err = h.LinkSetMaster(l, hub)
			}
			if err != nil {
				return fmt.Errorf("hub: %s: %w", port, err)
			}
		}
		return h.LinkSetUp(hub)
	})
}

func inNetlink(space string, do func(*netlink.Handle) error) error {
	at, err := netns.At(space)
	if err != nil {
		return err
	}
	defer at.Close()
	return at.Netlink(do)
}

// address gives a station its addresses.
func address(space string, addresses []netip.Prefix) error {
	err := netns.Do(space, func() error {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+Station+"/disable_ipv6", []byte("0"), 0)
		if errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return inNetlink(space, func(h *netlink.Handle) error {
		l, err := h.LinkByName(Station)
		if err != nil {
			return err
		}
		for _, a := range addresses {
			at, err := netlink.ParseAddr(a.String())
			if err != nil {
				return err
			}
			if a.Addr().Is6() {
				at.Flags = unix.IFA_F_NODAD
			}
			if err := h.AddrAdd(l, at); err != nil {
				return fmt.Errorf("address %s: %w", a, err)
			}
		}
		return nil
	})
}

// Streams of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// endGrace is how long a command has to end after SIGTERM.
const endGrace = 3 * time.Second

// Command runs a command in a station's namespace until it ends and gives its exit code. On a terminal it is in the foreground, so that Ctrl-C is for it alone.
func Command(ctx context.Context, space string, args, env []string, s Streams) (code int, err error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = s.In, s.Out, s.Err, append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endGrace
	tty, ok := s.In.(*os.File)
	onTerminal := ok && term.IsTerminal(int(tty.Fd()))
	if onTerminal {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Foreground: true, Ctty: int(tty.Fd())}
	}
	if err := netns.Do(space, cmd.Start); err != nil {
		return 0, fmt.Errorf("run %s: %w", args[0], err)
	}
	if onTerminal {
		signal.Ignore(syscall.SIGTTOU) // so that the terminal can be taken back
		defer signal.Reset(syscall.SIGTTOU)
		defer func() { _ = unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCSPGRP, unix.Getpgrp()) }()
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
			return 128 + int(st.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// Serve starts a shell command in a station's namespace, in the background; end kills it and what it started.
func Serve(space, command string, env []string, out io.Writer) (end func(), err error) {
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = endGrace
	if err := netns.Do(space, cmd.Start); err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	return func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(endGrace):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
		}
	}, nil
}
