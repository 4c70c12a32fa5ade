package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/ovsdb/ovsproc"
)

// processes are a private Open vSwitch. Of the host's own nothing is started, ended or tuned: it has other users.
type processes struct {
	home  *home.Home
	state *state
	own   *ovsproc.Process // nil: the host's own Open vSwitch is used
}

func (p *processes) dir() string { return filepath.Dir(p.home.Store.Dir) }

// start them, or find them.
func (p *processes) start(ctx context.Context) error {
	if was := ovsproc.At(ovsproc.Options{Dir: p.dir()}); was.SwitchPID() == 0 {
		if err := was.StopSwitch(ctx); err != nil { // one that was killed a moment ago has the tap still
			return err
		}
		if err := p.alone(); err != nil {
			return err
		}
	}
	var err error
	p.own, err = ovsproc.Start(ctx, ovsproc.Options{Dir: p.dir(), Netns: fmt.Sprintf("/proc/self/fd/%d", p.home.Space.Fd())})
	return err
}

// revive starts private processes that ended.
func (p *processes) revive(ctx context.Context) error {
	if p.own == nil {
		return nil
	}
	server, vswitchd := p.own.Running()
	if server && vswitchd {
		return nil
	}
	p.home.Log.Warn("private Open vSwitch ended, starting it again", "ovsdb_server", server, "ovs_vswitchd", vswitchd)
	var err error
	if !server {
		err = p.own.StartServer(ctx)
	}
	if err == nil && !vswitchd {
		err = p.own.StartSwitch(ctx)
	}
	return err
}

// turnLogs bounds the logs of private processes.
func (p *processes) turnLogs(ctx context.Context) error {
	if p.own == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	return p.own.TurnLogs(ctx)
}

// queue is the receive buffer of a port of a user-space switch, in bytes: some 20,000 small frames, 2 s of 10,000 a second. It bounds
// how long the switch may wait for a processor without losing any.
const queue = 8 << 20

// widen the receive queues of the ports of private processes; the host's own Open vSwitch is its owner's affair. Without, more frames are lost
// on a busy machine, so trouble with it is only told.
func (p *processes) widen() {
	if p.own == nil || p.state.Datapath != netdev {
		return
	}
	if err := p.own.Widen(queue); err != nil {
		p.home.Log.Warn("receive queues of Open vSwitch stay short: a busy machine will lose frames", "error", err)
	}
}

// flush the cached flows of private processes, so that what has been changed holds for the very next frame; they take the change over by
// themselves a few milliseconds later. The host's own Open vSwitch has other users: there these milliseconds are waited for by nobody.
func (p *processes) flush(ctx context.Context, connected func() bool) {
	if p.own == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience) // a busy machine may not let it answer sooner
	defer cancel()
	err := p.own.Control(ctx, "revalidator/purge")
	if err != nil && connected() {
		p.home.Log.Warn("cached flows of Open vSwitch were not flushed", "error", err)
	}
}

// userDatapath is the tap of Open vSwitch's user-space datapath: one in a network namespace, whoever's it is.
const userDatapath = "ovs-netdev"

// errNoTap says that there is no tap of that name.
var errNoTap = errors.New("no such tap")

// holdTap becomes the holder of a tap in the switch's namespace; EBUSY: a process has it.
func (p *processes) holdTap(name string) (f *os.File, err error) {
	l, err := p.home.NL.LinkByName(name)
	if err != nil || l.Type() != "tuntap" {
		return nil, errNoTap
	}
	err = p.home.Space.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		f = os.NewFile(uintptr(fd), name)
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	if err == nil {
		return f, nil
	}
	if f != nil {
		f.Close()
	}
	if errors.Is(err, unix.EINVAL) { // of another kind: not Open vSwitch's
		err = errNoTap
	}
	return nil, err
}

// alone refuses a second user-space Open vSwitch in the namespace: it could not make its datapath.
func (p *processes) alone() error {
	f, err := p.holdTap(userDatapath)
	switch {
	case errors.Is(err, errNoTap):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("another Open vSwitch forwards in user space in this network namespace, and there can be one only (interface %s is %w): start this Weir in another namespace, or with --switch ebpf", userDatapath, datapath.ErrTaken)
	case err != nil:
		return fmt.Errorf("interface %s: %w", userDatapath, err)
	}
	return f.Close()
}

// removeTaps that an ovs-vswitchd of ours left when it was killed. One that a process holds is another Open vSwitch's.
func (p *processes) removeTaps() error {
	for _, name := range []string{p.home.Instance.Bridge(), userDatapath} {
		f, err := p.holdTap(name)
		if errors.Is(err, errNoTap) || errors.Is(err, unix.EBUSY) {
			continue
		}
		if err == nil {
			err = errors.Join(unix.IoctlSetInt(int(f.Fd()), unix.TUNSETPERSIST, 0), f.Close()) // it goes with its last holder
		}
		if err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	return nil
}
