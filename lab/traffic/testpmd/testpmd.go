// Package testpmd runs DPDK's testpmd as a generator over a packet socket (net_af_packet), what people compare with where there is no network card
// for DPDK. It knows nothing of the lab's fields: the sink counts its frames as foreign, and there are no sequence numbers and no latencies.
package testpmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/tied"
	"weir.dev/weir/lab/traffic"
)

// program is DPDK's, as Debian names it.
const program = "dpdk-testpmd"

// ErrMissing says that testpmd is not installed.
var ErrMissing = errors.New("not installed")

// Installed tells whether testpmd is there.
func Installed() error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s: %w (apt-get install --no-install-recommends dpdk-dev librte-net-af-packet23, or what your release calls them)", program, ErrMissing)
	}
	return nil
}

// Options say what is sent and from where.
type Options struct {
	Space, Link string
	Port        uint16 // UDP, destination
	Size        int    // wire size
	Main, Send  int    // CPUs: of testpmd's main thread, which waits, and of the one that sends
	DstMAC      [6]byte
	Dir         string // where it keeps what it needs while it runs; empty: the machine's for temporary files
}

// Run is testpmd at work.
type Run struct {
	Argv []string

	cmd   *exec.Cmd
	stdin io.Closer
	dir   string // what it keeps while it runs
	out   *tied.Output
	ended chan error
}

// Start makes it send as fast as it can. It needs no huge pages. What it keeps in memory and sends ends with it.
func Start(ctx context.Context, o Options) (*Run, error) {
	if err := Installed(); err != nil {
		return nil, err
	}
	if o.Main == o.Send {
		return nil, fmt.Errorf("testpmd: main thread and sender on CPU %d: want two", o.Main)
	}
	if o.Size < traffic.MinFrame || o.Size > traffic.MaxFrame {
		return nil, fmt.Errorf("testpmd: %d bytes: want %d to %d", o.Size, traffic.MinFrame, traffic.MaxFrame)
	}
	r := &Run{Argv: arguments(o), out: &tied.Output{}, ended: make(chan error, 1)}
	r.cmd = exec.CommandContext(ctx, r.Argv[0], r.Argv[1:]...)
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.cmd.WaitDelay = time.Second
	in, err := r.cmd.StdinPipe() // it ends with its standard input
	if err != nil {
		return nil, fmt.Errorf("testpmd: %w", err)
	}
	r.stdin = in
	if r.dir, err = os.MkdirTemp(o.Dir, "weir-lab-testpmd-"); err != nil {
		return nil, fmt.Errorf("testpmd: %w", err)
	}
	r.cmd.Env = append(r.cmd.Environ(), "RUNTIME_DIRECTORY="+r.dir, "LC_ALL=C")
	if err := tied.Start(o.Space, r.cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("testpmd at %s: %w", o.Link, err), os.RemoveAll(r.dir))
	}
	go func() { r.ended <- r.cmd.Wait() }()
	return r, nil
}

// arguments of testpmd: memory of its own, one queue, one thread that only sends, no device but the packet socket.
func arguments(o Options) []string {
	mac := make([]string, len(o.DstMAC))
	for i, b := range o.DstMAC {
		mac[i] = fmt.Sprintf("%02x", b)
	}
	return []string{
		program, "--lcores", fmt.Sprintf("0@%d,1@%d", o.Main, o.Send), "--main-lcore", "0", "--no-huge", "-m", "128", "--no-shconf", "--no-pci", "--no-telemetry",
		"--vdev", "net_af_packet0,iface=" + o.Link + ",qdisc_bypass=1", "--",
		"--forward-mode=txonly", "--auto-start", "--nb-cores=1", "--txd=512", "--rxd=512", "--total-num-mbufs=4096", "--no-mlockall", "--no-flush-rx", "--no-lsc-interrupt",
		"--eth-peer=0," + strings.Join(mac, ":"), "--txpkts=" + strconv.Itoa(o.Size-traffic.FCS), fmt.Sprintf("--tx-udp=%d,%d", 7, o.Port),
	}
}

// Ended tells how it ended, if it has.
func (r *Run) Ended() error {
	select {
	case err := <-r.ended:
		r.ended <- err
		return fmt.Errorf("testpmd ended: %w: %s", errors.Join(err, errors.New("before its time")), r.out.Tail())
	default:
		return nil
	}
}

// Stop ends it and gives what it said, with its own counts.
func (r *Run) Stop() (string, error) {
	err := r.stdin.Close()
	select {
	case <-r.ended:
	case <-time.After(5 * time.Second): // it does not end by itself
		err = errors.Join(err, unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL))
		<-r.ended
	}
	return r.out.String(), errors.Join(err, os.RemoveAll(r.dir))
}
