package controllers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/openflow"
	"weir.dev/weir/router/control"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/steering"
)

// Installed is one installation by Weir.
type Installed struct {
	Mods       int
	Bytes      int // of flow-mods that were only encoded
	Compiling  time.Duration
	Installing time.Duration // until switches have answered the last barrier or bundle
	CPU        time.Duration // of this process, for both
}

// installing bounds an installation, the coming of the switches included.
const installing = time.Minute

// Install waits at a listener for n switches, then compiles policies and installs their entries. The listener is closed.
func Install(ctx context.Context, l net.Listener, in fabric.Input, n int) (r Installed, err error) {
	ctx, cancel := context.WithTimeout(ctx, installing)
	defer cancel()
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conns := map[fabric.SwitchID]*openflow.Conn{}
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for len(conns) < n {
		nc, err := l.Accept()
		if err != nil {
			return r, fmt.Errorf("%d of %d switches have come: %w", len(conns), n, errors.Join(err, context.Cause(ctx)))
		}
		c, err := openflow.Controller(ctx, nc, openflow.Options{})
		if err != nil {
			continue // Open vSwitch may drop its first connection to a new controller; it comes again
		}
		if err := c.Barrier(ctx); err != nil { // as the peer does
			return r, err
		}
		conns[switchID(c.Features().DatapathID)] = c
	}
	runtime.GC()
	cpu := cpuTime()
	begin := time.Now()
	out := steering.Compile(in)
	r.Compiling = time.Since(begin)
	r.Mods, err = control.Install(ctx, conns, out)
	r.Installing = time.Since(begin) - r.Compiling
	r.CPU = cpuTime() - cpu
	return r, errors.Join(err, refused(out))
}

// Compile policies into flow-mods.
func Compile(in fabric.Input) (map[fabric.SwitchID][]openflow.FlowMod, error) {
	out := steering.Compile(in)
	if err := refused(out); err != nil {
		return nil, err
	}
	return control.FlowMods(out)
}

// refused are policies that could not be compiled.
func refused(out fabric.Output) (err error) {
	for name, perr := range out.Errors {
		err = errors.Join(err, fmt.Errorf("policy %s: %w", name, perr))
	}
	return err
}

// Encode makes compiled entries flow-mods and encodes them, and sends nothing: that is the time of Installing.
func Encode(in fabric.Input) (r Installed, err error) {
	out := steering.Compile(in)
	if err := refused(out); err != nil {
		return r, err
	}
	runtime.GC()
	cpu := cpuTime()
	begin := time.Now()
	all, err := control.FlowMods(out)
	if err != nil {
		return r, err
	}
	var buf []byte
	for _, ms := range all {
		buf = buf[:0]
		for i := range ms {
			if buf, err = openflow.Append(buf, uint32(i), &ms[i]); err != nil {
				return r, err
			}
		}
		r.Mods, r.Bytes = r.Mods+len(ms), r.Bytes+len(buf)
	}
	r.Installing, r.CPU = time.Since(begin), cpuTime()-cpu
	return r, nil
}

// Count of flow-mods.
func Count(mods map[fabric.SwitchID][]openflow.FlowMod) (n int) {
	for _, ms := range mods {
		n += len(ms)
	}
	return n
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
