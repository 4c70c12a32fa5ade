package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"weir.dev/weir/lab/tied"
	"weir.dev/weir/netns"
)

// NetcatOptions of flows that start together: each is a netcat that sends a file to a netcat that waits for it.
type NetcatOptions struct {
	From, To string // namespaces
	Address  netip.Addr
	Sizes    []int64 // bytes, one a flow
}

// NetcatFlow is one of them. Done is since the flows' common start until the receiver's netcat had handed on the last byte.
type NetcatFlow struct {
	Bytes int64         `json:"bytes"` // that arrived
	Done  time.Duration `json:"done_ns"`
}

// MaxNetcats is how many flows can be at once: each has two processes and a port of its own.
const MaxNetcats = 200

const netcatPort = 20000

// netcatStart waits until its third input ends, and becomes a netcat: all flows start when its writer is closed.
const netcatStart = `read -r _ <&3; exec 3<&- nc -N "$@"`

// RunNetcat runs flows to their end, on which all bytes have arrived.
func RunNetcat(ctx context.Context, o NetcatOptions) (flows []NetcatFlow, raw Raw, err error) {
	raw.Argv = []string{"nc", "-N", o.Address.String(), strconv.Itoa(netcatPort)}
	if len(o.Sizes) < 1 || len(o.Sizes) > MaxNetcats {
		return nil, raw, fmt.Errorf("netcat: %d flows: want 1 to %d", len(o.Sizes), MaxNetcats)
	}
	if err := Installed("nc"); err != nil {
		return nil, raw, err
	}
	raw.Version = version("nc")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n := &netcats{o: o, cancel: cancel, flows: make([]NetcatFlow, len(o.Sizes)), arrived: make([]time.Time, len(o.Sizes))}
	err = n.run(ctx)
	if cause := context.Cause(ctx); cause != nil { // a flow's, or the caller's: what it made fail is not what is wrong
		err = cause
	}
	cancel(nil) // what is still there ends
	n.all.Wait()
	return n.flows, raw, err
}

// netcats of one run.
type netcats struct {
	o       NetcatOptions
	cancel  context.CancelCauseFunc
	all     sync.WaitGroup
	flows   []NetcatFlow
	arrived []time.Time
}

func (n *netcats) run(ctx context.Context) error {
	for i := range n.o.Sizes {
		if err := n.receiver(ctx, i); err != nil {
			return err
		}
	}
	if err := n.ready(ctx); err != nil {
		return err
	}
	barrier, release, err := os.Pipe()
	if err != nil {
		return err
	}
	for i := range n.o.Sizes {
		if err = n.sender(ctx, i, barrier); err != nil {
			break
		}
	}
	err = errors.Join(err, barrier.Close())
	start := time.Now()
	if err := errors.Join(err, release.Close()); err != nil {
		return err
	}
	n.all.Wait()
	for i := range n.flows {
		n.flows[i].Done = n.arrived[i].Sub(start)
	}
	return nil
}

// family that an address is of, as netcat wants to be told.
func (n *netcats) family() string {
	if n.o.Address.Is4() {
		return "-4"
	}
	return "-6"
}

// receiver of a flow: what it hands on is counted.
func (n *netcats) receiver(ctx context.Context, i int) error {
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	end, err := n.start(ctx, n.o.To, nil, in, nil, "nc", n.family(), "-d", "-l", strconv.Itoa(netcatPort+i))
	err = errors.Join(err, in.Close())
	if err != nil {
		return errors.Join(err, out.Close())
	}
	n.all.Go(func() {
		got, err := io.Copy(io.Discard, out)
		n.flows[i].Bytes, n.arrived[i] = got, time.Now()
		err = errors.Join(err, out.Close(), end())
		if err == nil && got != n.o.Sizes[i] {
			err = fmt.Errorf("netcat: %d bytes of %d arrived", got, n.o.Sizes[i])
		}
		if err != nil {
			n.cancel(err)
		}
	})
	return nil
}

// sender of a flow waits at the barrier.
func (n *netcats) sender(ctx context.Context, i int, barrier *os.File) error {
	file, err := os.CreateTemp("", "weir-netcat-")
	if err != nil {
		return err
	}
	err = errors.Join(file.Truncate(n.o.Sizes[i]), os.Remove(file.Name())) // a hole: zeros, no room on the disk
	var end func() error
	if err == nil {
		end, err = n.start(ctx, n.o.From, file, nil, barrier, "sh", "-c", netcatStart, "nc", n.o.Address.String(), strconv.Itoa(netcatPort+i))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	n.all.Go(func() {
		if err := end(); err != nil {
			n.cancel(err)
		}
	})
	return nil
}

// start a program in a namespace; end waits for it.
func (n *netcats) start(ctx context.Context, space string, in, out, third *os.File, argv ...string) (end func() error, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if in != nil {
		cmd.Stdin = in
	}
	if out != nil {
		cmd.Stdout = out
	}
	if third != nil {
		cmd.ExtraFiles = []*os.File{third}
	}
	problems := &tied.Output{Most: maxOutput}
	cmd.Stderr = problems
	bound(cmd)
	if err := netns.Do(space, cmd.Start); err != nil {
		return nil, fmt.Errorf("netcat: %w", err)
	}
	return func() error {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("netcat: %w: %s", errors.Join(err, context.Cause(ctx)), problems.String())
		}
		return nil
	}, nil
}

// ready waits until all receivers listen.
func (n *netcats) ready(ctx context.Context) error {
	deadline := time.After(5 * time.Second)
	for i := 0; i < len(n.o.Sizes); {
		up, err := listens(n.o.To, "tcp", netcatPort+i)
		if err != nil {
			return err
		}
		if up {
			i++
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return fmt.Errorf("netcat: nothing listens at port %d", netcatPort+i)
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}
